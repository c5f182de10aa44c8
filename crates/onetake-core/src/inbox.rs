//! The inbox: messages that are delivered at least once have one effect.
//!
//! A message is an operation of its consumer, named by the message's id. Its effects commit
//! together with its completion (mode T; see [`transaction`](crate::transaction)). A failed attempt
//! is rolled back, and the message is tried again at its next delivery. A message that failed too
//! often is poison: it is recorded as failed, and every further delivery gets that answer until the
//! message is forgotten ([`Inbox::forget`]).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::{
    Answer, Attempt, Engine, EngineError, ExpectedState, Intervened, Intervention, Operation,
    OperatorAction, Outcome, Settling, Verdict,
};
use crate::fingerprint::Fingerprint;
use crate::key::{Key, KeyError};
use crate::origin::{Origin, PastAttempt, TenantDigest};
use crate::record::{Failure, OnUnknown, Record, Recording, State, Terms};
use crate::scope::{RecordId, Reference, Scope};
use crate::store::StoreError;
use crate::transaction::unfinished;

/// The maximum number of attempts that can be set: every record keeps at least this many.
pub const ATTEMPTS_MAX: u32 = 15;
/// The author of the inbox's entries in the audit log.
const BY: &str = "inbox";
/// The failure code of a poisoned message.
pub const POISONED: &str = "poisoned";

/// The first pause before the next delivery of a message; it doubles up to
/// [`REDELIVERY_PAUSE_MAX`].
const REDELIVERY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The first pause before a record is read again; it doubles up to [`READ_PAUSE_MAX`].
const READ_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a record is read again. After it, the read fails.
const READ_PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest pause before the next delivery of a message.
const REDELIVERY_PAUSE_MAX: Duration = Duration::from_secs(300);

/// The settings of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxOptions {
    /// The time for which a message is remembered. It must be longer than the time within which the
    /// message can be delivered again.
    pub ttl: Duration,
    /// The lease of an attempt. The grace has the same length. Another consumer may process the
    /// message once both have passed without a renewal.
    pub lease: Duration,
    /// The maximum duration of the work.
    pub run_max: Duration,
    /// The maximum number of tries of a message, from 1 to [`ATTEMPTS_MAX`]. An attempt whose
    /// process died counts. An attempt that could not begin, because the database was unreachable,
    /// does not count.
    pub attempts_max: u32,
}

impl Default for InboxOptions {
    /// Messages are remembered for seven days, and tried five times.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(7 * 24 * 3600),
            lease: Terms::default().lease,
            run_max: Duration::from_secs(30),
            attempts_max: 5,
        }
    }
}

/// Processes each message of a consumer once.
///
/// This type is for transactions on your own connections. A `Transactional` has its own inbox, with
/// `process`.
#[derive(Clone, Debug)]
pub struct Inbox {
    engine: Engine,
    scope: Scope,
    origin: Origin,
    options: InboxOptions,
}

/// The result of a delivery.
#[derive(Debug)]
pub enum Received<E> {
    /// The message was processed now: acknowledge it.
    Done(Recording),
    /// The message was processed before: acknowledge it.
    Duplicate(Recording),
    /// Another consumer processes the message, it could not be tried, or its outcome is not durable
    /// yet: have it delivered again soon.
    InProgress,
    /// The attempt was rolled back: have the message delivered again.
    Failed {
        /// The pause before the next delivery.
        again: Duration,
        /// The number of tries so far.
        attempts: u32,
        /// The error of the work; `None` if it panicked or took too long.
        error: Option<E>,
    },
    /// It failed too often, or its work returned success without a completion. It is not tried any
    /// more: move it to a dead-letter queue for an operator.
    Poisoned {
        /// The reference for operators: `onetake keys get REFERENCE`.
        reference: Reference,
        /// How often it was tried, or that its outcome is not known.
        failure: Failure,
    },
}

