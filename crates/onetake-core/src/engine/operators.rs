//! Actions of operators: finding keys, inspecting them, and settling unknown ones by hand (S20).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::audit::{AuditAction, AuditEntry, AuditPage, AuditPosition, AuditResult};
use crate::record::{AttemptId, Failure, Record, Recording, State};
use crate::scope::{RecordId, Reference};
use crate::store::{
    Answers, Cursor, Page, Settled, Settlement, StoreError, StoreErrorKind, Transition,
};

use super::metrics::INTERVENTIONS;
use super::replays::Replays;
use super::{Engine, Inner};

/// The time limit for one answer of the store to an operator.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// A change to a key that an operator requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervention {
    /// The record.
    pub id: RecordId,
    /// The attempt that the operator saw. If the key has another attempt by now, nothing is done.
    pub attempt: AttemptId,
    /// The action.
    pub action: OperatorAction,
    /// The author, for the audit log.
    pub by: String,
    /// The reason, for the audit log. It must contain nothing secret.
    pub reason: String,
}

/// An action on a key whose outcome is unknown. `Forget` is possible for every key that is not
/// running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperatorAction {
    /// The attempt is known to have had no effect: another may run.
    Release,
    /// The attempt failed permanently.
    Fail(Failure),
    /// The outcome of the attempt.
    Resolve(Recording),
    /// The key becomes as if it had never been used, and can run again.
    Forget {
        /// The state of the key when the operator looked. If it differs by now, nothing is done.
        seen: ExpectedState,
    },
}

/// The state of a key that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedState {
    /// The outcome is recorded.
    Completed,
    /// A failure is recorded.
    Failed,
    /// The attempt had no effect.
    Released,
    /// The outcome of the attempt is unknown.
    Unknown,
}

impl ExpectedState {
    fn of(state: &State) -> Option<Self> {
        match state {
            State::Running { .. } => None,
            State::Completed { .. } => Some(Self::Completed),
            State::Failed { .. } => Some(Self::Failed),
            State::Released { .. } => Some(Self::Released),
            State::Unknown { .. } => Some(Self::Unknown),
        }
    }
}

impl OperatorAction {
    /// Returns the action's name in the audit log.
    #[must_use]
    pub const fn action(&self) -> AuditAction {
        match self {
            Self::Release => AuditAction::Release,
            Self::Fail(_) => AuditAction::Fail,
            Self::Resolve(_) => AuditAction::Resolve,
            Self::Forget { .. } => AuditAction::Forget,
        }
    }
}

impl From<OperatorAction> for Transition {
    fn from(action: OperatorAction) -> Self {
        match action {
            OperatorAction::Release => Self::Release,
            OperatorAction::Fail(failure) => Self::Fail(failure),
            OperatorAction::Resolve(recording) => Self::Complete(recording),
            OperatorAction::Forget { .. } => Self::Forget,
        }
    }
}

/// The result of an intervention.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Intervened {
    /// The change is durable: the record after it.
    Done(Arc<Record>),
    /// An attempt may still be running: nothing was done.
    Running(Arc<Record>),
    /// Another attempt has the key by now, or it is settled already: nothing was done.
    Stale(Arc<Record>),
    /// There is no such key: nothing was done.
    Absent,
}

impl Engine {
    /// Reads a record from the store, without a limit on callers.
    pub(crate) async fn read(&self, id: RecordId) -> Result<Option<Arc<Record>>, StoreError> {
        self.inner.read_from_store(id).await
    }

    /// Returns the records with this reference; there is rarely more than one.
    ///
    /// # Errors
    /// If the store does not answer in time.
    pub async fn find(&self, reference: Reference) -> Result<Vec<RecordId>, StoreError> {
        self.inner.within_timeout(self.inner.store.find(reference)).await
    }

