//! `GET /.onetake/operations/{handle}`: the outcome of an operation that was answered with 202.

use std::sync::Arc;

use http::Response;
use http::request::Parts;

use onetake_core::engine::{Answer, EngineError};
use onetake_core::{Record, RecordId, State};

use crate::accepted::running;
use crate::body::ResponseBody;
use crate::endpoints::OPERATIONS;
use crate::handle::Handle;
use crate::layer::LayerState;
use crate::problem::from_engine::{overloaded, problem_of};
use crate::problem::{Code, Problem, ProblemFormat};
use crate::recording::replay;
use crate::tenant::Tenant;

/// Answers with the outcome of the operation that a handle names.
///
/// Every handle that is invalid or belongs to another caller gets the same answer, so that guessing
/// reveals nothing (S8).
pub(super) async fn fetch_outcome<Res>(
    shared: &LayerState,
    parts: &Parts,
) -> Response<ResponseBody<Res>> {
    let handle = parts.uri.path().strip_prefix(OPERATIONS).unwrap_or_default();
    let handle = match whose(shared, parts, handle).await {
        Ok(handle) => handle,
        Err(problem) => return problem_response(shared, problem, None),
    };
    let id = handle.id;
    match shared.engine.look(id).await {
        // The record can belong to another request that used the same key after the first record
        // had expired.
        Ok(Some(record)) if shared.handles.is_for(&handle, &record.fingerprint) => {
            found(shared, &record)
        }
        Ok(_) => problem_response(shared, not_found(), None),
        Err(EngineError::Overloaded) => problem_response(shared, overloaded(), Some(id)),
        Err(_) => problem_response(shared, unavailable(), Some(id)),
    }
}

/// Reads a handle, if it belongs to the caller.
///
/// # Errors
/// A problem that depends on the caller only. It is the same for every handle that is not theirs.
async fn whose(shared: &LayerState, parts: &Parts, handle: &str) -> Result<Handle, Problem> {
    let clock = &**shared.engine.clock();
    let (mut is_somebody, mut refusal) = (false, None);
    let mut tenants = shared.policies.handle_tenants();
    // Tenants that another service must resolve come last, because they cost a call.
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

fn found<Res>(shared: &LayerState, record: &Arc<Record>) -> Response<ResponseBody<Res>> {
    let id = record.id;
    let problem = match Answer::of(record) {
        Some(Answer::Replay(completed)) => {
            match replay(completed.part(), id.reference(), &shared.types) {
                Ok(response) => return response,
                Err(problem) => problem,
            }
        }
        Some(Answer::Unknown(unknown)) if record.terms.on_unknown.runs_again() => Problem::new(
            Code::PreviousAttemptFailed,
            format!(
                "The outcome of the operation is unknown: {}. A retry with the same key runs it again.",
                unknown.part()
            ),
        )
        .retryable(true),
        Some(answer) => problem_of(&answer),
        None if matches!(record.state, State::Running { .. }) => return running(id, None),
        None => Problem::new(
            Code::PreviousAttemptFailed,
            "The operation ended without an outcome and had no effect. A retry with the same key runs it again.",
        )
        .retryable(true),
    };
    problem_response(shared, problem, Some(id))
}

/// Builds the response to a problem. A handle does not name a route, so the format is the default
/// one (RFC 9457).
fn problem_response<Res>(
    shared: &LayerState,
    problem: Problem,
    id: Option<RecordId>,
) -> Response<ResponseBody<Res>> {
    let reference = id.map(|id| id.reference());
    let response = ProblemFormat::default().tell_with(problem, reference, &**shared.engine.rng());
    response.map(|body| ResponseBody::whole(body, None))
}

fn not_found() -> Problem {
    Problem::new(
        Code::OperationNotFound,
        "No operation with this handle was found for your credential, or its outcome has expired.",
    )
}

fn unavailable() -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        "The idempotency store is unavailable, so the operation cannot be looked up. Request it again after Retry-After.",
    )
    .retry_after(2)
}
