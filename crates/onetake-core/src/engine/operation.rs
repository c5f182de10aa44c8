//! Requests to an engine, and its answers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::origin::Origin;
use crate::record::{AttemptId, Cause, Failure, Fence, Record, Recording, State, Terms};
use crate::scope::{RecordId, Scope};
use crate::store::{StoreError, StoreErrorKind, Transition};

use super::lease::{Lease, Settling};
use super::retry::OnRetry;

/// All limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Operations that run at once. One more is refused as overloaded.
    pub running_max: usize,
    /// Callers that wait at once for another caller's attempt. One more gets the answer that the
    /// attempt runs.
    pub waiting_max: usize,
    /// Callers that wait at once with the same key, so that a hot key does not displace the waiters
    /// of others.
    pub waiting_per_key_max: usize,
    /// Items in one write to the store.
    pub batch_items_max: usize,
    /// Writes of one kind that are under way at once. It does not apply to several lanes.
    pub writers_max: usize,
    /// Lanes for each kind of write. With one lane, the writes of all threads go together, and
    /// items that arrive during a write wait for it. With more, each thread has a lane (or shares
    /// one), which writes at once: use it for a store that gathers writes by itself, such as the
    /// embedded one.
    pub lanes: usize,
    /// Bytes of settled records that this process keeps in its cache.
    pub cache_bytes_max: usize,
    /// The time for which a settled record is kept in the cache.
    pub cache_age_max: Duration,
    /// The pause between two reads of a key that runs on another node, while a caller waits for it.
    pub poll_interval: Duration,
    /// The time for which a caller waits for its claim before it gets an error that the store does
    /// not answer.
    pub claim_patience: Duration,
    /// The time for which a caller waits for an outcome to become durable before it gets
    /// [`Settling::Pending`]. A large recording gets more time: see
    /// [`transfer_time`](crate::store::transfer_time).
    pub settle_patience: Duration,
    /// The time for which the engine keeps releasing a claim whose answer was lost, counted from
    /// the store's last error. It must be longer than a network or a stalled server can delay a
    /// request.
    pub lost_claim_patience: Duration,
    /// Claims whose answer was lost and that are being released at once. One more makes the engine
    /// give up on the oldest.
    pub lost_claims_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running_max: 10_000,
            waiting_max: 16_384,
            waiting_per_key_max: 12_288,
            batch_items_max: 512,
            writers_max: 1,
            lanes: 1,
            cache_bytes_max: 64 << 20,
            cache_age_max: Duration::from_secs(60),
            poll_interval: Duration::from_millis(25),
            claim_patience: Duration::from_secs(5),
            settle_patience: Duration::from_secs(5),
            lost_claim_patience: Duration::from_secs(3600),
            lost_claims_max: 10_000,
        }
    }
}

/// The rule for a key whose attempt is still running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhileRunning {
    /// Say so at once.
    #[default]
    Reject,
    /// Wait for the outcome, for at most this long.
    Wait(Duration),
}

/// One operation that a caller requests.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The record of its key.
    pub id: RecordId,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The fingerprints of the same request, sealed with secrets that were in use earlier.
    pub earlier: Vec<Fingerprint>,
    /// The terms of a claim.
    pub terms: Terms,
    /// The tenant, the route and the memo. They are kept for operators and reconcilers, and are not
    /// compared.
    pub origin: Origin,
    /// The answer to a caller while another attempt runs.
    pub in_flight: WhileRunning,
    /// The maximum time of a run. The lease is not renewed for longer.
    pub run_max: Duration,
    /// The hook that is called before the operation runs again.
    pub on_retry: Option<OnRetry>,
    /// True if an attempt that never started leaves its record behind, and with it its payload.
    pub keeps_untried: bool,
    /// True if the caller has seen a record of the key that excludes another run. If the store cannot
    /// be asked then, the engine does not return the work, so that it cannot run without a record.
    pub is_taken: bool,
}

impl Operation {
    /// Creates the operation that `key` names inside `scope`, under default terms.
    #[must_use]
    pub fn new(scope: &Scope, key: &Key, fingerprint: Fingerprint) -> Self {
        Self::of_record(RecordId::derive(scope, key), fingerprint)
    }

    /// Creates the operation whose record has this id, under default terms: for callers that have
    /// derived the id.
    #[must_use]
    pub fn of_record(id: RecordId, fingerprint: Fingerprint) -> Self {
        Self {
            id,
            fingerprint,
            earlier: Vec::new(),
            terms: Terms::default(),
            origin: Origin::default(),
            in_flight: WhileRunning::default(),
            run_max: Duration::from_secs(30),
            on_retry: None,
            keeps_untried: false,
            is_taken: false,
        }
    }

    /// Lets an attempt that never started leave its record behind. Callers that count new keys need
    /// the record, to count each key once.
    #[must_use]
    pub fn keeping_untried(mut self) -> Self {
        self.keeps_untried = true;
        self
    }

    /// Sets the fingerprints of the request that are sealed with earlier secrets, so that records
    /// from that time are still recognised.
    #[must_use]
    pub fn earlier(mut self, earlier: Vec<Fingerprint>) -> Self {
        self.earlier = earlier;
        self
    }

    /// True if a record's fingerprint is this operation's, sealed with the current secret or an
    /// earlier one.
    pub(crate) fn recognises(&self, found: &Fingerprint) -> bool {
        self.fingerprint == *found || self.earlier.contains(found)
    }

