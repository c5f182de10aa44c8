//! Web frameworks and nginx, each with one handler for `POST /v1/charges`.

use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, tool_folder, until};

/// A server that other people wrote, as it is without further settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// Express, on Node.
    Express,
    /// Flask, on the server of werkzeug.
    Flask,
    /// FastAPI, on uvicorn.
    FastApi,
    /// Django, on its own server.
    Django,
    /// nginx. It answers every method.
    Nginx,
}

impl Framework {
    /// All servers.
    pub const ALL: [Self; 5] =
        [Self::Express, Self::Flask, Self::FastApi, Self::Django, Self::Nginx];
}

/// A server whose handler of `POST /v1/charges` answers `ran`.
#[derive(Debug)]
pub struct FrameworkServer {
    _child: Child,
    _folder: TempDir,
    port: u16,
}

impl FrameworkServer {
    /// Starts a server.
    pub async fn start(framework: Framework) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let port = free_port();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("the folder can be written");
            file.display().to_string()
        };
        let python = |text: &str| {
            let modules = tool_folder("frameworks/python");
            vec![
                "env".to_owned(),
                format!("PYTHONPATH={}", modules.display()),
                program("python3", &[]).display().to_string(),
                write("charges.py", text),
                port.to_string(),
            ]
        };
        let command = match framework {
            Framework::Flask => python(include_str!("frameworks/flask.py")),
            Framework::FastApi => python(include_str!("frameworks/fastapi.py")),
            Framework::Django => python(include_str!("frameworks/django.py")),
            Framework::Express => {
                let modules = tool_folder("frameworks/node").join("node_modules");
                vec![
                    "env".to_owned(),
                    format!("NODE_PATH={}", modules.display()),
                    program("node", &[]).display().to_string(),
                    write("charges.cjs", include_str!("frameworks/express.cjs")),
                    port.to_string(),
                ]
            }
            Framework::Nginx => nginx(include_str!("frameworks/nginx.conf"), folder.path(), port),
        };
        let child = Child::start(&command, &folder.path().join("log"), None);
        until(&format!("{framework:?} starts"), async || {
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

/// Writes a configuration of nginx. Returns the command that starts it.
fn nginx(text: &str, folder: &Path, port: u16) -> Vec<String> {
    let text = text.replace("PORT", &port.to_string());
    let text = text.replace("FOLDER", &folder.display().to_string());
    let file = folder.join("nginx.conf");
    std::fs::write(&file, text).expect("the folder can be written");
    let nginx = program("nginx", &["/usr/sbin".into()]);
    vec![nginx.display().to_string(), "-c".to_owned(), file.display().to_string()]
}
