//! The cost of the gateway for a request: direct, through the gateway without a key, with a fresh
//! key (two durable writes), and as a replay.
//!
//! Everything runs in one process on loopback, one request at a time per client, so the upstream
//! and the clients use the same cores. The differences are the result, not the numbers.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark may panic")]

use std::time::Duration;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::Client;
use onetake_sim::upstream::Upstream;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CLIENTS: usize = 8;

fn main() {
    // `cargo test --benches` uses other arguments. Then the benchmark only shows that it runs.
    let requests = if std::env::args().any(|arg| arg == "--bench") { 2_000 } else { 20 };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(requests));
}

async fn run(requests: usize) {
    let upstream = Upstream::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        admin_listen: Some("127.0.0.1:0".parse().unwrap()),
        upstream: Some(upstream.url()),
        store: Some(format!("embedded:{}", folder.path().display())),
        ..Overrides::default()
    };
    let config = config::load(None, "flags", std::iter::empty(), overrides);
    let gateway = Gateway::start(config.unwrap_or_else(|error| panic!("{error}"))).await.unwrap();

    println!("{CLIENTS} clients, {requests} requests each, milliseconds");
    let direct = measure("direct", &Client::new(upstream.address()), requests, |_, _| None).await;
    let client = Client::new(gateway.address());
    measure("gateway, no key", &client, requests, |_, _| None).await;
    let fresh = measure("gateway, fresh key", &client, requests, |task, number| {
        Some(format!("benchmark-key-{task}-{number}"))
    });
    let fresh = fresh.await;
    let replay = |_, _| Some("benchmark-key-0-0".to_owned());
    measure("gateway, replay", &client, requests, replay).await;
    println!("  a fresh key adds {:.3} ms at the median", (fresh - direct).as_secs_f64() * 1e3);
    gateway.shutdown(Duration::from_secs(10)).await.unwrap();
}

/// The median of all requests.
async fn measure(
    what: &str,
    client: &Client,
    requests: usize,
    key: impl Fn(usize, usize) -> Option<String> + Clone + Send + 'static,
) -> Duration {
    let tasks = (0..CLIENTS).map(|task| {
        let (client, key) = (client.clone(), key.clone());
        tokio::spawn(async move {
            let mut times = Vec::with_capacity(requests);
            for number in 0..requests {
                let mut call = client.post("/any/charge");
                if let Some(key) = key(task, number) {
                    call = call.header("idempotency-key", &key);
                }
                let from = SystemClock.monotonic();
                assert_eq!(call.send().await.unwrap().status(), 201);
                times.push(SystemClock.monotonic() - from);
            }
            times
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    times.sort_unstable();
    let at = |part: f64| {
        let place = (times.len() as f64 * part) as usize;
        times.get(place).copied().unwrap_or_default()
    };
    let show = |part| at(part).as_secs_f64() * 1e3;
    println!("  {what:<20} p50 {:>7.3}   p99 {:>7.3}", show(0.5), show(0.99));
    at(0.5)
}
