//! Proxies that run with a configuration file of a test.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, tools, until};

/// A proxy that other people wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProgram {
    /// Envoy.
    Envoy,
    /// nginx.
    Nginx,
    /// HAProxy.
    HaProxy,
    /// Caddy.
    Caddy,
}

/// A running proxy.
#[derive(Debug)]
pub struct ProxyServer {
    program: ProxyProgram,
    child: Option<Child>,
    folder: TempDir,
    port: u16,
}

impl ProxyServer {
    /// Starts a proxy. `configure` returns its configuration file: it gets the port that the proxy
    /// has to listen on, and a folder for its files.
    pub async fn start(program: ProxyProgram, configure: impl FnOnce(u16, &str) -> String) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let port = free_port();
        let text = configure(port, &folder.path().display().to_string());
        std::fs::write(folder.path().join(program.file()), text).expect("writable");
        let mut server = Self { program, child: None, folder, port };
        server.restart().await;
        server
    }

    /// Starts it again, on the same port.
    pub async fn restart(&mut self) {
        let file = self.folder.path().join(self.program.file()).display().to_string();
        let command = self.program.command(&file, &self.folder.path().display().to_string());
        let child = Child::start(&command, &self.folder.path().join("log"), None);
        until(&format!("{:?} starts", self.program), async || {
            assert!(!child.is_gone(), "{}", self.log());
            std::net::TcpStream::connect(self.address()).is_ok()
        })
        .await;
        self.child = Some(child);
    }

    /// Ends it abruptly (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            child.signal("KILL");
        }
    }

    /// Returns its process.
    #[must_use]
    pub fn child(&self) -> Option<&Child> {
        self.child.as_ref()
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Returns its output.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl ProxyProgram {
    fn file(self) -> &'static str {
        match self {
            Self::Envoy => "envoy.yaml",
            Self::Nginx => "nginx.conf",
            Self::HaProxy => "haproxy.cfg",
            Self::Caddy => "Caddyfile",
        }
    }

    fn command(self, file: &str, folder: &str) -> Vec<String> {
        let sbin = ["/usr/sbin".into()];
        let in_folder =
            format!("daemon off; master_process off; error_log stderr; pid {folder}/nginx.pid;");
        let (program, arguments) = match self {
            Self::Envoy => (
                program("envoy", &[tools().join("envoy")]),
                vec!["-c", file, "--disable-hot-restart", "--concurrency", "2", "-l", "warn"],
            ),
            Self::Nginx => (program("nginx", &sbin), vec!["-c", file, "-g", &in_folder]),
            Self::HaProxy => (program("haproxy", &sbin), vec!["-db", "-f", file]),
            Self::Caddy => {
                (program("caddy", &[]), vec!["run", "--adapter", "caddyfile", "--config", file])
            }
        };
        let arguments = arguments.into_iter().map(str::to_owned);
        std::iter::once(program.display().to_string()).chain(arguments).collect()
    }
}
