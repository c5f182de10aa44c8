//! A local server that speaks Stripe's protocol, and Stripe's own SDKs as its clients.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, tool_folder, until};
use crate::client::Client;

/// A replacement for `python3 -m localstripe`, which listens on the whole network, and whose
/// processes on one machine all write to one file. Its answers have ids, as those of Stripe do: the
/// SDKs report how the previous request went, if its answer had an id.
const SERVE: &str = "
import itertools
import sys
from aiohttp import web
from localstripe import resources, server
resources.Store.dump_to_disk = lambda store: None
numbers = itertools.count(1)
async def name(request, response):
    response.headers['Request-Id'] = f'req_{next(numbers)}'
server.app.on_response_prepare.append(name)
web.run_app(server.app, host='127.0.0.1', port=int(sys.argv[1]))
";

/// A local Stripe. It ignores idempotency keys: a request that is sent twice is carried out twice.
#[derive(Debug)]
pub struct LocalStripe {
    _child: Child,
    _folder: TempDir,
    port: u16,
}

impl LocalStripe {
    /// The credential for requests. Any that begins with `sk_` would work.
    pub const SECRET_KEY: &str = "sk_test_onetake";

    /// Starts a server.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let port = free_port();
        let command = [
            "env".into(),
            format!("PYTHONPATH={}", tool_folder("stripe/python").display()),
            program("python3", &[]).display().to_string(),
            "-c".into(),
            SERVE.into(),
            port.to_string(),
        ];
        let child = Child::start(&command, &folder.path().join("log"), None);
        until("localstripe starts", async || std::net::TcpStream::connect(loopback(port)).is_ok())
            .await;
        Self { _child: child, _folder: folder, port }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Returns the ids of its customers (at most ten).
    pub async fn customers(&self) -> Vec<String> {
        let list = Client::new(self.address()).post("/v1/customers").method("GET").body("");
        let credential = format!("Bearer {}", Self::SECRET_KEY);
        let list = list.without("authorization").header("authorization", &credential);
        let answer = list.send().await.expect("localstripe answers");
        let found: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let customers = found.get("data").and_then(|data| data.as_array());
        let customers = customers.unwrap_or_else(|| panic!("no list: {}", answer.text()));
        let id = |customer: &serde_json::Value| customer.get("id")?.as_str().map(str::to_owned);
        customers.iter().filter_map(id).collect()
    }
}

/// An SDK that Stripe publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeSdk {
    /// `stripe` of the Python index.
    Python,
    /// `stripe` of npm.
    Node,
}

impl StripeSdk {
    /// Returns a command that runs a script which may load the SDK.
    #[must_use]
    pub fn command(self, script: &Path) -> Command {
        let (interpreter, variable, modules) = match self {
            Self::Python => ("python3", "PYTHONPATH", tool_folder("stripe/python")),
            Self::Node => ("node", "NODE_PATH", tool_folder("stripe/node").join("node_modules")),
        };
        let mut command = Command::new(program(interpreter, &[]));
        // A proxy of the machine must not be used for local servers.
        command.arg(script).env(variable, modules).env("NO_PROXY", "127.0.0.1");
        command
    }
}
