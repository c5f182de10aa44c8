//! The second and third step of a keyed request: reading its body, and identifying the operation.
//!
//! Scope, key, id and fingerprint are computed once. Later steps use the results.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http_body::Body;
use tokio::sync::OwnedSemaphorePermit;

use onetake_core::WhileRunning;
use onetake_core::engine::Operation;
use onetake_core::{Fingerprint, Key, Origin};

use crate::body::{self, BodyRead, ExactEnd, RequestBody};
use crate::context::OperationContext;
use crate::deadline;
use crate::fingerprint::fingerprint;
use crate::head::{Head, Name, uri};
use crate::key::key_of_body;
use crate::layer::LayerState;
use crate::payload::Payload;
use crate::policy::{InFlight, KeySource};
use crate::problem::from_engine::overloaded;
use crate::problem::{Code, Problem};
use crate::respond::Refusal;
use crate::service::{IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE};

/// The shortest lease that a deadline leads to. A shorter lease would be renewed all the time.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// The least time by which a record outlives the issued key that it was made for (S15).
///
/// The route may have had another ttl when the key was issued, and the clocks of nodes differ.
const RECORD_OUTLIVES_KEY_MIN: Duration = Duration::from_secs(60);

/// A keyed request whose body is in memory.
pub(crate) struct Received {
    head: Box<Head>,
    parts: Box<Parts>,
    payload: Payload,
    place: OwnedSemaphorePermit,
}

/// Result of identifying a request.
pub(crate) enum Identified<Req> {
    Operation(Box<Identity>),
    /// A request that passes through: its body names no operation and need not, or an outer layer
    /// already runs the operation. Its body is in memory, so it holds a permit too (S19).
    PassOn(Box<Parts>, RequestBody<Req>, OwnedSemaphorePermit),
}

/// A request together with the operation that it names.
pub(crate) struct Identity {
    pub(crate) head: Box<Head>,
    pub(crate) parts: Box<Parts>,
    pub(crate) payload: Payload,
    pub(crate) place: OwnedSemaphorePermit,
    pub(crate) key: Key,
    pub(crate) operation: Box<Operation>,
}

impl Head {
    /// Reads the body, up to the route's limits of size and time.
    pub(crate) async fn receive<Req>(
        self: Box<Self>,
        shared: &LayerState,
        parts: Box<Parts>,
        body: Req,
    ) -> Result<Received, Refusal>
    where
        Req: Body<Data = Bytes>,
    {
        let place = Arc::clone(&shared.bodies).try_acquire_owned();
        let place = place.map_err(|_| self.refused(overloaded()))?;
        let ends_exactly = ExactEnd::applies(&parts);
        let data = self
            .read_body(shared, body, ends_exactly)
            .await
            .map_err(|problem| self.refused(problem))?;
        check_length(&parts, &data).map_err(|problem| self.refused(problem))?;
        let mut payload = Payload::new(&parts.headers, data, self.policy.max_request_body);
        if self.is_grpc() {
            payload.read_as_call(&parts.headers).map_err(|problem| self.refused(problem))?;
        }
        Ok(Received { head: self, parts, payload, place })
    }

    async fn read_body<Req>(
        &self,
        shared: &LayerState,
        body: Req,
        ends_exactly: bool,
    ) -> Result<Bytes, Problem>
    where
        Req: Body<Data = Bytes>,
    {
        let clock = &**shared.engine.clock();
        let max = self.policy.max_request_body;
        let read = tokio::select! {
            biased;
            read = body::read(body, max) => read,
            () = clock.sleep(self.within(self.policy.request_timeout, clock)) => {
                let is_over = self.deadline.is_some_and(|deadline| deadline.left(clock).is_zero());
                return Err(if is_over { deadline::exceeded() } else { incomplete("did not arrive in time") });
            }
        };
        match read {
            Ok(BodyRead::Whole { is_end: false, .. }) if ends_exactly => {
                Err(incomplete("broke off"))
            }
            Ok(BodyRead::Whole { data, .. }) => Ok(data),
            Ok(BodyRead::TooLarge { .. }) => {
                tracing::debug!(
                    route = self.policy.label,
                    max,
                    "a request body is larger than max_request_body of its route"
                );
                let detail = format!(
                    "The body has more than {max} bytes, the maximum of this route for requests with a key. Send a smaller body. Nothing was run."
                );
                Err(Problem::new(Code::RequestBodyTooLarge, detail))
            }
            Err(_) => Err(incomplete("ended early")),
        }
    }
}

