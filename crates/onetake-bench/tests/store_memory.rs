//! The memory of the embedded store stays near its bound while much more is written and read.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::alloc::System;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use onetake_core::{
    AttemptId, Claim, Claimed, Fingerprint, Key, Origin, RecordId, Recording, Rng, Scope, Settled,
    Settlement, Store, SystemClock, SystemRng, Terms, Transition,
};
use onetake_stores::embedded::{EmbeddedOptions, EmbeddedStore};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The memory of the store: the least that can be set.
const MEMORY_BYTES: usize = EmbeddedOptions::MEMORY_BYTES_MIN;
/// The most memory that the process allocates while the store is used. A quarter on top is allowed
/// to the store. Counted in November 2026: 9 to 13 MB, and 71 MB without a bound.
const ALLOCATED_BYTES_MAX: usize = 20 << 20;

/// Outcomes: 60 MB of them.
const OUTCOMES: usize = 30_000;
const OUTCOME_BYTES: usize = 2_000;
/// The number of keys that are written at once.
const BATCH: usize = 200;

/// One test, because the allocator counts for the whole process.
#[tokio::test]
async fn the_embedded_store_holds_its_memory_bound() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::new(ALLOCATOR);
    let mut most = 0;
    let mut look = || {
        let change = region.change();
        let now = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        most = most.max(now);
        now
    };
    let store = open(folder.path());
    for first in (0..OUTCOMES).step_by(BATCH) {
        write(&store, first..first + BATCH).await;
        look();
    }
    println!("after {OUTCOMES} outcomes: {} bytes", look());
    // Every block of the files is read.
    for first in (0..OUTCOMES).step_by(BATCH) {
        let ids = (first..first + BATCH).map(id).collect();
        for record in store.load(ids).await {
            assert!(record.unwrap().is_some());
        }
        look();
    }
    println!("after reading them: {} bytes", look());
    store.close().await.unwrap();
    println!("at most {most} bytes");
    assert!(most <= ALLOCATED_BYTES_MAX, "{most} bytes for a store of {MEMORY_BYTES} bytes");
}

fn open(folder: &Path) -> EmbeddedStore {
    let options = EmbeddedOptions { memory_bytes: MEMORY_BYTES };
    EmbeddedStore::open_as(folder.join("store"), options, Arc::new(SystemClock)).unwrap()
}

fn id(number: usize) -> RecordId {
    RecordId::derive(&Scope::new("memory"), &Key::new(format!("key-{number}")).unwrap())
}

/// Claims keys and completes them.
async fn write(store: &EmbeddedStore, numbers: std::ops::Range<usize>) {
    let claim = |number| Claim {
        id: id(number),
        attempt: AttemptId::random(&SystemRng),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: Origin::default(),
    };
    let claims: Vec<Claim> = numbers.map(claim).collect();
    let complete = |claim: &Claim| Settlement {
        id: claim.id,
        attempt: claim.attempt,
        transition: Transition::Complete(Recording::new(outcome())),
    };
    let settlements = claims.iter().map(complete).collect();
    for claimed in store.claim(claims).await {
        assert!(matches!(claimed.unwrap(), Claimed::Granted { .. }));
    }
    for settled in store.settle(settlements).await {
        assert!(matches!(settled.unwrap(), Settled::Done { .. }));
    }
}

/// Returns bytes that cannot be compressed.
fn outcome() -> Bytes {
    let mut bytes = vec![0; OUTCOME_BYTES];
    SystemRng.fill(&mut bytes);
    bytes.into()
}
