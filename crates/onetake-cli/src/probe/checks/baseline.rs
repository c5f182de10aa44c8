//! The first two operations: they show that the API runs, and how runs can be seen.

use super::super::client::{Exchange, NoResponse};
use super::super::counter::CounterError;
use super::super::report::{FIRST_REQUEST, Finding, NEW_KEY};
use super::super::session::{Baseline, Session, StepError, counted, quoted};
use super::BLIND;

/// Runs two operations. Without a baseline, no other check makes sense.
///
/// # Errors
/// If there is no connection to the target.
pub(super) async fn establish(
    session: &Session<'_>,
) -> Result<(Vec<Finding>, Option<Baseline>), NoResponse> {
    let (key, body) = (session.new_key(), session.new_body());
    let (first, is_quoted) = match first(session, &key, &body).await {
        Ok(first) => first,
        Err(StepError::NoResponse(error @ NoResponse::Unreachable(_)))
        | Err(StepError::Counter(CounterError::NoResponse(error @ NoResponse::Unreachable(_)))) => {
            return Err(error);
        }
        Err(error) => return Ok((vec![FIRST_REQUEST.fail(error.to_string())], None)),
    };
    let (response, runs) = first;
    let shown = session.shown(&response) + &counted(runs);
    if !response.status.is_success() {
        let why = "no success: set --body, --header and --credential so that the operation runs";
        return Ok((vec![FIRST_REQUEST.fail(format!("{shown}; {why}"))], None));
    }
    if runs.is_some_and(|runs| runs != 1) {
        let why =
            "the counter of --count must count each operation, and nobody else may use the API";
        return Ok((vec![FIRST_REQUEST.fail(format!("{shown}; {why}"))], None));
    }
    let mut findings = vec![FIRST_REQUEST.pass(shown)];
    let mut baseline = Baseline { key, body, response, is_quoted, tells_apart: false };
    findings.push(new_key(session, &mut baseline).await);
    Ok((findings, Some(baseline)))
}

type First = ((Exchange, Option<u64>), bool);

/// Sends the first request with a bare key, and with a quoted key if the bare one is refused.
async fn first(session: &Session<'_>, key: &str, body: &bytes::Bytes) -> Result<First, StepError> {
    let bare = session.observe(&session.call(key.into(), body)).await?;
    if !bare.0.status.is_client_error() {
        return Ok((bare, false));
    }
    let quoted = session.observe(&session.call(quoted(key), body)).await?;
    match quoted.0.status.is_success() {
        true => Ok((quoted, true)),
        false => Ok((bare, false)),
    }
}

/// Sends the same body under another key.
async fn new_key(session: &Session<'_>, baseline: &mut Baseline) -> Finding {
    let key = baseline.written(&session.new_key());
    let (second, runs) = match session.observe(&session.call(key, &baseline.body)).await {
        Ok(observed) => observed,
        Err(error) => return super::unfinished(&NEW_KEY, &error),
    };
    baseline.tells_apart =
        second.status.is_success() && !session.is_same_operation(&baseline.response, &second);
    let shown = session.shown(&second) + &counted(runs);
    match runs {
        _ if !second.status.is_success() => NEW_KEY.fail(shown),
        Some(1) => NEW_KEY.pass(shown),
        Some(_) => NEW_KEY.fail(shown),
        None if baseline.tells_apart => NEW_KEY.pass(shown),
        None => NEW_KEY.not_shown(format!("{shown}; {BLIND}")),
    }
}
