//! Tests of the Redis filter: the suite that every store passes, on a Redis in any condition, and
//! tests of its own properties: who answers, which entries are accepted, repairs, and the cost of a
//! bad Redis.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

mod accepted_entries;
mod conformance;
mod counted_authority;
mod failing_redis;
mod forget;
mod lying_redis;
#[cfg(feature = "postgres")]
mod postgres;
mod repair;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Fingerprint, Key, Record, RecordId, Recording, Rng, Scope,
    Settled, Settlement, State, Store, SystemClock, SystemRng, Terms, Transition,
};
use onetake_sim::servers::{Flavour, Redis, until};
use onetake_stores::{FilterOptions, FilteredStore};

const SECRET: &[u8] = b"a secret that all nodes have";

/// A Redis as filters use it, without persistence.
async fn redis() -> Redis {
    Redis::start_with(Flavour::Redis, &[]).await
}

/// Options without comparisons in the background, and with a timeout that a busy machine does not
/// reach.
fn patient() -> FilterOptions {
    FilterOptions {
        command_timeout: Duration::from_secs(20),
        check_every: 0,
        ..FilterOptions::default()
    }
}

async fn filtered(url: &str, authority: Arc<dyn Store>, options: FilterOptions) -> FilteredStore {
    FilteredStore::open(url, SECRET, authority, options).await.unwrap()
}

fn id(key: &str) -> RecordId {
    RecordId::derive(&Scope::new("tenant"), &Key::new(key).unwrap())
}

/// The Redis key of an entry.
fn place(key: &str) -> String {
    let hex: Vec<String> = id(key).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("onetake:f:{}", hex.concat())
}

fn claim_of(key: &str, payload: &str) -> Claim {
    Claim {
        id: id(key),
        attempt: AttemptId::random(&SystemRng),
        fingerprint: Fingerprint::of(payload.as_bytes()),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

async fn claim(store: &dyn Store, claim: &Claim) -> Claimed {
    store.claim(vec![claim.clone()]).await.remove(0).unwrap()
}

/// Claims a key that must have this outcome.
async fn found(store: &dyn Store, asked: &Claim) -> Arc<Record> {
    match claim(store, asked).await {
        Claimed::Found { record, .. } => record,
        Claimed::Granted { .. } => panic!("it runs, although there is a record"),
    }
}

/// Claims, completes and returns the claim.
async fn completed(store: &dyn Store, key: &str, body: &str) -> Claim {
    let asked = claim_of(key, "pay");
    assert!(matches!(claim(store, &asked).await, Claimed::Granted { .. }));
    settled(store, &asked, Transition::Complete(Recording::new(body.to_owned()))).await;
    asked
}

async fn settled(store: &dyn Store, claim: &Claim, transition: Transition) -> Arc<Record> {
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    match store.settle(vec![settlement]).await.remove(0).unwrap() {
        Settled::Done { record, .. } => record,
        Settled::Stale { current } => panic!("stale: {current:?}"),
    }
}

fn body(record: &Record) -> &[u8] {
    match &record.state {
        State::Completed { recording, .. } => recording.body.as_deref().unwrap(),
        other => panic!("not completed: {}", other.name()),
    }
}

/// Waits until the filter has an entry for the key. A background task writes it.
async fn written(redis: &Redis, key: &str) {
    until("the entry is written", async || redis.cli(&["EXISTS", &place(key)]) == "1").await;
}

/// Many tasks on a few stores claim the same keys in random batches, run what they are granted and
/// retry until they get the outcome. Each key must run once, and all tasks must get the same
/// outcome.
async fn one_run_each(stores: &[Arc<dyn Store>], name: &str, keys: usize, rounds: usize) {
    let runs: Arc<Vec<AtomicUsize>> = Arc::new((0..keys).map(|_| AtomicUsize::new(0)).collect());
    let tasks = (0..8_usize).map(|task| {
        let (store, runs) = (Arc::clone(&stores[task % stores.len()]), Arc::clone(&runs));
        let name = name.to_owned();
        tokio::spawn(async move {
            for _ in 0..rounds {
                let mut picks = [0; 4];
                SystemRng.fill(&mut picks);
                let picks = picks.map(|pick| usize::from(pick) % keys);
                look_and_run(&*store, &name, &picks, &runs).await;
            }
            // At the end, every task reads every key.
            for key in 0..keys {
                look_and_run(&*store, &name, &[key], &runs).await;
            }
        })
    });
    for task in join_all(tasks.collect::<Vec<_>>()).await {
        task.unwrap();
    }
    for (key, runs) in runs.iter().enumerate() {
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{name}-{key} ran that often");
    }
}

async fn look_and_run(store: &dyn Store, name: &str, keys: &[usize], runs: &[AtomicUsize]) {
    let mut open: Vec<usize> = keys.to_vec();
    while !open.is_empty() {
        let batch: Vec<Claim> =
            open.iter().map(|key| claim_of(&format!("{name}-{key}"), "pay")).collect();
        let answers = store.claim(batch.clone()).await;
        let mut still_open = Vec::new();
        for ((key, asked), answer) in open.iter().zip(&batch).zip(answers) {
            match answer.unwrap() {
                Claimed::Granted { .. } => {
                    let run = runs[*key].fetch_add(1, Ordering::SeqCst);
                    let outcome = Recording::new(format!("{name}-{key} run {run}"));
                    settled(store, asked, Transition::Complete(outcome)).await;
                }
                Claimed::Found { record, .. } => match &record.state {
                    State::Completed { .. } => {
                        assert_eq!(body(&record), format!("{name}-{key} run 0").as_bytes());
                    }
                    State::Running { .. } => still_open.push(*key),
                    other => panic!("{name}-{key} is {}", other.name()),
                },
            }
        }
        open = still_open;
        if !open.is_empty() {
            SystemClock.sleep(Duration::from_millis(1)).await;
        }
    }
}
