//! Rolling restarts of two gateways on one store, behind a load balancer and under load.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::{Client, ClientError};
use onetake_sim::servers::{BalancedNode, Balancer, BalancerServer, free_port, until};
use onetake_sim::upstream::Upstream;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::migrated_postgres;
use crate::common::process::Process;

/// Number of clients that send requests without a pause.
const CLIENTS: usize = 12;
/// Number of restarts, unless `ONETAKE_ROLLING_RESTARTS` says otherwise.
const RESTARTS: usize = 2;
/// The delay of the nodes: longer than HAProxy takes to notice, and than nginx takes to use up its
/// kept connections.
const DELAY: &str = "2s";

/// A gateway that is stopped and started on the same ports.
struct Node {
    folder: TempDir,
    addresses: BalancedNode,
    store: String,
    upstream: String,
    process: Option<Process>,
}

impl Node {
    async fn start(store: &str, upstream: &str) -> Self {
        let local = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let addresses = BalancedNode { address: local(), admin: local() };
        let (store, upstream) = (store.to_owned(), upstream.to_owned());
        let folder = tempfile::tempdir().unwrap();
        let mut node = Self { folder, addresses, store, upstream, process: None };
        node.run().await;
        node
    }

    async fn run(&mut self) {
        let (address, admin) =
            (self.addresses.address.to_string(), self.addresses.admin.to_string());
        let variables = [
            ("ONETAKE__STORE__URL", &*self.store),
            ("ONETAKE__GATEWAY__LISTEN", &*address),
            ("ONETAKE__ADMIN__LISTEN", &*admin),
            ("ONETAKE__GATEWAY__SHUTDOWN_DELAY", DELAY),
            ("ONETAKE_LOG", "info"),
        ];
        let arguments = ["--log-format", "json"];
        let process =
            Process::start_as(&arguments, self.folder.path(), "", &self.upstream, &variables);
        self.process = Some(process.await);
    }

    /// A counter of this process.
    async fn count(&self, name: &str) -> u64 {
        let metrics = Client::new(self.addresses.admin).post("/metrics").method("GET").body("");
        let metrics = metrics.send().await.unwrap().text();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// The numbers of keys in the store by their state.
    async fn keys(&self) -> BTreeMap<String, u64> {
        let client = Client::new(self.addresses.admin);
        let (mut keys, mut query) = (BTreeMap::new(), String::new());
        loop {
            let call = client.post(&format!("/v1/counts{query}")).method("GET").body("");
            let answer = call.send().await.unwrap();
            assert_eq!(answer.status(), 200, "{}", answer.text());
            let page: Value = serde_json::from_slice(&answer.body).unwrap();
            for state in ["running", "completed", "failed", "released", "unknown", "unreadable"] {
                let count = page.get(state).and_then(Value::as_u64).unwrap();
                *keys.entry(state.to_owned()).or_default() += count;
            }
            match page.get("cursor").and_then(Value::as_str) {
                Some(cursor) => query = format!("?cursor={cursor}"),
                None => return keys,
            }
        }
    }

    /// Stops the process with SIGTERM, starts it again, and waits until it gets requests.
    async fn restart(&mut self) {
        assert_eq!(self.count("onetake_unknown_total").await, 0);
        let mut process = self.process.take().unwrap();
        let status = process.terminate().await;
        let logs = || process.logs.lock().unwrap().clone();
        assert!(status.success(), "{status}: {}", logs());
        // The end of the process may be known before its last lines.
        until("all requests have finished", async || logs().contains("\"drained\"")).await;
        self.run().await;
        until("the node gets requests", async || self.count("onetake_executed_total").await > 20)
            .await;
    }
}

/// The failures of all clients, and the number of their requests.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    failures: Mutex<Vec<String>>,
}

impl Load {
    /// Sends one request after the other. Returns the keys.
    async fn run(&self, server: SocketAddr, number: usize) -> Vec<String> {
        let client = Client::new(server);
        let mut keys = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let key = format!("rolling-restart-{number}-{}", keys.len());
            match send(&client, &key).await {
                Ok(()) => {}
                Err(error) => self.failures.lock().unwrap().push(format!("{key}: {error}")),
            }
            keys.push(key);
        }
        keys
    }
}

/// Sends a request. Like any client, it tries again if the connection is refused.
async fn send(client: &Client, key: &str) -> Result<(), String> {
    loop {
        match client.post("/any/slow?ms=10").key(key).send().await {
            Ok(answer) if answer.status() == 201 => return Ok(()),
            Ok(answer) => return Err(format!("{} {}", answer.status(), answer.text())),
            Err(ClientError::Send(error)) if error.is_connect() => {
                SystemClock.sleep(Duration::from_millis(10)).await;
            }
            Err(error) => return Err(format!("{error:?}")),
        }
    }
}

async fn no_request_fails(balancer: Balancer) {
    let restarts = std::env::var("ONETAKE_ROLLING_RESTARTS").ok();
    let restarts = restarts.map_or(RESTARTS, |count| count.parse().unwrap());
    let upstream = Upstream::start().await.unwrap();
    let store = migrated_postgres().await;
    let mut nodes =
        [Node::start(&store, &upstream.url()).await, Node::start(&store, &upstream.url()).await];
    let addresses = nodes.each_ref().map(|node| node.addresses);
    let server = BalancerServer::start(balancer, &addresses).await;
    let load = Arc::<Load>::default();
    let clients = (0..CLIENTS).map(|number| {
        let (load, server) = (Arc::clone(&load), server.address());
        tokio::spawn(async move { load.run(server, number).await })
    });
    let clients: Vec<_> = clients.collect();
    for number in 0..restarts {
        nodes.get_mut(number % 2).unwrap().restart().await;
    }
    load.is_over.store(true, Ordering::SeqCst);
    let keys: Vec<String> = join_all(clients).await.into_iter().flat_map(Result::unwrap).collect();
    println!("{balancer:?}: {} requests, {restarts} restarts", keys.len());
    let failures = std::mem::take(&mut *load.failures.lock().unwrap());
    assert!(failures.is_empty(), "{failures:#?}\n{}", server.log());
    let repeated = keys.iter().filter(|key| upstream.runs(key) != 1).count();
    assert_eq!(repeated, 0, "every operation ran once");
    for node in &nodes {
        assert_eq!(node.count("onetake_unknown_total").await, 0);
        let mut states = node.keys().await;
        assert_eq!(states.remove("completed"), u64::try_from(keys.len()).ok());
        assert!(states.values().all(|count| *count == 0), "{states:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_behind_nginx() {
    no_request_fails(Balancer::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_behind_haproxy() {
    no_request_fails(Balancer::HaProxy).await;
}
