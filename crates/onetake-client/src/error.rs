//! Errors: calls without a result, and requests that are not sent.

use std::fmt;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::keys::{Intent, InvalidKey};

/// An error of an inner client.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A call that has no result.
///
/// The first five are the ends of a call, each with what is known about it. The texts say what to
/// do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key was used before with another payload. Nothing was run.
    #[error(transparent)]
    Mismatch(Box<Failure>),
    /// The operation is still running.
    #[error(transparent)]
    InProgress(Box<Failure>),
    /// The operation may have had its effect: its outcome is unknown. Do not pick a new key.
    #[error(transparent)]
    OutcomeUnknown(Box<Failure>),
    /// A definite answer that is not a success. A retry would get it again. It is an error only with
    /// [`OnetakeBuilder::refusals_are_errors`](crate::OnetakeBuilder::refusals_are_errors).
    #[error(transparent)]
    Refused(Box<Failure>),
    /// No definite answer within the limits of the call.
    #[error(transparent)]
    Unavailable(Box<Failure>),
    /// The key cannot be sent. Nothing was sent.
    #[error("invalid key: {0}")]
    InvalidKey(#[from] InvalidKey),
    /// The body is a stream, which can be read only once. Nothing was sent.
    #[error(
        "the body is a stream, which cannot be sent again in a retry: pass bytes or a text, such as \
         `Full<Bytes>` or `String`. Nothing was sent"
    )]
    BodyNotReplayable,
    /// The request could not be made, or is one without a key (such as a GET) that failed. This is
    /// the error of the inner client.
    #[error(transparent)]
    Inner(BoxError),
}

impl Error {
    /// Returns what is known about a call that ended without a result.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Mismatch(failure)
            | Self::InProgress(failure)
            | Self::OutcomeUnknown(failure)
            | Self::Refused(failure)
            | Self::Unavailable(failure) => Some(failure),
            Self::InvalidKey(_) | Self::BodyNotReplayable | Self::Inner(_) => None,
        }
    }
}

/// The kinds of calls without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// See [`Error::Mismatch`].
    Mismatch,
    /// See [`Error::InProgress`].
    InProgress,
    /// See [`Error::OutcomeUnknown`].
    OutcomeUnknown,
    /// See [`Error::Refused`].
    Refused,
    /// See [`Error::Unavailable`].
    Unavailable,
}

impl Kind {
    /// Returns the name of the kind, such as `outcome_unknown`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mismatch => "mismatch",
            Self::InProgress => "in_progress",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
        }
    }

    /// The meaning of the kind, and advice for the caller.
    fn words(self) -> &'static str {
        match self {
            Self::Mismatch => {
                "the key was used before with another payload; a new operation needs a new key"
            }
            Self::InProgress => "the operation is still running; ask again later with the same key",
            Self::OutcomeUnknown => {
                "the outcome is unknown: the operation may have had its effect; do not pick a new \
                 key, because a new key could run the operation twice; ask again later with the \
                 same key"
            }
            Self::Refused => "the operation was refused",
            Self::Unavailable => {
                "there was no definite answer; the operation may have run; try again later with \
                 the same key"
            }
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let failure = Box::new(failure);
        match failure.kind {
            Kind::Mismatch => Self::Mismatch(failure),
            Kind::InProgress => Self::InProgress(failure),
            Kind::OutcomeUnknown => Self::OutcomeUnknown(failure),
            Kind::Refused => Self::Refused(failure),
            Kind::Unavailable => Self::Unavailable(failure),
        }
    }
}

/// The limit that ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// `attempts_max` of [`Limits`](crate::Limits).
    Attempts,
    /// The next attempt would be after the deadline.
    Deadline,
    /// No retry is left in the [`Budget`](crate::Budget).
    Budget,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attempts => "attempts",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
        })
    }
}

/// The facts about a call that has no result.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The kind of the end.
    pub kind: Kind,
    /// The intent of the call. Keep its key: only a retry with the same key is safe.
    pub intent: Intent,
    /// The number of times that the operation was sent.
    pub attempts: u32,
    /// The limit that ended the call. `None` if the answer was final.
    pub reason: Option<EndReason>,
    /// The problem document of the last answer.
    pub problem: Option<Problem>,
    /// The name of the operation for support.
    pub reference: Option<String>,
    /// True if the answer is a recorded one.
    pub is_replayed: bool,
    /// The last answer, if there was one.
    pub response: Option<http::Response<Bytes>>,
    /// The error of the inner client, if there was no answer.
    pub cause: Option<BoxError>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.words())?;
        if let Some(reason) = self.reason {
            write!(f, " (limit: {reason})")?;
        }
        if let Some(response) = &self.response {
            write!(f, "; status {}", response.status().as_u16())?;
        }
        if let Some(detail) = self.problem.as_ref().and_then(Problem::detail) {
            write!(f, "; {detail}")?;
        }
        if let Some(reference) = &self.reference {
            write!(f, "; reference {reference}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause.as_ref() as _)
    }
}

/// A problem document of onetake (RFC 9457), or the same content in Stripe's format.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem(Map<String, Value>);

impl Problem {
    pub(crate) fn from_json(document: Value) -> Option<Self> {
        let Value::Object(mut document) = document else { return None };
        // Stripe's format has the members in `error`.
        if let Some(Value::Object(_)) = document.get("error")
            && let Some(Value::Object(inner)) = document.remove("error")
        {
            document = inner;
        }
        document.get("code").is_some_and(Value::is_string).then_some(Self(document))
    }

    /// Returns the code of the problem, for programs.
    #[must_use]
    pub fn code(&self) -> &str {
        self.text("code").unwrap_or_default()
    }

    /// Returns the text of the problem, for people.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.text("detail").or_else(|| self.text("message"))
    }

    /// Returns the name of the operation for support.
    #[must_use]
    pub fn reference(&self) -> Option<&str> {
        self.text("reference")
    }

    /// Returns all members of the document.
    #[must_use]
    pub fn members(&self) -> &Map<String, Value> {
        &self.0
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }
}
