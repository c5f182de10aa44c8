//! The differential test: random steps on a store, with every answer compared with [`decide`].
//!
//! A store that restates [`decide`] in SQL or in a script can differ from it in a situation that no
//! case of the suite covers. So [`play`] sends a random sequence of claims, settlements, reads,
//! sweeps and operators' actions to the store. It moves the clock to the exact microseconds at
//! which something ends, and sometimes opens the store again, as another node would. A reference
//! beside it decides the same steps by `decide`. The first answer that differs ends the game.
//!
//! The steps come from a seed, and not from proptest: a game of many thousand steps on a server
//! cannot be played again for each smaller version of it, so the seed and the last steps before the
//! difference replace shrinking.
//!
//! The subject's clock must show exactly the store's time.
//!
//! [`decide`]: onetake_core::decide

mod reference;
mod steps;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::record::Record;
use onetake_core::store::{Answers, Claimed, Due, DueAttempt, Settled, Store, StoreError};

use super::Subject;
use super::bench::REAL_TIME_MAX;
use reference::Reference;
use steps::{Step, Steps};

/// The number of last steps in the report of a difference.
const TOLD_MAX: usize = 40;

/// The maximum number of sweeps until no more records are due.
const SWEEPS_MAX: usize = 100;

/// The differences that a store may have from the reference.
#[derive(Clone, Copy, Debug)]
pub struct Differences {
    /// The way in which the store decides that a lease is over.
    pub leases: Leases,
    /// The records that a sweep deletes.
    pub sweeps: Sweeps,
    /// The maximum number of calls of [`Store::due`] until the store has returned all due attempts.
    pub due_tries: usize,
    /// True if the subject can be opened again without changing its data.
    pub reopens: bool,
}

/// The way in which a store decides that a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// The store's clock decides. The store is always in contact with owners.
    ByClock,
    /// The store's clock decides, and the time for which the store has been open: an owner gets its
    /// whole grace again.
    ByClockAndContact,
    /// The time decides for which the store has seen a record unchanged since it was opened.
    ByWatching,
}

/// The records that a sweep deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweeps {
    /// All expired records.
    All,
    /// Some of the expired records, and the others later.
    Some,
    /// None: the server deletes them by itself.
    Nothing,
}

/// The first answer in which a store differs from the reference.
#[derive(Clone, Debug)]
pub struct Difference {
    seed: u64,
    step: usize,
    what: String,
    last: VecDeque<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, what, last } = self;
        writeln!(f, "seed {seed}, step {step}: {what}\nthe steps before:")?;
        last.iter().try_for_each(|step| writeln!(f, "    {step}"))
    }
}

/// The counts of a game.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    /// The number of items: claims, settlements, reads and others.
    pub steps: usize,
    /// Claims that were granted.
    pub granted: usize,
    /// Settlements that were done.
    pub done: usize,
    /// Attempts that were due.
    pub due: usize,
    /// Records that were swept.
    pub swept: usize,
    /// The number of times that the store was opened again.
    pub opened: usize,
}

/// Plays at least `steps` random steps on a fresh, empty store, and compares each answer.
///
/// # Errors
/// The first difference.
///
/// # Panics
/// If the store cannot be closed.
pub async fn play(
    subject: &dyn Subject,
    differences: Differences,
    seed: u64,
    steps: usize,
) -> Result<Played, Box<Difference>> {
    let mut game = Game {
        subject,
        differences,
        store: subject.store(),
        reference: Reference::new(&*subject.clock(), differences.leases),
        steps: Steps::new(seed),
        played: Played::default(),
        last: VecDeque::new(),
    };
    let mut result = Ok(());
    while result.is_ok() && game.played.steps < steps {
        result = game.step().await;
    }
    game.store.close().await.expect("the store closes");
    match result {
        Ok(()) => Ok(game.played),
        Err(what) => {
            Err(Box::new(Difference { seed, step: game.played.steps, what, last: game.last }))
        }
    }
}

struct Game<'a> {
    subject: &'a dyn Subject,
    differences: Differences,
    store: Arc<dyn Store>,
    reference: Reference,
    steps: Steps,
    played: Played,
    last: VecDeque<String>,
}

/// The first difference, if there is one.
type Compared = Result<(), String>;

