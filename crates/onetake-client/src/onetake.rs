//! The settings of a client, and what its calls share.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use crate::budget::Budget;
use crate::clock::{Clock, Rng, SystemClock, SystemRng};
use crate::error::{BoxError, Kind};
use crate::keys::Intent;

/// The limits of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time for the whole call. It is sent as `X-Request-Timeout-Ms`, less in each attempt.
    pub deadline: Duration,
    /// The time for one attempt.
    pub attempt_timeout: Duration,
    /// The largest number of attempts, the first one included. Zero counts as one.
    pub attempts_max: u32,
    /// The largest delay before the first retry. It doubles with each retry.
    pub backoff_base: Duration,
    /// The largest delay before any retry.
    pub backoff_max: Duration,
}

impl Default for Limits {
    /// 30 seconds for a call, 10 seconds for an attempt, 8 attempts, and a backoff from 200 ms to 5
    /// seconds.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(10),
            attempts_max: 8,
            backoff_base: Duration::from_millis(200),
            backoff_max: Duration::from_secs(5),
        }
    }
}

/// The deadline of one call, in the extensions of its request. It replaces that of [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDeadline(pub Duration);

/// A step of a call. For logs and traces; it holds no key, header or body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CallEvent<'a> {
    /// The operation is sent.
    #[non_exhaustive]
    Attempt {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The time until the deadline.
        left: Duration,
    },
    /// The operation will be sent again.
    #[non_exhaustive]
    Retry {
        /// The number of the attempt that failed.
        attempt: u32,
        /// The delay before the next one.
        delay: Duration,
        /// The status of the answer.
        status: Option<StatusCode>,
        /// The error of the connection, if there was no answer.
        error: Option<&'a BoxError>,
    },
    /// The handle of an accepted operation is asked.
    Poll,
    /// The call has ended.
    #[non_exhaustive]
    End {
        /// The number of times that the operation was sent.
        attempts: u32,
        /// The kind of the error, if there is no result.
        error: Option<Kind>,
        /// The name of the operation for support.
        reference: Option<&'a str>,
    },
}

/// The facts about a call beside its response. It is in the response's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallReport {
    /// The intent of the call.
    pub intent: Intent,
    /// True if the operation had run before, and this is its recorded response.
    pub is_replayed: bool,
    /// The name of the operation for support.
    pub reference: Option<String>,
    /// The number of times that the operation was sent.
    pub attempts: u32,
}

/// The settings of a client. Clones share the retry budget.
#[derive(Clone)]
pub struct Onetake {
    limits: Limits,
    shared: Arc<Shared>,
}

type MadeHeaders = Pin<Box<dyn Future<Output = Result<HeaderMap, BoxError>> + Send>>;
type MakeHeaders = Box<dyn Fn() -> MadeHeaders + Send + Sync>;
type Observe = Box<dyn Fn(CallEvent<'_>) + Send + Sync>;

struct Shared {
    budget: Budget,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    headers: Option<MakeHeaders>,
    observe: Option<Observe>,
    refusals_are_errors: bool,
}

impl Onetake {
    /// Makes a client with the default limits.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Starts a client with other settings.
    #[must_use]
    pub fn builder() -> OnetakeBuilder {
        OnetakeBuilder {
            limits: Limits::default(),
            shared: Shared {
                budget: Budget::default(),
                clock: Arc::new(SystemClock),
                rng: Arc::new(SystemRng),
                headers: None,
                observe: None,
                refusals_are_errors: false,
            },
        }
    }

    /// Makes an intent with a new key (UUIDv7). Call it when the user acts.
    #[must_use]
    pub fn intent(&self) -> Intent {
        Intent::made(self.clock(), self.rng())
    }

    /// Returns the same client with another deadline. The two share the retry budget.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { limits: Limits { deadline, ..self.limits }, shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.shared.clock.as_ref()
    }

    pub(crate) fn rng(&self) -> &dyn Rng {
        self.shared.rng.as_ref()
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    pub(crate) fn refusals_are_errors(&self) -> bool {
        self.shared.refusals_are_errors
    }

    pub(crate) fn observe(&self, event: CallEvent<'_>) {
        if let Some(observe) = &self.shared.observe {
            observe(event);
        }
    }

    /// Makes the headers of one attempt.
    pub(crate) async fn headers(&self) -> Result<HeaderMap, BoxError> {
        match &self.shared.headers {
            Some(headers) => headers().await,
            None => Ok(HeaderMap::new()),
        }
    }
}

impl Default for Onetake {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Onetake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, shared } = self;
        let mut debug = f.debug_struct("Onetake");
        debug.field("limits", limits).field("budget", &shared.budget).finish_non_exhaustive()
    }
}

/// The settings of a client that is not complete yet.
pub struct OnetakeBuilder {
    limits: Limits,
    shared: Shared,
}

impl OnetakeBuilder {
    /// Sets the limits of each call.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the retry budget that all calls share.
    #[must_use]
    pub fn budget(self, budget: Budget) -> Self {
        Self { shared: Shared { budget, ..self.shared }, ..self }
    }

    /// Sets a function that makes headers for each attempt, such as a credential that must be fresh.
    /// If it fails, the attempt counts as one without an answer.
    #[must_use]
    pub fn headers<F, Made>(self, make: F) -> Self
    where
        F: Fn() -> Made + Send + Sync + 'static,
        Made: Future<Output = Result<HeaderMap, BoxError>> + Send + 'static,
    {
        let headers: Option<MakeHeaders> = Some(Box::new(move || Box::pin(make())));
        Self { shared: Shared { headers, ..self.shared }, ..self }
    }

    /// Sets a function that is called for each attempt, retry, poll and end of a call. It runs in
    /// the task of the call, so the current span is that of the caller.
    #[must_use]
    pub fn observe(self, observe: impl Fn(CallEvent<'_>) + Send + Sync + 'static) -> Self {
        Self { shared: Shared { observe: Some(Box::new(observe)), ..self.shared }, ..self }
    }

    /// Makes refusals (such as 402) an [`Error::Refused`](crate::Error::Refused). By default they
    /// are responses, as without onetake.
    #[must_use]
    pub fn refusals_are_errors(self) -> Self {
        Self { shared: Shared { refusals_are_errors: true, ..self.shared }, ..self }
    }

    /// Sets the clock, for tests.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { shared: Shared { clock: Arc::new(clock), ..self.shared }, ..self }
    }

    /// Sets the randomness, for tests.
    #[must_use]
    pub fn rng(self, rng: impl Rng) -> Self {
        Self { shared: Shared { rng: Arc::new(rng), ..self.shared }, ..self }
    }

    /// Makes the client.
    #[must_use]
    pub fn build(self) -> Onetake {
        Onetake { limits: self.limits, shared: Arc::new(self.shared) }
    }
}

impl fmt::Debug for OnetakeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnetakeBuilder").field("limits", &self.limits).finish_non_exhaustive()
    }
}
