//! The values that the layer and the inner service exchange beside HTTP messages: one in the
//! extensions of a request, one in the extensions of a response.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::header::HeaderValue;
use http::request::Parts;
use http::{Extensions, Response};

use onetake_core::{Attempt, AttemptId, Cause, DerivedKey, Key};

use crate::memory::BodyPermit;
use crate::service::IDEMPOTENCY_DERIVED_KEY;
use crate::status::Disposition;
use crate::transaction::Recorder;
use crate::typed::Value;

/// The operation of a request, in the extensions of every request that passed through a layer.
///
/// With the feature `axum`, [`extract`](crate::extract) has an extractor for each part of it.
#[derive(Clone, Default)]
pub struct OperationContext {
    key: Option<Key>,
    attempt: Option<Attempt>,
    derived_key: Option<DerivedKey>,
    time_left: Option<Duration>,
    recorder: Option<Recorder>,
    /// The memory of the request, while it is held.
    memory: Weak<BodyPermit>,
}

/// The memory of a keyed request, see [`OperationContext::memory`].
#[derive(Clone, Debug)]
pub struct OperationMemory {
    _permit: Arc<BodyPermit>,
}

impl OperationContext {
    /// Returns the context of a request, or `None` if no layer is around the service.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Returns the operation's key from any source, or `None` if the request has no key.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Returns the running attempt.
    ///
    /// `None` if the request has no key, or if it runs unrecorded because the store is unreachable.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        self.attempt
    }

    /// Returns the key for calls to other services. It is the same in every attempt.
    ///
    /// `None` if the request has no key, or if it runs unrecorded and the secret for derived keys
    /// is not known.
    #[must_use]
    pub fn derived_key(&self) -> Option<DerivedKey> {
        self.derived_key
    }

    /// Returns the time left until the client's deadline, as of the start of the run. `None` if
    /// there is no deadline, or if the route is async.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.time_left
    }

    /// Returns the memory that the request takes of the budget for keyed requests
    /// ([`HttpLimits::body_bytes_max`](crate::HttpLimits::body_bytes_max)). `None` if the request
    /// has no key, or if its memory was given back.
    ///
    /// It is given back when the outcome is settled. A service that needs the request's body for
    /// longer holds this for as long: the gateway does, if an upstream answers before it has read
    /// the body.
    #[must_use]
    pub fn memory(&self) -> Option<OperationMemory> {
        self.memory.upgrade().map(|permit| OperationMemory { _permit: permit })
    }

    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "only axum has an extractor for it")
    )]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Creates the context of an operation with this key.
    pub(crate) fn new(key: Key, derived_key: Option<DerivedKey>) -> Self {
        Self { key: Some(key), derived_key, ..Self::default() }
    }

    pub(crate) fn with_attempt(mut self, attempt: Attempt, recorder: Recorder) -> Self {
        (self.attempt, self.recorder) = (Some(attempt), Some(recorder));
        self
    }

    pub(crate) fn with_memory(mut self, memory: Weak<BodyPermit>) -> Self {
        self.memory = memory;
        self
    }

    pub(crate) fn with_time_left(mut self, time_left: Option<Duration>) -> Self {
        self.time_left = time_left;
        self
    }

    /// Adds the context to the request's extensions, and the derived key to its headers.
    pub(crate) fn attach(mut self, parts: &mut Parts) {
        if let Some(derived) = &self.derived_key
            && let Ok(mut value) = HeaderValue::from_bytes(&derived.to_ascii())
        {
            value.set_sensitive(true);
            parts.headers.insert(IDEMPOTENCY_DERIVED_KEY, value);
        }
        // The deadline that an outer layer found applies here too.
        self.time_left = self.time_left.or_else(|| Self::of(&parts.extensions)?.time_left);
        parts.extensions.insert(self);
    }
}

impl fmt::Debug for OperationContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationContext")
            .field("attempt", &self.attempt)
            .field("time_left", &self.time_left)
            .finish_non_exhaustive()
    }
}

/// A service's report about its attempt, in the extensions of the response. It says what the status
/// alone cannot say.
///
/// The header `Onetake-Outcome` takes precedence over the report. The report takes precedence over
/// the route's rules.
///
/// ```
/// use http::Response;
/// use onetake_http::{AttemptReport, Disposition};
///
/// let mut response = Response::new("the card network was not reached");
/// AttemptReport::new(Disposition::Release).attach(&mut response);
/// ```
#[derive(Clone, Default)]
pub struct AttemptReport {
    pub(crate) disposition: Option<Disposition>,
    pub(crate) cause: Option<Cause>,
    /// The attempt whose completion was written in the operation's own transaction.
    pub(crate) finished: Option<AttemptId>,
    /// The typed value that the response was made from.
    pub(crate) value: Option<Value>,
}

impl AttemptReport {
    /// Creates a report that says how to settle the attempt.
    #[must_use]
    pub fn new(disposition: Disposition) -> Self {
        Self { disposition: Some(disposition), ..Self::default() }
    }

    /// Sets why the outcome is unknown. It counts only if the outcome is unknown.
    #[must_use]
    pub fn cause(mut self, cause: Cause) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Adds the report to a response. Fields that this report does not set keep the value of an
    /// earlier report.
    pub fn attach<B>(self, response: &mut Response<B>) {
        let earlier = Self::take(response);
        response.extensions_mut().insert(Self {
            disposition: self.disposition.or(earlier.disposition),
            cause: self.cause.or(earlier.cause),
            finished: self.finished.or(earlier.finished),
            value: self.value.or(earlier.value),
        });
    }

    /// Takes the report from a response. It is empty if there was none.
    pub(crate) fn take<B>(response: &mut Response<B>) -> Self {
        response.extensions_mut().remove().unwrap_or_default()
    }
}

impl fmt::Debug for AttemptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptReport")
            .field("disposition", &self.disposition)
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}
