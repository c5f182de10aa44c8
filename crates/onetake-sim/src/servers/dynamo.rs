//! A server that speaks DynamoDB's protocol, on this machine.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, tools, until};

/// A DynamoDB server for one test.
#[derive(Debug)]
pub struct Dynamo {
    _child: Child,
    _folder: TempDir,
    port: u16,
    tables: AtomicU32,
}

impl Dynamo {
    /// Starts a server.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let port = free_port();
        let binary = program("dynoxide", &[tools().join("bin")]);
        let command = [
            binary.display().to_string(),
            "serve".into(),
            "--host".into(),
            "127.0.0.1".into(),
            "--port".into(),
            port.to_string(),
        ];
        let child = Child::start(&command, &folder.path().join("log"), None);
        until("DynamoDB starts", async || std::net::TcpStream::connect(loopback(port)).is_ok())
            .await;
        Self { _child: child, _folder: folder, port, tables: AtomicU32::new(0) }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Returns the URL of a table that does not exist yet.
    #[must_use]
    pub fn table(&self) -> String {
        let number = self.tables.fetch_add(1, Ordering::Relaxed);
        self.url_at(self.address(), &format!("onetake_{number}"))
    }

    /// Returns the URL of a table through another address, such as a proxy's.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr, table: &str) -> String {
        format!("dynamodb://eu-central-1/{table}?endpoint=http://{address}")
    }
}
