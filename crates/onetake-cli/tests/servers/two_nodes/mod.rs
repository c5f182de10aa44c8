//! Several nodes on one store: which node runs, how soon waiters get the outcome, and outages of
//! the store.
//!
//! Each test is written once, over a [`Shared`] server, and runs on every store that nodes can
//! share.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests may panic, and tell what they measured"
)]

mod counted_engine;
mod shared_servers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use counted_engine::Node;
use futures_util::future::join_all;
use onetake_core::{
    Clock, Fingerprint, Key, Limits, Operation, Outcome, Recording, Scope, SystemClock, Verdict,
    WhileRunning,
};
use onetake_sim::blackbox::Target;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use shared_servers::{OnDynamo, OnPostgres, OnRedisCluster, Shared};
use tokio::sync::Notify;

use crate::common::InProcess;

/// Longer than lease and grace of `/short` together.
const OUTAGE: Duration = Duration::from_millis(4_500);

/// Shorter than a lease or a wait: a response within it was not caused by either of them.
const SOON: Duration = Duration::from_secs(10);

/// How long an outcome may take to appear, in any case.
const OUTCOME_MAX: Duration = Duration::from_secs(60);

/// Two gateways on one store, in front of one upstream.
struct World {
    upstream: Upstream,
    nodes: [InProcess; 2],
    clients: [Client; 2],
}

impl World {
    async fn start(server: &impl Shared) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let configuration = format!(
            r#"
[gateway]
listen = "127.0.0.1:0"
upstream = "{}"
[admin]
listen = "127.0.0.1:0"
[store]
url = "{}"
{}
[[route]]
match = "POST /wait/{{*rest}}"
in_flight = "wait"
wait_timeout = "30s"
[[route]]
match = "POST /short/{{*rest}}"
lease = "2s"
grace = "2s"
[[route]]
match = "POST /open/{{*rest}}"
on_store_down = "fail-open"
"#,
            upstream.url(),
            server.url(),
            server.lines()
        );
        let nodes =
            [InProcess::start(configuration.clone()).await, InProcess::start(configuration).await];
        let clients = [0, 1].map(|node: usize| Client::new(nodes.get(node).unwrap().address()));
        Self { upstream, nodes, clients }
    }

    fn client(&self, number: usize) -> &Client {
        self.clients.get(number % 2).unwrap()
    }

    /// Retries until there is an outcome; there is none while the store is unreachable.
    async fn outcome(&self, node: usize, path: &str, key: &str) -> ClientResponse {
        let abort = SystemClock.monotonic() + OUTCOME_MAX;
        loop {
            let answer = self.client(node).post(path).key(key).send().await.unwrap();
            if answer.status() == 201 {
                return answer;
            }
            assert!(SystemClock.monotonic() < abort, "{key}: {}", answer.text());
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
    }
}

/// 500 requests with one key across both nodes: one run, 500 equal responses.
async fn one_key_across_both_nodes_runs_once(server: impl Shared) {
    let world = World::start(&server).await;
    let key = "one-key-across-both-nodes";
    let calls = (0..500).map(|number| {
        let call = world.client(number).post("/wait/gate").key(key).send();
        tokio::spawn(async move {
            let answer = call.await.unwrap();
            (number % 2, SystemClock.monotonic(), answer)
        })
    });
    let calls: Vec<_> = calls.collect();
    world.upstream.ran(key, 1).await;
    // Most requests wait by now. The exact number does not matter for the result.
    SystemClock.sleep(Duration::from_millis(500)).await;
    world.upstream.open(key);
    let answers: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(world.upstream.runs(key), 1);
    let first: Vec<_> = answers.iter().filter(|(.., answer)| !answer.is_replay()).collect();
    let [(runner, shown_at, first)] = first.as_slice() else { panic!("one ran: {first:?}") };
    for (.., answer) in &answers {
        assert_eq!((answer.status(), &answer.body), (201, &first.body), "{}", answer.text());
    }
    let others = answers.iter().filter(|(node, ..)| node != runner);
    let mut late: Vec<_> = others.map(|(_, at, _)| at.saturating_sub(*shown_at)).collect();
    late.sort();
    let median = late.get(late.len() / 2).copied().unwrap();
    eprintln!(
        "{}: the other node's waiters were answered {median:?} later (median)",
        server.kind()
    );
    assert!(median < SOON, "{median:?}");
}

