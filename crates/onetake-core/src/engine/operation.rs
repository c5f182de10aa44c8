//! What is asked of an engine, and what it answers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::origin::Origin;
use crate::record::{AttemptId, Cause, Failure, Fence, Record, Recording, State, Terms};
use crate::scope::{RecordId, Scope};
use crate::store::{StoreError, StoreErrorKind, Verb};

use super::lease::{Lease, Settling};
use super::retry::OnRetry;

/// Every bound of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Operations that may run at once; one more is refused as overloaded.
    pub running_max: usize,
    /// Callers that may wait at once for somebody else's attempt; one more is told that it runs.
    pub waiting_max: usize,
    /// Of these, callers with one and the same key, so that a hot key does not crowd out others.
    pub waiting_per_key_max: usize,
    /// Items in one write to the store.
    pub batch_items_max: usize,
    /// Writes of one kind that are under way at once.
    pub writers_max: usize,
    /// Bytes of settled records that are remembered in this process.
    pub cache_bytes_max: usize,
    /// For how long a settled record is remembered in this process.
    pub cache_age_max: Duration,
    /// How often a key that runs on another node is looked at, while somebody waits for it.
    pub poll_interval: Duration,
    /// How long a caller waits for its claim before it is told that the store does not answer.
    pub claim_patience: Duration,
    /// How long a caller waits for an outcome to become durable before it is told that it is
    /// pending.
    pub settle_patience: Duration,
    /// How long the engine goes on releasing a claim whose answer was lost, counted from the last error of the
    /// store: longer than a network or a stalled server can hold a request back.
    pub lost_claim_patience: Duration,
    /// Claims whose answer was lost and that are being released at once; one more gives up on the oldest.
    pub lost_claims_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running_max: 10_000,
            waiting_max: 10_000,
            waiting_per_key_max: 2_000,
            batch_items_max: 512,
            writers_max: 1,
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

/// What to do for a key whose attempt still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// Say so at once.
    #[default]
    Reject,
    /// Wait for its outcome, for at most this long.
    Wait(Duration),
}

/// One operation that somebody asks for.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The record of its key.
    pub id: RecordId,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// The same, sealed with secrets that were in use earlier.
    pub earlier: Vec<Fingerprint>,
    /// What it would be claimed under.
    pub terms: Terms,
    /// Who asks for it, and where: kept for operators, and compared with nothing.
    pub origin: Origin,
    /// What to do if it runs already.
    pub in_flight: InFlight,
    /// For how long it may run: its lease is renewed no longer than that.
    pub run_max: Duration,
    /// What is called before it runs again.
    pub on_retry: Option<OnRetry>,
}

impl Operation {
    /// The operation that `key` names inside `scope`, under default terms.
    #[must_use]
    pub fn new(scope: &Scope, key: &Key, fingerprint: Fingerprint) -> Self {
        Self::of_record(RecordId::derive(scope, key), fingerprint)
    }

    /// The operation whose record has this id, under default terms: for callers that have derived it.
    #[must_use]
    pub fn of_record(id: RecordId, fingerprint: Fingerprint) -> Self {
        Self {
            id,
            fingerprint,
            earlier: Vec::new(),
            terms: Terms::default(),
            origin: Origin::default(),
            in_flight: InFlight::default(),
            run_max: Duration::from_secs(30),
            on_retry: None,
        }
    }

    /// Sets how what was asked looks when it is sealed with secrets that were in use earlier: records
    /// from then are still recognised.
    #[must_use]
    pub fn earlier(mut self, earlier: Vec<Fingerprint>) -> Self {
        self.earlier = earlier;
        self
    }

    /// Whether a record's fingerprint is this operation's, sealed with the current secret or an earlier one.
    pub(crate) fn recognises(&self, found: &Fingerprint) -> bool {
        self.fingerprint == *found || self.earlier.contains(found)
    }

    /// Sets the terms.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets who asks for it, and where.
    #[must_use]
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Sets what to do if it runs already.
    #[must_use]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Sets what rolls back what an earlier attempt left half done, before it runs again.
    #[must_use]
    pub fn on_retry(mut self, hook: OnRetry) -> Self {
        self.on_retry = Some(hook);
        self
    }

    /// Sets for how long it may run.
    #[must_use]
    pub fn run_max(mut self, run_max: Duration) -> Self {
        self.run_max = run_max;
        self
    }
}

/// What a caller who must not run is told.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The recorded outcome.
    Replay(RecordWith<Recording>),
    /// The recorded failure.
    Failed(RecordWith<Failure>),
    /// An attempt runs, or ran and was released while this caller waited for it.
    InFlight,
    /// It still runs after the whole wait.
    WaitTimeout,
    /// Another payload came with this key before.
    Mismatch,
    /// The earlier attempt's outcome is unknown.
    Unknown(RecordWith<Cause>),
}

impl Answer {
    /// What a record tells; `None` if an attempt runs, or another one may.
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

/// A record, and the part of its state that it was found to have.
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
    /// The part: a recording, a failure, or why the outcome is unknown.
    #[must_use]
    pub const fn part(&self) -> &T {
        &self.part
    }

    /// The whole record.
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

/// What [`Engine::begin`](super::Engine::begin) comes to.
#[derive(Debug)]
pub enum Begin {
    /// The caller owns the operation.
    Run(Lease),
    /// Somebody else did.
    Answer(Answer),
}

/// What an operation says of itself.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It has an outcome.
    Complete(Recording),
    /// It failed for good.
    Fail(Failure),
    /// It is known to have had no effect.
    Release,
    /// It does not know what became of it.
    Unknown(Cause),
}

impl From<Verdict> for Verb {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Complete(recording) => Self::Complete(recording),
            Verdict::Fail(failure) => Self::Fail(failure),
            Verdict::Release => Self::Release,
            Verdict::Unknown(cause) => Self::Unknown(cause),
        }
    }
}

/// What [`Engine::run`](super::Engine::run) comes to.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The operation ran here and now.
    Ran(Settling),
    /// It did not run.
    Answered(Answer),
}

impl Outcome {
    /// The recorded outcome, whether it was recorded just now or earlier.
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

/// The operation that is running, as it sees itself.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The record.
    pub id: RecordId,
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence: pass it on to whoever can refuse lower ones.
    pub fence: Fence,
}

/// Why the engine could not even try. The operation did not run (S10).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The store did not answer.
    #[error("the store is not available: {0}")]
    Store(#[from] StoreError),
    /// As much is running as may run at once.
    #[error("too many operations are running at once")]
    Overloaded,
    /// The engine is draining.
    #[error("the engine is shutting down")]
    Closing,
}

impl EngineError {
    /// Whether the store is away, or its answer got lost: what a caller who would rather run twice
    /// than not at all may run without a record (S10). What the store refuses, or cannot read, it has
    /// not forgotten: that is never so.
    #[must_use]
    pub fn is_store_down(&self) -> bool {
        match self {
            Self::Store(error) => {
                matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Indeterminate)
            }
            Self::Overloaded | Self::Closing => false,
        }
    }

    /// The store did not answer within its time.
    pub(super) fn no_answer() -> Self {
        StoreError::new(StoreErrorKind::Unavailable, "the store does not answer in time").into()
    }
}
