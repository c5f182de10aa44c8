//! Access to the running operation for handlers.
//!
//! The layer puts an [`OperationContext`](crate::OperationContext) into the extensions of the
//! request, where any service can read it. The feature `axum` adds extractors for its parts:
//! [`IdempotencyKey`], [`RunningAttempt`] and [`DownstreamKey`]. The example `payments` uses them.

#[cfg(feature = "axum")]
pub use for_axum::{DownstreamKey, IdempotencyKey, NotThere, RunningAttempt};

#[cfg(feature = "axum")]
mod for_axum {
    use axum::body::Body;
    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use onetake_core::{Attempt, DerivedKey, Key};

    use crate::context::{AttemptReport, OperationContext};
    use crate::problem::{Code, Problem, misconfigured};
    use crate::status::Disposition;

    /// The operation's key, from a header or from the body.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct IdempotencyKey(pub Key);

    /// The running attempt. Pass its fence to services that can refuse lower fences.
    #[derive(Clone, Copy, Debug)]
    pub struct RunningAttempt(pub Attempt);

    /// The key for calls to other services. It is the same in every attempt. An operation with
    /// several calls uses one [`step`](DerivedKey::step) for each.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DownstreamKey(pub DerivedKey);

    /// The reason why an extractor found nothing.
    ///
    /// An `Option<…>` of an extractor of this module is `None` instead, unless no layer is around
    /// the handler.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NotThere {
        /// The request has no key, and its policy does not require one.
        NoKey,
        /// The store is unreachable and the route is fail-open. This run is not recorded, and has
        /// no attempt.
        Unrecorded,
        /// No [`OnetakeLayer`](crate::OnetakeLayer) is around this handler.
        NoLayer,
        /// The handler takes [`InTransaction`](crate::transaction::InTransaction), but its route is
        /// not [`transactional`](crate::Policy::transactional).
        NotTransactional,
    }

    impl NotThere {
        fn why(parts: &Parts) -> Self {
            match OperationContext::of(&parts.extensions) {
                None => Self::NoLayer,
                Some(context) if context.key().is_none() => Self::NoKey,
                Some(_) => Self::Unrecorded,
            }
        }
    }

    impl IntoResponse for NotThere {
        fn into_response(self) -> Response {
            let problem = match self {
                Self::NoKey => Problem::new(
                    Code::IdempotencyKeyMissing,
                    "This operation requires a key. Send one key per operation in the header Idempotency-Key, and the same key on each retry.",
                ),
                Self::Unrecorded => Problem::new(
                    Code::StoreUnavailable,
                    "The idempotency store is unavailable, and this operation does not run without it. Retry with the same key.",
                )
                .retry_after(2),
                Self::NoLayer => {
                    tracing::error!("a handler extracts its idempotency key, but its route has no OnetakeLayer: add the layer to the router");
                    return StatusCode::INTERNAL_SERVER_ERROR.into_response();
                }
                Self::NotTransactional => {
                    let mut response = misconfigured().into_response(None).map(Body::from);
                    AttemptReport::new(Disposition::Release).attach(&mut response);
                    return response;
                }
            };
            problem.into_response(None).map(Body::from)
        }
    }

    macro_rules! extracts {
        ($extractor:ident from $part:expr) => {
            impl<S: Sync> FromRequestParts<S> for $extractor {
                type Rejection = NotThere;

                async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotThere> {
                    let found = OperationContext::of(&parts.extensions).and_then($part);
                    found.map(Self).ok_or_else(|| NotThere::why(parts))
                }
            }

            impl<S: Sync> OptionalFromRequestParts<S> for $extractor {
                type Rejection = NotThere;

                async fn from_request_parts(
                    parts: &mut Parts,
                    _: &S,
                ) -> Result<Option<Self>, NotThere> {
                    match OperationContext::of(&parts.extensions).and_then($part) {
                        Some(found) => Ok(Some(Self(found))),
                        // A missing layer is a mistake in the program, not a request without a key.
                        None if NotThere::why(parts) == NotThere::NoLayer => Err(NotThere::NoLayer),
                        None => Ok(None),
                    }
                }
            }
        };
    }

    extracts!(IdempotencyKey from |context| context.key().cloned());
    extracts!(RunningAttempt from OperationContext::attempt);
    extracts!(DownstreamKey from OperationContext::derived_key);
}