    /// Reads records from the store, without the cache of this process.
    ///
    /// # Errors
    /// If the store does not answer in time.
    pub async fn inspect(
        &self,
        ids: Vec<RecordId>,
    ) -> Result<Answers<Option<Arc<Record>>>, StoreError> {
        let load = self.inner.store.load(ids);
        self.inner.within_timeout(Box::pin(async move { Ok(load.await) })).await
    }

    /// Lists all records, page by page.
    ///
    /// # Errors
    /// If the store does not answer in time, or the cursor belongs to another store.
    pub async fn page(&self, from: Option<Cursor>, limit: usize) -> Result<Page, StoreError> {
        self.inner.within_timeout(self.inner.store.page(from, limit)).await
    }

    /// Returns audit entries of one record or of all records, the newest first.
    ///
    /// # Errors
    /// If the store does not answer in time, or the cursor belongs to another store.
    pub async fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<AuditPage, StoreError> {
        self.inner.within_timeout(self.inner.store.audit_entries(of, from, limit)).await
    }

    /// Returns how often this process has replayed a record lately, as far as it remembers.
    #[must_use]
    pub fn replays(&self, record: &Record) -> Replays {
        self.inner.replays.of(record)
    }

    /// Carries out an operator's action, if the key is still as the operator saw it. An attempt
    /// that may be running is never changed. An audit entry is written before the action, and
    /// replaced with the result after it.
    ///
    /// Other nodes may replay a forgotten outcome for as long as it is in their cache (a minute by
    /// default).
    ///
    /// # Errors
    /// If the store does not answer in time. The audit log then says that the action was requested,
    /// and it may have been done.
    pub async fn intervene(&self, wanted: Intervention) -> Result<Intervened, StoreError> {
        // If the caller is dropped, the action is still finished, and its result is written to the
        // audit log.
        let engine = self.clone();
        let task = self.inner.tasks.spawn_tracked(&self.inner.tracker, async move {
            engine.inner.intervene(wanted).await
        });
        task.await.unwrap_or_else(|_| Err(Inner::not_in_time()))
    }
}

impl Inner {
    async fn intervene(&self, wanted: Intervention) -> Result<Intervened, StoreError> {
        let Some(record) = self.read_from_store(wanted.id).await? else {
            return Ok(Intervened::Absent);
        };
        if record.attempt != wanted.attempt {
            return Ok(Intervened::Stale(record));
        }
        // An attempt that is under way in this process is not over, whatever the store says.
        let is_under_way =
            matches!(record.state, State::Unknown { .. }) && self.flights.has(&record.id);
        let Some(stands) = ExpectedState::of(&record.state).filter(|_| !is_under_way) else {
            return Ok(Intervened::Running(record));
        };
        let seen = match wanted.action {
            OperatorAction::Forget { seen } => seen,
            OperatorAction::Release | OperatorAction::Fail(_) | OperatorAction::Resolve(_) => {
                ExpectedState::Unknown
            }
        };
        if stands != seen {
            return Ok(Intervened::Stale(record));
        }
        // A settled record does not change any more under its attempt. An unknown record may be
        // settled by its owner at this moment, and an outcome that the operator did not see must
        // not be forgotten. So the record is released first, which excludes the owner, and then
        // forgotten.
        if stands == ExpectedState::Unknown && wanted.action.action() == AuditAction::Forget {
            let release = Intervention { action: OperatorAction::Release, ..wanted.clone() };
            match self.intervened(release, &record).await? {
                Intervened::Done(released) => return self.intervened(wanted, &released).await,
                otherwise => return Ok(otherwise),
            }
        }
        self.intervened(wanted, &record).await
    }

    /// Carries out an operator's action, and counts it.
    async fn intervened(
        &self,
        wanted: Intervention,
        record: &Record,
    ) -> Result<Intervened, StoreError> {
        let (reference, action) = (wanted.id.reference(), wanted.action.action().name());
        let intervened = self.carry_out(wanted, record).await;
        let ended = match &intervened {
            Ok(Intervened::Done(_)) => AuditResult::Done,
            Ok(_) => AuditResult::Stale,
            Err(_) => AuditResult::Failed,
        };
        let labels = [("action", action), ("ended", ended.name())];
        metrics::counter!(INTERVENTIONS, &labels).increment(1);
        tracing::warn!(%reference, action, ended = ended.name(), "an operator intervened");
        intervened
    }

