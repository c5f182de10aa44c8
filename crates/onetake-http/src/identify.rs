//! The second and third step of a keyed request: reading its body, and identifying the operation.
//!
//! Scope, key, id and fingerprint are computed once. Later steps use the results.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http_body::Body;

use onetake_core::WhileRunning;
use onetake_core::engine::Operation;
use onetake_core::{Fingerprint, Key, Origin};

use crate::admit::is_final;
use crate::advice::Advice;
use crate::body::{ExactEnd, RequestBody};
use crate::context::OperationContext;
use crate::deadline;
use crate::fingerprint::fingerprint;
use crate::head::{Head, Name, uri};
use crate::key::key_of_body;
use crate::layer::LayerState;
use crate::memory::{BodyPermit, Purpose};
use crate::payload::Payload;
use crate::pipeline::is_inside;
use crate::policy::{InFlight, KeySource};
use crate::problem::from_engine::overloaded;
use crate::problem::{Code, Problem};
use crate::respond::Refusal;
use crate::service::ATTEMPT_HEADERS;
use crate::upload::{Upload, UploadError, UploadLimits};
use crate::velocity::{self, Limit};

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
    trailers: Option<HeaderMap>,
    place: BodyPermit,
}

/// Result of identifying a request.
pub(crate) enum Identified<Req> {
    Operation(Box<Identity>),
    /// A request that passes through: its body names no operation and need not, or an outer layer
    /// already runs the operation. Its body is in memory, so it holds a permit too (S19).
    PassOn(Box<Parts>, RequestBody<Req>, BodyPermit),
}

/// A request together with the operation that it names.
pub(crate) struct Identity {
    pub(crate) head: Box<Head>,
    pub(crate) parts: Box<Parts>,
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) place: BodyPermit,
    pub(crate) key: Key,
    /// The velocity limits of the operation, or a problem if its body has no value for one.
    pub(crate) limits: Result<Vec<Limit>, Problem>,
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
        let announced = announced(&body);
        if announced > self.policy.max_request_body {
            return Err(self.refused(self.not_received(shared, UploadError::TooLarge)));
        }
        let mut place = self.memory(shared, &parts, announced).await?;
        let ends_exactly = ExactEnd::applies(&parts);
        let clock = &**shared.engine.clock();
        let limits = UploadLimits {
            bytes_max: self.policy.max_request_body,
            rate_min: shared.body_rate_min,
            patience: || self.within(self.policy.request_timeout, clock),
            clock,
        };
        let body = pin!(body);
        let mut upload = Upload::new(body, announced);
        let read = loop {
            let read = upload.read(&mut place, &limits).await;
            // The body has no announced length, or others have used up the memory meanwhile. Others
            // can have the memory at once, before the store is asked.
            let goes_on = read == Err(UploadError::NoMemory)
                && place.move_to_replays().is_ok()
                && Box::pin(self.is_recorded(shared)).await?;
            if !goes_on {
                break read;
            }
        };
        let read = read.and_then(|()| upload.finish(ends_exactly));
        let (data, trailers) =
            read.map_err(|error| self.refused(self.not_received(shared, error)))?;
        check_length(&parts, &data).map_err(|problem| self.refused(problem))?;
        let mut payload = Payload::new(&parts.headers, data, self.policy.max_request_body);
        if self.is_grpc() {
            payload.read_as_call(&parts.headers).map_err(|problem| self.refused(problem))?;
        }
        Ok(Received { head: self, parts, payload, trailers, place })
    }

    /// Takes memory for the request. If there is none, a retry of a recorded operation gets some of
    /// the memory for replays.
    async fn memory(
        &self,
        shared: &LayerState,
        parts: &Parts,
        announced: usize,
    ) -> Result<BodyPermit, Refusal> {
        let begin = |purpose| shared.memory.begin(purpose, parts, self.scope.tenant(), announced);
        if let Ok(place) = begin(Purpose::Any) {
            return Ok(place);
        }
        // Boxed, so that the futures of other requests do not hold it.
        if Box::pin(self.is_recorded(shared)).await?
            && let Ok(place) = begin(Purpose::Replay)
        {
            return Ok(place);
        }
        shared.memory.count_refused();
        Err(self.refused(overloaded()))
    }

    /// True if the operation has an outcome. It is known only if the key is in a header.
    ///
    /// # Errors
    /// If the deadline of the request is over before the store answers.
    async fn is_recorded(&self, shared: &LayerState) -> Result<bool, Refusal> {
        let Some(name) = &self.name else { return Ok(false) };
        let clock = &**shared.engine.clock();
        let found = tokio::select! {
            biased;
            found = shared.engine.look(name.id) => found,
            () = clock.sleep(self.within(Duration::MAX, clock)) => {
                return Err(self.refused(deadline::exceeded()));
            }
        };
        Ok(found.is_ok_and(|record| record.is_some_and(|record| is_final(&record))))
    }

    /// The problem of a request whose body was not read.
    fn not_received(&self, shared: &LayerState, error: UploadError) -> Problem {
        match error {
            UploadError::TooLarge => {
                let max = self.policy.max_request_body;
                let detail = format!(
                    "The body has more than {max} bytes, the maximum of this route for requests with a key. Send a smaller body. Nothing was run."
                );
                Problem::new(Code::RequestBodyTooLarge, detail).advising(Advice::LargeBody)
            }
            UploadError::NoMemory => {
                shared.memory.count_refused();
                overloaded()
            }
            UploadError::Late => {
                let clock = &**shared.engine.clock();
                let is_over = self.deadline.is_some_and(|deadline| deadline.left(clock).is_zero());
                if is_over { deadline::exceeded() } else { incomplete("did not arrive in time") }
            }
            UploadError::Slow => {
                shared.slow_bodies.increment(1);
                incomplete("arrived too slowly")
            }
            UploadError::Broken => incomplete("ended early"),
            UploadError::Reset => incomplete("broke off"),
        }
    }
}

