//! Changing keys: each change names the attempt that the operator saw, and says why (S20).

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onetake_core::Recording;
use onetake_core::engine::{Deed, Intervened, Intervention, Standing};
use onetake_http::recording::{record, recorded};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Api;
use super::fault::{Answer, Fault};
use super::input::{Body, Name, attempt, sentence};
use super::keys::find;
use super::views::{Header, Key, StateName, moment};

/// The longest reason, and the longest detail of a failure, in bytes.
const TEXT_BYTES_MAX: usize = 500;
/// The longest name of somebody, and the longest code of a failure, in bytes.
const WORD_BYTES_MAX: usize = 100;
/// The largest body of an outcome, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The largest head of an outcome, in bytes: what any client can read.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Who it was, where nobody says.
const SOMEBODY: &str = "somebody with access to the admin API";

/// A change, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// The attempt that the key shows now: if it is another one by then, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// Why: for the audit. It should hold nothing secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Who you are: for the audit.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
}

/// A failure, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailChange {
    /// The attempt that the key shows now: if it is another one by then, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// Why: for the audit. It should hold nothing secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Who you are: for the audit.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
    /// A word for machines; `failed_by_operator` by default.
    #[schema(min_length = 1, max_length = 100)]
    code: Option<String>,
    /// What retries are told.
    #[schema(min_length = 1, max_length = 500)]
    detail: Option<String>,
}

/// What is to be forgotten, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetChange {
    /// The attempt that the key shows now: if it is another one by then, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// The state that the key shows now: if it is another one by then, nothing is done.
    state: StateName,
    /// Why: for the audit. It should hold nothing secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Who you are: for the audit.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
}

/// An outcome, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveChange {
    /// The attempt that the key shows now: if it is another one by then, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// Why: for the audit. It should hold nothing secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Who you are: for the audit.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
    /// What retries get from now on.
    outcome: Told,
}

/// An outcome as it is told.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Told {
    /// The HTTP status, from 200 to 599.
    #[schema(minimum = 200, maximum = 599)]
    status: u16,
    /// Headers, such as Content-Type.
    #[serde(default)]
    #[schema(max_items = 100)]
    headers: Vec<Header>,
    /// The body, if it is text.
    body: Option<String>,
    /// The body, if it is no text.
    body_base64: Option<String>,
}

