//! The thread that owns the folder.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use onetake_core::audit::{AuditAction, AuditEntry, AuditPage, AuditPosition, AuditResult};
use onetake_core::store::{Answers, DueAttempt, Swept};
use onetake_core::{
    Cause, Claim, Claimed, Clock, Fence, Record, RecordId, Reference, Settled, Settlement, State,
    StoreError, SystemRng, Timestamp,
};

use super::files::FileReserve;
use super::folder::{Folder, OpenError};
use super::journal;
use super::tables::{Group, Tables};
use super::working_set::WorkingSet;

/// The largest number of jobs in one group.
const GROUP_JOBS_MAX: usize = 64;
/// The number of records that a sweep checks between two groups of traffic.
const SWEEP_STEP: usize = 64;
/// The number of deleted records after which the tables are compacted to give back their space. It
/// is higher if there are many records, so that each record is rewritten a bounded number of times.
const COMPACT_AFTER_MIN: usize = 20_000;
/// The longest wait for a compaction when the store is closed. The tree's own threads may have
/// died.
const COMPACTION_PATIENCE: Duration = Duration::from_secs(3);
/// The number of records that become unknown, or are released, in one write when the folder is
/// opened.
const RESTART_BATCH: usize = 1_000;

/// A job for the thread.
pub(super) enum EmbeddedJob {
    Claim(Vec<Claim>, oneshot::Sender<Answers<Claimed>>),
    Settle(Vec<Settlement>, oneshot::Sender<Answers<Settled>>),
    Load(Vec<RecordId>, oneshot::Sender<Answers<Option<Arc<Record>>>>),
    Ids(Option<RecordId>, usize, oneshot::Sender<Result<Vec<RecordId>, StoreError>>),
    Find(Reference, oneshot::Sender<Result<Vec<RecordId>, StoreError>>),
    Abandoned(usize, oneshot::Sender<Result<Vec<DueAttempt>, StoreError>>),
    Unsettled(usize, oneshot::Sender<Result<Vec<DueAttempt>, StoreError>>),
    Sweep(usize, oneshot::Sender<Result<Swept, StoreError>>),
    Secret(&'static str, [u8; 32], oneshot::Sender<Result<[u8; 32], StoreError>>),
    Note(AuditEntry, oneshot::Sender<Result<(), StoreError>>),
    Notes(
        Option<RecordId>,
        Option<AuditPosition>,
        usize,
        oneshot::Sender<Result<AuditPage, StoreError>>,
    ),
    Ready(oneshot::Sender<Result<(), StoreError>>),
    Close(oneshot::Sender<Result<(), StoreError>>),
}

/// An answer that waits for its group to be durable.
type Reply = Box<dyn FnOnce(Option<&StoreError>)>;

pub(super) struct Committer {
    tables: Tables,
    clock: Arc<dyn Clock>,
    memory: WorkingSet,
    sweeps: VecDeque<Sweeping>,
    compaction: Option<Compaction>,
    removed: usize,
    /// The fence ceiling in the WITNESS file.
    witnessed: Fence,
    files: FileReserve,
    /// Held until the thread ends, so that no other process uses the folder before.
    folder: Folder,
}

/// A compaction in a thread of its own.
struct Compaction {
    /// Disconnected when the thread ends, also if it panics.
    over: mpsc::Receiver<()>,
}

impl Compaction {
    fn is_over(&self) -> bool {
        matches!(self.over.try_recv(), Err(mpsc::TryRecvError::Disconnected))
    }

    /// Waits for at most `COMPACTION_PATIENCE`. Returns true if the compaction is over.
    fn wait(&self) -> bool {
        let waited = self.over.recv_timeout(COMPACTION_PATIENCE);
        matches!(waited, Err(mpsc::RecvTimeoutError::Disconnected))
    }
}

/// A sweep that runs in steps, so that traffic never waits for all of it.
struct Sweeping {
    left: usize,
    swept: Swept,
    to: oneshot::Sender<Result<Swept, StoreError>>,
}

/// The audit entry for an attempt whose process ended without an outcome.
fn passed_over(record: &Record, now: Timestamp) -> AuditEntry {
    AuditEntry {
        place: AuditPosition::new(now, &SystemRng),
        id: record.id,
        attempt: record.attempt,
        action: AuditAction::ExpireLease,
        ended: AuditResult::Done,
        before: "running".to_owned(),
        by: "restart".to_owned(),
        reason: "the operation was running when the store was last closed".to_owned(),
    }
}

impl Committer {
    /// Takes over an opened folder. Attempts that were running when it was last closed become
    /// unknown, or are released if they roll back by themselves. The audit gets an entry for each.
    /// Returns the number of attempts that became unknown.
    pub(super) fn new(
        tables: Tables,
        clock: Arc<dyn Clock>,
        folder: Folder,
    ) -> Result<(Self, usize), OpenError> {
        let ceiling = tables.fence_ceiling().map_err(|error| folder.unreadable(error))?;
        let orphans = tables.all_running().map_err(|error| folder.unreadable(error))?;
        let now = clock.now();
        let lost: Vec<Record> = orphans
            .iter()
            .map(|record| record.with_state(record.lost(now, &Cause::Restarted)))
            .collect();
        let is_unknown = |record: &&Record| matches!(record.state, State::Unknown { .. });
        let unknown = lost.iter().filter(is_unknown).count();
        if unknown > 0 {
            tracing::warn!(
                count = unknown,
                "operations were running when the store was last closed: their outcomes are unknown"
            );
        }
        for lost in lost.chunks(RESTART_BATCH) {
            let mut group = tables.group();
            for record in lost {
                group.write(record, Some(record.fence), None);
                group.audit(&passed_over(record, now));
            }
            let failed = |error| OpenError::io(folder.path(), "write", io::Error::other(error));
            group.commit().map_err(failed)?;
        }
        let memory = WorkingSet::above(ceiling);
        let files = folder.opener().map(FileReserve::new);
        let files = files.map_err(|error| OpenError::io(folder.path(), "open LOCK", error))?;
        let committer = Self {
            tables,
            clock,
            memory,
            sweeps: VecDeque::new(),
            compaction: None,
            removed: 0,
            witnessed: ceiling,
            files,
            folder,
        };
        Ok((committer, unknown))
    }

