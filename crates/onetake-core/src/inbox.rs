//! The inbox: a message that is delivered at least once has one effect.
//!
//! A message is an operation of its consumer, named by the message's id, whose effects commit with the note that
//! it was dealt with (mode T; see [`transaction`](crate::transaction)). What fails is rolled back and tried again
//! when the message is delivered again. One that failed too often is poison: it is parked as failed, and answered
//! so at every delivery until somebody forgets it ([`Inbox::forget`]).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::{
    Answer, Attempt, Deed, Engine, EngineError, Intervened, Intervention, Operation, Outcome,
    Settling, Standing, Verdict,
};
use crate::fingerprint::Fingerprint;
use crate::key::{Key, KeyError};
use crate::origin::{Origin, PastAttempt, TenantDigest};
use crate::record::{Failure, OnUnknown, Record, Recording, State, Terms};
use crate::scope::{RecordId, Reference, Scope};
use crate::store::StoreError;
use crate::transaction::unfinished;

/// The most attempts that may be asked for: as many as every record remembers.
pub const ATTEMPTS_MAX: u32 = 15;
/// The author of the inbox's entries in the audit log.
const BY: &str = "inbox";
/// The code of a poisoned message's record.
pub const POISONED: &str = "poisoned";

/// The first pause before a message should be delivered again; it doubles up to [`AGAIN_MAX`].
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// The first pause before a record is read again; it doubles up to [`READ_PAUSE_MAX`].
const READ_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a record is read again: then nobody waits any more.
const READ_PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest pause before a message should be delivered again.
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// How an inbox deals with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxOptions {
    /// For how long a message is remembered: longer than it can be delivered again.
    pub ttl: Duration,
    /// After how long of silence somebody else may deal with a message: a lease, and as long a grace.
    pub lease: Duration,
    /// For how long the work may take.
    pub run_max: Duration,
    /// How often a message is tried, from 1 to [`ATTEMPTS_MAX`]. An attempt whose process died counts; one that could
    /// not begin, because the database was unreachable, does not.
    pub attempts_max: u32,
}

impl Default for InboxOptions {
    /// Remembered for seven days, and tried five times.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(7 * 24 * 3600),
            lease: Terms::default().lease,
            run_max: Duration::from_secs(30),
            attempts_max: 5,
        }
    }
}

/// Deals with each message of a consumer once.
///
/// This one is for transactions on connections of your own. Those of a `Transactional` have one with `process`.
#[derive(Clone, Debug)]
pub struct Inbox {
    engine: Engine,
    scope: Scope,
    origin: Origin,
    options: InboxOptions,
}

/// What a delivery came to.
#[derive(Debug)]
pub enum Received<E> {
    /// Dealt with, just now: acknowledge it.
    Done(Recording),
    /// Dealt with before: acknowledge it.
    Duplicate(Recording),
    /// Another consumer is at it, it could not be tried, or its outcome is not durable yet: let it be delivered again soon.
    InProgress,
    /// It was rolled back: let it be delivered again.
    Failed {
        /// After so long.
        again: Duration,
        /// How often it has been tried by now.
        attempts: u32,
        /// What the work said; `None` if it panicked or took too long.
        error: Option<E>,
    },
    /// It failed too often, or its work returned success without a completion. It is not tried any more: take it
    /// out of the way, and let somebody look.
    Poisoned {
        /// By what people find it: `onetake keys get REFERENCE`.
        reference: Reference,
        /// How often it was tried, or that its outcome is not known.
        failure: Failure,
    },
}

