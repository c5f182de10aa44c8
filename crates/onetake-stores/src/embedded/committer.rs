//! The thread that owns the folder.

mod segments;

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};

use tokio::sync::oneshot;

use onetake_core::audit::{AuditAction, AuditEntry, AuditPage, AuditPosition, AuditResult};
use onetake_core::store::{Answers, DueAttempt, Swept};
use onetake_core::{
    Cause, Claim, Claimed, Clock, Fence, Record, RecordId, Reference, Settled, Settlement, State,
    StoreError, StoreErrorKind, SystemRng, Timestamp, Transition,
};

use crate::write_contact::WriteContact;

use super::files::FileReserve;
use super::folder::{Folder, OpenError};
use super::idle_watch::IdleReport;
use super::log::Log;
use super::maintenance::{Maintenance, Subject};
use super::read_errors::failed;
use super::recovery::Opened;
use super::sweeping::{CommitStep, Sweeping};
use super::tables::{Group, Tables};
use super::witness::WitnessFile;
use super::working_set::{RECORDING_BYTES_MAX, WorkingSet, is_too_large};

/// The largest number of jobs in one group.
const GROUP_JOBS_MAX: usize = 64;
/// The bytes of a frame at which it is written before its group is complete.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// The most bytes of a record in a frame, with its entries in indexes and without its recording. Most
/// have a tenth of that.
const RECORD_BYTES: usize = 5 << 10;
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

impl EmbeddedJob {
    /// The most bytes that the job adds to a frame.
    fn frame_bytes_max(&self) -> usize {
        let settlement = |settlement: &Settlement| match &settlement.transition {
            Transition::Renew => 0,
            // It is refused.
            transition if is_too_large(transition, RECORDING_BYTES_MAX) => 0,
            Transition::Complete(recording) => RECORD_BYTES + recording.bytes(),
            _ => RECORD_BYTES,
        };
        match self {
            Self::Claim(batch, _) => batch.len() * RECORD_BYTES,
            Self::Settle(batch, _) => batch.iter().map(settlement).sum(),
            Self::Note(..) | Self::Secret(..) => RECORD_BYTES,
            _ => 0,
        }
    }
}

/// An answer that waits for its group to be durable.
pub(super) type Reply = Box<dyn FnOnce(Option<&StoreError>)>;