/// The reason why a message could not be tried.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The message's id cannot be a key.
    #[error("the id of the message is not a valid key")]
    Id(#[from] KeyError),
    /// The engine could not start an attempt.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Inbox {
    /// Creates the inbox of a consumer. Two consumers of one message process it independently.
    #[must_use]
    pub fn new(engine: Engine, consumer: &str, options: InboxOptions) -> Self {
        let scope = Scope::new(format!("consumer\0{consumer}")).namespace("inbox");
        let origin = Origin::new(TenantDigest::default(), &format!("inbox {consumer}"));
        Self { engine, scope, origin, options }
    }

    /// Processes a message, unless it was processed before. `work` writes its effects and its
    /// completion in one transaction, and returns once it has committed, or with the reason why it
    /// did not. Every failure of it counts as a try.
    ///
    /// # Errors
    /// If the message could not be tried.
    pub async fn receive<E, F, Fut>(
        &self,
        message: &str,
        work: F,
    ) -> Result<Received<E>, ReceiveError>
    where
        E: Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
    {
        self.receive_counting(message, |_| true, work).await
    }

    /// Processes a message as [`receive`](Self::receive) does, and counts a failure as a try only
    /// if `is_try` returns true for its error. It should be false if the work could not begin
    /// because its database was unreachable: that is not the fault of the message.
    ///
    /// # Errors
    /// If the message could not be tried.
    pub async fn receive_counting<E, F, Fut>(
        &self,
        message: &str,
        is_try: fn(&E) -> bool,
        work: F,
    ) -> Result<Received<E>, ReceiveError>
    where
        E: Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
    {
        let key = Key::new(message)?;
        let operation = Operation::new(&self.scope, &key, Fingerprint::of(b"message"))
            .terms(self.terms())
            .origin(self.origin.clone())
            .run_max(self.options.run_max);
        let said = Arc::new(Mutex::new(None));
        let (slot, engine) = (Arc::clone(&said), self.engine.clone());
        let max = self.options.attempts_max.clamp(1, ATTEMPTS_MAX);
        let outcome = self.engine.run(operation, move |attempt| async move {
            let report = |said: AttemptResult<E>| {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
            };
            let Some(before) = tries_before(&engine, attempt.id).await else {
                not_tried(
                    &engine,
                    attempt,
                    BY,
                    "the earlier attempts of the message could not be counted",
                )
                .await;
                return Verdict::Release;
            };
            let attempts = before.saturating_add(1);
            report(AttemptResult { attempt, attempts, error: None });
            if before >= max {
                return Verdict::Fail(poisoned(before));
            }
            match work(attempt).await {
                // If its completion is in the store, that counts. If not, its effects may be there
                // all the same.
                Ok(()) => Verdict::Fail(unfinished()),
                Err(error) if !is_try(&error) => {
                    report(AttemptResult { attempt, attempts: before, error: Some(error) });
                    not_tried(&engine, attempt, BY, "the work could not begin").await;
                    Verdict::Release
                }
                Err(error) => {
                    report(AttemptResult { attempt, attempts, error: Some(error) });
                    if attempts < max {
                        Verdict::Release
                    } else {
                        Verdict::Fail(poisoned(attempts))
                    }
                }
            }
        });
        let outcome = outcome.await?;
        let said = said.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(received(&outcome, said))
    }

    /// Lets a poisoned message be tried again, once its cause is fixed. Returns true if the message
    /// was poisoned. `by` and `why` are for the audit log.
    ///
    /// # Errors
    /// If the id cannot be a key, or the store does not answer in time.
    pub async fn forget(&self, message: &str, by: &str, why: &str) -> Result<bool, ReceiveError> {
        let id = RecordId::derive(&self.scope, &Key::new(message)?);
        let record = self.engine.read(id).await.map_err(EngineError::Store)?;
        let failed = record.filter(|record| matches!(record.state, State::Failed { .. }));
        let Some(record) = failed else { return Ok(false) };
        let wanted = Intervention {
            id,
            attempt: record.attempt,
            action: OperatorAction::Forget { seen: ExpectedState::Failed },
            by: by.to_owned(),
            reason: why.to_owned(),
        };
        let done = self.engine.intervene(wanted).await.map_err(EngineError::Store)?;
        Ok(matches!(done, Intervened::Done(_)))
    }

    fn terms(&self) -> Terms {
        let InboxOptions { ttl, lease, .. } = self.options;
        Terms { ttl, lease, grace: lease, on_unknown: OnUnknown::Rollback }
    }
}

