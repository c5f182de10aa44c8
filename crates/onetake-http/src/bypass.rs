//! A keyed request that runs without a record: the store is away, and its route would rather run it
//! twice than not at all (S10).

use std::time::Duration;

use bytes::Bytes;
use http::header::{EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::OwnedSemaphorePermit;
use tower_service::Service;

use onetake_core::engine::EngineError;
use onetake_core::{Clock, Engine, Reference};

use crate::BoxError;
use crate::body::{RequestBody, ResponseBody};
use crate::extract::Named;
use crate::policy::{OnStoreDown, Policy};
use crate::problem::{IDEMPOTENCY_REFERENCE, insert};
use crate::recording::ONETAKE_OUTCOME;
use crate::run::{Reply, too_slow};
use crate::service::{IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE};

/// A run that nobody will remember.
pub(crate) struct Bypass<Req> {
    pub(crate) request: Request<RequestBody<Req>>,
    pub(crate) run_max: Duration,
    pub(crate) reference: Reference,
    pub(crate) place: OwnedSemaphorePermit,
}

/// Whether the route runs what the engine could not even try.
pub(crate) fn is_open(policy: &Policy, error: &EngineError) -> bool {
    policy.on_store_down == OnStoreDown::FailOpen && error.is_store_down()
}

/// The same; and if so, it is counted and logged here, before it runs.
pub(crate) fn is_chosen(
    engine: &Engine,
    policy: &Policy,
    reference: Reference,
    error: &EngineError,
) -> bool {
    if !is_open(policy, error) {
        return false;
    }
    engine.count_bypassed();
    tracing::warn!(
        route = policy.label, %reference, %error,
        "an operation runs unrecorded, because its route is fail-open: a retry runs again"
    );
    true
}

/// The request as the inner service gets it: as it came, with the body that was read, and with what it
/// is known by, if anything.
pub(crate) fn forwarded<Req>(
    mut parts: Parts,
    data: Bytes,
    named: Option<Named>,
) -> Request<RequestBody<Req>> {
    // There is no attempt, so nobody may name one.
    for name in [EXPECT, TRANSFER_ENCODING, UPGRADE, IDEMPOTENCY_FENCE, IDEMPOTENCY_DERIVED_KEY] {
        parts.headers.remove(name);
    }
    if let Some(named) = named {
        named.tell(&mut parts);
    }
    Request::from_parts(parts, RequestBody::read(data))
}

impl<Req> Bypass<Req> {
    pub(crate) async fn perform<S, Res>(
        self,
        mut inner: S,
        clock: &dyn Clock,
    ) -> Reply<Res, S::Error>
    where
        S: Service<Request<RequestBody<Req>>, Response = Response<Res>>,
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
        let Self { request, run_max, reference, place: _place } = self;
        let called = tokio::select! {
            biased;
            called = inner.call(request) => called,
            () = clock.sleep(run_max) => return Reply::Problem(too_slow()),
        };
        match called {
            Ok(mut response) => {
                response.headers_mut().remove(ONETAKE_OUTCOME);
                insert(response.headers_mut(), IDEMPOTENCY_REFERENCE, &reference.to_string());
                Reply::Response(response.map(ResponseBody::untouched))
            }
            Err(error) => Reply::Error(error),
        }
    }
}