pub(super) struct Committer {
    tables: Tables,
    log: Log,
    /// The bytes of log or memory at which a new segment begins.
    segment_bytes: u64,
    clock: Arc<dyn Clock>,
    memory: WorkingSet,
    idle: IdleReport,
    sweeps: VecDeque<Sweeping>,
    maintenance: Maintenance,
    has_asked_for_spare: bool,
    /// True if it was logged that the next segment could not be made.
    has_warned: bool,
    removed: usize,
    witness: Arc<WitnessFile>,
    /// The fence ceiling in the WITNESS file.
    witnessed: Fence,
    files: FileReserve,
    /// The owners of attempts cannot renew their leases while writes are refused.
    contact: WriteContact,
    /// Held until the thread ends, so that no other process uses the folder before.
    _folder: Arc<Folder>,
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
        opened: Opened,
        clock: Arc<dyn Clock>,
        folder: Folder,
        idle: IdleReport,
    ) -> Result<(Self, usize), OpenError> {
        let Opened { tables, mut log, files, witness, running, ceiling } = opened;
        let from = log.last();
        let now = clock.now();
        let lost: Vec<Record> = running
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
        let path = folder.path().to_owned();
        let io = |action| {
            let path = path.clone();
            move |error| OpenError::io(&path, action, error)
        };
        for lost in lost.chunks(RESTART_BATCH) {
            let mut group = tables.group();
            for record in lost {
                group.write(record, true, None);
                group.audit(&passed_over(record, now));
            }
            let (frame, changes) = group.into_parts();
            log.reserve(frame.bytes_finished()).map_err(io("write the log"))?;
            log.append(frame).map_err(io("write the log"))?;
            tables.apply(changes);
        }
        let reserve = folder.opener().map(FileReserve::new).map_err(io("open LOCK"))?;
        let folder = Arc::new(folder);
        let maintenance = Maintenance::start(Subject {
            tree: tables.tree.clone(),
            log: files.clone(),
            witness: Arc::clone(&witness),
            lock: Arc::clone(&folder) as Arc<dyn Send + Sync>,
        });
        let maintenance = maintenance.map_err(io("start the store's threads"))?;
        tables.seal();
        maintenance.flush(from);
        let contact = WriteContact::new(clock.monotonic());
        let committer = Self {
            tables,
            log,
            segment_bytes: files.segment_bytes,
            clock,
            memory: WorkingSet::above(ceiling),
            idle,
            sweeps: VecDeque::new(),
            maintenance,
            has_asked_for_spare: false,
            has_warned: false,
            removed: 0,
            witness,
            witnessed: ceiling,
            files: reserve,
            contact,
            _folder: folder,
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
                None => {
                    failed = self.group(jobs).err();
                    if failed.is_some() {
                        self.idle.set(false);
                    }
                }
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
        let can_write = self.can_write(&jobs);
        self.contact.entry(can_write.is_ok(), self.clock.monotonic());
        if let Err(error) = can_write {
            self.refuse_all(jobs, &error);
            let has_failed = error.kind() == StoreErrorKind::Corrupt;
            return if has_failed { Err(error) } else { Ok(()) };
        }
        let at = self.contact.moment(&*self.clock);
        let now = at.now;
        let (tables, log, memory) = (&self.tables, &mut self.log, &mut self.memory);
        let mut group = tables.group();
        // The failure of a frame that was written early.
        let mut failure = None;
        let mut replies: Vec<Reply> = Vec::with_capacity(jobs.len());
        for job in jobs {
            let reply: Reply = match job {
                EmbeddedJob::Claim(batch, to) => {
                    let one = |claim| memory.claim(tables, &mut group, claim, at);
                    answer_each(batch.iter().map(one).collect(), to)
                }
                EmbeddedJob::Settle(batch, to) => {
                    let one = |settlement| {
                        let answer = memory.settle(tables, &mut group, settlement, at);
                        if group.bytes() >= FRAME_BYTES_MAX && failure.is_none() {
                            let large = std::mem::replace(&mut group, tables.group());
                            failure = write_early(large, log, tables, memory).err();
                        }
                        answer
                    };
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
                EmbeddedJob::Abandoned(limit, to) => answer(Ok(memory.abandoned(at, limit)), to),
                EmbeddedJob::Unsettled(limit, to) => {
                    answer(memory.unsettled(tables, &mut group, now, limit), to)
                }
                EmbeddedJob::Sweep(left, to) => {
                    self.sweeps.push_back(Sweeping::new(left, to));
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
        let (is_empty, (frame, changes)) = (group.is_empty(), group.into_parts());
        let result = match failure {
            Some(error) => Err(error),
            None if is_empty => Ok(()),
            None => self.log.append(frame).map_err(failed),
        };
        // Set before the replies, so that no caller knows of an attempt that is missing here.
        self.idle.set(result.is_ok() && !memory.is_any_running());
        replies.into_iter().for_each(|reply| reply(result.as_ref().err()));
        result?;
        // The callers go on while the tables change. No later job is read before that.
        self.tables.apply(changes);
        self.memory.fresh.clear();
        self.witness();
        let waits = self.begin_segment_if_due()?;
        if waits || self.memory.ceiling > self.witnessed {
            // The next look of the engine tries again.
            self.idle.set(false);
        }
        Ok(())
    }

    fn refuse_all(&mut self, jobs: Vec<EmbeddedJob>, error: &StoreError) {
        jobs.into_iter().for_each(|job| refuse(job, error));
        self.sweeps.drain(..).for_each(|sweeping| sweeping.refuse(error));
    }

    /// Writes a raised ceiling to the WITNESS file, after the ceiling is in the log.
    fn witness(&mut self) {
        let ceiling = self.memory.ceiling;
        if ceiling > self.witnessed {
            match self.witness.update(|witness| witness.ceiling = ceiling) {
                Ok(()) => self.witnessed = ceiling,
                Err(error) => {
                    tracing::warn!(%error, "the WITNESS file of the store could not be written")
                }
            }
        }
    }

    /// Ends the threads, and writes the last frame to the WITNESS file.
    fn close(self) -> Result<(), StoreError> {
        let Self { log, maintenance, witness, .. } = self;
        maintenance.stop();
        if let Err(error) = witness.update(|witness| witness.closed = Some(log.last().frame)) {
            // The next start opens the folder as after a crash.
            tracing::warn!(%error, "the WITNESS file of the store could not be written");
        }
        Ok(())
    }
}

/// Writes a part of a group that is large already, so that its bytes are not kept twice. Its answers
/// wait for the rest.
fn write_early(
    group: Group<'_>,
    log: &mut Log,
    tables: &Tables,
    memory: &mut WorkingSet,
) -> Result<(), StoreError> {
    let (frame, changes) = group.into_parts();
    log.append(frame).map_err(failed)?;
    tables.apply(changes);
    memory.fresh.clear();
    Ok(())
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

pub(super) type One<T> = Result<T, StoreError>;

pub(super) fn answer<T: 'static>(answer: One<T>, to: oneshot::Sender<One<T>>) -> Reply {
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
