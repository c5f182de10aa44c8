//! Reads a keyed request, and asks the engine who runs it.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http_body::Body;
use tokio::sync::OwnedSemaphorePermit;

use onetake_core::engine::{Answer, Attempt, Begin, EngineError, Operation};
use onetake_core::{Key, Lease, Record, Reference, State};

use crate::asked::{self, Asked};
use crate::body::{self, Read, RequestBody};
use crate::bypass::{self, Bypass};
use crate::deadline::{self, TimeLeft};
use crate::extract::Named;
use crate::fingerprint::fingerprint;
use crate::issued;
use crate::key::key_of_body;
use crate::later::{Began, Later};
use crate::layer::Shared;
use crate::payload::Payload;
use crate::problem::{Code, Problem};
use crate::run::Run;
use crate::said::{in_progress, overloaded, problem_of, problem_of_error};
use crate::service::{IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE};
use crate::transaction::Recorder;
use crate::velocity;

/// What becomes of a keyed request.
pub(crate) enum Admitted<Req> {
    /// To be run here; if it takes long, the client is told later.
    Run(Run<Req>, Option<Box<Later>>),
    /// It runs, and takes long.
    Later(Box<Later>),
    /// The store is away, and the route is fail-open.
    Bypass(Bypass<Req>),
    Replay(Arc<Record>),
    /// Its body names no operation, and need not, or one that a layer around this one runs. It is in memory all
    /// the same (S19).
    Passing(Request<RequestBody<Req>>, OwnedSemaphorePermit),
}

pub(crate) type Refused = (Problem, Option<Reference>);

/// Reads the request and asks the engine who runs it.
pub(crate) async fn admit<Req>(
    shared: &Arc<Shared>,
    asked: Asked,
    mut parts: Parts,
    body: Req,
) -> Result<Admitted<Req>, Refused>
where
    Req: Body<Data = Bytes> + Send + 'static,
    Req::Error: Send,
{
    let policy = &asked.policy;
    let refer = |key: &Key| asked::reference(&asked.scope(), key);
    let early = asked.key.as_ref().map(refer);
    let refused = |problem| (problem, early);
    let place =
        Arc::clone(&shared.bodies).try_acquire_owned().map_err(|_| refused(overloaded()))?;
    let data = read_request(shared, &asked, body).await.map_err(refused)?;
    whole(&parts, &data).map_err(refused)?;
    let payload = Payload::new(&parts.headers, data, policy.request_body_max);
    let key = match &asked.key {
        Some(key) => Some(key.clone()),
        None => key_of_body(&payload, &policy.key).map_err(refused)?,
    };
    let Some(key) = key else {
        let request = bypass::forwarded(parts, payload.into_data(), None);
        return Ok(Admitted::Passing(request, place));
    };
    let reference = refer(&key);
    let refused = |problem| (problem, Some(reference));
    let print =
        fingerprint(&parts, &payload, &policy.fingerprint, &asked.caller.proof).map_err(refused)?;
    let mut operation = asked.operation(&key, print, shared);
    // A layer around this one runs it already: whoever waited for that here would wait for itself.
    if parts.extensions.get::<Attempt>().is_some_and(|attempt| attempt.id == operation.id) {
        let request = Request::from_parts(parts, RequestBody::read(payload.into_data()));
        return Ok(Admitted::Passing(request, place));
    }
    let clock = &**shared.engine.clock();
    if asked.is_over(clock) {
        return Err(refused(deadline::over()));
    }
    let mut may_run = true;
    if asked.is_expired(clock) {
        // Its own expiry counts only while there is no record (S15), and none is being made: an attempt of
        // this process is known before its record is.
        let is_under_way = || shared.engine.is_under_way(operation.id);
        let was_under_way = is_under_way();
        match shared.engine.look(operation.id).await {
            Ok(Some(record)) => may_run = !is_final(&record),
            Ok(None) if was_under_way || is_under_way() => {}
            Ok(None) => return Err(refused(issued::invalid())),
            Err(error) => return Err(refused(problem_of_error(&error, reference))),
        }
    }
    let mut later = asked.later(&operation, &parts, shared);
    let pass = velocity::pass(shared, policy, &asked.scope(), &payload, &operation).await;
    let pass = pass.map_err(refused)?;
    let asking = pass.asking();
    let begun = match pass.store_error() {
        Some(error) => Err(error),
        // What is run must be able to pass a key on, so that is known first.
        None => match shared.deriving().await {
            Ok(deriving) => {
                operation.origin.memo = asked.memo(&key, deriving, &parts.headers);
                if let Some(later) = &mut later {
                    later.operation.origin.memo = operation.origin.memo.clone();
                }
                begin(shared, &operation, later.as_deref()).await
            }
            Err(error) => Err(error),
        },
    };
    asking.answered();
    if matches!(begun, Ok(Began::Run(_))) {
        pass.keep();
    }
    match (asked.deadline, &begun) {
        (Some(_), Ok(Began::Run(_))) if later.is_some() => deadline::remove(&mut parts.headers),
        (Some(deadline), Ok(Began::Run(_)) | Err(_)) => {
            deadline.pass_on(&mut parts.headers, clock);
            parts.extensions.insert(TimeLeft(deadline.left(clock)));
        }
        _ => {}
    }
    match begun {
        // It was granted too late to be of use: nothing runs, and the lease is released.
        Ok(Began::Run(lease)) if asked.is_over(clock) => {
            drop(lease);
            Err(refused(deadline::over()))
        }
        // The outcome that was there a moment ago has expired: nothing new runs under this key, now or later.
        Ok(Began::Run(lease)) if !may_run => {
            let _settling = lease.fail(issued::spent()).await;
            Err(refused(issued::invalid()))
        }
        Ok(Began::Run(lease)) => {
            let derived = shared.deriving_now().map(|secret| secret.derive(&asked.scope(), &key));
            let named = Named { key, derived };
            let recorder =
                Recorder { shared: Arc::clone(shared), body_bytes_max: policy.response_body_max };
            parts.extensions.insert(recorder);
            let request = forwarded(parts, payload.into_data(), &lease, named);
            let (policy, run_max) = (Arc::clone(policy), asked.run_max(clock));
            let kept_from = later.as_ref().map(|later| later.due);
            let run = Run { request, lease, policy, run_max, kept_from, reference, place };
            Ok(Admitted::Run(run, later))
        }
        Ok(Began::Answer(Answer::Replay(record))) => Ok(Admitted::Replay(record)),
        Ok(Began::Answer(answer)) => Err(refused(problem_of(&answer))),
        Ok(Began::Accepted) => later.map(Admitted::Later).ok_or_else(|| refused(in_progress())),
        Err(error) if bypass::is_chosen(&shared.engine, policy, reference, &error) => {
            pass.keep();
            let derived = shared.deriving_now().map(|secret| secret.derive(&asked.scope(), &key));
            let named = Named { key, derived };
            let request = bypass::forwarded(parts, payload.into_data(), Some(named));
            // Nobody can come back for what is not recorded.
            let run_max = asked.within(policy.run_max, clock);
            Ok(Admitted::Bypass(Bypass { request, run_max, reference, place }))
        }
        Err(error) => Err(refused(problem_of_error(&error, reference))),
    }
}

