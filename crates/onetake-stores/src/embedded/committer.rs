//! The thread that owns the folder.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use onetake_core::decide::{self, ClaimEffect, SettleEffect};
use onetake_core::store::{Abandoned, Answers, Swept};
use onetake_core::{
    Cause, Claim, Claimed, Clock, Fence, Record, RecordId, Settled, Settlement, State, StoreError,
    StoreErrorKind, Timestamp, Verb,
};

use super::folder::{Folder, OpenError};
use super::journal;
use super::tables::{Group, Tables};

/// Jobs that are written as one group at most.
const GROUP_JOBS_MAX: usize = 64;
/// How far ahead fences are set aside, so that the ceiling is written seldom: a minute of
/// microseconds.
const FENCES_AHEAD: u64 = 60_000_000;
/// Records that a sweep looks at between two groups of traffic.
const SWEEP_STEP: usize = 64;
/// Records deleted before the tables are compacted to give back their space; more, if there are
/// many records, so that each is rewritten a bounded number of times.
const COMPACT_AFTER_MIN: usize = 20_000;
/// Records that are made unknown in one write when the folder is opened.
const RESTART_BATCH: usize = 1_000;

/// What the thread is asked for.
pub(super) enum Job {
    Claim(Vec<Claim>, oneshot::Sender<Answers<Claimed>>),
    Settle(Vec<Settlement>, oneshot::Sender<Answers<Settled>>),
    Load(Vec<RecordId>, oneshot::Sender<Answers<Option<Arc<Record>>>>),
    Abandoned(usize, oneshot::Sender<Result<Vec<Abandoned>, StoreError>>),
    Sweep(usize, oneshot::Sender<Result<Swept, StoreError>>),
    Ready(oneshot::Sender<Result<(), StoreError>>),
    Close(oneshot::Sender<Result<(), StoreError>>),
}

/// An answer that waits for its group to be durable.
type Reply = Box<dyn FnOnce(Option<&StoreError>)>;

pub(super) struct Committer {
    tables: Tables,
    clock: Arc<dyn Clock>,
    memory: Memory,
    sweeps: VecDeque<Sweeping>,
    compaction: Option<JoinHandle<()>>,
    removed: usize,
    /// The fence ceiling that the witness tells of.
    witnessed: Fence,
    /// Held until the thread ends: nobody else may use the folder before.
    folder: Folder,
}

/// A sweep that goes on in steps, so that traffic never waits for all of it.
struct Sweeping {
    left: usize,
    swept: Swept,
    to: oneshot::Sender<Result<Swept, StoreError>>,
}

/// What is known without reading the tables.
#[derive(Default)]
struct Memory {
    running: HashMap<RecordId, Arc<Record>>,
    /// When leases and their grace end.
    leases: BTreeSet<(Timestamp, RecordId)>,
    /// What the group under way has settled or deleted, and the tables do not show yet.
    fresh: HashMap<RecordId, Option<Arc<Record>>>,
    /// The highest fence that was ever granted, for any record.
    highest: Fence,
    /// No fence above this one is granted before the ceiling is raised on disk.
    ceiling: Fence,
}

impl Committer {
    /// Takes over an opened folder: what was running when it was last closed is unknown from now.
    pub(super) fn new(
        tables: Tables,
        clock: Arc<dyn Clock>,
        folder: Folder,
    ) -> Result<Self, OpenError> {
        let damaged = |error: StoreError| OpenError::Damaged {
            path: folder.path().to_owned(),
            what: error.to_string(),
            source: Some(Box::new(error)),
        };
        let ceiling = tables.fence_ceiling().map_err(damaged)?;
        let orphans = tables.all_running().map_err(damaged)?;
        if !orphans.is_empty() {
            tracing::warn!(
                count = orphans.len(),
                "operations were running when the store was last closed: their outcome is unknown"
            );
        }
        let now = clock.now();
        for orphans in orphans.chunks(RESTART_BATCH) {
            let mut group = tables.group();
            for record in orphans {
                let state = State::Unknown {
                    at: now,
                    cause: Cause::Restarted,
                };
                group.write(&record.with_state(state), true);
            }
            group.commit().map_err(damaged)?;
        }
        let memory = Memory {
            highest: ceiling,
            ceiling,
            ..Memory::default()
        };
        Ok(Self {
            tables,
            clock,
            memory,
            sweeps: VecDeque::new(),
            compaction: None,
            removed: 0,
            witnessed: ceiling,
            folder,
        })
    }

