//! Tests of many nodes on one store, in real time, which a simulated clock cannot replace.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;

use super::bench::REAL_TIME_MAX;
use onetake_core::clock::{Clock, SystemClock};
use onetake_core::engine::{Answer, Engine, Operation, Outcome, Settling, Verdict, WhileRunning};
use onetake_core::fingerprint::Fingerprint;
use onetake_core::key::Key;
use onetake_core::record::{AttemptId, Cause, Fence, OnUnknown, Recording, Terms};
use onetake_core::scope::{RecordId, Scope};
use onetake_core::store::{
    Claim, Claimed, Settled, Settlement, Store, StoreError, StoreErrorKind, Transition,
};

/// A generator of pseudo-random numbers, the same in every run.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn id_of(name: &str) -> RecordId {
    RecordId::derive(&Scope::new("many"), &Key::new(name).unwrap())
}

/// The owners of keys, by the grants.
#[derive(Default)]
struct Owners {
    owned: HashSet<RecordId>,
    fences: HashMap<RecordId, Fence>,
}

impl Owners {
    fn granted(&mut self, id: RecordId, fence: Fence) {
        assert!(self.owned.insert(id), "a key was granted while somebody owned it (S1)");
        let last = self.fences.insert(id, fence);
        assert!(last < Some(fence), "a fence did not rise (S2)");
    }
}

/// Claims and settles random batches of overlapping keys, from many tasks on several nodes, for at
/// least `time` and until `items` were settled, however long that takes on a slow disk.
///
/// No key has two owners, no fence falls, and no call fails. A store may answer that a key is busy,
/// because a disk that stalls lets another commit hold it for long. Then the call is repeated.
pub async fn overlapping_batches(
    nodes: Vec<Arc<dyn Store>>,
    tasks: usize,
    time: Duration,
    items: usize,
) {
    let clock = SystemClock;
    let until = clock.monotonic() + time;
    let given_up_at = until + REAL_TIME_MAX;
    let owners = Arc::new(Mutex::new(Owners::default()));
    let (finished, settled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks = (0..tasks).map(|task| {
        let store = Arc::clone(&nodes[task % nodes.len()]);
        let (owners, finished, settled) =
            (Arc::clone(&owners), Arc::clone(&finished), Arc::clone(&settled));
        tokio::spawn(async move {
            let mut random = Seeded(task as u64);
            while clock.monotonic() < until || settled.load(Ordering::Relaxed) < items {
                let done = settled.load(Ordering::Relaxed);
                assert!(clock.monotonic() < given_up_at, "only {done} items were settled");
                let base = finished.load(Ordering::Relaxed) as u64;
                let claims: Vec<Claim> = (0..=random.below(15))
                    .map(|_| claim(base + random.below(64), &mut random))
                    .collect();
                let answers = store.claim(claims.clone()).await;
                let mut settlements = Vec::new();
                for (claim, answer) in claims.into_iter().zip(answers) {
                    let is_busy = |error: &StoreError| error.kind() == StoreErrorKind::Busy;
                    if answer.as_ref().is_err_and(is_busy) {
                        continue;
                    }
                    if let Claimed::Granted { fence } = answer.expect("a claim failed") {
                        owners.lock().unwrap().granted(claim.id, fence);
                        let transition = match random.below(10) {
                            0 => Transition::Complete(Recording::new("done")),
                            1 | 2 => Transition::Unknown(Cause::TimedOut),
                            _ => Transition::Release,
                        };
                        finished.fetch_add(
                            usize::from(matches!(transition, Transition::Complete(_))),
                            Ordering::Relaxed,
                        );
                        settlements.push(Settlement {
                            id: claim.id,
                            attempt: claim.attempt,
                            transition,
                        });
                    }
                }
                for settlement in &settlements {
                    owners.lock().unwrap().owned.remove(&settlement.id);
                }
                let asked = settlements.len();
                while !settlements.is_empty() {
                    assert!(clock.monotonic() < given_up_at, "a key that somebody owns stays busy");
                    let answers = store.settle(settlements.clone()).await;
                    let mut again = Vec::new();
                    for (settlement, answer) in settlements.into_iter().zip(answers) {
                        match answer {
                            Err(error) if error.kind() == StoreErrorKind::Busy => {
                                again.push(settlement);
                            }
                            answer => {
                                let answer = answer.expect("a settlement failed");
                                assert!(
                                    matches!(answer, Settled::Done { .. }),
                                    "an owner was stale"
                                );
                            }
                        }
                    }
                    settlements = again;
                }
                settled.fetch_add(asked, Ordering::Relaxed);
            }
        })
    });
    for task in join_all(tasks.collect::<Vec<_>>()).await {
        task.expect("no task failed");
    }
}

fn claim(key: u64, random: &mut Seeded) -> Claim {
    let mut attempt = [0; 16];
    attempt.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    Claim {
        id: id_of(&format!("key {key}")),
        attempt: AttemptId::from_bytes(attempt),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms { on_unknown: OnUnknown::Retry, ..Terms::default() },
        origin: onetake_core::Origin::default(),
    }
}

/// The counts of operations under trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TroubleCounts {
    /// Operations whose outcome a caller received.
    pub acknowledged: usize,
    /// The part of them that was acknowledged after the trouble was over.
    pub after: usize,
}