    /// Writes an audit entry, carries out the action, and writes its result.
    pub(super) async fn carry_out(
        &self,
        wanted: Intervention,
        record: &Record,
    ) -> Result<Intervened, StoreError> {
        let Intervention { id, attempt, action, by, reason } = wanted;
        let mut entry = AuditEntry {
            place: AuditPosition::new(self.clock.now(), &*self.rng),
            id,
            attempt,
            action: action.action(),
            ended: AuditResult::Asked,
            before: match &record.state {
                State::Unknown { cause, .. } => format!("unknown: {cause}"),
                state => state.name().to_owned(),
            },
            by,
            reason,
        };
        self.within_timeout(self.store.audit(entry.clone())).await?;
        let forgets = action.action() == AuditAction::Forget;
        let settlement = Settlement { id, attempt, transition: action.into() };
        let settled = self.within_timeout(Box::pin(self.settles.submit(settlement))).await;
        if forgets {
            self.cache.forget(id, attempt, self.clock.monotonic());
        }
        entry.ended = match &settled {
            Ok(Settled::Done { .. }) => AuditResult::Done,
            Ok(Settled::Stale { .. }) => AuditResult::Stale,
            Err(_) => AuditResult::Failed,
        };
        let noted = self.within_timeout(self.store.audit(entry)).await;
        let settled = settled?;
        if let Err(error) = noted {
            // The action is done, and the audit log says that it was requested.
            tracing::warn!(%error, "the result of an operator action could not be written to the audit log");
        }
        Ok(match settled {
            Settled::Done { record, .. } => Intervened::Done(record),
            Settled::Stale { current: Some(record) } => Intervened::Stale(record),
            Settled::Stale { current: None } => Intervened::Absent,
        })
    }

    pub(super) async fn read_from_store(
        &self,
        id: RecordId,
    ) -> Result<Option<Arc<Record>>, StoreError> {
        let load = self.store.load(vec![id]);
        let load = async move { load.await.pop().unwrap_or_else(|| Err(Self::not_in_time())) };
        self.within_timeout(Box::pin(load)).await
    }

