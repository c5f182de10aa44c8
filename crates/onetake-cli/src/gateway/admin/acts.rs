//! Changes of keys by operators. Each names the attempt that the operator saw, and a reason (S20).

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onetake_core::engine::{ExpectedState, Intervened, Intervention, OperatorAction};
use onetake_core::{Recording, StoreError, StoreErrorKind};
use onetake_http::recording::{record, recorded};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Api;
use super::error::{ApiError, ApiResult};
use super::input::{JsonBody, Name, attempt, sentence};
use super::keys::find;
use super::views::{Header, Key, StateName, moment};

/// Maximum length of a reason, and of a failure's detail, in bytes.
const TEXT_BYTES_MAX: usize = 500;
/// Maximum length of an operator's name, and of a failure's code, in bytes.
const WORD_BYTES_MAX: usize = 100;
/// Maximum size of an outcome's body, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum size of an outcome's head, in bytes: one that any client can read.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The operator's name in the audit log if none is given.
const SOMEBODY: &str = "a user with access to the admin API";

/// A change, with its reason.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// The key's latest attempt. If it has changed since you read it, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// The reason, for the audit log. It should hold no secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Your name, for the audit log.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
}

/// A failure, with its reason.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailChange {
    /// The key's latest attempt. If it has changed since you read it, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// The reason, for the audit log. It should hold no secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Your name, for the audit log.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
    /// The error code for machines; `failed_by_operator` by default.
    #[schema(min_length = 1, max_length = 100)]
    code: Option<String>,
    /// The error text that retries get.
    #[schema(min_length = 1, max_length = 500)]
    detail: Option<String>,
}

/// A key to be forgotten, with the reason.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetChange {
    /// The key's latest attempt. If it has changed since you read it, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// The key's state. If it has changed since you read it, nothing is done.
    state: StateName,
    /// The reason, for the audit log. It should hold no secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Your name, for the audit log.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
}

/// An outcome, with the reason.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveChange {
    /// The key's latest attempt. If it has changed since you read it, nothing is done.
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    attempt: String,
    /// The reason, for the audit log. It should hold no secret.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
    /// Your name, for the audit log.
    #[schema(min_length = 1, max_length = 100)]
    by: Option<String>,
    /// The response that retries get from now on.
    outcome: SuppliedOutcome,
}

/// An outcome that an operator supplies.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SuppliedOutcome {
    /// The HTTP status, from 200 to 599.
    #[schema(minimum = 200, maximum = 599)]
    status: u16,
    /// Headers, such as Content-Type.
    #[serde(default)]
    #[schema(max_items = 100)]
    headers: Vec<Header>,
    /// The body, if it is text.
    body: Option<String>,
    /// The body in base64, if it is not text.
    body_base64: Option<String>,
}