/// Why a message could not even be tried.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The message's id cannot be a key.
    #[error("the message's id cannot be used: {0}")]
    Id(#[from] KeyError),
    /// The engine could not try.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Inbox {
    /// The inbox of the consumer of this name: two consumers of one message each deal with it.
    #[must_use]
    pub fn new(engine: Engine, consumer: &str, options: InboxOptions) -> Self {
        let scope = Scope::new(format!("consumer\0{consumer}")).namespace("inbox");
        let origin = Origin::new(TenantDigest::default(), &format!("inbox {consumer}"));
        Self { engine, scope, origin, options }
    }

    /// Deals with a message, unless somebody did. `work` writes its effects and its completion in one transaction
    /// and answers once it has committed, or with why it did not. Every failure of it counts as a try.
    ///
    /// # Errors
    /// If it could not even be tried.
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

    /// Deals with a message as [`receive`](Self::receive) does, and counts a failure as a try only if `is_try`
    /// returns true for its error. It should be false if the work could not begin, because its database was
    /// unreachable: a message is not to blame for that.
    ///
    /// # Errors
    /// If it could not even be tried.
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
            let told = |said: Said<E>| {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
            };
            let Some(before) = tries_before(&engine, attempt.id).await else {
                not_tried(&engine, attempt, "its earlier tries could not be counted").await;
                return Verdict::Release;
            };
            let attempts = before.saturating_add(1);
            told(Said { attempt, attempts, error: None });
            if before >= max {
                return Verdict::Fail(poisoned(before));
            }
            match work(attempt).await {
                // If its completion is in the store, that counts. If not, its effects may be there all the same.
                Ok(()) => Verdict::Fail(unfinished()),
                Err(error) if !is_try(&error) => {
                    told(Said { attempt, attempts: before, error: Some(error) });
                    not_tried(&engine, attempt, "its work could not begin").await;
                    Verdict::Release
                }
                Err(error) => {
                    told(Said { attempt, attempts, error: Some(error) });
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

    /// Lets a message that is poison be tried anew, once its cause is mended; whether it was poison. `by` and `why` are for
    /// the audit.
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
            deed: Deed::Forget { seen: Standing::Failed },
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

/// Notes that an attempt was no try, before it is released.
async fn not_tried(engine: &Engine, attempt: Attempt, why: &str) {
    let _panicked = engine.note_untried(attempt, BY, why).await;
}

/// How often the message of an attempt that runs was tried before; `None` if that cannot be known for a while.
///
/// Each attempt before this one stands in the record, in the statement that granted the next.
pub(crate) async fn tries_before(engine: &Engine, id: RecordId) -> Option<u32> {
    let record = patiently(engine, id, || engine.read(id)).await??;
    let attempts: Vec<PastAttempt> = record.history.attempts().collect();
    if attempts.is_empty() {
        return Some(0);
    }
    let untried = patiently(engine, id, || engine.untried(id)).await?;
    let tries = attempts.iter().filter(|past| !untried.contains(&past.fence)).count();
    Some(u32::try_from(tries).unwrap_or(u32::MAX))
}

/// Asks the store, and again for a few seconds if it does not answer.
async fn patiently<T, Fut>(engine: &Engine, id: RecordId, ask: impl Fn() -> Fut) -> Option<T>
where
    Fut: Future<Output = Result<T, StoreError>>,
{
    let mut pause = READ_PAUSE_MIN;
    loop {
        match ask().await {
            Ok(answer) => return Some(answer),
            Err(error) if pause > READ_PAUSE_MAX => {
                let reference = id.reference();
                tracing::warn!(%reference, %error, "a message was not tried: how often it was before is not known");
                return None;
            }
            Err(_) => engine.clock().sleep(pause).await,
        }
        pause *= 2;
    }
}

/// What an attempt left behind.
struct Said<E> {
    attempt: Attempt,
    attempts: u32,
    error: Option<E>,
}

fn received<E>(outcome: &Outcome, said: Option<Said<E>>) -> Received<E> {
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
            let Some(Said { attempts, error, .. }) = said else { return Received::InProgress };
            let doubled = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
            let again = AGAIN_MIN.saturating_mul(doubled).min(AGAIN_MAX);
            Received::Failed { again, attempts, error }
        }
        _ => Received::InProgress,
    }
}

fn poisoned(attempts: u32) -> Failure {
    let detail = format!("it was tried {attempts} times and never succeeded");
    Failure { code: POISONED.to_owned(), detail }
}
