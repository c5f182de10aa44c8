//! The process of a server.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

/// Starts the server in the background, prints its process id, and ends it when its own input ends.
/// That happens when the test's process is gone, however it ended.
const WATCH: &str = r#"log=$1; shift
"$@" >>"$log" 2>&1 </dev/null &
server=$!
echo $server
cat >/dev/null
kill -CONT $server 2>/dev/null
kill -QUIT $server 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $server 2>/dev/null || break; sleep 0.05; done
kill -KILL $server 2>/dev/null
wait $server
"#;

/// A server's process; it ends when this is dropped.
#[derive(Debug)]
pub struct Child {
    watcher: std::process::Child,
    input: Option<ChildStdin>,
    pid: u32,
}

impl Child {
    /// Starts a program; its output goes to `log`. If `user` is given, it runs as that user.
    pub fn start(command: &[String], log: &Path, user: Option<(u32, u32)>) -> Self {
        let mut watcher = Command::new("sh");
        watcher.arg("-c").arg(WATCH).arg("sh").arg(log).args(command);
        watcher.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        watcher.process_group(0);
        if let Some((user, group)) = user {
            watcher.uid(user).gid(group);
        }
        let mut watcher = watcher.spawn().expect("a shell starts");
        let input = watcher.stdin.take();
        let output = watcher.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("the shell tells the id");
        let pid = line.trim().parse().expect("an id is a number");
        Self { watcher, input, pid }
    }

    /// Returns the server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns true if the server has ended by itself, as far as `/proc` shows.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let told = |process: &str| std::fs::read_to_string(format!("/proc/{process}/stat"));
        match (told("self"), told(&self.pid.to_string())) {
            // A process that has ended stays listed as a zombie until its watcher reads its status.
            (Ok(_), Ok(stat)) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
            (Ok(_), Err(_)) => true,
            (Err(_), _) => false,
        }
    }

    /// Sends the server a signal, such as `KILL`, `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.pid.to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()), "{name} could not be sent");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.take());
        let _gone = self.watcher.wait();
    }
}
