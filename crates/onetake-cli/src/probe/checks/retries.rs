//! Retries after the first response.

use std::time::Duration;

use http::{HeaderName, StatusCode, header};

use super::super::client::Exchange;
use super::super::report::{RETRY_ERROR, RETRY_HEADERS, RETRY_RESPONSE, RETRY_RUNS};
use super::super::session::{Baseline, Call, Session, StepError, is_same_body};
use super::{StepResult, repeated};

/// The headers that belong to the outcome. Others, such as `Date`, may change.
const SUBSTANCE: [HeaderName; 9] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CONTENT_DISPOSITION,
    header::CONTENT_LOCATION,
    header::LOCATION,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    header::CACHE_CONTROL,
];

/// Pause before a request that was answered with "in progress" is sent again.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest wait for the end of an operation that has failed.
const FAILED_WAIT_MAX: Duration = Duration::from_secs(3);

/// A retry of the first request.
pub(super) async fn retry(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let first = &baseline.response;
    let call = session.call(baseline.written(&baseline.key), &baseline.body);
    let (second, runs) = session.observe(&call).await?;
    let runs = repeated(session, &RETRY_RUNS, (baseline, first), (&second, runs), true);
    let is_same = first.status == second.status && is_same_body(first, &second);
    let shown = format!("first {}, retry {}", session.shown(first), session.shown(&second));
    let response = if is_same { RETRY_RESPONSE.pass(shown) } else { RETRY_RESPONSE.fail(shown) };
    let differing = SUBSTANCE.iter().filter(|name| !is_same_header(first, &second, name));
    let differing: Vec<&str> = differing.map(HeaderName::as_str).collect();
    let present = SUBSTANCE.iter().filter(|name| first.headers.contains_key(*name));
    let present: Vec<&str> = present.map(HeaderName::as_str).collect();
    let headers = match differing.is_empty() {
        true => RETRY_HEADERS.pass(format!("the same: {}", listed(&present))),
        false => RETRY_HEADERS.fail(format!("different or missing: {}", listed(&differing))),
    };
    Ok(vec![runs, response, headers])
}

fn is_same_header(one: &Exchange, other: &Exchange, name: &HeaderName) -> bool {
    one.headers.get_all(name).iter().eq(other.headers.get_all(name).iter())
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// A retry of an operation that failed.
pub(super) async fn retry_of_error(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let Some(template) = &session.settings.error_body else {
        return Ok(vec![RETRY_ERROR.not_shown("name a body that fails with --error-body")]);
    };
    let key = baseline.written(&session.new_key());
    let call = session.call(key, &session.render(template));
    let first = session.send(&call).await?;
    if !(first.status.is_client_error() || first.status.is_server_error()) {
        let shown = session.shown(&first);
        return Ok(vec![RETRY_ERROR.not_shown(format!("the body of --error-body ran: {shown}"))]);
    }
    let second = settled(session, &call, FAILED_WAIT_MAX).await?;
    let shown = format!("first {}, retry {}", session.shown(&first), session.shown(&second));
    Ok(vec![match is_in_progress(second.status) && !is_in_progress(first.status) {
        true => RETRY_ERROR.fail(format!("the key is stuck: {shown}")),
        false => RETRY_ERROR.pass(shown),
    }])
}

/// Sends a request until the answer is not "in progress", for a limited time. Returns the last
/// answer.
pub(super) async fn settled(
    session: &Session<'_>,
    call: &Call,
    wait_max: Duration,
) -> Result<Exchange, StepError> {
    let clock = session.client.clock();
    let end = clock.monotonic().saturating_add(wait_max);
    loop {
        let response = session.send(call).await?;
        if !is_in_progress(response.status) || clock.monotonic() >= end {
            return Ok(response);
        }
        clock.sleep(PAUSE).await;
    }
}

/// True for statuses that say that the same request may succeed later.
pub(super) fn is_in_progress(status: StatusCode) -> bool {
    matches!(status.as_u16(), 409 | 423 | 425 | 429 | 503)
}
