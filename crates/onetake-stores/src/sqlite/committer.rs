//! The thread that owns the connection.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use onetake_core::decide;
use onetake_core::store::{Answers, DueAttempt, Swept};
use onetake_core::{Clock, Record, RecordId, StoreError, StoreErrorKind, Timestamp};

use crate::write_contact::WriteContact;

use super::error::{During, refused};
use super::schema::{self, Owner};
use super::transitions::{self, WriteBatch};
use super::{audit, table};

/// The largest number of jobs in one group.
const GROUP_JOBS_MAX: usize = 64;
/// The number of records, and of audit entries, that a sweep deletes between two groups of traffic.
const SWEEP_STEP: usize = 250;

/// A job for the thread.
pub(super) enum SqliteJob {
    Write(Box<dyn WriteBatch>),
    Load(Vec<RecordId>, oneshot::Sender<Answers<Option<Arc<Record>>>>),
    Read(ReadJob),
    Abandoned(usize, oneshot::Sender<Result<Vec<DueAttempt>, StoreError>>),
    Unsettled(usize, oneshot::Sender<Result<Vec<DueAttempt>, StoreError>>),
    Sweep(usize, oneshot::Sender<Result<Swept, StoreError>>),
    Settings(oneshot::Sender<Result<ConnectionSettings, StoreError>>),
    Close(oneshot::Sender<Result<(), StoreError>>),
}

/// A read that sends its own answer.
pub(super) type ReadJob = Box<dyn FnOnce(Result<&Connection, StoreError>, Timestamp) + Send>;

/// The connection's settings that durability depends on.
#[derive(Debug)]
pub(super) struct ConnectionSettings {
    pub(super) journal_mode: String,
    pub(super) synchronous: i64,
    pub(super) schema_version: i64,
}

pub(super) struct Committer {
    connection: Connection,
    owner: Owner,
    clock: Arc<dyn Clock>,
    writes: Vec<Box<dyn WriteBatch>>,
    sweeps: VecDeque<Sweeping>,
    contact: WriteContact,
}

/// A sweep that runs in steps, so that traffic never waits for all of it.
struct Sweeping {
    left: usize,
    swept: Swept,
    to: oneshot::Sender<Result<Swept, StoreError>>,
}

impl Committer {
    pub(super) fn new(connection: Connection, owner: Owner, clock: Arc<dyn Clock>) -> Self {
        let contact = WriteContact::new(clock.monotonic());
        Self { connection, owner, clock, writes: Vec::new(), sweeps: VecDeque::new(), contact }
    }

