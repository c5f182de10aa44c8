//! The differential test: random steps on every store, each answer compared with `decide`.
//!
//! `cargo xtask differential` runs the long form. `ONETAKE_STEPS` sets the number of steps on each
//! store, `ONETAKE_SEED` the seed. A difference is reported with its seed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod changes;
mod subjects;

use onetake_conformance::Subject;
use onetake_conformance::differential::{Differences, Leases, Sweeps, play};
use onetake_core::{
    AttemptId, Claim, Claimed, Fingerprint, Origin, RecordId, Settlement, Terms, Transition,
};
use onetake_sim::servers::{Dynamo, Postgres, Redis};

/// The number of steps on each store in the short form.
const SHORT: usize = 3_000;
/// The number of steps after which the long form goes on with a new store and the next seed.
const GAME: usize = 10_000;

/// A store in the process of its owners, or one that only one process opens.
const IN_PROCESS: Differences =
    Differences { leases: Leases::ByClock, sweeps: Sweeps::All, due_tries: 1, reopens: false };
const SQLITE: Differences = Differences {
    leases: Leases::ByClockAndContact,
    sweeps: Sweeps::All,
    due_tries: 1,
    reopens: true,
};
/// The watch covers the claims of a few minutes at a time.
const POSTGRES: Differences = Differences {
    leases: Leases::ByClockAndContact,
    sweeps: Sweeps::Some,
    due_tries: 50,
    reopens: true,
};
const REDIS: Differences = Differences {
    leases: Leases::ByClockAndContact,
    sweeps: Sweeps::Nothing,
    due_tries: 1,
    reopens: true,
};
const DYNAMODB: Differences = Differences {
    leases: Leases::ByWatching,
    sweeps: Sweeps::Nothing,
    due_tries: 1,
    reopens: true,
};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Runs games until there were enough steps.
async fn agrees<S: Subject>(differences: Differences, fresh: impl AsyncFn() -> S) {
    let steps = number("ONETAKE_STEPS").map_or(SHORT, |steps| usize::try_from(steps).unwrap());
    let mut seed = number("ONETAKE_SEED").unwrap_or(1);
    let mut left = steps;
    while left > 0 {
        let subject = fresh().await;
        match play(&subject, differences, seed, left.min(GAME)).await {
            Ok(played) => {
                println!("seed {seed}: {played:?}");
                left = left.saturating_sub(played.steps);
            }
            Err(difference) => panic!("{difference}"),
        }
        seed += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    agrees(IN_PROCESS, async || subjects::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    agrees(IN_PROCESS, async || subjects::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    agrees(SQLITE, async || subjects::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let server = Postgres::shared().await;
    agrees(POSTGRES, async || subjects::postgres(server).await).await;
}

/// A regression test for seed 5: a claim is sent again at the microsecond of the first one, while
/// the floor of fences is as high as the clock, beside a key that is inserted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_sent_again_keeps_its_fence_although_the_floor_is_as_high() {
    let server = Postgres::shared().await;
    let subject = subjects::postgres(server).await;
    let store = subject.store();
    let claim = |number: u8| Claim {
        id: RecordId::from_bytes([number; 16]),
        attempt: AttemptId::from_bytes([number; 16]),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: Origin::default(),
    };
    let granted = store.claim(vec![claim(1), claim(2)]).await;
    let Ok(Claimed::Granted { fence }) = &granted[0] else { panic!("{granted:?}") };
    for transition in [Transition::Release, Transition::Forget] {
        let Claim { id, attempt, .. } = claim(2);
        store.settle(vec![Settlement { id, attempt, transition }]).await.remove(0).unwrap();
    }
    assert_eq!(store.sweep(10).await.unwrap().removed, 1);
    let again = store.claim(vec![claim(1), claim(3)]).await;
    let Ok(Claimed::Granted { fence: of_second }) = &again[0] else { panic!("{again:?}") };
    let Ok(Claimed::Granted { fence: of_other }) = &again[1] else { panic!("{again:?}") };
    assert_eq!(of_second, fence);
    assert!(of_other > fence, "the floor counts for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let server = Redis::start().await;
    agrees(REDIS, async || subjects::redis(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb() {
    let server = Dynamo::start().await;
    agrees(DYNAMODB, async || subjects::dynamodb(&server).await).await;
}
