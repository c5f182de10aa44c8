//! Problem responses of the admin API, as in RFC 9457.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use onetake_core::{Record, RecordId, Rng, StoreError, StoreErrorKind, SystemRng, hex};
use serde::Serialize;
use utoipa::ToSchema;

/// The error of a request.
#[derive(Debug)]
pub(crate) struct ApiError(Box<ApiProblem>);

/// A problem as in RFC 9457.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ApiProblem {
    /// The URN of this kind of error: `urn:onetake:admin-problem:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// The HTTP status.
    status: u16,
    /// The error code for machines.
    #[schema(value_type = String)]
    code: &'static str,
    /// A short summary of the error.
    #[schema(value_type = String)]
    title: &'static str,
    /// The explanation, with what to do.
    detail: String,
    /// The URN of this error: `urn:onetake:reference:` and the reference of the key that it is about,
    /// or `urn:onetake:request:` and an identifier that the log has at the level `debug`.
    instance: String,
    /// True if the same request can get another answer. False if it gets the same error until
    /// something is changed.
    retryable: bool,
    /// The key's latest attempt, if the error is about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<String>,
    /// The key's state, if the error is about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    state: Option<&'static str>,
    /// The ids of all keys that have this reference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    ids: Vec<String>,
    #[serde(skip)]
    retry_after: Option<u64>,
}

pub(super) type ApiResult<T> = Result<Json<T>, ApiError>;

impl ApiError {
    fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self(Box::new(ApiProblem {
            kind: format!("urn:onetake:admin-problem:{code}"),
            status: status.as_u16(),
            code,
            title,
            detail: detail.into(),
            instance: String::new(),
            retryable: false,
            attempt: None,
            state: None,
            ids: Vec::new(),
            retry_after: None,
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut ApiProblem)) -> Self {
        change(&mut self.0);
        self
    }

    /// The same request can get another answer, after this number of seconds if it is known.
    pub(super) fn retryable(self, retry_after: Option<u64>) -> Self {
        self.with(|problem| {
            problem.retryable = true;
            problem.retry_after = retry_after;
        })
    }

    /// A parameter or a body that is invalid. The detail names it and says what to write instead.
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request_invalid", "The request is invalid", detail)
    }

    pub(super) fn media_type() -> Self {
        let detail = "Send the body as JSON, with Content-Type: application/json.";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "media_type_unsupported", "The body is not JSON", detail)
    }

    pub(super) fn too_large() -> Self {
        let detail = "The body is larger than 4 MiB.";
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, "request_body_too_large", "The body is too large", detail)
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "Send Authorization: Bearer with the token of `admin.token`.";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "The token is missing or wrong", detail)
    }

    pub(super) fn cross_origin(detail: &'static str) -> Self {
        let title = "Requests of web pages are refused";
        Self::new(StatusCode::FORBIDDEN, "cross_origin_refused", title, detail)
    }

    pub(super) fn too_many(retry_after: u64) -> Self {
        let detail = format!("Too many requests. Retry in {retry_after} s.");
        let status = StatusCode::TOO_MANY_REQUESTS;
        let fault = Self::new(status, "too_many_requests", "Too many requests", detail);
        fault.retryable(Some(retry_after))
    }

    pub(super) fn no_page() -> Self {
        let detail = "This path does not exist. /openapi.json lists all paths.";
        Self::new(StatusCode::NOT_FOUND, "not_found", "The path does not exist", detail)
    }

    pub(super) fn no_method() -> Self {
        let detail =
            "This path does not support this method. /openapi.json lists the supported methods.";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "method_not_allowed", "The method is not allowed", detail)
    }

    pub(super) fn no_key() -> Self {
        let detail = "The key does not exist, has expired, or was forgotten.";
        Self::new(StatusCode::NOT_FOUND, "key_not_found", "The key does not exist", detail)
    }

    /// The error for a lookup by what a client sent.
    pub(super) fn no_such_key() -> Self {
        let detail = "This tenant has no such key in this namespace, or the key has expired or was \
                      forgotten.";
        Self::new(StatusCode::NOT_FOUND, "key_not_found", "The key does not exist", detail)
    }

    pub(super) fn ambiguous(ids: &[RecordId]) -> Self {
        let ids = ids.iter().map(|id| hex::encode(id.as_bytes())).collect();
        let detail = "Several keys have this reference: use one of `ids` instead.";
        let status = StatusCode::CONFLICT;
        let fault = Self::new(status, "reference_ambiguous", "The reference is ambiguous", detail);
        fault.with(|problem| problem.ids = ids)
    }

    /// A key that exists and cannot be read.
    pub(super) fn unreadable(error: StoreError) -> Self {
        if error.kind() != StoreErrorKind::Invalid {
            return error.into();
        }
        let (status, title) = (StatusCode::CONFLICT, "The key cannot be read");
        Self::new(
            status,
            "key_unreadable",
            title,
            format!("{error}. The record exists, so its operation is not run again."),
        )
    }

    /// Nothing was done, because the key's state or attempt does not allow it.
    pub(super) fn standing(
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
        record: &Record,
    ) -> Self {
        let fault = Self::new(StatusCode::CONFLICT, code, title, detail);
        let attempt = Some(hex::encode(record.attempt.as_bytes()));
        fault.with(|problem| {
            problem.instance = format!("urn:onetake:reference:{}", record.id.reference());
            problem.attempt = attempt;
            problem.state = Some(record.state.name());
        })
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.kind() == StoreErrorKind::Invalid {
            return Self::invalid(format!("{error}."));
        }
        let detail = match error.kind() {
            StoreErrorKind::Indeterminate => {
                format!(
                    "{error}. The change may have been made: read the key again before you retry."
                )
            }
            _ => format!("{error}. Nothing was changed."),
        };
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let fault = Self::new(status, "store_unavailable", "The store is unavailable", detail);
        fault.retryable(Some(1))
    }
}

impl IntoResponse for ApiError {
    fn into_response(mut self) -> Response {
        if self.0.instance.is_empty() {
            self.0.instance = instance_of_request(self.0.code);
        }
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::BAD_REQUEST);
        let retry_after = self.0.retry_after;
        let mut response = (status, Json(self.0)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Returns the URN of an error that is about no key. The log has its identifier.
fn instance_of_request(code: &'static str) -> String {
    let mut id = [0; 16];
    SystemRng.fill(&mut id);
    let request = hex::encode(&id);
    tracing::debug!(request, code, "a request of an operator was answered with a problem");
    format!("urn:onetake:request:{request}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A problem that has `Retry-After` says that a retry helps.
    #[test]
    fn a_problem_says_whether_to_retry() {
        let store = |kind| ApiError::from(StoreError::new(kind, "gone"));
        for (error, retryable) in [
            (ApiError::too_many(3), true),
            (store(StoreErrorKind::Unavailable), true),
            (store(StoreErrorKind::Indeterminate), true),
            (store(StoreErrorKind::Invalid), false),
            (ApiError::no_key(), false),
            (ApiError::unauthorized(), false),
        ] {
            let code = error.0.code;
            assert_eq!(error.0.retryable, retryable, "{code}");
            let response = error.into_response();
            assert_eq!(response.headers().contains_key(RETRY_AFTER), retryable, "{code}");
        }
    }
}
