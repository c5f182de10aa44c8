//! Spellings of keys: quoted, joined, missing and malformed.

use super::super::report::{
    DRAFT_MISSING, DRAFT_STRING, Finding, JOINED_OTHER, JOINED_SAME, MALFORMED, MISSING, QUOTED,
    Verdict,
};
use super::super::session::{Baseline, Call, Session, counted, quoted};
use super::{StepResult, documentation, refused, repeated};

/// One key, bare and quoted.
pub(super) async fn quoted_and_bare(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let (key, body) = (session.new_key(), session.new_body());
    let first = session.send(&session.call(quoted(&key), &body)).await?;
    let shown = session.shown(&first);
    let draft = match first.status.is_success() {
        true => DRAFT_STRING.pass(shown.clone()),
        false => DRAFT_STRING.fail(shown.clone()),
    };
    if !first.status.is_success() {
        // A bare key alone runs, so nothing runs twice because of the quotes.
        return Ok(vec![QUOTED.pass(format!("the quoted key is refused: {shown}")), draft]);
    }
    let (second, runs) = session.observe(&session.call(key.into(), &body)).await?;
    let finding = repeated(session, &QUOTED, (baseline, &first), (&second, runs), true);
    Ok(vec![finding, draft])
}

/// The first key twice in one header, as a proxy joins two lines.
pub(super) async fn joined_same(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let key = baseline.written(&baseline.key);
    let joined = [key.as_slice(), b", ", key.as_slice()].concat();
    let (second, runs) = session.observe(&session.call(joined, &baseline.body)).await?;
    let first = (baseline, &baseline.response);
    Ok(vec![repeated(session, &JOINED_SAME, first, (&second, runs), true)])
}

/// The first key and a new one in one header.
pub(super) async fn joined_other(session: &Session<'_>, baseline: &Baseline) -> StepResult {
    let (known, new) = (baseline.written(&baseline.key), baseline.written(&session.new_key()));
    let joined = [known.as_slice(), b",", new.as_slice()].concat();
    let (response, runs) = session.observe(&session.call(joined, &baseline.body)).await?;
    Ok(vec![refused(session, &JOINED_OTHER, &response, runs)])
}

/// A request without a key.
pub(super) async fn missing(session: &Session<'_>) -> StepResult {
    let call = Call { key: None, ..session.call(Vec::new(), &session.new_body()) };
    let (response, runs) = session.observe(&call).await?;
    let shown = session.shown(&response) + &counted(runs);
    if response.status.is_success() && session.settings.key_optional {
        let why = format!("--key-optional, and it ran: {shown}");
        return Ok(vec![MISSING.not_shown(why.clone()), DRAFT_MISSING.not_shown(why)]);
    }
    let link = documentation(&response);
    let status = response.status.as_u16();
    let evidence = format!("{status}, link {}", link.as_deref().unwrap_or("none"));
    let draft = match status == 400 && link.is_some() {
        true => DRAFT_MISSING.pass(evidence),
        false => DRAFT_MISSING.fail(evidence),
    };
    Ok(vec![refused(session, &MISSING, &response, runs), draft])
}

/// Keys that no client means: empty, a string without its end, and bytes that are not ASCII.
pub(super) async fn malformed(session: &Session<'_>) -> StepResult {
    let open = format!("\"{}", session.new_key()).into_bytes();
    let bytes = [session.new_key().as_bytes(), b"\xe4\xff"].concat();
    let mut findings = Vec::new();
    for (name, key) in
        [("empty", Vec::new()), ("a quote without its end", open), ("not ASCII", bytes)]
    {
        let (response, runs) = session.observe(&session.call(key, &session.new_body())).await?;
        let finding = refused(session, &MALFORMED, &response, runs);
        findings.push(Finding { evidence: format!("{name}: {}", finding.evidence), ..finding });
    }
    let is_failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    let evidence: Vec<String> = findings.into_iter().map(|finding| finding.evidence).collect();
    let evidence = evidence.join("; ");
    Ok(vec![if is_failed { MALFORMED.fail(evidence) } else { MALFORMED.pass(evidence) }])
}