fn is_final(record: &Record) -> bool {
    matches!(record.state, State::Completed { .. } | State::Failed { .. })
}

/// Asks the engine who runs the operation.
async fn begin(
    shared: &Shared,
    operation: &Operation,
    later: Option<&Later>,
) -> Result<Began, EngineError> {
    match later {
        Some(later) => later.begin(&shared.engine).await,
        None => Ok(match shared.engine.begin(operation).await? {
            Begin::Run(lease) => Began::Run(lease),
            Begin::Answer(answer) => Began::Answer(answer),
        }),
    }
}

async fn read_request<Req>(shared: &Shared, asked: &Asked, body: Req) -> Result<Bytes, Problem>
where
    Req: Body<Data = Bytes>,
{
    let (policy, clock) = (&asked.policy, shared.engine.clock());
    let max = policy.request_body_max;
    let read = tokio::select! {
        biased;
        read = body::read(body, max) => read,
        () = clock.sleep(asked.within(policy.request_timeout, &**clock)) => {
            let is_over = asked.deadline.is_some_and(|deadline| deadline.left(&**clock).is_zero());
            return Err(if is_over { deadline::over() } else { incomplete("did not arrive in time") });
        }
    };
    match read {
        Ok(Read::Whole { data, .. }) => Ok(data),
        Ok(Read::TooLarge { .. }) => Err(Problem::new(
            Code::RequestBodyTooLarge,
            format!(
                "The body has more than {max} bytes, the most that this route accepts with a key (max_request_body). Nothing was run."
            ),
        )),
        Err(_) => Err(incomplete("broke off")),
    }
}

/// An HTTP/2 stream that is reset in the middle can look like the end of a body.
fn whole(parts: &Parts, data: &Bytes) -> Result<(), Problem> {
    let Some(length) = parts.headers.get(CONTENT_LENGTH) else {
        return Ok(());
    };
    let length = length.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    if length == Some(data.len()) { Ok(()) } else { Err(incomplete("broke off")) }
}

pub(crate) fn incomplete(what: &str) -> Problem {
    Problem::new(
        Code::RequestBodyIncomplete,
        format!("The request's body {what}. Nothing was run; retry with the same key."),
    )
}

/// The request as the inner service gets it.
fn forwarded<Req>(
    mut parts: Parts,
    data: Bytes,
    lease: &Lease,
    named: Named,
) -> Request<RequestBody<Req>> {
    let headers = &mut parts.headers;
    // The body was read whole, the outcome is recorded as it is, and nothing is upgraded.
    for name in [EXPECT, TRANSFER_ENCODING, UPGRADE, IDEMPOTENCY_DERIVED_KEY] {
        headers.remove(name);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(IDEMPOTENCY_FENCE, HeaderValue::from(lease.fence().get()));
    let attempt = Attempt { id: lease.id(), attempt: lease.attempt(), fence: lease.fence() };
    parts.extensions.insert(attempt);
    named.tell(&mut parts);
    Request::from_parts(parts, RequestBody::read(data))
}
