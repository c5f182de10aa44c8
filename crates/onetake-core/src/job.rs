//! Jobs: work that runs once for its key, with a typed result.
//!
//! ```
//! # use std::sync::Arc;
//! # use onetake_core::{Engine, Key, MemoryStore, Retry, Scope};
//! # #[derive(serde::Serialize)] struct Reminder { invoice: u32 }
//! # async fn send(_: u32, _: String) -> Result<String, std::io::Error> { Ok("sent".into()) }
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::new(Arc::new(MemoryStore::new()));
//! let (scope, key) = (Scope::new("reminders"), Key::new("invoice-2041")?);
//! let receipt: String = engine
//!     .job(&scope, &key, &Reminder { invoice: 2041 })
//!     .retry(Retry::times(5))
//!     .run(|attempt| async move {
//!         let key = attempt.derived_key().await.map_err(std::io::Error::other)?;
//!         send(2041, key.to_string()).await
//!     })
//!     .await?;
//! assert_eq!(receipt, "sent");
//! # Ok(())
//! # }
//! ```
//!
//! The same job gets the recorded result when it is requested again. Another payload under the same
//! key is refused. The record of a job, and its next run, depend on how the work ends:
//!
//! | the work | without [`retry`](Job::retry) | with `retry` |
//! | --- | --- | --- |
//! | returns `Ok` | completed | completed |
//! | returns `Err` | failed, never runs again | runs again after a pause, until the last attempt fails |
//! | panics or takes too long | unknown, never runs again | as after an error |
//! | is lost with its process | unknown, never runs again | runs again at the next request |

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::derived::{DerivedKey, DerivingSecret};
use crate::engine::{
    Answer, Attempt, Engine, EngineError, Operation, Outcome, Settling, Verdict, WhileRunning,
};
use crate::fingerprint::Fingerprint;
use crate::inbox::{ATTEMPTS_MAX, not_tried, tries_before};
use crate::key::Key;
use crate::record::{Failure, OnUnknown, Record, Recording, State, Terms};
use crate::scope::{Reference, Scope};

/// The code of a failure that is recorded because the work returned an error.
pub const JOB_FAILED: &str = "job_failed";

/// The author of audit entries.
const BY: &str = "job";

/// The number of attempts of work that may run again, and the pauses between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The maximum number of attempts, those of earlier processes included: 1 to 15.
    pub attempts_max: u32,
    /// The pause before the second attempt. It doubles with each further attempt.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Retry {
    /// Allows this many attempts in all, with pauses of 1 to 60 seconds.
    #[must_use]
    pub const fn times(attempts_max: u32) -> Self {
        let (pause_min, pause_max) = (Duration::from_secs(1), Duration::from_secs(60));
        Self { attempts_max, pause_min, pause_max }
    }

    fn pause_after(&self, attempts: u32) -> Duration {
        let doubled = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        self.pause_min.saturating_mul(doubled).min(self.pause_max)
    }
}

/// The reason why a job has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError<E> {
    /// The engine could not start the work: it did not run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The payload cannot be written as JSON: the work did not run.
    #[error("the payload of the job cannot be serialized as JSON")]
    Payload(#[source] serde_json::Error),
    /// The work ran here, and its last attempt returned this error.
    #[error("the job failed")]
    Work(#[source] E),
    /// The work failed earlier, and does not run again.
    #[error("the job failed earlier: {}", .0.detail)]
    Failed(Failure),
    /// The key was used before with another payload.
    #[error("the key belongs to a job with another payload")]
    OtherPayload,
    /// An attempt is running, and did not end within the caller's wait.
    #[error("the job is still running")]
    StillRunning,
    /// An attempt started, and it is not known whether it had an effect.
    #[error(
        "the outcome of the job is unknown: an operator must settle key {0} with `onetake keys`"
    )]
    Unknown(Reference),
    /// The work ran, and the store has not confirmed its result yet. Request the job again.
    #[error("the result of the job is not saved yet: request the job again with the same key")]
    NotSaved,
    /// The recorded result does not have the requested type. The error names the position, not the
    /// contents.
    #[error("the recorded result is not a valid {expected}: line {line}, column {column}")]
    OtherType {
        /// The requested type.
        expected: &'static str,
        /// The line of the difference.
        line: usize,
        /// The column of the difference.
        column: usize,
    },
}

