//! Input of operators: parameters, bodies and names. Each error says what to write instead.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use onetake_core::{AttemptId, RecordId, Reference, TenantDigest, hex};
use onetake_http::tenant::{TENANT_FORMS, tenant_named};
use serde::de::DeserializeOwned;

use super::Api;
use super::error::ApiError;

/// Maximum size of a body: a recording in base64, with some room.
const BODY_BYTES_MAX: usize = 4 << 20;

/// How long a body may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// The query parameters of a request.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Api> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, ApiError> {
        Query::try_from_uri(&parts.uri).map(|Query(params)| Self(params)).map_err(|error| {
            ApiError::invalid(format!("The parameters are invalid: {}.", error.body_text()))
        })
    }
}

/// The name of a key in the path.
pub(super) struct Name(pub(super) String);

impl FromRequestParts<Api> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let name = Path::<String>::from_request_parts(parts, api).await;
        name.map(|Path(name)| Self(name)).map_err(|_| no_name())
    }
}

/// The JSON body of a request. The media type must be JSON, which a web page cannot set without a
/// preflight request.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Api> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        let said = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let essence = said.and_then(|said| said.split(';').next()).map(str::trim);
        if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
            return Err(ApiError::media_type());
        }
        let body = tokio::select! {
            body = to_bytes(request.into_body(), BODY_BYTES_MAX) => body,
            () = api.engine.clock().sleep(BODY_PATIENCE) => {
                return Err(ApiError::invalid("The body did not arrive within ten seconds."));
            }
        };
        let body = body.map_err(|_| ApiError::too_large())?;
        serde_json::from_slice(&body)
            .map(Self)
            .map_err(|error| ApiError::invalid(format!("The body is invalid: {error}.")))
    }
}

/// A key, by its reference or by its whole id.
pub(super) enum Named {
    Reference(Reference),
    Id(RecordId),
}

pub(super) fn named(text: &str) -> Result<Named, ApiError> {
    if let Some(id) = hex::decode(text) {
        return Ok(Named::Id(RecordId::from_bytes(id)));
    }
    text.parse().map(Named::Reference).map_err(|_| no_name())
}

fn no_name() -> ApiError {
    ApiError::invalid(
        "The path does not end in a reference or an id: write twelve characters of 2-9 and A-Z \
         (without I and O), such as ABCD-EFGH-JKLM, or the id of 32 hexadecimal digits.",
    )
}

pub(super) fn attempt(text: &str) -> Result<AttemptId, ApiError> {
    hex::decode(text).map(AttemptId::from_bytes).ok_or_else(|| {
        ApiError::invalid(
            "`attempt` is not an attempt: copy the 32 hexadecimal digits from the key, so that a \
             later attempt is not changed by mistake.",
        )
    })
}

/// Reads a tenant: its digest, or its name, from which the digest is computed.
pub(super) fn tenant(text: &str, secret: &[u8; 32]) -> Result<TenantDigest, ApiError> {
    if let Ok(digest) = text.parse() {
        return Ok(digest);
    }
    tenant_bytes(text).map(|tenant| TenantDigest::of(secret, &tenant))
}

pub(super) fn tenant_bytes(text: &str) -> Result<Vec<u8>, ApiError> {
    tenant_named(text).ok_or_else(|| {
        ApiError::invalid(format!(
            "`tenant` is not a tenant: write {TENANT_FORMS}; for lists and counts, you can also \
                 write the digest that a key shows."
        ))
    })
}

/// Checks that a text is not empty, at most `max` bytes long, and without control characters.
pub(super) fn sentence(name: &str, text: &str, max: usize) -> Result<String, ApiError> {
    let text = text.trim();
    if text.is_empty() || text.len() > max || text.chars().any(char::is_control) {
        return Err(ApiError::invalid(format!(
            "`{name}` is empty, longer than {max} bytes, or has control characters."
        )));
    }
    Ok(text.to_owned())
}
