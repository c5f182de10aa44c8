//! What the layer and the service behind it tell each other beside the messages themselves: one value in the
//! extensions of a request, and one in those of a response.

use std::fmt;
use std::time::Duration;

use http::header::HeaderValue;
use http::request::Parts;
use http::{Extensions, Response};

use onetake_core::{Attempt, AttemptId, Cause, DerivedKey, Key};

use crate::service::IDEMPOTENCY_DERIVED_KEY;
use crate::status::Disposition;
use crate::transaction::Recorder;
use crate::typed::Value;

/// The operation that a request belongs to: in the extensions of every request that went through a layer.
///
/// With the feature `axum`, [`extract`](crate::extract) has an extractor for each part of it.
#[derive(Clone, Default)]
pub struct OperationContext {
    key: Option<Key>,
    attempt: Option<Attempt>,
    derived_key: Option<DerivedKey>,
    time_left: Option<Duration>,
    recorder: Option<Recorder>,
}

impl OperationContext {
    /// The context of a request; `None` if no layer is around the service.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// The operation's key, wherever it came from; `None` if the request has none.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The attempt that runs; `None` if the request has no key, or runs unrecorded because the store is unreachable.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        self.attempt
    }

    /// The key for calls to other services, the same in every attempt.
    #[must_use]
    pub fn derived_key(&self) -> Option<DerivedKey> {
        self.derived_key
    }

    /// How much time the client's deadline left when the attempt began; `None` if it has no deadline.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.time_left
    }

    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "only axum has an extractor for it")
    )]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// The context of an operation that runs under this name.
    pub(crate) fn new(key: Key, derived_key: Option<DerivedKey>) -> Self {
        Self { key: Some(key), derived_key, ..Self::default() }
    }

    pub(crate) fn with_attempt(mut self, attempt: Attempt, recorder: Recorder) -> Self {
        (self.attempt, self.recorder) = (Some(attempt), Some(recorder));
        self
    }

    pub(crate) fn with_time_left(mut self, time_left: Option<Duration>) -> Self {
        self.time_left = time_left;
        self
    }

    /// Tells the service that runs it.
    pub(crate) fn attach(mut self, parts: &mut Parts) {
        if let Some(derived) = &self.derived_key
            && let Ok(mut value) = HeaderValue::from_str(&derived.to_string())
        {
            value.set_sensitive(true);
            parts.headers.insert(IDEMPOTENCY_DERIVED_KEY, value);
        }
        // A deadline that a layer around this one found holds here, too.
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

/// What a service knows of its attempt beyond the status of its response: in the extensions of the response.
///
/// The header `Onetake-Outcome` counts more than this, and this counts more than the route's rules.
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
    /// Whose completion was written in a transaction of its own.
    pub(crate) finished: Option<AttemptId>,
    /// The value that the response tells of.
    pub(crate) value: Option<Value>,
}

impl AttemptReport {
    /// What is to become of the attempt.
    #[must_use]
    pub fn new(disposition: Disposition) -> Self {
        Self { disposition: Some(disposition), ..Self::default() }
    }

    /// Sets why the outcome is unknown, where it is.
    #[must_use]
    pub fn cause(mut self, cause: Cause) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Puts the report beside a response. What an earlier one says stays, where this one says nothing.
    pub fn attach<B>(self, response: &mut Response<B>) {
        let earlier = Self::take(response);
        response.extensions_mut().insert(Self {
            disposition: self.disposition.or(earlier.disposition),
            cause: self.cause.or(earlier.cause),
            finished: self.finished.or(earlier.finished),
            value: self.value.or(earlier.value),
        });
    }

    /// Takes the report of a response; an empty one if there is none.
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
