//! NATS with JetStream.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, tools, until};

/// The maximum time for a server's greeting.
const GREETING_MAX: Duration = Duration::from_secs(1);

/// One server, with JetStream.
#[derive(Debug)]
pub struct Nats {
    child: Option<Child>,
    folder: TempDir,
    port: u16,
}

impl Nats {
    /// Starts a server with the default configuration.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with these lines in its configuration.
    pub async fn start_with(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        std::fs::write(folder.path().join("conf"), settings.join("\n")).expect("writable");
        let mut server = Self { child: None, folder, port: free_port() };
        server.restart().await;
        server
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same port and
    /// data.
    pub async fn restart(&mut self) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let binary = program("nats-server", &[tools().join("nats")]);
        let port = self.port.to_string();
        let command = [
            &binary.display().to_string(),
            "--config",
            &path("conf"),
            "--addr",
            "127.0.0.1",
            "--port",
            &port,
            "--jetstream",
            "--store_dir",
            &path("data"),
        ];
        let command = command.map(str::to_owned);
        self.child = Some(Child::start(&command, &self.folder.path().join("log"), None));
        until("NATS starts", async || self.greets()).await;
    }

    /// Returns true if the server greets, with JetStream.
    fn greets(&self) -> bool {
        let Ok(stream) = TcpStream::connect_timeout(&self.address(), GREETING_MAX) else {
            return false;
        };
        let mut greeting = String::new();
        stream.set_read_timeout(Some(GREETING_MAX)).is_ok()
            && BufReader::new(stream).read_line(&mut greeting).is_ok()
            && greeting.contains("\"jetstream\":true")
    }

    /// Ends it as an administrator would.
    pub fn stop(&mut self) {
        if let Some(child) = self.child.take() {
            child.signal("TERM");
        }
    }

    /// Ends it abruptly (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            child.signal("KILL");
        }
    }

    /// Returns the server's process.
    #[must_use]
    pub fn child(&self) -> Option<&Child> {
        self.child.as_ref()
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }
}