impl Received {
    /// Finds the operation that the request names.
    pub(crate) fn identify<Req>(mut self, shared: &LayerState) -> Result<Identified<Req>, Refusal> {
        let name = match self.head.name.take() {
            Some(name) => Some(name),
            None => {
                let policy = &self.head.policy.key;
                let key = match &policy.source {
                    KeySource::Grpc(field) => {
                        field.key(&self.payload, uri(&self.parts).path(), policy.required)
                    }
                    _ => key_of_body(&self.payload, policy),
                };
                let key = key.map_err(|problem| self.head.refused(problem))?;
                key.map(|key| Name::new(&self.head.scope, key))
            }
        };
        let Some(name) = name else {
            remove_attempt(&mut self.parts);
            let body = RequestBody::read(self.payload.into_data());
            return Ok(Identified::PassOn(self.parts, body, self.place));
        };
        let Self { head, parts, payload, place } = self;
        let print = fingerprint(&parts, &payload, &head.policy.fingerprint, &head.proof);
        let print =
            print.map_err(|problem| Refusal::new(&head.policy, problem).referring(Some(&name)))?;
        let operation = Box::new(operation(shared, &head, &name, print));
        // An outer layer already runs this operation. Waiting for it here would be a deadlock.
        let outer = OperationContext::of(&parts.extensions).and_then(OperationContext::attempt);
        if outer.is_some_and(|attempt| attempt.id == operation.id) {
            let body = RequestBody::read(payload.into_data());
            return Ok(Identified::PassOn(parts, body, place));
        }
        let key = name.key;
        let identity = Identity { head, parts, payload, place, key, operation };
        Ok(Identified::Operation(Box::new(identity)))
    }
}

/// Builds the operation for the engine.
fn operation(shared: &LayerState, head: &Head, name: &Name, print: Fingerprint) -> Operation {
    let clock = &**shared.engine.clock();
    let policy = &head.policy;
    let (current, earlier) = shared.secrets.seal(print);
    let mut terms = policy.kept_terms();
    if let Some(until) = head.issued_until {
        terms.ttl = terms.ttl.max(until.since(clock.now()).saturating_add(RECORD_OUTLIVES_KEY_MIN));
    }
    // The run ends at the deadline, so a retry should not have to wait for a longer lease. On async
    // routes the run continues after the deadline, so the lease stays as it is.
    if !head.is_async() {
        terms.lease = head.within(terms.lease, clock).max(LEASE_MIN.min(terms.lease));
    }
    let in_flight = match policy.in_flight {
        InFlight::Wait(wait) | InFlight::Async(wait) => {
            WhileRunning::Wait(head.within(wait, clock))
        }
        InFlight::Reject => WhileRunning::Reject,
    };
    let tenant = shared.secrets.tenant(head.scope.tenant());
    let operation = Operation::of_record(name.id, current)
        .earlier(earlier)
        .terms(terms)
        .origin(Origin::new(tenant, &policy.label))
        .in_flight(in_flight)
        .run_max(head.run_max(clock));
    // A key with a record is not counted again, so the record of an attempt that was counted stays.
    let operation =
        if policy.velocity.is_empty() { operation } else { operation.keeping_untried() };
    match &policy.on_retry {
        Some(hook) => operation.on_retry(hook.clone()),
        None => operation,
    }
}

/// Compares the body with `Content-Length`, because an HTTP/2 stream that is reset can look like
/// the end of a body.
fn check_length(parts: &Parts, data: &Bytes) -> Result<(), Problem> {
    let Some(length) = parts.headers.get(CONTENT_LENGTH) else {
        return Ok(());
    };
    let length = length.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    if length == Some(data.len()) { Ok(()) } else { Err(incomplete("ended early")) }
}

pub(crate) fn incomplete(what: &str) -> Problem {
    Problem::new(
        Code::RequestBodyIncomplete,
        format!("The request body {what}. Nothing was run. Retry with the same key."),
    )
}

/// Removes headers that belong to an attempt, and headers about the transfer of a body that has
/// been read.
///
/// A request that runs without an attempt must not carry the headers of one.
pub(crate) fn remove_attempt(parts: &mut Parts) {
    for name in [EXPECT, TRANSFER_ENCODING, UPGRADE, IDEMPOTENCY_FENCE, IDEMPOTENCY_DERIVED_KEY] {
        parts.headers.remove(name);
    }
}