    /// Works until the store is closed, or until all senders of jobs are gone.
    pub(super) fn run(mut self, queue: &mpsc::Receiver<SqliteJob>) {
        let mut poison: Option<StoreError> = None;
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
            for job in first.into_iter().chain(queue.try_iter().take(GROUP_JOBS_MAX)) {
                match job {
                    SqliteJob::Close(reply) => closing = Some(reply),
                    job => self.take(job, poison.as_ref()),
                }
            }
            match &poison {
                None => poison = self.group().err(),
                Some(error) => self.answer(Err(error)),
            }
            if closing.is_some() {
                break closing;
            }
        };
        let closed = self.connection.close();
        let closed = closed.map_err(|(_, error)| refused(error, During::Work));
        if let Some(reply) = closing {
            let _gone = reply.send(poison.map_or(closed, Err));
        }
    }

    /// Queues writes, and answers reads at once. Reads are outside of any transaction, so that they
    /// work while the disk is full and see only durable data.
    fn take(&mut self, job: SqliteJob, poison: Option<&StoreError>) {
        let poisoned = poison.cloned().map_or(Ok(()), Err);
        match job {
            SqliteJob::Write(write) => self.writes.push(write),
            SqliteJob::Sweep(left, to) => {
                self.sweeps.push_back(Sweeping { left, swept: Swept::default(), to });
            }
            SqliteJob::Load(ids, to) => {
                let now = self.clock.now();
                let one = |id| poisoned.clone().and_then(|()| self.load(id, now));
                let _gone = to.send(ids.into_iter().map(one).collect());
            }
            SqliteJob::Read(read) => read(poisoned.map(|()| &self.connection), self.clock.now()),
            SqliteJob::Abandoned(limit, to) => {
                let _gone = to.send(poisoned.and_then(|()| self.abandoned(limit)));
            }
            SqliteJob::Unsettled(limit, to) => {
                let _gone = to.send(poisoned.and_then(|()| self.unsettled(limit)));
            }
            SqliteJob::Settings(to) => {
                let asked = poisoned
                    .and_then(|()| self.settings().map_err(|error| refused(error, During::Work)));
                let _gone = to.send(asked);
            }
            SqliteJob::Close(_) => {}
        }
    }

    fn load(&self, id: RecordId, now: Timestamp) -> Result<Option<Arc<Record>>, StoreError> {
        let found = transitions::load(&self.connection, id);
        let found = found.map_err(|error| refused(error, During::Work))??;
        Ok(found.filter(|record| !record.is_expired(now)).map(Arc::new))
    }

    fn abandoned(&self, limit: usize) -> Result<Vec<DueAttempt>, StoreError> {
        let moment = self.contact.moment(&*self.clock);
        let found = table::abandoned(&self.connection, moment.now, limit);
        let found = found.map_err(|error| refused(error, During::Work))?;
        // An unreadable row must not hide the others.
        let found = found.iter().flatten().filter(|record| decide::is_abandoned(record, moment));
        Ok(found.map(|record| DueAttempt { id: record.id, attempt: record.attempt }).collect())
    }

    fn unsettled(&self, limit: usize) -> Result<Vec<DueAttempt>, StoreError> {
        let found = table::unsettled(&self.connection, self.clock.now(), limit);
        let found = found.map_err(|error| refused(error, During::Work))?;
        let found = found.iter().flatten();
        Ok(found.map(|record| DueAttempt { id: record.id, attempt: record.attempt }).collect())
    }

    fn settings(&self) -> rusqlite::Result<ConnectionSettings> {
        let ask = |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let mode = |row: &rusqlite::Row<'_>| row.get(0);
        Ok(ConnectionSettings {
            journal_mode: self.connection.pragma_query_value(None, "journal_mode", mode)?,
            synchronous: ask("synchronous")?,
            schema_version: schema::found_version(&self.connection, self.owner)?,
        })
    }

    /// Writes the queued jobs and answers them. After an error the store must not be used any more.
    fn group(&mut self) -> Result<(), StoreError> {
        if self.writes.is_empty() && self.sweeps.is_empty() {
            return Ok(());
        }
        let result = self.commit();
        self.contact.entry(result.is_ok(), self.clock.monotonic());
        self.answer(result.as_ref().copied());
        result.or_else(|error| match error.kind() {
            StoreErrorKind::Corrupt => Err(error),
            _ => Ok(()),
        })
    }

    /// Decides the queued jobs one after the other, in one transaction, and commits it.
    fn commit(&mut self) -> Result<(), StoreError> {
        let Self { connection, clock, writes, sweeps, contact, .. } = self;
        let work = || {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // The time is read while the lock is held, so that it does not run backwards between
            // two processes.
            let moment = contact.moment(&**clock);
            for write in writes {
                write.decide(&transaction, moment)?;
            }
            if let Some(sweeping) = sweeps.front_mut() {
                let swept = table::sweep(&transaction, moment.now, sweeping.left.min(SWEEP_STEP))?;
                audit::sweep(&transaction, moment.now, SWEEP_STEP)?;
                sweeping.left -= swept.removed;
                sweeping.swept.removed += swept.removed;
                sweeping.swept.unknown += swept.unknown;
                sweeping.swept.more = swept.more;
            }
            Ok(transaction)
        };
        let transaction = work().map_err(|error| refused(error, During::Work))?;
        transaction.commit().map_err(|error| refused(error, During::Commit))
    }

    /// Answers the queued jobs, except a sweep that has more to do.
    fn answer(&mut self, result: Result<(), &StoreError>) {
        self.writes.drain(..).for_each(|write| write.answer(result));
        match result {
            Ok(()) => {
                if let Some(over) = self.sweeps.pop_front_if(|sweeping| sweeping.is_over()) {
                    let _gone = over.to.send(Ok(over.swept));
                }
            }
            Err(error) => self.sweeps.drain(..).for_each(|sweeping| {
                let _gone = sweeping.to.send(Err(error.clone()));
            }),
        }
    }
}

impl Sweeping {
    fn is_over(&self) -> bool {
        self.left == 0 || !self.swept.more
    }
}