/// Says that the attempt had no effect: the next retry runs.
#[utoipa::path(post, path = "/v1/keys/{name}/release", tag = "changes", request_body = Change,
    params(("name" = String, Path, description = "Its reference, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::Refused, super::Missed, super::BadBody))]
pub(super) async fn release(
    State(api): State<Api>,
    Name(name): Name,
    Body(change): Body<Change>,
) -> Answer<Key> {
    change_it(&api, &name, change, Deed::Release).await
}

/// Says that the attempt failed for good: retries are told so.
#[utoipa::path(post, path = "/v1/keys/{name}/fail", tag = "changes", request_body = FailChange,
    params(("name" = String, Path, description = "Its reference, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::Refused, super::Missed, super::BadBody))]
pub(super) async fn fail(
    State(api): State<Api>,
    Name(name): Name,
    Body(FailChange { attempt, reason, by, code, detail }): Body<FailChange>,
) -> Answer<Key> {
    let code = code.unwrap_or_else(|| "failed_by_operator".to_owned());
    let detail = detail.unwrap_or_else(|| "An operator found that it failed.".to_owned());
    let failure = onetake_core::Failure {
        code: sentence("code", &code, WORD_BYTES_MAX)?,
        detail: sentence("detail", &detail, TEXT_BYTES_MAX)?,
    };
    change_it(&api, &name, Change { attempt, reason, by }, Deed::Fail(failure)).await
}

/// Tells the outcome: retries get it from now on.
#[utoipa::path(post, path = "/v1/keys/{name}/resolve", tag = "changes", request_body = ResolveChange,
    params(("name" = String, Path, description = "Its reference, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::Refused, super::Missed, super::BadBody))]
pub(super) async fn resolve(
    State(api): State<Api>,
    Name(name): Name,
    Body(ResolveChange { attempt, reason, by, outcome }): Body<ResolveChange>,
) -> Answer<Key> {
    let recording = outcome.recording()?;
    change_it(&api, &name, Change { attempt, reason, by }, Deed::Resolve(recording)).await
}

/// Makes the key as if it had never been used, whatever came of it, unless it runs. The next request runs.
#[utoipa::path(post, path = "/v1/keys/{name}/forget", tag = "changes", request_body = ForgetChange,
    params(("name" = String, Path, description = "Its reference, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::Refused, super::Missed, super::BadBody))]
pub(super) async fn forget(
    State(api): State<Api>,
    Name(name): Name,
    Body(ForgetChange { attempt, state, reason, by }): Body<ForgetChange>,
) -> Answer<Key> {
    let seen = match state {
        StateName::Completed => Standing::Completed,
        StateName::Failed => Standing::Failed,
        StateName::Released => Standing::Released,
        StateName::Unknown => Standing::Unknown,
        StateName::Running => {
            return Err(Fault::invalid("`state`: what runs cannot be forgotten."));
        }
    };
    change_it(&api, &name, Change { attempt, reason, by }, Deed::Forget { seen }).await
}

async fn change_it(api: &Api, name: &str, change: Change, deed: Deed) -> Answer<Key> {
    let attempt = attempt(&change.attempt)?;
    let reason = sentence("reason", &change.reason, TEXT_BYTES_MAX)?;
    let by = sentence("by", change.by.as_deref().unwrap_or(SOMEBODY), WORD_BYTES_MAX)?;
    let id = find(api, name).await?.id;
    match api.engine.intervene(Intervention { id, attempt, deed, by, reason }).await? {
        Intervened::Done(record) => Ok(Json(Key::of(&record, false))),
        Intervened::Absent => Err(Fault::no_key()),
        Intervened::Running(record) => {
            let end = record.abandoned_at().map(moment);
            let until = end.map(|end| {
                format!("; if nobody hears of it, its outcome is unknown from {end} on")
            });
            let detail = format!(
                "An attempt may still be running, and will say what became of it{}. Nothing was changed.",
                until.unwrap_or_default()
            );
            Err(Fault::standing("key_running", "The key runs", detail, &record))
        }
        Intervened::Stale(record) if record.attempt != attempt => Err(Fault::standing(
            "attempt_stale",
            "Another attempt has the key",
            "`attempt` is not the one that has the key now. Look at it again. Nothing was changed.",
            &record,
        )),
        Intervened::Stale(record) => {
            let name = record.state.name();
            let detail = format!(
                "It is {name} by now, and what you want is not for that: only what is unknown is settled \
                 by hand, and only what was seen is forgotten. Look at it again. Nothing was changed."
            );
            Err(Fault::standing("key_settled", "The key is settled", detail, &record))
        }
    }
}

impl Told {
    fn recording(self) -> Result<Recording, Fault> {
        let status = StatusCode::from_u16(self.status).ok();
        let status = status.filter(|status| (200..=599).contains(&status.as_u16()));
        let status = status
            .ok_or_else(|| Fault::invalid("`outcome.status` must be a status from 200 to 599."))?;
        if self.headers.len() > 100 {
            return Err(Fault::invalid("`outcome.headers` are more than 100."));
        }
        let mut headers = HeaderMap::new();
        for Header { name, value } in &self.headers {
            let line = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            let (name, value) = line.ok_or_else(|| {
                Fault::invalid("One of `outcome.headers` has a name or a value that no header has.")
            })?;
            headers.append(name, value);
        }
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => {
                return Err(Fault::invalid(
                    "Of `outcome.body` and `outcome.body_base64` write one, not both.",
                ));
            }
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|_| Fault::invalid("`outcome.body_base64` is not base64."))?,
            (None, None) => Bytes::new(),
        };
        if body.len() > BODY_BYTES_MAX {
            return Err(Fault::invalid("The body of `outcome` is larger than 1 MiB."));
        }
        if [204, 205, 304].contains(&status.as_u16()) && !body.is_empty() {
            return Err(Fault::invalid("An outcome of this `outcome.status` has no body."));
        }
        let recording = record(status, &headers, Some(body), None);
        if recording.head.len() > HEAD_BYTES_MAX {
            return Err(Fault::invalid("`outcome.headers` are larger than 32 KiB together."));
        }
        let kept = recorded(&recording).map(|kept| kept.headers.len()).unwrap_or_default();
        if kept < headers.len() {
            return Err(Fault::invalid(
                "One of `outcome.headers` is not replayed (cookies, dates, limits, traces, what belongs to \
                 one connection, a length that is not the body's): leave it out.",
            ));
        }
        Ok(recording)
    }
}
