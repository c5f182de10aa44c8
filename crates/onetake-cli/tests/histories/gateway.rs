//! A gateway as a process, on the same port after every restart.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onetake_conformance::StoreBug;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::Client;
use onetake_sim::history::{Event, Recorder};
use onetake_sim::servers::{Child, free_port, until};

/// The variable that names the configuration of a gateway with a deliberate bug.
pub(crate) const CONFIGURATION: &str = "HISTORIES_GATEWAY";
/// The variable that names the bug.
pub(crate) const BUG: &str = "HISTORIES_BUG";

/// A gateway.
pub(crate) struct Gateway {
    node: usize,
    listen: SocketAddr,
    admin: SocketAddr,
    folder: PathBuf,
    recorder: Arc<Recorder>,
    bug: Option<StoreBug>,
    child: Option<Child>,
}

impl Gateway {
    /// A gateway that is not started yet, with its files in `folder`.
    pub(crate) fn new(node: usize, folder: PathBuf, recorder: Arc<Recorder>) -> Self {
        std::fs::create_dir_all(&folder).unwrap();
        let [listen, admin] =
            [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        Self { node, listen, admin, folder, recorder, bug: None, child: None }
    }

    /// Gives its store a bug.
    pub(crate) fn set_bug(&mut self, bug: Option<StoreBug>) {
        self.bug = bug;
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listen
    }

    /// The address for operators.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Writes the configuration: the part after `[gateway]`, which names the upstream.
    pub(crate) fn configure(&self, upstream: &str, rest: &str) {
        let journal = self.folder.join("journal");
        let rest = rest.replace("JOURNAL", &format!("journal = \"{}\"", journal.display()));
        let text = format!(
            "[gateway]\nlisten = \"{}\"\nupstream = \"{upstream}\"\n[admin]\nlisten = \"{}\"\n{rest}",
            self.listen, self.admin
        );
        std::fs::write(self.folder.join("onetake.toml"), text).unwrap();
    }

    /// Starts the gateway, and waits until it responds.
    pub(crate) async fn start(&mut self) {
        let mut child = self.spawn();
        until("the gateway starts", async || {
            // A gateway whose store does not respond at that moment ends, as documented.
            if child.is_gone() {
                child = self.spawn();
            }
            // A page that the gateway serves itself, without the upstream.
            let page = Client::new(self.listen).post("/.onetake/problems").method("GET").send();
            tokio::select! {
                answer = page => answer.is_ok(),
                () = SystemClock.sleep(Duration::from_millis(500)) => false,
            }
        })
        .await;
        self.child = Some(child);
        self.recorder.record(Event::Ready(self.node));
    }

    fn spawn(&self) -> Child {
        let file = self.folder.join("onetake.toml").display().to_string();
        let variables = ["ONETAKE_LOG=warn", "ONETAKE__GATEWAY__SHUTDOWN_DELAY=0s"];
        let mut command = vec!["env".to_owned()];
        command.extend(variables.map(str::to_owned));
        if let Some(bug) = self.bug {
            let program = std::env::current_exe().unwrap().display().to_string();
            command.extend([format!("{CONFIGURATION}={file}"), format!("{BUG}={bug:?}")]);
            command.extend([
                program,
                "--exact".into(),
                "controls::gateway_with_a_deliberate_bug".into(),
            ]);
            command.push("--nocapture".into());
        } else {
            let words = [env!("CARGO_BIN_EXE_onetake"), "serve", "--drain-seconds", "2"];
            command.extend(words.map(str::to_owned));
            command.extend(["--config".to_owned(), file]);
        }
        Child::start(&command, &self.folder.join("log"), None)
    }

    /// Kills the gateway with SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.recorder.record(Event::Killed(self.node));
        self.end("KILL").await;
    }

    /// Stops the gateway with SIGTERM: it drains, and writes its journal.
    pub(crate) async fn terminate(&mut self) {
        self.recorder.record(Event::Killed(self.node));
        self.end("TERM").await;
    }

    async fn end(&mut self, signal: &str) {
        let Some(child) = self.child.take() else { return };
        assert!(!child.is_gone(), "gateway {} ended by itself:\n{}", self.node, self.log());
        child.signal(signal);
        until("the gateway ends", async || child.is_gone()).await;
        // The child's watcher takes a moment to end.
        tokio::task::spawn_blocking(move || drop(child)).await.unwrap();
    }

    /// Suspends the gateway (SIGSTOP).
    pub(crate) fn suspend(&self) {
        self.recorder.record(Event::Suspended(self.node));
        self.child.as_ref().unwrap().signal("STOP");
    }

    /// Resumes the gateway (SIGCONT).
    pub(crate) fn resume(&self) {
        self.child.as_ref().unwrap().signal("CONT");
        self.recorder.record(Event::Resumed(self.node));
    }

    /// The end of the gateway's log.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.iter().rev().take(20).rev().copied().collect::<Vec<_>>().join("\n")
    }
}