/// Runs charges from many tasks on several nodes, retried as clients do, during `trouble` and for a
/// while after it. No charge runs twice, and every outcome that a caller received is returned to
/// all callers afterwards.
pub async fn charges_under<T>(
    engines: Vec<Engine>,
    terms: Terms,
    tasks: usize,
    trouble: impl Future<Output = T>,
) -> TroubleCounts {
    let ledger = Arc::new(RunCounts::default());
    let over = Arc::new(AtomicBool::new(false));
    let spawned: Vec<_> = (0..tasks)
        .map(|task| {
            let (engines, ledger, over) = (engines.clone(), Arc::clone(&ledger), Arc::clone(&over));
            tokio::spawn(async move {
                let mut random = Seeded(task as u64);
                let mut behind = 0;
                // A few more charges after the trouble: the service recovers by itself.
                for number in 0.. {
                    behind += usize::from(over.load(Ordering::Acquire));
                    if behind > 3 {
                        break;
                    }
                    charge(&engines, &ledger, terms, &mut random, &format!("{task} {number}"))
                        .await;
                }
                behind
            })
        })
        .collect();
    trouble.await;
    let before = ledger.told.lock().unwrap().len();
    over.store(true, Ordering::Release);
    for task in join_all(spawned).await {
        task.expect("no task failed");
    }
    let told = ledger.told.lock().unwrap().clone();
    for (name, runs) in ledger.runs.lock().unwrap().iter() {
        assert_eq!(*runs, 1, "{name} ran {runs} times");
    }
    for (name, body) in &told {
        for engine in &engines {
            let again = answered(engine, name, terms).await;
            let recorded = again.recording().and_then(|recording| recording.body.clone());
            assert_eq!(recorded.as_deref(), Some(body.as_slice()), "{name} was lost: {again:?}");
        }
    }
    TroubleCounts { acknowledged: told.len(), after: told.len().saturating_sub(before) }
}

/// Returns the outcome of a charge. A node without recent traffic may first have to notice that its
/// store is reachable again.
async fn answered(engine: &Engine, name: &str, terms: Terms) -> Outcome {
    let until = SystemClock.monotonic() + REAL_TIME_MAX;
    loop {
        match engine.run(operation(name, terms), never).await {
            Err(error) if error.is_store_down() && SystemClock.monotonic() < until => {
                SystemClock.sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.expect("the store answers"),
        }
    }
}

#[derive(Default)]
struct RunCounts {
    runs: Mutex<HashMap<String, usize>>,
    told: Mutex<HashMap<String, Vec<u8>>>,
}

async fn never(_: onetake_core::engine::Attempt) -> Verdict {
    panic!("what was acknowledged ran again");
}

fn operation(name: &str, terms: Terms) -> Operation {
    Operation {
        id: id_of(name),
        fingerprint: Fingerprint::of(name.as_bytes()),
        earlier: Vec::new(),
        terms,
        origin: onetake_core::Origin::default(),
        in_flight: WhileRunning::Wait(Duration::from_millis(300)),
        run_max: Duration::from_secs(30),
        on_retry: None,
        keeps_untried: false,
        is_taken: false,
    }
}

/// Makes one charge, and retries it on any node until it has an outcome.
async fn charge(
    engines: &[Engine],
    ledger: &Arc<RunCounts>,
    terms: Terms,
    random: &mut Seeded,
    name: &str,
) {
    for _ in 0..2_000 {
        let engine = &engines[random.below(engines.len() as u64) as usize];
        let (runs, own) = (Arc::clone(ledger), name.to_owned());
        let outcome = engine.run(operation(name, terms), async move |_| {
            let mut runs = runs.runs.lock().unwrap();
            let count = runs.entry(own.clone()).or_default();
            *count += 1;
            Verdict::Complete(Recording::new(format!("{own}, run {count}")))
        });
        match outcome.await {
            Ok(
                outcome @ (Outcome::Ran(Settling::Recorded(_))
                | Outcome::Answered(Answer::Replay(_))),
            ) => {
                let Some(recording) = outcome.recording() else {
                    panic!("{name} has no outcome: {outcome:?}");
                };
                let body = recording.body.as_deref().unwrap_or_default().to_vec();
                ledger.told.lock().unwrap().insert(name.to_owned(), body);
                return;
            }
            Ok(Outcome::Answered(Answer::Unknown(_))) => panic!("{name} became unknown"),
            // The store is unreachable, the attempt still runs elsewhere, or its outcome is not
            // durable yet. The client retries.
            _ => engine.clock().sleep(Duration::from_millis(5 + random.below(20))).await,
        }
    }
    panic!("{name} never got an outcome");
}
