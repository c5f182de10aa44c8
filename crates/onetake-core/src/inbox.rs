//! The inbox: a message that is delivered at least once has one effect.
//!
//! A message is an operation of its consumer, named by the message's id, whose effects commit with the note that
//! it was dealt with (mode T; see [`transaction`](crate::transaction)). What fails is rolled back and tried again
//! when the message is delivered again. One that failed too often is poison: it is parked as failed, and answered
//! so at every delivery until an operator forgets its key.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::{Answer, Attempt, Engine, EngineError, Operation, Outcome, Settling, Verdict};
use crate::fingerprint::Fingerprint;
use crate::key::{Key, KeyError};
use crate::record::{Failure, OnUnknown, Record, Recording, State, Terms};
use crate::scope::Scope;

/// The most attempts that may be asked for: as many as every record remembers.
pub const ATTEMPTS_MAX: u32 = 15;
/// The code of a poisoned message's record.
pub const POISONED: &str = "poisoned";

/// The first pause before a message should be delivered again; it doubles up to [`AGAIN_MAX`].
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// The longest pause before a message should be delivered again.
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// Deals with each message of a consumer once.
#[derive(Clone, Debug)]
pub struct Inbox {
    engine: Engine,
    scope: Scope,
    terms: Terms,
    run_max: Duration,
    attempts_max: u32,
}

/// What a delivery came to.
#[derive(Debug)]
pub enum Received<E> {
    /// Dealt with, just now: acknowledge it.
    Done(Recording),
    /// Dealt with before: acknowledge it.
    Duplicate(Recording),
    /// Another consumer is at it, or its outcome is not durable yet: let it be delivered again soon.
    InProgress,
    /// It was rolled back: let it be delivered again.
    Failed {
        /// After so long.
        again: Duration,
        /// How often it has been tried by now.
        attempts: u32,
        /// What the work said; `None` if it panicked, took too long, or did not commit.
        error: Option<E>,
    },
    /// It failed too often, and is not tried any more: take it out of the way, and let somebody look.
    Poisoned(Failure),
}

/// Why a message could not even be tried.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The message's id cannot be a key.
    #[error("the message's id cannot be used: {0}")]
    Id(#[from] KeyError),
    /// The engine could not try.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Inbox {
    /// The inbox of the consumer of this name: two consumers of one message each deal with it. It is remembered
    /// for seven days, and tried five times.
    #[must_use]
    pub fn new(engine: Engine, consumer: &str) -> Self {
        let terms = Terms {
            ttl: Duration::from_secs(7 * 24 * 3600),
            on_unknown: OnUnknown::Rollback,
            ..Terms::default()
        };
        let scope = Scope::new(format!("consumer\0{consumer}")).namespace("inbox");
        Self { engine, scope, terms, run_max: Duration::from_secs(30), attempts_max: 5 }
    }

    /// Sets for how long a message is remembered: longer than it can be delivered again.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = ttl;
        self
    }

    /// Sets after how long of silence somebody else may deal with a message: a lease, and as long a grace.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        (self.terms.lease, self.terms.grace) = (lease, lease);
        self
    }

    /// Sets for how long the work may take.
    #[must_use]
    pub const fn run_max(mut self, run_max: Duration) -> Self {
        self.run_max = run_max;
        self
    }

    /// Sets how often a message is tried, from 1 to [`ATTEMPTS_MAX`]. An attempt whose process died counts too.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.clamp(1, ATTEMPTS_MAX);
        self
    }

    /// Deals with a message, unless somebody did. `work` writes its effects and its completion in one transaction
    /// and answers once it has committed, or with why it did not.
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
        let key = Key::new(message)?;
        let operation = Operation::new(&self.scope, &key, Fingerprint::of(b"message"))
            .terms(self.terms)
            .run_max(self.run_max);
        let said = Arc::new(Mutex::new(Said { attempt: None, attempts: 1, error: None }));
        let (slot, engine, max) = (Arc::clone(&said), self.engine.clone(), self.attempts_max);
        let outcome = self.engine.run(operation, move |attempt| async move {
            let told = |said: Said<E>| {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = said;
            };
            // Each attempt before this one stands in the record, in the statement that granted the next.
            let Ok(Some(record)) = engine.read(attempt.id).await else {
                return Verdict::Release;
            };
            let before = u32::try_from(record.history.attempts().count()).unwrap_or(u32::MAX);
            let attempts = before.saturating_add(1);
            told(Said { attempt: Some(attempt), attempts, error: None });
            if before >= max {
                return Verdict::Fail(poisoned(before));
            }
            match work(attempt).await {
                // Whether it is so is looked at.
                Ok(()) => Verdict::Release,
                Err(error) => {
                    told(Said { attempt: Some(attempt), attempts, error: Some(error) });
                    if attempts < max {
                        Verdict::Release
                    } else {
                        Verdict::Fail(poisoned(attempts))
                    }
                }
            }
        });
        let outcome = outcome.await?;
        let said = Arc::into_inner(said).and_then(|said| said.into_inner().ok());
        Ok(received(&outcome, said.unwrap_or(Said { attempt: None, attempts: 1, error: None })))
    }
}

/// What an attempt left behind.
struct Said<E> {
    attempt: Option<Attempt>,
    attempts: u32,
    error: Option<E>,
}

fn received<E>(outcome: &Outcome, said: Said<E>) -> Received<E> {
    let is_ours =
        |record: &Record| said.attempt.is_some_and(|attempt| attempt.attempt == record.attempt);
    let record = match outcome {
        Outcome::Ran(Settling::Recorded(record) | Settling::Stale(Some(record)))
        | Outcome::Answered(Answer::Replay(record) | Answer::Failed(record)) => record,
        _ => return Received::InProgress,
    };
    match &record.state {
        State::Completed { recording, .. } if is_ours(record) => Received::Done(recording.clone()),
        State::Completed { recording, .. } => Received::Duplicate(recording.clone()),
        State::Failed { failure, .. } => Received::Poisoned(failure.clone()),
        State::Released { .. } if matches!(outcome, Outcome::Ran(Settling::Recorded(_))) => {
            let Said { attempts, error, .. } = said;
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
