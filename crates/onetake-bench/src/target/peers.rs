//! Programs of others, from the package registries of Rust and Node. They are built or installed on
//! first use.
//!
//! The middleware packages keep their records in memory: nothing of theirs survives a crash.
//! Restate's log is durable.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use onetake_sim::servers::tools;

use super::{Stage, Target, find, free_address, shown};
use crate::case::Peer;
use crate::load::Answers;

/// The packages, pinned.
const PACKAGES: &[&str] = &[
    "express@4.22.3",
    "express-idempotency@1.0.6",
    "@node-idempotency/core@1.0.11",
    "@node-idempotency/storage-adapter-memory@1.0.2",
    "@restatedev/restate-server@1.7.12",
    "@restatedev/restate-sdk@1.17.2",
];

/// The package with the middleware for axum. A lock file pins it.
const RUST_PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/Cargo.toml");

impl Stage {
    /// Starts a program of others, or returns `None` if Cargo or Node is not installed.
    pub(super) fn peer(&self, peer: Peer) -> io::Result<Option<Target>> {
        let with_node = |start: fn(&Node) -> io::Result<Target>| {
            Node::with_packages()?.as_ref().map(start).transpose()
        };
        match peer {
            Peer::AxumIdempotent => axum_idempotent(),
            Peer::ExpressIdempotency => {
                with_node(|node| node.api("express", include_str!("peer_scripts/express.cjs")))
            }
            Peer::NodeIdempotency => {
                with_node(|node| node.api("node", include_str!("peer_scripts/node.cjs")))
            }
            Peer::Restate => with_node(Node::restate),
        }
    }
}

/// Builds the middleware for axum, unless it is built, and starts it.
fn axum_idempotent() -> io::Result<Option<Target>> {
    let Some(cargo) = std::env::var_os("CARGO").map(PathBuf::from).or_else(|| find("cargo", &[]))
    else {
        return Ok(None);
    };
    let built = tools().join("bench-peers/rust");
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--release", "--locked", "--manifest-path", RUST_PACKAGE]);
    if !command.arg("--target-dir").arg(&built).status()?.success() {
        return Err(io::Error::other("axum-idempotent could not be built"));
    }
    let address = free_address();
    let program = shown(&built.join("release/onetake-bench-peers"));
    let command = [program, address.port().to_string()];
    let (answers, folder) = (Answers::RecordsUnmarked, tempfile::tempdir()?);
    let target = Target::start("axum", address, answers, folder, &command)?;
    Ok(Some(Target { counts_at: Some(address), ..target }))
}

/// Installs the packages, unless they are there. Returns their folder.
fn install(npm: &str) -> io::Result<PathBuf> {
    let folder = tools().join("bench-peers");
    if !folder.join("installed").is_file() {
        std::fs::create_dir_all(&folder)?;
        let mut command = Command::new(npm);
        command.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
        let ended = command.arg(&folder).args(PACKAGES).stdout(Stdio::null()).status()?;
        if !ended.success() {
            return Err(io::Error::other("npm could not install the programs of others"));
        }
        std::fs::write(folder.join("installed"), PACKAGES.join("\n"))?;
    }
    Ok(folder.join("node_modules"))
}

struct Node {
    node: String,
    modules: PathBuf,
}

impl Node {
    /// Returns Node with the packages, or `None` if it is not installed.
    fn with_packages() -> io::Result<Option<Self>> {
        let (Some(node), Some(npm)) = (find("node", &[]), find("npm", &[])) else {
            return Ok(None);
        };
        let modules = install(&shown(&npm))?;
        Ok(Some(Self { node: shown(&node), modules }))
    }

    /// Starts a script that is an API by itself.
    fn api(&self, name: &str, script: &str) -> io::Result<Target> {
        let address = free_address();
        let mut target = self.script(name, script, address, &[address])?;
        target.counts_at = Some(address);
        Ok(target)
    }

    /// Starts a script with these ports.
    fn script(
        &self,
        name: &str,
        script: &str,
        address: SocketAddr,
        ports: &[SocketAddr],
    ) -> io::Result<Target> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("script.cjs");
        std::fs::write(&file, script)?;
        let modules = format!("NODE_PATH={}", shown(&self.modules));
        let mut command = vec!["env".to_owned(), modules, self.node.clone(), shown(&file)];
        command.extend(ports.iter().map(|address| address.port().to_string()));
        Target::start(name, address, Answers::RecordsUnmarked, folder, &command)
    }

    /// Starts Restate's server and a service, and makes them known to each other.
    fn restate(&self) -> io::Result<Target> {
        let (service, counter) = (free_address(), free_address());
        let script = include_str!("peer_scripts/restate.cjs");
        let handlers = self.script("service", script, counter, &[service, counter])?;
        let (folder, ingress) = (tempfile::tempdir()?, free_address());
        let (admin, node) = (free_address(), free_address());
        let command = [
            "env".to_owned(),
            "RUST_LOG=off".to_owned(),
            "RESTATE_LOG_FILTER=off".to_owned(),
            "RESTATE_DISABLE_TELEMETRY=true".to_owned(),
            format!("RESTATE_BASE_DIR={}", shown(folder.path())),
            format!("RESTATE_INGRESS__BIND_ADDRESS={ingress}"),
            format!("RESTATE_ADMIN__BIND_ADDRESS={admin}"),
            format!("RESTATE_BIND_ADDRESS={node}"),
            format!("RESTATE_ADVERTISED_ADDRESS=http://{node}"),
            shown(&self.modules.join("@restatedev/restate-server-linux-x64/bin/restate-server")),
        ];
        let answers = Answers::RecordsUnmarked;
        let mut target = Target::start("restate", ingress, answers, folder, &command)?;
        let registered = crate::usage::wait_until(super::START_TIMEOUT, || {
            register(admin, service).unwrap_or(false)
        });
        if !registered {
            return Err(io::Error::other("Restate did not accept the service"));
        }
        target.path = Some("/payments/charge");
        target.counts_at = Some(counter);
        target.processes.extend(&handlers.processes);
        target.held.push(Box::new(handlers));
        Ok(target)
    }
}

/// Makes a service known to Restate. Returns false if it is not ready yet.
fn register(admin: SocketAddr, service: SocketAddr) -> io::Result<bool> {
    let body = format!("{{\"uri\":\"http://{service}\"}}");
    let length = body.len();
    let mut stream = TcpStream::connect(admin)?;
    write!(
        stream,
        "POST /deployments HTTP/1.1\r\nhost: {admin}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response.starts_with("HTTP/1.1 201"))
}