    /// Sets the terms.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets the tenant, the route and the memo.
    #[must_use]
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the rule for an attempt that is running already.
    #[must_use]
    pub fn in_flight(mut self, in_flight: WhileRunning) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Sets the hook that rolls back the half-done work of an earlier attempt before the operation
    /// runs again.
    #[must_use]
    pub fn on_retry(mut self, hook: OnRetry) -> Self {
        self.on_retry = Some(hook);
        self
    }

    /// Sets the maximum duration of the run.
    #[must_use]
    pub fn run_max(mut self, run_max: Duration) -> Self {
        self.run_max = run_max;
        self
    }
}

/// The answer to a caller that must not run the operation.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The recorded outcome.
    Replay(RecordWith<Recording>),
    /// The recorded failure.
    Failed(RecordWith<Failure>),
    /// An attempt runs, or was released while this caller waited for it.
    InFlight,
    /// The attempt still runs after the whole wait.
    WaitTimeout,
    /// The key was used before with another payload.
    Mismatch,
    /// The earlier attempt's outcome is unknown.
    Unknown(RecordWith<Cause>),
}

impl Answer {
    /// Returns the answer that a record holds; `None` if an attempt runs, or another one may.
    #[must_use]
    pub fn of(record: &Arc<Record>) -> Option<Self> {
        match &record.state {
            State::Completed { recording, .. } => {
                Some(Self::Replay(RecordWith::new(record, recording)))
            }
            State::Failed { failure, .. } => Some(Self::Failed(RecordWith::new(record, failure))),
            State::Unknown { cause, .. } => Some(Self::Unknown(RecordWith::new(record, cause))),
            State::Running { .. } | State::Released { .. } => None,
        }
    }
}

/// A record, and the part of its state that the answer is about.
#[derive(Clone, Debug)]
pub struct RecordWith<T> {
    record: Arc<Record>,
    part: T,
}

impl<T: Clone> RecordWith<T> {
    fn new(record: &Arc<Record>, part: &T) -> Self {
        Self { record: Arc::clone(record), part: part.clone() }
    }
}

impl<T> RecordWith<T> {
    /// Returns the part: a recording, a failure, or the cause of an unknown outcome.
    #[must_use]
    pub const fn part(&self) -> &T {
        &self.part
    }

    /// Returns the whole record.
    #[must_use]
    pub const fn record(&self) -> &Arc<Record> {
        &self.record
    }
}

impl<T> Deref for RecordWith<T> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

/// The result of [`Engine::begin`](super::Engine::begin).
#[derive(Debug)]
pub enum Begin {
    /// The caller owns the operation.
    Run(Lease),
    /// The operation does not run for this caller: the answer.
    Answer(Answer),
}

/// The result that an operation reports of itself.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The operation has an outcome.
    Complete(Recording),
    /// The operation failed permanently.
    Fail(Failure),
    /// The operation is known to have had no effect.
    Release,
    /// The outcome is not known to the operation itself.
    Unknown(Cause),
}

impl From<Verdict> for Transition {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Complete(recording) => Self::Complete(recording),
            Verdict::Fail(failure) => Self::Fail(failure),
            Verdict::Release => Self::Release,
            Verdict::Unknown(cause) => Self::Unknown(cause),
        }
    }
}

/// The result of [`Engine::run`](super::Engine::run).
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The operation ran now, for this caller.
    Ran(Settling),
    /// The operation did not run.
    Answered(Answer),
}

impl Outcome {
    /// Returns the recorded outcome, whether it was recorded now or earlier.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        let record = match self {
            Self::Ran(Settling::Recorded(record) | Settling::Stale(Some(record))) => record,
            Self::Answered(Answer::Replay(completed)) => return Some(completed.part()),
            _ => return None,
        };
        match &record.state {
            State::Completed { recording, .. } => Some(recording),
            _ => None,
        }
    }
}

/// The identity of the running attempt, for the operation itself.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The record.
    pub id: RecordId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The fence. Pass it to systems that can refuse lower fences.
    pub fence: Fence,
}

impl Attempt {
    /// Returns the latest attempt of a record.
    pub(super) fn of(record: &Record) -> Self {
        let Record { id, attempt, fence, .. } = *record;
        Self { id, attempt, fence }
    }
}

/// The use of a key, as far as it is known without a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyUse {
    /// The key has no record.
    Unused,
    /// An attempt of this process is under way. Its claim may still fail.
    UnderWay,
    /// The key has a record.
    Recorded {
        /// True if the attempt was released, so that another one can run.
        is_free: bool,
    },
}

/// The reason why the engine could not start an operation. The operation did not run (S10).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The maximum number of operations is running.
    #[error("too many operations are running at once")]
    Overloaded,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Closing,
}

impl EngineError {
    /// True if the store is unreachable, or its answer was lost. A caller that prefers two runs to
    /// none may then run without a record (S10). It is never true if the store refuses the request
    /// or cannot read the record: such a store still knows the key.
    #[must_use]
    pub fn is_store_down(&self) -> bool {
        match self {
            Self::Store(error) => {
                matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Indeterminate)
            }
            Self::Overloaded | Self::Closing => false,
        }
    }

    /// Returns the error of a store that did not answer in time.
    pub(super) fn no_answer() -> Self {
        StoreError::new(StoreErrorKind::Unavailable, "the store did not respond in time").into()
    }
}
