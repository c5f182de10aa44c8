//! What a handler may know of the operation that it runs.
//!
//! The layer puts the [`Key`], the [`Attempt`](onetake_core::Attempt) and the [`DerivedKey`] into the extensions of the request that
//! it hands on, where any service finds them. With the feature `axum` there are extractors for them:
//! [`IdempotencyKey`], [`RunningAttempt`] and [`DownstreamKey`]; the example `payments` shows them at work.

use http::header::HeaderValue;
use http::request::Parts;

use onetake_core::{DerivedKey, Key};

use crate::service::IDEMPOTENCY_DERIVED_KEY;

#[cfg(feature = "axum")]
pub use for_axum::{DownstreamKey, IdempotencyKey, NotThere, RunningAttempt};

/// In the extensions of every request that went through the layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layered;

/// How an operation is called, here and by what it calls.
pub(crate) struct Named {
    pub(crate) key: Key,
    pub(crate) derived: Option<DerivedKey>,
}

impl Named {
    /// Tells the service that runs it.
    pub(crate) fn tell(self, parts: &mut Parts) {
        parts.extensions.insert(self.key);
        if let Some(derived) = self.derived {
            if let Ok(mut value) = HeaderValue::from_str(&derived.to_string()) {
                value.set_sensitive(true);
                parts.headers.insert(IDEMPOTENCY_DERIVED_KEY, value);
            }
            parts.extensions.insert(derived);
        }
    }
}

#[cfg(feature = "axum")]
mod for_axum {
    use axum::body::Body;
    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use onetake_core::{Attempt, DerivedKey, Key};

    use super::Layered;
    use crate::problem::{Code, Problem};

    /// The operation's key, wherever it came from.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IdempotencyKey(pub Key);

    /// The attempt that runs: hand its fence to whoever can refuse lower ones.
    #[derive(Clone, Copy, Debug)]
    pub struct RunningAttempt(pub Attempt);

    /// The key for calls to other services: the same in every attempt. Several calls take one
    /// [`step`](DerivedKey::step) each.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DownstreamKey(pub DerivedKey);

    /// Why a handler cannot have what it asked for. With `Option<…>` it gets `None` instead.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NotThere {
        /// The request has no key, and its policy does not ask for one.
        NoKey,
        /// The store is away, and the route is fail-open: this run is not recorded, and is no attempt.
        Unrecorded,
        /// No [`OnetakeLayer`](crate::OnetakeLayer) is around this handler.
        NoLayer,
    }

    impl NotThere {
        fn why(parts: &Parts) -> Self {
            if parts.extensions.get::<Layered>().is_none() {
                Self::NoLayer
            } else if parts.extensions.get::<Key>().is_none() {
                Self::NoKey
            } else {
                Self::Unrecorded
            }
        }
    }

    impl IntoResponse for NotThere {
        fn into_response(self) -> Response {
            let problem = match self {
                Self::NoKey => Problem::new(
                    Code::IdempotencyKeyMissing,
                    "This operation runs only under a key. Send one per operation in the header Idempotency-Key, and the same one with each retry.",
                ),
                Self::Unrecorded => Problem::new(
                    Code::StoreUnavailable,
                    "The store that remembers keys does not answer, and this operation does not run without it.",
                )
                .retry_after(2),
                Self::NoLayer => {
                    tracing::error!("a handler asks for its key, but no OnetakeLayer is around it");
                    return StatusCode::INTERNAL_SERVER_ERROR.into_response();
                }
            };
            problem.into_response(None).map(Body::from)
        }
    }

    macro_rules! extracts {
        ($extractor:ident from $extension:ty) => {
            impl<S: Sync> FromRequestParts<S> for $extractor {
                type Rejection = NotThere;

                async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotThere> {
                    let found = parts.extensions.get::<$extension>().cloned();
                    found.map(Self).ok_or_else(|| NotThere::why(parts))
                }
            }

            impl<S: Sync> OptionalFromRequestParts<S> for $extractor {
                type Rejection = NotThere;

                async fn from_request_parts(
                    parts: &mut Parts,
                    _: &S,
                ) -> Result<Option<Self>, NotThere> {
                    match parts.extensions.get::<$extension>().cloned() {
                        Some(found) => Ok(Some(Self(found))),
                        // Not a request without a key, but a mistake in the program.
                        None if NotThere::why(parts) == NotThere::NoLayer => Err(NotThere::NoLayer),
                        None => Ok(None),
                    }
                }
            }
        };
    }

    extracts!(IdempotencyKey from Key);
    extracts!(RunningAttempt from Attempt);
    extracts!(DownstreamKey from DerivedKey);
}
