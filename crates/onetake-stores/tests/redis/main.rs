//! Tests of the Redis store, on real servers that each test starts for itself.
#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

mod cluster;
mod conformance;
mod doctor;
mod operators;
mod outages;
mod records;
mod replicas;
mod tls;
mod velocity_limits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onetake_core::{
    AttemptId, Claim, Claimed, Fingerprint, Key, Record, RecordId, Recording, Scope, Settled,
    Settlement, Store, StoreError, StoreErrorKind, SystemRng, Terms, Transition,
};
use onetake_sim::servers::{Redis, until};
use onetake_stores::{RedisOptions, RedisStore};

/// A unique prefix.
fn prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A store on the real clock.
async fn open(url: &str) -> RedisStore {
    let options = RedisOptions { prefix: prefix(), ..RedisOptions::default() };
    RedisStore::open(url, options).await.unwrap()
}

fn id(key: &str) -> RecordId {
    RecordId::derive(&Scope::new("test"), &Key::new(key).unwrap())
}

fn claim_of(key: &str) -> Claim {
    Claim {
        id: id(key),
        attempt: AttemptId::random(&SystemRng),
        fingerprint: Fingerprint::of(b"pay 10"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

fn settlement(claim: &Claim, transition: Transition) -> Settlement {
    Settlement { id: claim.id, attempt: claim.attempt, transition }
}

fn outcome() -> Transition {
    Transition::Complete(Recording::new("paid"))
}

async fn claim(store: &dyn Store, claim: &Claim) -> Result<Claimed, StoreError> {
    store.claim(vec![claim.clone()]).await.remove(0)
}

async fn granted(store: &dyn Store, key: &str) -> Claim {
    let this = claim_of(key);
    match claim(store, &this).await.unwrap() {
        Claimed::Granted { .. } => this,
        Claimed::Found { record, .. } => panic!("{key} is {}", record.state.name()),
    }
}

async fn settle(
    store: &dyn Store,
    claim: &Claim,
    transition: Transition,
) -> Result<Settled, StoreError> {
    store.settle(vec![settlement(claim, transition)]).await.remove(0)
}

async fn done(store: &dyn Store, claim: &Claim, transition: Transition) -> Arc<Record> {
    match settle(store, claim, transition).await.unwrap() {
        Settled::Done { record, .. } => record,
        Settled::Stale { .. } => panic!("stale"),
    }
}

async fn load(store: &dyn Store, key: &str) -> Result<Option<Arc<Record>>, StoreError> {
    store.load(vec![id(key)]).await.remove(0)
}

/// Waits in real time for a server.
async fn pause(millis: u64) {
    use onetake_core::Clock;
    onetake_core::SystemClock.sleep(Duration::from_millis(millis)).await;
}

/// Claims until the store answers. Returns true if this task owns the key. After a lost answer, a
/// record with this attempt's id means success, as in the engine.
async fn owns(store: &dyn Store, this: &Claim) -> bool {
    let mut may_have_landed = false;
    loop {
        match claim(store, this).await {
            Ok(Claimed::Granted { .. }) => return true,
            Ok(Claimed::Found { record, .. }) => {
                let own = record.attempt == this.attempt;
                assert!(!own || may_have_landed, "the store was sure that nothing was written");
                return own;
            }
            Err(error) => {
                may_have_landed |= error.kind() == StoreErrorKind::Indeterminate;
                pause(5).await;
            }
        }
    }
}

/// Many tasks on two nodes that want the same keys. Each key must be owned once, by the attempt
/// that the store names.
struct Race {
    stores: Vec<Arc<RedisStore>>,
    /// Checks the result, with a longer timeout.
    looking: RedisStore,
    /// The number of claims that were answered.
    answered: Arc<AtomicU64>,
}

impl Race {
    async fn on(url: &str) -> Self {
        let prefix = prefix();
        let mut stores = Vec::new();
        for _ in 0..2 {
            let options = RedisOptions {
                prefix: prefix.clone(),
                command_timeout: Duration::from_millis(500),
                ..RedisOptions::default()
            };
            stores.push(Arc::new(RedisStore::open(url, options).await.unwrap()));
        }
        let options = RedisOptions { prefix, ..RedisOptions::default() };
        let looking = RedisStore::open(url, options).await.unwrap();
        Self { stores, looking, answered: Arc::default() }
    }

    /// Waits until this many more claims were answered, so that the earlier fault is over.
    async fn goes_on(&self, claims: u64) {
        let from = self.answered.load(Ordering::Relaxed);
        until("claims are answered", async || {
            self.answered.load(Ordering::Relaxed) >= from + claims
        })
        .await;
    }

    /// Runs while `trouble` happens, and checks the result.
    async fn run(&self, trouble: impl Future<Output = ()>) {
        let over = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..8_usize)
            .map(|task| {
                let store = Arc::clone(&self.stores[task % 2]);
                let (over, answered) = (Arc::clone(&over), Arc::clone(&self.answered));
                tokio::spawn(async move {
                    let mut owned = Vec::new();
                    for key in 0.. {
                        if over.load(Ordering::Acquire) {
                            break;
                        }
                        let this = claim_of(&format!("key {key}"));
                        owned.push(owns(&*store, &this).await.then_some(this.attempt));
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    owned
                })
            })
            .collect();
        trouble.await;
        over.store(true, Ordering::Release);
        let mut owners = Vec::<Vec<AttemptId>>::new();
        for task in tasks {
            for (key, owner) in task.await.unwrap().into_iter().enumerate() {
                owners.resize_with(owners.len().max(key + 1), Vec::new);
                owners[key].extend(owner);
            }
        }
        for (key, owners) in owners.into_iter().enumerate() {
            let mut record = None;
            until("the store answers", async || {
                let loaded = load(&self.looking, &format!("key {key}")).await;
                let is_answer = loaded.is_ok();
                record = loaded.ok().flatten();
                is_answer
            })
            .await;
            let record = record.unwrap();
            assert_eq!(
                owners,
                [record.attempt],
                "key {key} is owned once, by whom the store names"
            );
        }
    }
}

/// The keys of records on a server.
fn records(server: &Redis) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let is_record =
        |key: &&str| ![":leases", ":fence", ":ref:"].iter().any(|other| key.contains(other));
    keys.lines().filter(is_record).map(str::to_owned).collect()
}