/// Writes to the audit log that an attempt was not a try, before it is released.
pub(crate) async fn not_tried(engine: &Engine, attempt: Attempt, by: &str, why: &str) {
    let _panicked = engine.note_untried(attempt, by, why).await;
}

/// Returns how often the message of a running attempt was tried before; `None` if the store does
/// not answer for some seconds, or the record is absent.
///
/// The claim that grants an attempt adds the attempt before it to the record's history.
pub(crate) async fn tries_before(engine: &Engine, id: RecordId) -> Option<u32> {
    let record = read_with_retries(engine, id, || engine.read(id)).await??;
    let attempts: Vec<PastAttempt> = record.history.attempts().collect();
    if attempts.is_empty() {
        return Some(0);
    }
    let untried = read_with_retries(engine, id, || engine.untried(id)).await?;
    let tries = attempts.iter().filter(|past| !untried.contains(&past.fence)).count();
    Some(u32::try_from(tries).unwrap_or(u32::MAX))
}

/// Reads from the store, and retries for a few seconds if it does not answer.
async fn read_with_retries<T, Fut>(
    engine: &Engine,
    id: RecordId,
    ask: impl Fn() -> Fut,
) -> Option<T>
where
    Fut: Future<Output = Result<T, StoreError>>,
{
    let mut pause = READ_PAUSE_MIN;
    loop {
        match ask().await {
            Ok(answer) => return Some(answer),
            Err(error) if pause > READ_PAUSE_MAX => {
                let reference = id.reference();
                tracing::warn!(%reference, %error, "a message was not processed: the number of its earlier attempts could not be read");
                return None;
            }
            Err(_) => engine.clock().sleep(pause).await,
        }
        pause *= 2;
    }
}

/// The result of an attempt of this process.
struct AttemptResult<E> {
    attempt: Attempt,
    attempts: u32,
    error: Option<E>,
}

fn received<E>(outcome: &Outcome, said: Option<AttemptResult<E>>) -> Received<E> {
    let ours = said.as_ref().map(|said| said.attempt.attempt);
    let is_ours = |record: &Record| ours == Some(record.attempt);
    let record = match outcome {
        Outcome::Ran(Settling::Recorded(record) | Settling::Stale(Some(record))) => record,
        Outcome::Answered(Answer::Replay(completed)) => completed.record(),
        Outcome::Answered(Answer::Failed(failed)) => failed.record(),
        _ => return Received::InProgress,
    };
    match &record.state {
        State::Completed { recording, .. } if is_ours(record) => Received::Done(recording.clone()),
        State::Completed { recording, .. } => Received::Duplicate(recording.clone()),
        State::Failed { failure, .. } => {
            Received::Poisoned { reference: record.id.reference(), failure: failure.clone() }
        }
        State::Released { .. } if matches!(outcome, Outcome::Ran(Settling::Recorded(_))) => {
            let Some(AttemptResult { attempts, error, .. }) = said else {
                return Received::InProgress;
            };
            let doubled = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
            let again = REDELIVERY_PAUSE_MIN.saturating_mul(doubled).min(REDELIVERY_PAUSE_MAX);
            Received::Failed { again, attempts, error }
        }
        _ => Received::InProgress,
    }
}

fn poisoned(attempts: u32) -> Failure {
    let detail = format!("it failed {attempts} times and is not tried again");
    Failure { code: POISONED.to_owned(), detail }
}