    /// Works until the store is closed, or until all senders of jobs are gone.
    pub(super) fn run(mut self, queue: &mpsc::Receiver<EmbeddedJob>) {
        let mut failed: Option<StoreError> = None;
        let closing = loop {
            // A sweep in progress does not wait for a new job.
            let first = match queue.try_recv() {
                Err(mpsc::TryRecvError::Empty) if self.sweeps.is_empty() => queue.recv().ok(),
                first => first.ok(),
            };
            if first.is_none() && self.sweeps.is_empty() {
                break None;
            }
            let mut closing = None;
            let mut jobs = Vec::new();
            for job in first.into_iter().chain(queue.try_iter().take(GROUP_JOBS_MAX)) {
                match job {
                    EmbeddedJob::Close(reply) => closing = Some(reply),
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
    fn group(&mut self, jobs: Vec<EmbeddedJob>) -> Result<(), StoreError> {
        if let Err(error) = self.files.wait() {
            self.refuse_all(jobs, &error);
            return Ok(());
        }
        let now = self.clock.now();
        let mut group = self.tables.group();
        let compacted = self.compaction.take_if(|compaction| compaction.is_over()).is_some();
        if compacted {
            group.note_compaction();
        }
        let mut replies: Vec<Reply> = Vec::with_capacity(jobs.len());
        let (tables, memory) = (&self.tables, &mut self.memory);
        for job in jobs {
            let reply: Reply = match job {
                EmbeddedJob::Claim(batch, to) => {
                    let one = |claim| memory.claim(tables, &mut group, claim, now);
                    answer_each(batch.iter().map(one).collect(), to)
                }
                EmbeddedJob::Settle(batch, to) => {
                    let one = |settlement| memory.settle(tables, &mut group, settlement, now);
                    answer_each(batch.iter().map(one).collect(), to)
                }
                EmbeddedJob::Load(ids, to) => {
                    let one = |id: &RecordId| {
                        let found = memory.find(tables, *id)?;
                        Ok(found.filter(|record| !record.is_expired(now)))
                    };
                    answer_each(ids.iter().map(one).collect(), to)
                }
                EmbeddedJob::Ids(from, limit, to) => answer(memory.ids(tables, from, limit), to),
                EmbeddedJob::Find(reference, to) => {
                    answer(memory.with_reference(tables, reference), to)
                }
                EmbeddedJob::Abandoned(limit, to) => answer(Ok(memory.abandoned(now, limit)), to),
                EmbeddedJob::Unsettled(limit, to) => {
                    answer(memory.unsettled(tables, &mut group, now, limit), to)
                }
                EmbeddedJob::Sweep(left, to) => {
                    self.sweeps.push_back(Sweeping { left, swept: Swept::default(), to });
                    continue;
                }
                EmbeddedJob::Secret(name, fresh, to) => answer(group.secret(name, fresh), to),
                EmbeddedJob::Note(entry, to) => {
                    group.audit(&entry);
                    answer(Ok(()), to)
                }
                EmbeddedJob::Notes(of, from, limit, to) => {
                    answer(tables.audit_entries(of, from, limit), to)
                }
                EmbeddedJob::Ready(to) => answer(Ok(()), to),
                EmbeddedJob::Close(_) => continue,
            };
            replies.push(reply);
        }
        if let Some(sweeping) = self.sweeps.pop_front() {
            match sweeping.step(memory, tables, &mut group, now, &mut self.removed) {
                CommitStep::Over(reply) => replies.push(reply),
                CommitStep::GoesOn(sweeping) => self.sweeps.push_front(sweeping),
            }
        }
        let result = if group.is_empty() { Ok(()) } else { group.commit() };
        memory.fresh.clear();
        replies.into_iter().for_each(|reply| reply(result.as_ref().err()));
        if result.is_ok() {
            if compacted {
                self.tables.drop_replaced_files();
            }
            self.witness();
            self.compact_if_due();
        }
        result
    }

    fn refuse_all(&mut self, jobs: Vec<EmbeddedJob>, error: &StoreError) {
        jobs.into_iter().for_each(|job| refuse(job, error));
        for sweeping in self.sweeps.drain(..) {
            let _gone = sweeping.to.send(Err(error.clone()));
        }
    }

    /// Writes a raised ceiling to the WITNESS file, after the ceiling is in the tree.
    fn witness(&mut self) {
        if self.memory.ceiling > self.witnessed {
            let witness = self.tables.witness(self.memory.ceiling);
            match witness.write(self.folder.path()) {
                Ok(()) => self.witnessed = self.memory.ceiling,
                Err(error) => {
                    tracing::warn!(%error, "the WITNESS file of the store could not be written")
                }
            }
        }
    }

    /// Starts a compaction in a thread of its own after enough deletions. Traffic goes on during
    /// it.
    fn compact_if_due(&mut self) {
        if self.compaction.is_some()
            || self.removed < COMPACT_AFTER_MIN.max(self.tables.settled_about() / 4)
        {
            return;
        }
        self.removed = 0;
        let compact = self.tables.compactor();
        let (alive, over) = mpsc::channel();
        let work = move || {
            let _alive: mpsc::Sender<()> = alive;
            if let Err(error) = compact() {
                tracing::warn!(%error, "the space of expired records could not be freed yet");
            }
        };
        let thread = std::thread::Builder::new().name("onetake-compact".to_owned());
        self.compaction = thread.spawn(work).ok().map(|_| Compaction { over });
    }

    /// Closes the tree, and writes the lengths of its journals to the WITNESS file.
    fn close(self) -> Result<(), StoreError> {
        let Self { tables, memory, compaction, folder, .. } = self;
        let idle = compaction.is_none_or(|compaction| compaction.wait());
        let mut witness = tables.witness(memory.ceiling);
        tables.close()?;
        if !idle {
            // The compaction may still change the journals. The next start opens the folder as
            // after a crash.
            return Ok(());
        }
        let marked = journal::check(&folder.database(), &witness.mark).and_then(|journals| {
            witness.journals = Some(journals.map_err(io::Error::other)?.lengths);
            witness.write(folder.path())
        });
        if let Err(error) = marked {
            // The next start opens the folder as after a crash.
            tracing::warn!(%error, "the WITNESS file of the store could not be written");
        }
        Ok(())
    }
}

enum CommitStep {
    GoesOn(Sweeping),
    Over(Reply),
}

impl Sweeping {
    /// Deletes a few records that the expiry index lists as due, if the records themselves are due
    /// too (S13).
    fn step(
        mut self,
        memory: &mut WorkingSet,
        tables: &Tables,
        group: &mut Group<'_>,
        now: Timestamp,
        removed: &mut usize,
    ) -> CommitStep {
        let asked = self.left.min(SWEEP_STEP);
        let due = tables.due(now, asked).and_then(|due| {
            group.remove_old_notes(now, SWEEP_STEP)?;
            memory.sweep(tables, group, now, &due, &mut self.swept).map(|()| due.len())
        });
        match due {
            Err(error) => CommitStep::Over(answer(Err(error), self.to)),
            Ok(seen) => {
                self.left -= seen;
                if seen == asked && self.left > 0 {
                    return CommitStep::GoesOn(self);
                }
                *removed += self.swept.removed;
                self.swept.more = seen == asked && asked > 0;
                CommitStep::Over(answer(Ok(self.swept), self.to))
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

/// Answers a job with the error of an earlier failed write. After it the store does no other work.
fn refuse(job: EmbeddedJob, error: &StoreError) {
    let error = error.clone();
    match job {
        EmbeddedJob::Claim(batch, to) => drop(to.send(vec![Err(error); batch.len()])),
        EmbeddedJob::Settle(batch, to) => drop(to.send(vec![Err(error); batch.len()])),
        EmbeddedJob::Load(ids, to) => drop(to.send(vec![Err(error); ids.len()])),
        EmbeddedJob::Ids(_, _, to) | EmbeddedJob::Find(_, to) => drop(to.send(Err(error))),
        EmbeddedJob::Notes(_, _, _, to) => drop(to.send(Err(error))),
        EmbeddedJob::Abandoned(_, to) | EmbeddedJob::Unsettled(_, to) => drop(to.send(Err(error))),
        EmbeddedJob::Sweep(_, to) => drop(to.send(Err(error))),
        EmbeddedJob::Secret(_, _, to) => drop(to.send(Err(error))),
        EmbeddedJob::Note(_, to) | EmbeddedJob::Ready(to) | EmbeddedJob::Close(to) => {
            drop(to.send(Err(error)))
        }
    }
}
