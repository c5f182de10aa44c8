//! The differential test: random steps on every store, each answer compared with `decide`.
//!
//! `cargo xtask differential` plays the long form. `ONETAKE_STEPS` says how many steps there are on each
//! store, `ONETAKE_SEED` which: a difference tells its seed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod changes;
mod subjects;

use onetake_conformance::Subject;
use onetake_conformance::differential::{Differences, Leases, Sweeps, play};
use onetake_sim::servers::{Dynamo, Postgres, Redis};

/// Steps on each store in the short form.
const SHORT: usize = 3_000;
/// Steps after which a long form goes on with a fresh store and the next seed.
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
/// The watch goes through the claims of a few minutes at a time.
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

/// Plays games until there were enough steps.
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
    let server = Postgres::start().await;
    agrees(POSTGRES, async || subjects::postgres(&server).await).await;
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
