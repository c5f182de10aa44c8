//! The speed of mode T operations while the broker of their messages is unreachable.
//!
//! Operations commit an effect, a message and their outcome in PostgreSQL, beside a relay to NATS.
//! NATS runs for a while, is killed for as long, and comes back. The times of the two phases in one
//! run, and their ratio, are the result.
#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use futures_util::FutureExt;
use onetake_core::{
    Clock, Completion, Engine, Fingerprint, Key, Message, Operation, Outbox, Recording, Rng, Scope,
    SystemClock, SystemRng,
};
use onetake_relay::{NatsOptions, NatsSink, Relay, RelayOptions};
use onetake_sim::servers::{Nats, Postgres};
use onetake_stores::postgres::Transactional;
use onetake_stores::{PostgresOptions, PostgresStore};
use tokio_util::sync::CancellationToken;

const CLIENTS: usize = 4;
const PHASE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(500);

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let phase = if is_bench { PHASE } else { PHASE / 120 };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(phase));
}

async fn run(phase: Duration) {
    let (postgres, mut nats) = (Postgres::start().await, Nats::start().await);
    let url = postgres.database();
    let options = PostgresOptions::default();
    PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap();
    let store = Arc::new(PostgresStore::open(&url, PostgresOptions::default()).await.unwrap());
    let database = url.rsplit('/').next().unwrap();
    postgres.sql(database, "CREATE TABLE payments (cents bigint NOT NULL)");

    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let rng: Arc<dyn Rng> = Arc::new(SystemRng);
    let client = async_nats::connect(nats.url()).await.unwrap();
    let config = Config { name: "P".into(), subjects: vec!["paid".into()], ..Config::default() };
    async_nats::jetstream::new(client).create_stream(config).await.unwrap();
    let place = nats.url();
    let sink = NatsSink::connect([place], NatsOptions::default(), Arc::clone(&clock)).await;
    let sink = Arc::new(sink.unwrap());
    let outbox = Arc::clone(&store) as Arc<dyn Outbox>;
    let relay = Relay::with(Arc::clone(&outbox), sink, clock, rng, RelayOptions::default());
    let stop = CancellationToken::new();
    let ended = stop.clone();
    let relaying = tokio::spawn(async move { relay.run(ended).await });

    let transactional = Transactional::new(Engine::new(store), &url, &options).unwrap();
    let there = pay(&transactional, "there", phase).await;
    let before = resident();
    nats.kill();
    let away = pay(&transactional, "away", phase).await;
    let after = resident();
    println!("{CLIENTS} clients, {phase:?} each, milliseconds of one operation");
    for (name, times) in [("NATS there", &there), ("NATS away", &away)] {
        println!(
            "  {name:<11} {:>8} operations  p50 {:>7.2}  p99 {:>7.2}",
            times.len(),
            at(times, 50),
            at(times, 99)
        );
    }
    println!(
        "  ratio of p50 {:.2}, of p99 {:.2}",
        at(&away, 50) / at(&there, 50),
        at(&away, 99) / at(&there, 99)
    );
    let waiting = outbox.counts().await.unwrap().waiting;
    println!(
        "  {waiting} messages wait; memory {before} KiB before the outage, {after} KiB at its end"
    );
    nats.restart().await;
    let began = SystemClock.monotonic();
    // Counting has a cost too, so there is a pause.
    while outbox.counts().await.unwrap().waiting > 0 {
        SystemClock.sleep(LOOK_EVERY).await;
        assert!(SystemClock.monotonic() - began < phase * 10, "the backlog does not drain");
    }
    let drained = SystemClock.monotonic() - began;
    println!("  the backlog drained in {:.1} s; memory {} KiB", drained.as_secs_f64(), resident());
    stop.cancel();
    relaying.await.unwrap();
}

/// The resident memory of this process, with the relay and the clients, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or_default()
}

fn at(times: &[Duration], percent: usize) -> f64 {
    let time = times.get(times.len() * percent / 100).copied().unwrap_or_default();
    time.as_secs_f64() * 1e3
}

/// Returns the duration of each operation, the shortest first.
async fn pay(transactional: &Transactional, name: &'static str, phase: Duration) -> Vec<Duration> {
    let until = SystemClock.monotonic() + phase;
    let clients = (0..CLIENTS).map(|client| {
        let transactional = transactional.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            for number in 0_u64.. {
                let began = SystemClock.monotonic();
                if began >= until {
                    break;
                }
                let key = Key::new(format!("{name}-{client}-{number}")).unwrap();
                let operation = Operation::new(&Scope::new("b"), &key, Fingerprint::of(b"pay"));
                let outcome = transactional.run(operation, move |tx, _| {
                    async move {
                        tx.batch_execute("INSERT INTO payments VALUES (10)").await?;
                        let message = Message::new("paid", format!("client {client}"), "10 cents");
                        let completion = Completion::new(Recording::new("paid"));
                        Ok::<_, tokio_postgres::Error>(completion.with_message(message))
                    }
                    .boxed()
                });
                assert!(outcome.await.unwrap().recording().is_some());
                times.push(SystemClock.monotonic() - began);
            }
            times
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await.unwrap());
    }
    times.sort_unstable();
    times
}