impl Game<'_> {
    async fn step(&mut self) -> Compared {
        let step = self.steps.next(&self.reference);
        if self.last.len() == TOLD_MAX {
            self.last.pop_front();
        }
        self.last.push_back(format!("{} {step:?}", self.reference.now().as_micros()));
        self.played.steps += step.count();
        match step {
            Step::Claim(batch) => {
                let answers = answered(self.store.claim(batch.clone())).await?;
                one_each(&answers, batch.len())?;
                for (claim, answer) in batch.iter().zip(answers) {
                    let answer = answer.map_err(failed)?;
                    self.played.granted += usize::from(matches!(answer, Claimed::Granted { .. }));
                    self.reference.claim(claim, &answer)?;
                }
            }
            Step::Settle(batch) => {
                let answers = answered(self.store.settle(batch.clone())).await?;
                one_each(&answers, batch.len())?;
                for (settlement, answer) in batch.iter().zip(answers) {
                    let answer = answer.map_err(failed)?;
                    self.played.done += usize::from(matches!(answer, Settled::Done { .. }));
                    self.reference.settle(settlement, &answer)?;
                }
            }
            Step::Load(ids) => {
                let answers = answered(self.store.load(ids.clone())).await?;
                one_each(&answers, ids.len())?;
                for (id, answer) in ids.iter().zip(answers) {
                    self.reference.load(*id, answer.map_err(failed)?.as_deref())?;
                }
            }
            Step::Abandoned => self.abandoned().await?,
            Step::Unsettled => self.unsettled().await?,
            Step::Sweep(limit) => self.sweep(limit).await?,
            Step::Find(id) => {
                let found = answered(self.store.find(id.reference())).await?.map_err(failed)?;
                self.reference.find(id, &found)?;
            }
            Step::Advance(by) => {
                self.subject.advance(by).await;
                self.reference.look(&*self.subject.clock());
            }
            Step::Reopen if self.differences.reopens => {
                self.store.close().await.map_err(failed)?;
                self.store = self.subject.reopen().await.ok_or("it cannot be opened anew")?;
                self.reference.opened();
                self.played.opened += 1;
                // A node that has just started reads the server's time, and begins to watch.
                self.abandoned().await?;
            }
            Step::Reopen => {}
        }
        Ok(())
    }

    async fn abandoned(&mut self) -> Compared {
        let due = self.reference.abandoned();
        let told = self.all_due(due.len(), Due::LeaseEnd).await?;
        self.played.due += told.len();
        let in_order = self.differences.leases != Leases::ByWatching;
        compare_due("abandoned", due, &told, in_order)
    }

    async fn unsettled(&mut self) -> Compared {
        let due = self.reference.unsettled();
        let told = self.all_due(due.len(), Due::Reconcile).await?;
        self.played.due += told.len();
        compare_due("unsettled", due, &told, true)
    }

    /// Returns all attempts that are due. A store that finds them gradually is asked again.
    async fn all_due(&self, count: usize, which: Due) -> Result<Vec<DueAttempt>, String> {
        let mut told = Vec::new();
        for _ in 0..self.differences.due_tries.max(1) {
            told = answered(self.store.due(which, 1_000)).await?.map_err(failed)?;
            if told.len() >= count {
                break;
            }
        }
        Ok(told)
    }

    async fn sweep(&mut self, limit: usize) -> Compared {
        let (expired, unknown) = self.reference.expired();
        let (mut removed, mut lost) = (0, 0);
        // A sweep may find that its index is out of date, and then reports that there is more.
        for _ in 0..SWEEPS_MAX {
            let swept = answered(self.store.sweep(limit)).await?.map_err(failed)?;
            if swept.removed > limit {
                return Err(format!("a sweep of {limit} took {}", swept.removed));
            }
            removed += swept.removed;
            lost += swept.unknown;
            if !swept.more {
                break;
            }
        }
        self.played.swept += removed;
        let is_due = match self.differences.sweeps {
            Sweeps::All => (removed, lost) == (expired, unknown),
            Sweeps::Some => removed <= expired && lost <= unknown,
            Sweeps::Nothing => (removed, lost) == (0, 0),
        };
        if self.differences.sweeps == Sweeps::All {
            self.reference.sweep();
        }
        let what = format!("{removed} were swept ({lost} unknown), {expired} expired ({unknown})");
        if is_due { Ok(()) } else { Err(what) }
    }
}

fn one_each<T>(answers: &Answers<T>, count: usize) -> Compared {
    let told = answers.len();
    if told == count { Ok(()) } else { Err(format!("{told} answers for {count} items")) }
}

/// Compares due attempts. The expected ones have the times since when they are due; the longest due
/// are first.
fn compare_due<M: Ord + Copy + fmt::Debug>(
    name: &str,
    due: Vec<(M, DueAttempt)>,
    told: &[DueAttempt],
    in_order: bool,
) -> Compared {
    let since =
        |told: &DueAttempt| due.iter().find(|(_, due)| due == told).map(|(since, _)| *since);
    let moments: Vec<Option<M>> = told.iter().map(since).collect();
    let is_all = moments.iter().all(Option::is_some) && told.len() == due.len();
    if !is_all || (in_order && !moments.is_sorted()) {
        return Err(format!("{name}: due are {due:?}, told was {told:?}"));
    }
    Ok(())
}

fn failed(error: StoreError) -> String {
    format!("the store failed: {:?}: {error}", error.kind())
}

/// Returns the answer, or an error if there is none for a minute.
#[expect(clippy::disallowed_methods, reason = "a store's threads and servers live in real time")]
async fn answered<T>(answer: impl Future<Output = T>) -> Result<T, String> {
    let timeout: Duration = REAL_TIME_MAX;
    tokio::time::timeout(timeout, answer).await.map_err(|_| "the store does not answer".to_owned())
}

/// Compares two records, or their absence.
fn compare(what: &str, expected: Option<&Record>, told: Option<&Record>) -> Compared {
    if expected == told {
        return Ok(());
    }
    Err(format!("{what}\n  expected {expected:?}\n  told     {told:?}"))
}