    /// Waits for the store, within [`STORE_TIMEOUT`].
    pub(super) async fn within_timeout<T>(
        &self,
        answer: BoxFuture<'_, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep(STORE_TIMEOUT) => Err(Self::not_in_time()),
        };
        answer.inspect_err(|error| self.failed(error))
    }

    fn not_in_time() -> StoreError {
        StoreError::new(StoreErrorKind::Indeterminate, "the store did not respond in time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Answer, Begin, Cause, Fingerprint, Key, MemoryStore, Operation, Outcome, Scope, Verdict,
    };

    fn operation(key: &str) -> Operation {
        Operation::new(&Scope::new("ops"), &Key::new(key).unwrap(), Fingerprint::of(b"pay"))
    }

    fn engine() -> Engine {
        Engine::new(Arc::new(MemoryStore::new()))
    }

    async fn settled(engine: &Engine, key: &str, verdict: Verdict) -> Arc<Record> {
        let ran = engine.run(operation(key), async move |_| verdict).await.unwrap();
        assert!(matches!(ran, Outcome::Ran(_)));
        engine.inner.read_from_store(operation(key).id).await.unwrap().unwrap()
    }

    fn want(record: &Record, action: OperatorAction) -> Intervention {
        let (by, reason) = ("somebody".to_owned(), "the bank says so".to_owned());
        Intervention { id: record.id, attempt: record.attempt, action, by, reason }
    }

    fn deeds() -> [OperatorAction; 4] {
        let failure = Failure { code: "declined".into(), detail: "by the bank".into() };
        [
            OperatorAction::Release,
            OperatorAction::Fail(failure),
            OperatorAction::Resolve(Recording::new("paid after all")),
            OperatorAction::Forget { seen: ExpectedState::Unknown },
        ]
    }

    #[tokio::test]
    async fn the_unknown_is_settled_and_noted() {
        let engine = engine();
        for (number, action) in deeds().into_iter().enumerate() {
            let key = format!("unknown {number}");
            let unknown = settled(&engine, &key, Verdict::Unknown(Cause::TimedOut)).await;
            let done = engine.intervene(want(&unknown, action.clone())).await.unwrap();
            let Intervened::Done(record) = done else { panic!("{done:?}") };
            let now = engine.begin(&operation(&key)).await.unwrap();
            match action {
                OperatorAction::Release | OperatorAction::Forget { .. } => {
                    assert!(matches!(now, Begin::Run(_)))
                }
                OperatorAction::Fail(_) => assert!(matches!(now, Begin::Answer(Answer::Failed(_)))),
                OperatorAction::Resolve(_) => {
                    assert!(matches!(now, Begin::Answer(Answer::Replay(_))))
                }
            }
            let entries = engine.audit_entries(Some(record.id), None, 10).await.unwrap().entries;
            // A key is released before it is forgotten.
            assert_eq!(entries.len(), 1 + usize::from(action.action() == AuditAction::Forget));
            assert_eq!((entries[0].action, entries[0].ended), (action.action(), AuditResult::Done));
            let first = entries.last().unwrap();
            assert_eq!(
                (&*first.before, &*first.reason),
                ("unknown: it exceeded its time limit", "the bank says so")
            );
        }
    }

    #[tokio::test]
    async fn what_runs_or_changed_is_left_alone() {
        let engine = engine();
        let Begin::Run(lease) = engine.begin(&operation("runs")).await.unwrap() else { panic!() };
        let running = engine.inner.read_from_store(operation("runs").id).await.unwrap().unwrap();
        let completed =
            settled(&engine, "completed", Verdict::Complete(Recording::new("paid"))).await;
        for action in deeds() {
            let answer = engine.intervene(want(&running, action.clone())).await.unwrap();
            assert!(matches!(answer, Intervened::Running(_)), "{answer:?}");
            let mut stale = want(&completed, action.clone());
            stale.attempt = running.attempt;
            let answer = engine.intervene(stale).await.unwrap();
            assert!(matches!(answer, Intervened::Stale(_)), "{answer:?}");
            let mut absent = want(&completed, action.clone());
            absent.id = operation("absent").id;
            let answer = engine.intervene(absent).await.unwrap();
            assert!(matches!(answer, Intervened::Absent), "{answer:?}");
            // A recorded outcome never changes (S4). It can only be forgotten, by an operator who
            // saw that state.
            let answer = engine.intervene(want(&completed, action)).await.unwrap();
            assert!(matches!(answer, Intervened::Stale(_)), "{answer:?}");
        }
        let mut stale = want(&completed, OperatorAction::Forget { seen: ExpectedState::Completed });
        stale.attempt = running.attempt;
        let answer = engine.intervene(stale).await.unwrap();
        assert!(matches!(answer, Intervened::Stale(_)), "{answer:?}");
        assert_eq!(engine.audit_entries(None, None, 10).await.unwrap().entries, []);
        drop(lease);
    }

    #[tokio::test]
    async fn the_forgotten_is_not_remembered_here_either() {
        let engine = engine();
        let completed = settled(&engine, "a", Verdict::Complete(Recording::new("paid"))).await;
        assert!(matches!(
            engine.begin(&operation("a")).await.unwrap(),
            Begin::Answer(Answer::Replay(_))
        ));
        assert_eq!(engine.replays(&completed).count, 1);
        let done = engine
            .intervene(want(&completed, OperatorAction::Forget { seen: ExpectedState::Completed }))
            .await
            .unwrap();
        assert!(matches!(done, Intervened::Done(_)));
        assert!(matches!(engine.begin(&operation("a")).await.unwrap(), Begin::Run(_)));
    }
}