/// One attempt of a job.
#[derive(Clone)]
pub struct JobAttempt {
    /// The attempt. Pass its fence to systems that can refuse lower fences.
    pub attempt: Attempt,
    /// The number of the attempt, from 1, as far as the record still knows.
    pub number: u32,
    engine: Engine,
    scope: Scope,
    key: Key,
}

impl JobAttempt {
    /// Returns the key for the calls that the job makes. It is the same in every attempt. A job
    /// with several calls uses one [`step`](DerivedKey::step) for each.
    ///
    /// # Errors
    /// If the store does not answer in time.
    pub async fn derived_key(&self) -> Result<DerivedKey, EngineError> {
        let secret = self.engine.secret("derived_keys").await?;
        Ok(DerivingSecret::new(&secret).derive(&self.scope, &self.key))
    }
}

impl fmt::Debug for JobAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("JobAttempt");
        shown.field("attempt", &self.attempt).field("number", &self.number).finish_non_exhaustive()
    }
}

/// A job that is not started yet: see the [module](self).
#[derive(Debug)]
#[must_use = "a job does nothing until `run` is called"]
pub struct Job {
    engine: Engine,
    scope: Scope,
    key: Key,
    payload: Result<Vec<u8>, serde_json::Error>,
    retry: Option<Retry>,
    ttl: Duration,
    run_max: Duration,
    wait: Option<Duration>,
}

impl Engine {
    /// Creates a job: work that runs once for its key. See [`job`](crate::job).
    pub fn job<P: Serialize + ?Sized>(&self, scope: &Scope, key: &Key, payload: &P) -> Job {
        Job {
            engine: self.clone(),
            scope: scope.clone(),
            key: key.clone(),
            payload: serde_json::to_value(payload).map(|value| canonical(&value)),
            retry: None,
            ttl: Terms::default().ttl,
            run_max: Duration::from_secs(30),
            wait: None,
        }
    }
}

impl Job {
    /// Allows the work to run again after an error or a crash. Its own calls must be safe to
    /// repeat: give them [`JobAttempt::derived_key`].
    pub const fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets the time for which the result is kept.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the maximum duration of an attempt. The default is 30 seconds.
    pub const fn run_max(mut self, run_max: Duration) -> Self {
        self.run_max = run_max;
        self
    }

    /// Sets the time to wait for a running attempt of another caller. The default is the maximum
    /// duration of an attempt.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Runs the work, unless the job has a result already.
    ///
    /// If the caller is dropped, the current attempt still runs to its end.
    ///
    /// # Errors
    /// If the job has no result: see [`JobError`].
    pub async fn run<T, E, F, Fut>(mut self, work: F) -> Result<T, JobError<E>>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display + Send + 'static,
        F: Fn(JobAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let payload = std::mem::replace(&mut self.payload, Ok(Vec::new()));
        let payload = payload.map_err(JobError::Payload)?;
        let fingerprint = Fingerprint::of(&[b"job ", &payload[..]].concat());
        let on_unknown = if self.retry.is_some() { OnUnknown::Retry } else { OnUnknown::Fail };
        let operation = Operation::new(&self.scope, &self.key, fingerprint)
            .terms(Terms { ttl: self.ttl, on_unknown, ..Terms::default() })
            .in_flight(WhileRunning::Wait(self.wait.unwrap_or(self.run_max)))
            .run_max(self.run_max);
        let work = Arc::new(work);
        loop {
            let (outcome, ended) = self.attempt(operation.clone(), Arc::clone(&work)).await?;
            let record = match &outcome {
                Outcome::Ran(Settling::Recorded(record) | Settling::Stale(Some(record))) => record,
                Outcome::Answered(Answer::Replay(completed)) => return result(completed.part()),
                Outcome::Answered(Answer::Failed(failed)) => {
                    return Err(JobError::Failed(failed.part().clone()));
                }
                Outcome::Ran(_) => return Err(JobError::NotSaved),
                Outcome::Answered(Answer::Mismatch) => return Err(JobError::OtherPayload),
                Outcome::Answered(Answer::Unknown(record)) => {
                    return Err(JobError::Unknown(record.id.reference()));
                }
                Outcome::Answered(Answer::InFlight | Answer::WaitTimeout) => {
                    return Err(JobError::StillRunning);
                }
            };
            match (&record.state, ended) {
                (State::Completed { recording, .. }, _) => return result(recording),
                (State::Failed { .. }, Some(Ended { attempt, error, .. }))
                    if is(record, &attempt) =>
                {
                    return Err(JobError::Work(error));
                }
                (State::Failed { failure, .. }, _) => {
                    return Err(JobError::Failed(failure.clone()));
                }
                (State::Released { .. } | State::Unknown { .. }, ended) => {
                    let attempts = ended.map_or(1, |ended| ended.number);
                    let pause =
                        self.retry.map_or(Duration::ZERO, |retry| retry.pause_after(attempts));
                    self.engine.clock().sleep(pause).await;
                }
                (State::Running { .. }, _) => return Err(JobError::StillRunning),
            }
        }
    }

