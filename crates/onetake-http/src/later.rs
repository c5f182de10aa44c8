//! `in_flight = "async"`: an operation that takes longer than the wait is answered 202, and its
//! outcome is fetched by a handle.
//!
//! After a 202 the attempt has an outcome: nothing is released any more, but recorded. An attempt of
//! this process is promised to whoever gets a 202 ([`Engine::promise`]), which excludes that it is
//! released. An attempt of another node cannot be promised from here; but it counts as promised by
//! itself once it has lasted as long as the route's whole wait, and nobody gets a 202 for it who has
//! waited for less, or (as long as clocks agree) before it has lasted for as long.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER};
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::json;

use onetake_core::clock::Timestamp;
use onetake_core::engine::{Answer, Begin, EngineError, Operation, Promise};
use onetake_core::{Engine, InFlight, Record, RecordId, State};

use crate::body::ResponseBody;
use crate::handle::Handle;
use crate::layer::Shared;
use crate::prefer::{PREFERENCE_APPLIED, Prefer};
use crate::problem::{Answers, Code, IDEMPOTENCY_REFERENCE, Problem, insert};
use crate::recording::replay;
use crate::said::{overloaded, problem_of};
use crate::tenant::Tenant;

/// Where outcomes are fetched by their handles.
pub const OPERATIONS: &str = "/.onetake/operations/";

/// What a client is told that comes too early, in seconds.
const RETRY_SECONDS: u64 = 1;

/// How long a client of an async route waits, and what it is told then.
pub(crate) struct Later {
    pub(crate) operation: Operation,
    handle: String,
    applied: Option<String>,
    /// On our own clock: until when this client waits.
    until: Duration,
    /// On our own clock: from when on the operation has lasted as long as the route waits at all.
    pub(crate) due: Duration,
    /// On our own clock: until when anybody waits, whatever the store's clock makes of it.
    latest: Duration,
    /// On our own clock: the client's deadline.
    deadline: Duration,
}

/// What becomes of a request on an async route.
pub(crate) enum Began {
    Run(onetake_core::Lease),
    Answer(Answer),
    /// It runs, and takes long.
    Accepted,
}

impl Later {
    /// `left` is what the client's deadline leaves, if it has one.
    pub(crate) fn new(
        operation: Operation,
        handle: String,
        (wait, prefer): (Duration, Prefer),
        left: Option<Duration>,
        now: Duration,
    ) -> Self {
        let deadline = left.map_or(Duration::MAX, |left| now.saturating_add(left));
        let until = now.saturating_add(prefer.shorten(wait)).min(deadline);
        let due = now.saturating_add(wait);
        let (latest, applied) = (due.saturating_add(wait), prefer.applied(wait));
        Self { operation, handle, applied, until, due, latest, deadline }
    }

    /// Asks the engine who runs the operation.
    pub(crate) async fn begin(&self, engine: &Engine) -> Result<Began, EngineError> {
        let mut operation = self.operation.clone();
        let mut until = self.until;
        loop {
            let wait = until.saturating_sub(engine.clock().monotonic());
            operation.in_flight = InFlight::Wait(wait);
            let answer = match engine.begin(&operation).await? {
                Begin::Run(lease) => return Ok(Began::Run(lease)),
                Begin::Answer(answer @ (Answer::InFlight | Answer::WaitTimeout)) => answer,
                Begin::Answer(answer) => return Ok(Began::Answer(answer)),
            };
            let now = engine.clock().monotonic();
            match (engine.promise(&operation), answer) {
                (Promise::Given, _) => return Ok(Began::Accepted),
                (Promise::Refused, _) => return Ok(Began::Answer(Answer::InFlight)),
                // Too early to be sure of the other node's attempt: wait on, whatever is preferred.
                (Promise::Elsewhere, Answer::WaitTimeout) if now < self.due.min(self.deadline) => {
                    until = self.due.min(self.deadline);
                }
                (Promise::Elsewhere, answer @ Answer::WaitTimeout) if now >= self.due => {
                    // That it runs is known: a store that is away now is no reason to run it here (S10).
                    let Ok(young) = self.young_for(engine).await else {
                        return Ok(Began::Answer(answer));
                    };
                    if now >= self.latest || young == Some(Duration::ZERO) {
                        return Ok(Began::Accepted);
                    }
                    if now >= self.deadline {
                        return Ok(Began::Answer(answer));
                    }
                    // It has just ended if it is of no age: then there is an answer.
                    let more = now.saturating_add(young.unwrap_or_default());
                    until = more.min(self.latest).min(self.deadline);
                }
                (Promise::Elsewhere, answer) => return Ok(Began::Answer(answer)),
            }
        }
    }

    /// For how long the other node's attempt has not lasted as long as the route waits: it may be another one
    /// than that which was met first. A fence is the store's time when the attempt was claimed.
    /// `None`: none runs any more.
    async fn young_for(&self, engine: &Engine) -> Result<Option<Duration>, EngineError> {
        let record = engine.look(self.operation.id).await?;
        let running = record.filter(|record| matches!(record.state, State::Running { .. }));
        let wait = self.latest.saturating_sub(self.due);
        Ok(running.map(|record| {
            let claimed_at = Timestamp::from_micros(record.fence.get());
            wait.saturating_sub(engine.clock().now().since(claimed_at))
        }))
    }

