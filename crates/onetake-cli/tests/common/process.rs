//! The binary as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use onetake_sim::client::Client;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

/// A gateway as a process; killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) logs: Arc<Mutex<String>>,
}

/// The variable of `gateway.shutdown_delay`. Tests do not wait for load balancers that are not there.
const SHUTDOWN_DELAY: &str = "ONETAKE__GATEWAY__SHUTDOWN_DELAY";

impl Process {
    pub(crate) async fn start(folder: &Path, routes: &str, upstream: &str) -> Self {
        Self::start_with(folder, routes, upstream, &[]).await
    }

    /// Like [`Self::start`], with environment variables.
    pub(crate) async fn start_with(
        folder: &Path,
        routes: &str,
        upstream: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let arguments = ["--log-format", "json", "--drain-seconds", "30"];
        Self::start_as(&arguments, folder, routes, upstream, variables).await
    }

    /// Like [`Self::start`], as a process that may open this number of files. Its log has no lines
    /// below `info`, so that a test can send many requests.
    pub(crate) async fn start_under(
        files_max: usize,
        folder: &Path,
        routes: &str,
        upstream: &str,
    ) -> Self {
        Self::start_limited(&format!("ulimit -n {files_max}"), folder, routes, upstream).await
    }

    /// Like [`Self::start_under`], after these commands of the shell.
    pub(crate) async fn start_limited(
        limits: &str,
        folder: &Path,
        routes: &str,
        upstream: &str,
    ) -> Self {
        let limited = format!("set -e; {limits}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.arg("-c").arg(limited).arg(env!("CARGO_BIN_EXE_onetake"));
        command.env("ONETAKE_LOG", "info").env(SHUTDOWN_DELAY, "0s");
        let arguments = ["--log-format", "json", "--drain-seconds", "5"];
        Self::spawn(command, &arguments, folder, routes, upstream).await
    }

    /// Like [`Self::start_with`], with arguments.
    pub(crate) async fn start_as(
        arguments: &[&str],
        folder: &Path,
        routes: &str,
        upstream: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.env("ONETAKE_LOG", "trace").env(SHUTDOWN_DELAY, "0s");
        command.envs(variables.iter().copied());
        Self::spawn(command, arguments, folder, routes, upstream).await
    }

    async fn spawn(
        mut command: Command,
        arguments: &[&str],
        folder: &Path,
        routes: &str,
        upstream: &str,
    ) -> Self {
        // Port zero lets the system choose; the log shows the chosen port.
        let file = folder.join("onetake.toml");
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n{routes}",
            folder.join("data").display()
        );
        std::fs::write(&file, text).unwrap();
        command.arg("serve").arg("--config").arg(&file).args(arguments).current_dir(folder);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        let logs = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut address, mut admin) = (None, None);
        while address.is_none() {
            let line = lines.next_line().await.unwrap().unwrap_or_else(|| {
                panic!("it ended before it was ready: {}", logs.lock().unwrap())
            });
            if line.contains("onetake is ready") {
                address = told(&line, "listen");
                admin = told(&line, "admin");
            }
            logs.lock().unwrap().push_str(&(line + "\n"));
        }
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let (rest, out) = (Arc::clone(&logs), Arc::clone(&logs));
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                rest.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        tokio::spawn(async move {
            while let Ok(Some(line)) = printed.next_line().await {
                out.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let (address, admin) = (address.unwrap(), admin.unwrap());
        Self { child, client: Client::new(address), address, admin, logs }
    }

    /// The value of a metric, with its labels; 0 if it is absent.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.metrics().await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// All metrics, as Prometheus gets them.
    pub(crate) async fn metrics(&self) -> String {
        let call = Client::new(self.admin).post("/metrics").method("GET").body("");
        call.send().await.unwrap().text()
    }

    /// The largest memory that the process ever had, in bytes.
    pub(crate) fn memory_peak(&self) -> usize {
        self.status("VmHWM:")
    }

    /// The memory that the process may write to, in bytes. `ulimit -d` limits it.
    pub(crate) fn data_bytes(&self) -> usize {
        self.status("VmData:")
    }

    fn status(&self, name: &str) -> usize {
        let path = format!("/proc/{}/status", self.child.id().unwrap());
        let status = std::fs::read_to_string(path).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let kibibytes: usize = value.trim().trim_end_matches(" kB").parse().unwrap();
        kibibytes << 10
    }

    /// The number of files and sockets that the process has open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id().unwrap())).unwrap().count()
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) fn signal(&self) {
        let id = i32::try_from(self.child.id().unwrap()).unwrap();
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal();
        self.child.wait().await.unwrap()
    }
}

/// The address in a log line, as text (`listen=…`) or as JSON (`"listen":"…"`).
fn told(line: &str, field: &str) -> Option<SocketAddr> {
    let forms = [format!("{field}="), format!("\"{field}\":\"")];
    let (_, rest) = forms.iter().find_map(|form| line.split_once(form))?;
    rest.split([' ', '"']).next()?.parse().ok()
}
