//! Idempotency middleware that other people wrote, in front of a small payment API.

use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, tool_folder, until};

/// Idempotency middleware from a package registry, with its default settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `asgi-idempotency-header` of PyPI, on Starlette.
    AsgiIdempotencyHeader,
    /// `express-idempotency` of npm, on Express.
    ExpressIdempotency,
}

/// A payment API behind the middleware. `POST /charges` and `POST /refunds` run an operation that
/// takes 200 ms, and fail if the JSON body has a true member `fail`. `GET /charges` counts
/// operations.
#[derive(Debug)]
pub struct PeerServer {
    _child: Child,
    _folder: TempDir,
    port: u16,
}

impl PeerServer {
    /// Starts a server.
    pub async fn start(peer: Peer) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let port = free_port();
        let (variable, modules, interpreter, name, text) = match peer {
            Peer::AsgiIdempotencyHeader => (
                "PYTHONPATH",
                ["peers/python", "frameworks/python"].map(tool_folder),
                "python3",
                "charges.py",
                include_str!("peers/asgi_idempotency_header.py"),
            ),
            Peer::ExpressIdempotency => (
                "NODE_PATH",
                ["peers/node", "frameworks/node"]
                    .map(|name| tool_folder(name).join("node_modules")),
                "node",
                "charges.cjs",
                include_str!("peers/express_idempotency.cjs"),
            ),
        };
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("the folder can be written");
        let shown = |path: &Path| path.display().to_string();
        let modules = modules.map(|folder| shown(&folder)).join(":");
        let command = vec![
            "env".to_owned(),
            format!("{variable}={modules}"),
            shown(&program(interpreter, &[])),
            shown(&file),
            port.to_string(),
        ];
        let child = Child::start(&command, &folder.path().join("log"), None);
        until(&format!("{peer:?} starts"), async || {
            std::net::TcpStream::connect(loopback(port)).is_ok()
        })
        .await;
        Self { _child: child, _folder: folder, port }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }
}