    /// Works until it is closed, or until everybody who could ask is gone.
    pub(super) fn run(mut self, queue: &mpsc::Receiver<Job>) {
        let mut failed: Option<StoreError> = None;
        let closing = loop {
            // A sweep under way does not wait for somebody to come.
            let first = match queue.try_recv() {
                Err(mpsc::TryRecvError::Empty) if self.sweeps.is_empty() => queue.recv().ok(),
                first => first.ok(),
            };
            if first.is_none() && self.sweeps.is_empty() {
                break None;
            }
            let mut closing = None;
            let mut jobs = Vec::new();
            for job in first
                .into_iter()
                .chain(queue.try_iter().take(GROUP_JOBS_MAX))
            {
                match job {
                    Job::Close(reply) => closing = Some(reply),
                    job => jobs.push(job),
                }
            }
            match &failed {
                None => failed = self.group(jobs).err(),
                Some(error) => self.refuse_all(jobs, error),
            }
            if closing.is_some() {
                break closing;
            }
        };
        let result = failed.map_or_else(|| self.close(), Err);
        if let Some(reply) = closing {
            let _gone = reply.send(result);
        }
    }

    /// Decides the jobs one after the other, writes them together, then answers.
    fn group(&mut self, jobs: Vec<Job>) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut group = self.tables.group();
        let mut replies: Vec<Reply> = Vec::with_capacity(jobs.len());
        let (tables, memory) = (&self.tables, &mut self.memory);
        for job in jobs {
            let reply: Reply = match job {
                Job::Claim(batch, to) => {
                    let one = |claim| memory.claim(tables, &mut group, claim, now);
                    answer_each(batch.iter().map(one).collect(), to)
                }
                Job::Settle(batch, to) => {
                    let one = |settlement| memory.settle(tables, &mut group, settlement, now);
                    answer_each(batch.iter().map(one).collect(), to)
                }
                Job::Load(ids, to) => {
                    let one = |id: &RecordId| {
                        let found = memory.find(tables, *id)?;
                        Ok(found.filter(|record| !record.is_expired(now)))
                    };
                    answer_each(ids.iter().map(one).collect(), to)
                }
                Job::Abandoned(limit, to) => answer(Ok(memory.abandoned(now, limit)), to),
                Job::Sweep(left, to) => {
                    self.sweeps.push_back(Sweeping {
                        left,
                        swept: Swept::default(),
                        to,
                    });
                    continue;
                }
                Job::Ready(to) => answer(Ok(()), to),
                Job::Close(_) => continue,
            };
            replies.push(reply);
        }
        if let Some(sweeping) = self.sweeps.pop_front() {
            match sweeping.step(memory, tables, &mut group, now, &mut self.removed) {
                Step::Over(reply) => replies.push(reply),
                Step::GoesOn(sweeping) => self.sweeps.push_front(sweeping),
            }
        }
        let result = if group.is_empty() {
            Ok(())
        } else {
            group.commit()
        };
        memory.fresh.clear();
        replies
            .into_iter()
            .for_each(|reply| reply(result.as_ref().err()));
        if result.is_ok() {
            self.witness();
            self.compact_if_due();
        }
        result
    }

    fn refuse_all(&mut self, jobs: Vec<Job>, error: &StoreError) {
        jobs.into_iter().for_each(|job| refuse(job, error));
        for sweeping in self.sweeps.drain(..) {
            let _gone = sweeping.to.send(Err(error.clone()));
        }
    }

    /// Writes down a raised ceiling beside the tree, once it is in the tree.
    fn witness(&mut self) {
        if self.memory.ceiling > self.witnessed {
            self.witnessed = self.memory.ceiling;
            let witness = self.tables.witness(self.witnessed);
            if let Err(error) = witness.write(self.folder.path()) {
                tracing::warn!(%error, "the store's WITNESS could not be written");
            }
        }
    }

    /// Compacts in a thread of its own once enough was deleted: traffic goes on meanwhile.
    fn compact_if_due(&mut self) {
        let busy = self
            .compaction
            .as_ref()
            .is_some_and(|thread| !thread.is_finished());
        if busy || self.removed < COMPACT_AFTER_MIN.max(self.tables.settled_about() / 4) {
            return;
        }
        self.removed = 0;
        let compact = self.tables.compactor();
        let work = move || {
            if let Err(error) = compact() {
                tracing::warn!(%error, "the space of expired records could not be given back yet");
            }
        };
        let thread = std::thread::Builder::new().name("onetake-compact".to_owned());
        self.compaction = thread.spawn(work).ok();
    }

    /// Lets go of the tree, and writes down how far its journals reach.
    fn close(self) -> Result<(), StoreError> {
        let Self {
            tables,
            memory,
            compaction,
            folder,
            ..
        } = self;
        if let Some(thread) = compaction {
            let _panicked = thread.join();
        }
        let mut witness = tables.witness(memory.ceiling);
        tables.close()?;
        let marked = journal::check(&folder.database()).and_then(|journals| {
            witness.journals = Some(journals.map_err(io::Error::other)?);
            witness.write(folder.path())
        });
        if let Err(error) = marked {
            // It will be opened as after a crash.
            tracing::warn!(%error, "the store's WITNESS could not be written");
        }
        Ok(())
    }
}