/// Returns the length that a request announces for its body, or 0 if it announces none.
fn announced(body: &impl Body) -> usize {
    usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)
}

impl Received {
    /// Finds the operation that the request names.
    pub(crate) fn identify<Req>(mut self, shared: &LayerState) -> Result<Identified<Req>, Refusal> {
        let name = match self.head.name.take() {
            Some(name) => Some(name),
            None => {
                let policy = &self.head.policy;
                let key = match &policy.key.source {
                    KeySource::Grpc(field) => {
                        field.key(&self.payload, uri(&self.parts).path(), policy.key.required)
                    }
                    _ => key_of_body(&self.parts, &self.payload, policy),
                };
                let key = key.map_err(|problem| self.head.refused(problem))?;
                key.map(|key| Name::new(&self.head.scope, key))
            }
        };
        let Some(name) = name else {
            match is_inside(&self.parts) {
                true => remove_framing(&mut self.parts),
                false => remove_attempt(&mut self.parts),
            }
            let body = RequestBody::read(self.payload.into_data(), self.trailers);
            return Ok(Identified::PassOn(self.parts, body, self.place));
        };
        let Self { head, parts, payload, trailers, place } = self;
        let print = fingerprint(&parts, &payload, &head.policy.fingerprint, &head.proof);
        let print =
            print.map_err(|problem| Refusal::new(&head.policy, problem).referring(Some(&name)))?;
        let limits = velocity::limits(&head.policy, &head.scope, &payload, &shared.secrets);
        // From here on the body is needed as bytes alone. Read as JSON, it can take several times
        // its size, and the request may wait for a long time.
        let data = payload.into_data();
        let operation = Box::new(operation(shared, &head, &name, print));
        // An outer layer already runs this operation. Waiting for it here would be a deadlock.
        let outer = OperationContext::of(&parts.extensions).and_then(OperationContext::attempt);
        if outer.is_some_and(|attempt| attempt.id == operation.id) {
            let body = RequestBody::read(data, trailers);
            return Ok(Identified::PassOn(parts, body, place));
        }
        let key = name.key;
        let identity = Identity { head, parts, data, trailers, place, key, limits, operation };
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
    remove_framing(parts);
    for name in ATTEMPT_HEADERS {
        parts.headers.remove(name);
    }
}

/// Removes the headers about the transfer of a body that was read.
fn remove_framing(parts: &mut Parts) {
    for name in [EXPECT, TRANSFER_ENCODING, UPGRADE] {
        parts.headers.remove(name);
    }
}