    /// Runs one attempt, unless another caller does. Returns the engine's outcome, and the error of
    /// an attempt that ran here.
    async fn attempt<T, E, F, Fut>(
        &self,
        operation: Operation,
        work: Arc<F>,
    ) -> Result<(Outcome, Option<Ended<E>>), EngineError>
    where
        T: Serialize,
        E: fmt::Display + Send + 'static,
        F: Fn(JobAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let slot = Arc::new(Mutex::new(None));
        let (ended, engine) = (Arc::clone(&slot), self.engine.clone());
        let (scope, key, retry) = (self.scope.clone(), self.key.clone(), self.retry);
        let outcome = self.engine.run(operation, move |attempt| async move {
            let before = match retry {
                Some(_) => tries_before(&engine, attempt.id).await,
                None => Some(0),
            };
            let Some(before) = before else {
                // Nothing ran: the next request tries again.
                not_tried(&engine, attempt, BY, "the earlier attempts could not be counted").await;
                return Verdict::Release;
            };
            let attempts_max = retry.map_or(1, |retry| retry.attempts_max.clamp(1, ATTEMPTS_MAX));
            if before >= attempts_max {
                return failed(&format_args!("it failed {before} times and is not tried again"));
            }
            let number = before.saturating_add(1);
            match work(JobAttempt { attempt, number, engine, scope, key }).await {
                Ok(value) => serde_json::to_vec(&value).map_or_else(
                    |error| {
                        failed(&format_args!("the result cannot be serialized as JSON: {error}"))
                    },
                    |bytes| Verdict::Complete(Recording::new(bytes)),
                ),
                Err(error) => {
                    let is_last = number >= attempts_max;
                    let verdict = if is_last { failed(&error) } else { Verdict::Release };
                    *ended.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(Ended { attempt, number, error });
                    verdict
                }
            }
        });
        let outcome = outcome.await?;
        let ended = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok((outcome, ended))
    }
}

/// An attempt that ran here and returned an error.
struct Ended<E> {
    attempt: Attempt,
    number: u32,
    error: E,
}

fn is(record: &Record, attempt: &Attempt) -> bool {
    record.attempt == attempt.attempt
}

fn failed(why: &dyn fmt::Display) -> Verdict {
    Verdict::Fail(Failure { code: JOB_FAILED.to_owned(), detail: why.to_string() })
}

fn result<T: DeserializeOwned, E>(recording: &Recording) -> Result<T, JobError<E>> {
    let bytes = recording.body.as_deref().unwrap_or_default();
    serde_json::from_slice(bytes).map_err(|error| JobError::OtherType {
        expected: std::any::type_name::<T>(),
        line: error.line(),
        column: error.column(),
    })
}

/// Writes JSON with its members in the order of their names. A map has no fixed order, and the same
/// payload must have the same fingerprint.
fn canonical(value: &Value) -> Vec<u8> {
    let mut written = Vec::new();
    write_canonical(value, &mut written);
    written
}

fn write_canonical(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            into.push(b'{');
            for (name, value) in members {
                into.extend(Value::from(name.as_str()).to_string().bytes());
                into.push(b':');
                write_canonical(value, into);
                into.push(b',');
            }
            into.push(b'}');
        }
        Value::Array(values) => {
            into.push(b'[');
            for value in values {
                write_canonical(value, into);
                into.push(b',');
            }
            into.push(b']');
        }
        other => into.extend(other.to_string().bytes()),
    }
}