/// Waiters for another node's attempt get the outcome soon, by one read per turn for any number of
/// waiters.
async fn waiters_are_told_soon_by_few_reads(server: impl Shared) {
    let [running, waiting] = [Node::open(&server).await, Node::open(&server).await];
    let (started, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let run = {
        let (engine, started, finish) =
            (running.engine.clone(), Arc::clone(&started), Arc::clone(&finish));
        tokio::spawn(async move {
            let done = engine.run(operation(), |_| async move {
                started.notify_one();
                finish.notified().await;
                Verdict::Complete(Recording::new("done"))
            });
            assert!(done.await.unwrap().recording().is_some());
            SystemClock.monotonic()
        })
    };
    started.notified().await;
    let from = SystemClock.monotonic();
    let waiters = (0..500).map(|_| {
        let engine = waiting.engine.clone();
        tokio::spawn(async move {
            let told = engine.run(operation(), |_| async { panic!("it ran twice") }).await.unwrap();
            assert!(
                matches!(&told, Outcome::Answered(_)) && told.recording().is_some(),
                "{told:?}"
            );
            SystemClock.monotonic()
        })
    });
    let waiters: Vec<_> = waiters.collect();
    until("the other node looks", async || waiting.reads() > 10).await;
    finish.notify_one();
    let done_at = run.await.unwrap();
    let mut late: Vec<Duration> = Vec::new();
    for waiter in waiters {
        late.push(waiter.await.unwrap().saturating_sub(done_at));
    }
    let took = SystemClock.monotonic() - from;
    late.sort();
    let median = late.get(late.len() / 2).copied().unwrap();
    let reads = waiting.reads();
    eprintln!(
        "{}: told {median:?} after completion (median), {reads} reads in {took:?}",
        server.kind()
    );
    let turns = took.as_millis() / Limits::default().poll_interval.as_millis();
    assert!(reads as u128 <= turns + 2, "{reads} reads in {took:?}");
    // Not too few reads either, although a read may take as long as twenty turns on a slow machine.
    assert!(reads as u128 >= turns / 40, "{reads} reads in {took:?}");
    assert!(median < SOON, "{median:?}");
}

/// The store is unreachable for longer than lease and grace while operations finish.
async fn an_outage_loses_nothing_and_runs_nothing_twice(mut server: impl Shared) {
    let world = World::start(&server).await;
    for outage in 0..server.ways_to_be_away() {
        let keys: Vec<String> = (0..20).map(|n| format!("outage-{outage}-key-{n:04}")).collect();
        let running: Vec<_> = keys
            .iter()
            .map(|key| tokio::spawn(world.client(0).post("/short/gate").key(key).send()))
            .collect();
        for key in &keys {
            world.upstream.ran(key, 1).await;
        }
        server.go_away();
        for key in &keys {
            world.upstream.open(key);
        }
        SystemClock.sleep(OUTAGE).await;
        assert_eq!(ready(&world.nodes[0]).await.status(), 503, "the probe says so");
        let closed = world.client(1).post("/short/charge").key("while-it-is-away-0001").send();
        let closed = closed.await.unwrap();
        assert_eq!(closed.status(), 503, "{}", closed.text());
        assert_eq!(closed.code(), "idempotency_store_unavailable");
        let key = format!("fail-open-while-away-{outage}");
        let open = world.client(1).post("/open/charge").key(&key).send().await.unwrap();
        assert_eq!(open.status(), 201, "fail-open runs: {}", open.text());
        server.come_back();
        for answer in join_all(running).await {
            let answer = answer.unwrap().unwrap();
            let code = answer.code();
            assert!(answer.status() == 201 || code == "outcome_pending", "{}", answer.text());
        }
        for key in &keys {
            let here = world.outcome(0, "/short/gate", key).await;
            let there = world.outcome(1, "/short/gate", key).await;
            assert!(here.is_replay() && there.is_replay() && here.body == there.body, "{key}");
            assert_eq!(world.upstream.runs(key), 1, "{key} ran again");
        }
        until("the probe says that it is back", async || {
            ready(&world.nodes[0]).await.status() == 200
        })
        .await;
    }
}

/// The server is restarted under load.
async fn a_restart_under_load_loses_nothing(mut server: impl Shared) {
    let world = Arc::new(World::start(&server).await);
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let clients = (0..16).map(|client| {
        let (world, stop, answered) =
            (Arc::clone(&world), Arc::clone(&stop), Arc::clone(&answered));
        tokio::spawn(async move {
            let mut done = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                let key = format!("restart-client-{client}-{:06}", done.len());
                let answer = world.outcome(client, "/any/charge", &key).await;
                done.push((key, answer.body));
                answered.fetch_add(1, Ordering::SeqCst);
            }
            done
        })
    });
    let clients: Vec<_> = clients.collect();
    for _ in 0..2 {
        let before = answered.load(Ordering::SeqCst);
        until("there is load", async || answered.load(Ordering::SeqCst) >= before + 60).await;
        server.restart().await;
    }
    // The nodes recover by themselves.
    world.outcome(0, "/any/charge", "after-the-restart-0").await;
    world.outcome(1, "/any/charge", "after-the-restart-1").await;
    stop.store(true, Ordering::SeqCst);
    let done: Vec<_> = join_all(clients).await.into_iter().flat_map(Result::unwrap).collect();
    eprintln!("{}: {} operations around two restarts", server.kind(), done.len());
    for (number, (key, body)) in done.iter().enumerate() {
        // Through the other node than the one that ran it.
        let retry = world.outcome(number + 1, "/any/charge", key).await;
        assert!(retry.is_replay() && retry.body == *body, "{key} was lost");
        assert_eq!(world.upstream.runs(key), 1, "{key} ran again");
    }
}

async fn ready(node: &InProcess) -> ClientResponse {
    let admin: SocketAddr = node.admin();
    Client::new(admin).post("/readyz").method("GET").body("").send().await.unwrap()
}

fn operation() -> Operation {
    let key = Key::new("waited-for-by-many").unwrap();
    Operation::new(&Scope::new("acme"), &key, Fingerprint::of(b"it"))
        .in_flight(WhileRunning::Wait(Duration::from_secs(30)))
}

macro_rules! on_every_store {
    ($($store:ident: $server:ident;)+) => {$(
        mod $store {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn one_key_across_both_nodes_runs_once() {
                super::one_key_across_both_nodes_runs_once($server::start().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn waiters_are_told_soon_by_few_reads() {
                super::waiters_are_told_soon_by_few_reads($server::start().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn an_outage_loses_nothing_and_runs_nothing_twice() {
                super::an_outage_loses_nothing_and_runs_nothing_twice($server::start().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_restart_under_load_loses_nothing() {
                super::a_restart_under_load_loses_nothing($server::start().await).await;
            }
        }
    )+};
}

on_every_store! {
    postgres: OnPostgres;
    redis_cluster: OnRedisCluster;
    dynamodb: OnDynamo;
}
