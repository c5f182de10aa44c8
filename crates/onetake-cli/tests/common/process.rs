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

    /// Like [`Self::start_with`], with arguments.
    pub(crate) async fn start_as(
        arguments: &[&str],
        folder: &Path,
        routes: &str,
        upstream: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        // Port zero lets the system choose; the log shows the chosen port.
        let file = folder.join("onetake.toml");
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n{routes}",
            folder.join("data").display()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.arg("serve").arg("--config").arg(&file).args(arguments).current_dir(folder);
        // Tests do not wait for load balancers that are not there.
        command.env("ONETAKE__GATEWAY__SHUTDOWN_DELAY", "0s");
        command.env("ONETAKE_LOG", "trace").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(variables.iter().copied());
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