/// Declares that the attempt had no effect: the next retry runs.
#[utoipa::path(post, path = "/v1/keys/{name}/release", tag = "changes", request_body = Change,
    params(("name" = String, Path, description = "The reference of the key, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::CommonErrors, super::Missed, super::BadBody))]
pub(super) async fn release(
    State(api): State<Api>,
    Name(name): Name,
    JsonBody(change): JsonBody<Change>,
) -> ApiResult<Key> {
    change_it(&api, &name, change, OperatorAction::Release).await
}

/// Declares that the attempt failed for good: retries get this failure.
#[utoipa::path(post, path = "/v1/keys/{name}/fail", tag = "changes", request_body = FailChange,
    params(("name" = String, Path, description = "The reference of the key, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::CommonErrors, super::Missed, super::BadBody))]
pub(super) async fn fail(
    State(api): State<Api>,
    Name(name): Name,
    JsonBody(FailChange { attempt, reason, by, code, detail }): JsonBody<FailChange>,
) -> ApiResult<Key> {
    let code = code.unwrap_or_else(|| "failed_by_operator".to_owned());
    let detail =
        detail.unwrap_or_else(|| "An operator recorded that the operation failed.".to_owned());
    let failure = onetake_core::Failure {
        code: sentence("code", &code, WORD_BYTES_MAX)?,
        detail: sentence("detail", &detail, TEXT_BYTES_MAX)?,
    };
    change_it(&api, &name, Change { attempt, reason, by }, OperatorAction::Fail(failure)).await
}

/// Records the outcome: retries get it from now on.
#[utoipa::path(post, path = "/v1/keys/{name}/resolve", tag = "changes", request_body = ResolveChange,
    params(("name" = String, Path, description = "The reference of the key, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::CommonErrors, super::Missed, super::BadBody))]
pub(super) async fn resolve(
    State(api): State<Api>,
    Name(name): Name,
    JsonBody(ResolveChange { attempt, reason, by, outcome }): JsonBody<ResolveChange>,
) -> ApiResult<Key> {
    let recording = outcome.recording()?;
    change_it(&api, &name, Change { attempt, reason, by }, OperatorAction::Resolve(recording)).await
}

/// Deletes the record of a key that is not running, in any other state. The next request with the
/// key runs.
#[utoipa::path(post, path = "/v1/keys/{name}/forget", tag = "changes", request_body = ForgetChange,
    params(("name" = String, Path, description = "The reference of the key, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$")),
    responses((status = 200, body = Key), super::CommonErrors, super::Missed, super::BadBody))]
pub(super) async fn forget(
    State(api): State<Api>,
    Name(name): Name,
    JsonBody(ForgetChange { attempt, state, reason, by }): JsonBody<ForgetChange>,
) -> ApiResult<Key> {
    let seen = match state {
        StateName::Completed => ExpectedState::Completed,
        StateName::Failed => ExpectedState::Failed,
        StateName::Released => ExpectedState::Released,
        StateName::Unknown => ExpectedState::Unknown,
        StateName::Running => {
            return Err(ApiError::invalid("`state`: a running key cannot be forgotten."));
        }
    };
    change_it(&api, &name, Change { attempt, reason, by }, OperatorAction::Forget { seen }).await
}

async fn change_it(
    api: &Api,
    name: &str,
    change: Change,
    action: OperatorAction,
) -> ApiResult<Key> {
    let attempt = attempt(&change.attempt)?;
    let reason = sentence("reason", &change.reason, TEXT_BYTES_MAX)?;
    let by = sentence("by", change.by.as_deref().unwrap_or(SOMEBODY), WORD_BYTES_MAX)?;
    let id = find(api, name).await?.id;
    match api.engine.intervene(Intervention { id, attempt, action, by, reason }).await? {
        Intervened::Done(record) => Ok(Json(Key::of(&record, false))),
        Intervened::Absent => Err(ApiError::no_key()),
        Intervened::Running(record) => {
            let end = record.abandoned_at().map(moment);
            let until =
                end.map(|end| format!("; if it does not, its outcome becomes unknown at {end}"));
            let detail = format!(
                "An attempt may still be running and report its outcome{}. Nothing was changed.",
                until.unwrap_or_default()
            );
            let fault = ApiError::standing("key_running", "The key is running", detail, &record);
            // The attempt may end.
            Err(fault.retryable(None))
        }
        Intervened::Stale(record) if record.attempt != attempt => Err(ApiError::standing(
            "attempt_stale",
            "The key has a later attempt",
            "`attempt` is not the key's latest attempt. Read the key again. Nothing was changed.",
            &record,
        )),
        Intervened::Stale(record) => {
            let name = record.state.name();
            let detail = format!(
                "The key is {name} now. Only an unknown key can be settled by an operator, and only a key \
                 in the state that you named can be forgotten. Read it again. Nothing was changed."
            );
            Err(ApiError::standing("key_settled", "The key is settled", detail, &record))
        }
        // A result that this program does not know yet.
        _ => Err(StoreError::new(StoreErrorKind::Indeterminate, "the result is not known").into()),
    }
}

impl SuppliedOutcome {
    fn recording(self) -> Result<Recording, ApiError> {
        let status = StatusCode::from_u16(self.status).ok();
        let status = status.filter(|status| (200..=599).contains(&status.as_u16()));
        let status = status.ok_or_else(|| {
            ApiError::invalid("`outcome.status` must be a status from 200 to 599.")
        })?;
        if self.headers.len() > 100 {
            return Err(ApiError::invalid("`outcome.headers` has more than 100 entries."));
        }
        let mut headers = HeaderMap::new();
        for Header { name, value } in &self.headers {
            let line = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            let (name, value) = line.ok_or_else(|| {
                ApiError::invalid("One of `outcome.headers` has an invalid name or value.")
            })?;
            headers.append(name, value);
        }
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid(
                    "Write either `outcome.body` or `outcome.body_base64`, not both.",
                ));
            }
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|_| ApiError::invalid("`outcome.body_base64` is not base64."))?,
            (None, None) => Bytes::new(),
        };
        if body.len() > BODY_BYTES_MAX {
            return Err(ApiError::invalid("The body of `outcome` is larger than 1 MiB."));
        }
        if [204, 205, 304].contains(&status.as_u16()) && !body.is_empty() {
            return Err(ApiError::invalid("A response with this `outcome.status` has no body."));
        }
        let recording = record(status, &headers, Some(body), None);
        if recording.head.len() > HEAD_BYTES_MAX {
            return Err(ApiError::invalid("`outcome.headers` are larger than 32 KiB together."));
        }
        let kept = recorded(&recording).map(|kept| kept.headers.len()).unwrap_or_default();
        if kept < headers.len() {
            return Err(ApiError::invalid(
                "One of `outcome.headers` is never replayed (cookies, dates, rate limits, traces, \
                 connection headers, a wrong Content-Length): remove it.",
            ));
        }
        Ok(recording)
    }
}