enum Step {
    GoesOn(Sweeping),
    Over(Reply),
}

impl Sweeping {
    /// Deletes a few records that the index says are due, if they themselves say so too (S13).
    fn step(
        mut self,
        memory: &mut Memory,
        tables: &Tables,
        group: &mut Group<'_>,
        now: Timestamp,
        removed: &mut usize,
    ) -> Step {
        let asked = self.left.min(SWEEP_STEP);
        let due = tables.due(now, asked).and_then(|due| {
            memory
                .sweep(tables, group, now, &due, &mut self.swept)
                .map(|()| due.len())
        });
        match due {
            Err(error) => Step::Over(answer(Err(error), self.to)),
            Ok(seen) => {
                self.left -= seen;
                if seen == asked && self.left > 0 {
                    return Step::GoesOn(self);
                }
                *removed += self.swept.removed;
                self.swept.more = seen == asked && asked > 0;
                Step::Over(answer(Ok(self.swept), self.to))
            }
        }
    }
}

fn answer_each<T: 'static>(answers: Answers<T>, to: oneshot::Sender<Answers<T>>) -> Reply {
    Box::new(move |failed| {
        let answers = match failed {
            None => answers,
            Some(error) => answers.iter().map(|_| Err(error.clone())).collect(),
        };
        let _gone = to.send(answers);
    })
}

type One<T> = Result<T, StoreError>;

fn answer<T: 'static>(answer: One<T>, to: oneshot::Sender<One<T>>) -> Reply {
    Box::new(move |failed| {
        let _gone = to.send(failed.map_or(answer, |error| Err(error.clone())));
    })
}

/// After a failed write nothing is answered but that.
fn refuse(job: Job, error: &StoreError) {
    let error = error.clone();
    match job {
        Job::Claim(batch, to) => drop(to.send(vec![Err(error); batch.len()])),
        Job::Settle(batch, to) => drop(to.send(vec![Err(error); batch.len()])),
        Job::Load(ids, to) => drop(to.send(vec![Err(error); ids.len()])),
        Job::Abandoned(_, to) => drop(to.send(Err(error))),
        Job::Sweep(_, to) => drop(to.send(Err(error))),
        Job::Ready(to) | Job::Close(to) => drop(to.send(Err(error))),
    }
}

impl Memory {
    fn find(&self, tables: &Tables, id: RecordId) -> Result<Option<Arc<Record>>, StoreError> {
        if let Some(record) = self.running.get(&id) {
            return Ok(Some(Arc::clone(record)));
        }
        if let Some(fresh) = self.fresh.get(&id) {
            return Ok(fresh.clone());
        }
        Ok(tables.settled(id)?.map(Arc::new))
    }

