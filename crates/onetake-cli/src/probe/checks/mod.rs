//! The checks. Each function sends the requests of some checks and returns their findings.

mod baseline;
mod clients;
mod concurrency;
mod keys;
mod retries;

use futures_util::future::BoxFuture;

use super::client::{Exchange, NoResponse};
use super::report::{
    AT_ONCE, CHECKS, Check, DRAFT_IN_FLIGHT, DRAFT_MISSING, DRAFT_OTHER_BODY, DRAFT_STRING,
    Finding, HANG_UP, IN_FLIGHT, JOINED_OTHER, JOINED_SAME, MALFORMED, MISSING, OTHER_BODY,
    OTHER_CREDENTIAL, OTHER_URL, QUOTED, RETRY_ERROR, RETRY_HEADERS, RETRY_RESPONSE, RETRY_RUNS,
    Verdict,
};
use super::session::{Baseline, Session, StepError, counted};

type StepResult = Result<Vec<Finding>, StepError>;
type Step<'a> = (&'a [&'static Check], BoxFuture<'a, StepResult>);

/// Runs all checks. Returns one finding for each of them.
///
/// # Errors
/// If the target cannot be reached at all.
pub(super) async fn run(session: &Session<'_>) -> Result<Vec<Finding>, NoResponse> {
    let (mut findings, baseline) = baseline::establish(session).await?;
    if let Some(baseline) = &baseline {
        for (checks, step) in steps(session, baseline) {
            let is_skipped =
                |check: &&&Check| session.settings.skip.iter().any(|n| n == check.name);
            if checks.iter().filter(is_skipped).count() == checks.len() {
                continue;
            }
            match step.await {
                Ok(found) => findings.extend(found),
                Err(error) => findings.extend(checks.iter().map(|check| unfinished(check, &error))),
            }
        }
    }
    Ok(complete(session, findings))
}

fn steps<'a>(session: &'a Session<'_>, baseline: &'a Baseline) -> Vec<Step<'a>> {
    vec![
        (
            &[&RETRY_RUNS, &RETRY_RESPONSE, &RETRY_HEADERS],
            Box::pin(retries::retry(session, baseline)),
        ),
        (&[&RETRY_ERROR], Box::pin(retries::retry_of_error(session, baseline))),
        (&[&OTHER_BODY, &DRAFT_OTHER_BODY], Box::pin(clients::other_body(session, baseline))),
        (&[&OTHER_URL], Box::pin(clients::other_url(session, baseline))),
        (&[&OTHER_CREDENTIAL], Box::pin(clients::other_credential(session, baseline))),
        (&[&QUOTED, &DRAFT_STRING], Box::pin(keys::quoted_and_bare(session, baseline))),
        (&[&JOINED_SAME], Box::pin(keys::joined_same(session, baseline))),
        (&[&JOINED_OTHER], Box::pin(keys::joined_other(session, baseline))),
        (&[&MISSING, &DRAFT_MISSING], Box::pin(keys::missing(session))),
        (&[&MALFORMED], Box::pin(keys::malformed(session))),
        (&[&AT_ONCE], Box::pin(concurrency::at_once(session, baseline))),
        (&[&HANG_UP], Box::pin(concurrency::hang_up(session, baseline))),
        (&[&IN_FLIGHT, &DRAFT_IN_FLIGHT], Box::pin(concurrency::in_flight(session, baseline))),
    ]
}

/// The finding of a check that got no response. It failed, unless the probe itself is the reason.
fn unfinished(check: &'static Check, error: &StepError) -> Finding {
    match error {
        StepError::NoResponse(NoResponse::Limit(_)) | StepError::Counter(_) => {
            check.not_shown(error.to_string())
        }
        StepError::NoResponse(_) => check.fail(error.to_string()),
    }
}

/// Checks that an API passes without any effort if it ignores keys.
const NEEDS_KEYS: [&Check; 4] = [&OTHER_URL, &OTHER_CREDENTIAL, &DRAFT_STRING, &RETRY_ERROR];

/// Puts the findings in order, and adds those that are missing.
fn complete(session: &Session<'_>, findings: Vec<Finding>) -> Vec<Finding> {
    let is_failed = |finding: &Finding| finding.verdict == Verdict::Fail;
    let ignores_keys =
        findings.iter().any(|finding| finding.check == &RETRY_RUNS && is_failed(finding));
    let finding = |check: &'static Check| {
        if session.settings.skip.iter().any(|name| name == check.name) {
            return check.not_shown("left out by --skip");
        }
        let found = findings.iter().find(|finding| finding.check == check).cloned();
        let found = found.unwrap_or_else(|| check.not_shown("the checks before it failed"));
        match found.verdict {
            Verdict::Pass if ignores_keys && NEEDS_KEYS.contains(&check) => {
                check.not_shown(format!("the API ignores keys: {}", found.evidence))
            }
            _ => found,
        }
    };
    CHECKS.into_iter().map(finding).collect()
}

/// Judges a request that must be refused.
fn refused(
    session: &Session<'_>,
    check: &'static Check,
    response: &Exchange,
    runs: Option<u64>,
) -> Finding {
    let shown = session.shown(response) + &counted(runs);
    match response.status.is_client_error() && runs.unwrap_or(0) == 0 {
        true => check.pass(shown),
        false => check.fail(shown),
    }
}

/// Judges a request that must not run again: it gets the first response, or is refused if that is
/// allowed.
fn repeated(
    session: &Session<'_>,
    check: &'static Check,
    (baseline, first): (&Baseline, &Exchange),
    (second, runs): (&Exchange, Option<u64>),
    may_refuse: bool,
) -> Finding {
    let shown = session.shown(second) + &counted(runs);
    if runs.is_some_and(|runs| runs > 0) {
        return check.fail(format!("ran again: {shown}"));
    }
    if session.is_same_operation(first, second) {
        return match baseline.sees_runs(runs) {
            true => check.pass(format!("the first response again: {shown}")),
            false => check.not_shown(format!("{shown}; {BLIND}")),
        };
    }
    match () {
        () if second.status.is_client_error() && may_refuse => {
            check.pass(format!("refused: {shown}"))
        }
        () if second.status.is_success() => check.fail(format!("ran again: {shown}")),
        () => check.fail(format!("not the first response: {shown}")),
    }
}

/// The reason why runs cannot be seen.
const BLIND: &str = "two operations have equal responses, so runs cannot be seen: name a counter \
                     with --count";

/// A link to documentation in a response: in the header `Link`, as the type of a problem, or as a
/// URL in the body.
fn documentation(response: &Exchange) -> Option<String> {
    let link = response.headers.get(http::header::LINK).and_then(|value| value.to_str().ok());
    let problem = serde_json::from_slice::<serde_json::Value>(&response.body).unwrap_or_default();
    let kind = problem.get("type").and_then(|kind| kind.as_str());
    let kind = kind.filter(|kind| kind.contains('/') && *kind != "about:blank");
    let text = String::from_utf8_lossy(&response.body);
    let url = text.find("http://").or_else(|| text.find("https://"));
    let url = url.and_then(|at| text.get(at..)?.split(['"', ' ', '<', '>']).next());
    link.or(kind).or(url).map(str::to_owned)
}
