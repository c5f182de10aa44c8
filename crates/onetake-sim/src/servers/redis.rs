//! Redis and Valkey: one server, a server and its replica, or a cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, tools, until};

/// The kind of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Redis.
    Redis,
    /// Valkey, its fork.
    Valkey,
}

impl Flavour {
    fn server(self) -> PathBuf {
        match self {
            Self::Redis => program("redis-server", &[]),
            Self::Valkey => program("valkey-server", &[tools().join("valkey")]),
        }
    }
}

/// One server.
#[derive(Debug)]
pub struct Redis {
    child: Option<Child>,
    folder: TempDir,
    port: u16,
    flavour: Flavour,
    settings: Vec<String>,
}

impl Redis {
    /// Starts a Redis that keeps every write (`appendonly yes`, `appendfsync always`).
    pub async fn start() -> Self {
        Self::start_with(Flavour::Redis, &["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// Starts a server with these arguments.
    pub async fn start_with(flavour: Flavour, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let settings = settings.iter().map(ToString::to_string).collect();
        let mut server = Self { child: None, folder, port: free_port(), flavour, settings };
        server.restart().await;
        server
    }

    /// Starts it again after [`kill`](Self::kill), on the same port and data.
    pub async fn restart(&mut self) {
        let mut command: Vec<String> = vec![
            self.flavour.server().display().to_string(),
            "--port".into(),
            self.port.to_string(),
            "--bind".into(),
            "127.0.0.1".into(),
            "--dir".into(),
            self.folder.path().display().to_string(),
            "--save".into(),
            String::new(),
        ];
        command.extend(self.settings.iter().cloned());
        self.child = Some(Child::start(&command, &self.folder.path().join("log"), None));
        until("Redis starts", async || self.try_cli(&["PING"]).is_some_and(|said| said == "PONG"))
            .await;
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

    /// Returns the folder with all its data, its log included.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Runs a command with redis-cli and returns its output.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.try_cli(arguments).unwrap_or_else(|| panic!("redis-cli {arguments:?} failed"))
    }

    fn try_cli(&self, arguments: &[&str]) -> Option<String> {
        let mut cli = Command::new(program("redis-cli", &[]));
        cli.args(["-p", &self.port.to_string()]).args(arguments);
        let output = cli.output().expect("redis-cli starts");
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(said)
    }
}

/// A cluster of three primaries with a replica each.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts a cluster.
    pub async fn start() -> Self {
        let mut nodes = Vec::new();
        for _ in 0..6 {
            let bus = free_port().to_string();
            let settings = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "2000",
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
            ];
            nodes.push(Redis::start_with(Flavour::Redis, &settings).await);
        }
        let mut create = Command::new(program("redis-cli", &[]));
        create.args(["--cluster", "create"]);
        create.args(nodes.iter().map(|node| node.address().to_string()));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let output = create.output().expect("redis-cli starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "no cluster: {said}");
        let cluster = Self { nodes };
        until("the cluster serves all slots", async || {
            cluster.nodes.iter().all(|node| {
                let info = node.cli(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6")
            })
        })
        .await;
        cluster
    }

    /// Returns its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns its nodes, to be killed and started again.
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }

    /// Returns its URL: three of its nodes; the client finds the others.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<String> =
            self.nodes.iter().take(3).map(|node| node.address().to_string()).collect();
        format!("redis-cluster://{}", nodes.join(","))
    }
}