    fn claim(
        &mut self,
        tables: &Tables,
        group: &mut Group<'_>,
        claim: &Claim,
        now: Timestamp,
    ) -> Result<Claimed, StoreError> {
        let found = self.find(tables, claim.id)?;
        match (
            decide::claim(found.as_deref(), claim, now, self.highest),
            found,
        ) {
            (ClaimEffect::Grant(record), _) => {
                self.highest = self.highest.max(record.fence);
                if self.highest > self.ceiling {
                    self.ceiling = Fence::new(self.highest.get().saturating_add(FENCES_AHEAD));
                    group.raise_fence_ceiling(self.ceiling);
                }
                Ok(Claimed::Granted {
                    fence: self.write(group, record).fence,
                })
            }
            (ClaimEffect::BecomeUnknown(record), _) => Ok(Claimed::Found {
                record: self.write(group, record),
                now,
            }),
            (ClaimEffect::Keep, Some(record)) => Ok(Claimed::Found { record, now }),
            (ClaimEffect::Keep, None) => Err(StoreError::kept_nothing()),
        }
    }

    fn settle(
        &mut self,
        tables: &Tables,
        group: &mut Group<'_>,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<Settled, StoreError> {
        let found = self.find(tables, settlement.id)?;
        match (decide::settle(found.as_deref(), settlement, now), found) {
            // A lease ends with this process, so nothing of its renewal has to outlive it.
            (SettleEffect::Write(record), _) if settlement.verb == Verb::Renew => {
                Ok(Settled::Done {
                    record: self.remember(record).0,
                    now,
                })
            }
            (SettleEffect::Write(record), _) => Ok(Settled::Done {
                record: self.write(group, record),
                now,
            }),
            (SettleEffect::Already, Some(record)) => Ok(Settled::Done { record, now }),
            (_, current) => Ok(Settled::Stale { current }),
        }
    }

    fn write(&mut self, group: &mut Group<'_>, record: Record) -> Arc<Record> {
        let (record, was_running) = self.remember(record);
        group.write(&record, was_running);
        record
    }

    /// Keeps the record in memory; says whether it was running before.
    fn remember(&mut self, record: Record) -> (Arc<Record>, bool) {
        let record = Arc::new(record);
        let id = record.id;
        let before = match record.abandoned_at() {
            Some(end) => {
                self.leases.insert((end, id));
                self.running.insert(id, Arc::clone(&record))
            }
            None => {
                self.fresh.insert(id, Some(Arc::clone(&record)));
                self.running.remove(&id)
            }
        };
        let ended = before.as_ref().and_then(|before| before.abandoned_at());
        if let Some(end) = ended
            && record.abandoned_at() != Some(end)
        {
            self.leases.remove(&(end, id));
        }
        (record, before.is_some())
    }

    fn abandoned(&self, now: Timestamp, limit: usize) -> Vec<Abandoned> {
        let due = self
            .leases
            .iter()
            .take_while(|(end, _)| *end <= now)
            .take(limit);
        due.filter_map(|(_, id)| self.running.get(id))
            .map(|record| Abandoned {
                id: record.id,
                attempt: record.attempt,
            })
            .collect()
    }

    fn sweep(
        &mut self,
        tables: &Tables,
        group: &mut Group<'_>,
        now: Timestamp,
        due: &[(Timestamp, RecordId)],
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        for (at, id) in due.iter().copied() {
            group.remove_expiry(at, id);
            let found = match self.find(tables, id) {
                // One that cannot be read stays where it is: somebody may want to mend it.
                Err(error) if error.kind() == StoreErrorKind::Invalid => None,
                found => found?,
            };
            if let Some(record) = found.filter(|record| decide::may_sweep(record, now)) {
                group.remove_settled(id);
                self.fresh.insert(id, None);
                self.running.remove(&id);
                swept.removed += 1;
                swept.unknown += usize::from(matches!(record.state, State::Unknown { .. }));
            }
        }
        Ok(())
    }
}
