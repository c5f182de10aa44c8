//! A known key with another body, for another operation, or from another client.

use bytes::Bytes;

use super::super::report::{DRAFT_OTHER_BODY, OTHER_BODY, OTHER_CREDENTIAL, OTHER_URL};
use super::super::session::{Baseline, Call, Session, counted};
use super::{BLIND, StepResult, documentation, refused};

/// Another body under the first key.
pub(super) async fn other_body(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let Some(template) = &session.settings.other_body else {
        let why = "write {fresh} into --body, or name another body with --other-body";
        return Ok(vec![OTHER_BODY.not_shown(why), DRAFT_OTHER_BODY.not_shown(why)]);
    };
    let call = session.call(baseline.written(&baseline.key), &session.render(template));
    let (response, runs) = session.observe(&call).await?;
    let mut finding = refused(session, &OTHER_BODY, &response, runs);
    if session.is_same_operation(&baseline.response, &response) {
        finding = OTHER_BODY.fail(format!(
            "the response of the first body: {}{}",
            session.shown(&response),
            counted(runs)
        ));
    }
    let link = documentation(&response);
    let shown = format!("{}, link {}", response.status.as_u16(), link.as_deref().unwrap_or("none"));
    let draft = match response.status.as_u16() == 422 && link.is_some() {
        true => DRAFT_OTHER_BODY.pass(shown),
        false => DRAFT_OTHER_BODY.fail(shown),
    };
    Ok(vec![finding, draft])
}

/// Another operation under the first key. It may be refused, or run by itself.
pub(super) async fn other_url(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let Some(url) = &session.settings.other_url else {
        return Ok(vec![OTHER_URL.not_shown("name another operation with --other-url")]);
    };
    let key = baseline.written(&baseline.key);
    let call = Call { url: url.clone(), ..session.call(key, &baseline.body) };
    let response = session.send(&call).await?;
    let shown = session.shown(&response);
    Ok(vec![match session.is_same_operation(&baseline.response, &response) {
        true if baseline.tells_apart => OTHER_URL.fail(format!("the first response: {shown}")),
        true => OTHER_URL.not_shown(format!("{shown}; {BLIND}")),
        false => OTHER_URL.pass(shown),
    }])
}

/// The first request, sent by another client.
pub(super) async fn other_credential(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let settings = session.settings;
    if settings.credential.is_none() || settings.other_credential.is_none() {
        let why = "name two clients with --credential and --other-credential";
        return Ok(vec![OTHER_CREDENTIAL.not_shown(why)]);
    }
    let by_other = |key, body: &Bytes| Call { is_other_client: true, ..session.call(key, body) };
    let own = by_other(baseline.written(&session.new_key()), &session.new_body());
    let own = session.send(&own).await?;
    if !own.status.is_success() {
        let shown = session.shown(&own);
        let why = format!("the second client cannot run the operation: {shown}");
        return Ok(vec![OTHER_CREDENTIAL.not_shown(why)]);
    }
    let call = by_other(baseline.written(&baseline.key), &baseline.body);
    let (response, runs) = session.observe(&call).await?;
    let shown = session.shown(&response) + &counted(runs);
    let is_same = session.is_same_operation(&baseline.response, &response);
    Ok(vec![match is_same {
        _ if !response.status.is_success() => OTHER_CREDENTIAL
            .fail(format!("the first client's key blocks the second client: {shown}")),
        true if baseline.tells_apart || runs == Some(0) => OTHER_CREDENTIAL
            .fail(format!("the second client got the first one's response: {shown}")),
        true if runs.is_none() => OTHER_CREDENTIAL.not_shown(format!("{shown}; {BLIND}")),
        _ if runs.is_some_and(|runs| runs != 1) => OTHER_CREDENTIAL.fail(shown),
        _ => OTHER_CREDENTIAL.pass(format!("ran for the second client: {shown}")),
    }])
}