    /// Resolves when the client that runs the operation is to be told to come back. Never, if the
    /// attempt is being released, or has just ended: then its answer is about to be there.
    pub(crate) async fn is_due(&self, engine: &Engine) {
        let clock = engine.clock();
        clock.sleep(self.until.saturating_sub(clock.monotonic())).await;
        if engine.promise(&self.operation) != Promise::Given {
            std::future::pending::<()>().await;
        }
    }

    /// The answer that the operation takes long.
    pub(crate) fn accepted<Res>(&self) -> Response<ResponseBody<Res>> {
        let location = format!("{OPERATIONS}{}", self.handle);
        let mut response = running(self.operation.id, Some(&location));
        *response.status_mut() = StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        insert(headers, LOCATION, &location);
        if let Some(applied) = &self.applied {
            insert(headers, PREFERENCE_APPLIED, applied);
        }
        response
    }
}

fn running<Res>(id: RecordId, location: Option<&str>) -> Response<ResponseBody<Res>> {
    let reference = id.reference().to_string();
    let mut body = json!({ "status": "running", "reference": reference });
    if let (Some(location), Some(members)) = (location, body.as_object_mut()) {
        members.insert("operation".to_owned(), json!(location));
    }
    let mut response = Response::new(ResponseBody::whole(Bytes::from(body.to_string()), None));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
    insert(headers, IDEMPOTENCY_REFERENCE, &reference);
    response
}

/// Tells what became of the operation that `handle` names. Whatever is wrong with a handle, the answer
/// is the same, so that nothing can be found out by trying (S8).
pub(crate) async fn look<Res>(
    shared: &Shared,
    parts: &Parts,
    handle: &str,
) -> Response<ResponseBody<Res>> {
    let handle = match whose(shared, parts, handle).await {
        Ok(handle) => handle,
        Err(problem) => return told(problem, None),
    };
    let id = handle.id;
    match shared.engine.look(id).await {
        // The record may be of another request, which came with the same key after the first one had expired.
        Ok(Some(record)) if shared.handles.is_for(&handle, &record.fingerprint) => {
            found(shared, &record)
        }
        Ok(_) => told(not_found(), None),
        Err(EngineError::Overloaded) => told(overloaded(), Some(id)),
        Err(_) => told(unavailable(), Some(id)),
    }
}

/// Reads a handle, if it belongs to the sender.
///
/// A problem tells of the sender alone: it is the same for every handle that is not theirs.
async fn whose(shared: &Shared, parts: &Parts, handle: &str) -> Result<Handle, Problem> {
    let clock = &**shared.engine.clock();
    let (mut is_somebody, mut refusal) = (false, None);
    let mut tenants = shared.policies.handle_tenants();
    // Those that cost a question come last.
    tenants.sort_by_key(|tenant| matches!(tenant, Tenant::Asked(_)));
    for tenant in tenants {
        match tenant.resolve(parts, clock).await {
            Ok(caller) => {
                is_somebody = true;
                if let Some(handle) = shared.handles.read(handle, &[caller]) {
                    return Ok(handle);
                }
            }
            Err(problem) if problem.code().status().is_server_error() => return Err(problem),
            Err(problem) if tenant.is_verified() => refusal = Some(problem),
            Err(_) => {}
        }
    }
    Err(refusal.filter(|_| !is_somebody).unwrap_or_else(not_found))
}

fn found<Res>(shared: &Shared, record: &std::sync::Arc<Record>) -> Response<ResponseBody<Res>> {
    let id = record.id;
    let problem = match &record.state {
        State::Running { .. } => return running(id, None),
        State::Completed { recording, .. } => {
            match replay(recording, id.reference(), &shared.types) {
                Ok(response) => return response,
                Err(problem) => problem,
            }
        }
        State::Failed { .. } => problem_of(&Answer::Failed(record.clone())),
        State::Unknown { cause, .. } if record.terms.on_unknown.runs_again() => Problem::new(
            Code::PreviousAttemptFailed,
            format!("Its outcome is not known: {cause}. A retry with the same key runs it again."),
        ),
        State::Unknown { .. } => problem_of(&Answer::Unknown(record.clone())),
        State::Released { .. } => Problem::new(
            Code::PreviousAttemptFailed,
            "It ended without an outcome, and nothing of it is left. A retry with the same key runs it again.",
        ),
    };
    told(problem, Some(id))
}

/// A handle does not say of which route it is, so the words are those of RFC 9457.
fn told<Res>(problem: Problem, id: Option<RecordId>) -> Response<ResponseBody<Res>> {
    let reference = id.map(|id| id.reference());
    Answers::default().tell(problem, reference).map(|body| ResponseBody::whole(body, None))
}

fn not_found() -> Problem {
    Problem::new(
        Code::OperationNotFound,
        "There is no operation with this handle, it is not yours, or its outcome has expired.",
    )
}

fn unavailable() -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        "The store that remembers keys does not answer, so it cannot be told what became of the operation. Ask again.",
    )
    .retry_after(2)
}
