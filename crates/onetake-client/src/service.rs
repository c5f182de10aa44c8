//! Extractors and responses for services behind the gateway, with axum (feature `axum`).
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::{Arc, Mutex};
//!
//! use axum::routing::{get, post};
//! use axum::{Json, Router, extract::State, http::StatusCode};
//! use onetake_client::service::{Operation, Outcome, Reconciled, reconcile};
//! use serde_json::{Value, json};
//!
//! type Charges = Arc<Mutex<BTreeMap<String, Value>>>;
//!
//! async fn charge(
//!     State(charges): State<Charges>,
//!     operation: Operation,
//! ) -> (StatusCode, Outcome, Json<Value>) {
//!     let Some(derived_key) = operation.derived_key else {
//!         // Nothing was done: the next retry may run.
//!         return (StatusCode::BAD_REQUEST, Outcome::Release, Json(json!({})));
//!     };
//!     let card_key = derived_key.step("charge-card"); // the same in every attempt
//!     let mut charges = charges.lock().unwrap();
//!     let made = json!({ "card": card_key.to_string() });
//!     let charge = charges.entry(derived_key.to_string()).or_insert(made);
//!     (StatusCode::CREATED, Outcome::Record, Json(charge.clone()))
//! }
//!
//! let charges = Charges::default();
//! let known = charges.clone();
//! // For `on_unknown = "reconcile"`: the outcome of an operation.
//! let find = move |derived_key: String| {
//!     let charge = known.lock().unwrap().get(&derived_key).cloned();
//!     async move {
//!         Ok::<_, std::io::Error>(match charge {
//!             Some(charge) => Reconciled::json(StatusCode::CREATED, &charge),
//!             None => Reconciled::Unknown,
//!         })
//!     }
//! };
//! let app: Router = Router::new()
//!     .route("/charges", post(charge))
//!     .route("/reconcile/{derived_key}", get(reconcile(find)))
//!     .with_state(charges);
//! # drop(app);
//! ```

use std::convert::Infallible;

use ::axum::body::Body;
use ::axum::extract::{FromRequestParts, Path};
use ::axum::response::{IntoResponse, IntoResponseParts, Response, ResponseParts};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;

use crate::keys::{DerivedKey, KEY_HEADER};

/// The response header by which a service says what became of an attempt.
pub const OUTCOME_HEADER: HeaderName = HeaderName::from_static("onetake-outcome");

/// The status of the operation's response, in an answer to the gateway's question.
const STATUS_HEADER: HeaderName = HeaderName::from_static("onetake-status");

/// The gateway's word about the attempt that a request belongs to. It is an extractor that never
/// rejects a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// The client's key.
    pub key: Option<String>,
    /// A number that is higher for every later attempt. A service can refuse lower ones.
    pub fence: Option<u64>,
    /// The key for the service's own calls. `None` if the request did not pass the gateway.
    pub derived_key: Option<DerivedKey>,
}

impl Operation {
    /// Reads the headers of the gateway. A header that cannot be read counts as absent.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let text = |name: &HeaderName| headers.get(name)?.to_str().ok();
        let fence = HeaderName::from_static("idempotency-fence");
        let derived_key = HeaderName::from_static("idempotency-derived-key");
        Self {
            key: text(&KEY_HEADER).map(str::to_owned),
            fence: text(&fence).and_then(|text| text.parse().ok()),
            derived_key: text(&derived_key).and_then(|text| text.parse().ok()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::from_headers(&parts.headers))
    }
}

/// The service's own word about an attempt. As a part of a response it sets `Onetake-Outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response is the outcome. Every retry gets it.
    Record,
    /// The operation had no effect and never will. The next retry runs it.
    Release,
    /// The operation may have had its effect.
    Unknown,
}

impl Outcome {
    /// Returns the value of the header.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Release => "release",
            Self::Unknown => "unknown",
        }
    }
}

impl IntoResponseParts for Outcome {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        parts.headers_mut().insert(OUTCOME_HEADER, HeaderValue::from_static(self.as_str()));
        Ok(parts)
    }
}

/// The outcome of an operation, as the service knows it.
#[derive(Clone, Debug)]
pub enum Reconciled {
    /// The operation has run, and this is its response.
    Record(http::Response<Bytes>),
    /// **Warning:** this says for certain that the operation had no effect and never will. The next
    /// retry runs it.
    Release,
    /// The service does not know. The gateway asks again.
    Unknown,
}

impl Reconciled {
    /// An operation that has run, with a JSON response.
    #[must_use]
    pub fn json(status: StatusCode, body: &Value) -> Self {
        let mut response = http::Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        Self::Record(response)
    }
}

impl IntoResponse for Reconciled {
    fn into_response(self) -> Response {
        match self {
            Self::Record(response) => {
                let (mut parts, body) = response.into_parts();
                let status = HeaderValue::from(parts.status.as_u16());
                parts.headers.insert(STATUS_HEADER, status);
                parts.status = StatusCode::OK;
                (Outcome::Record, Response::from_parts(parts, Body::from(body))).into_response()
            }
            Self::Release => (StatusCode::NOT_FOUND, Outcome::Release, ()).into_response(),
            Self::Unknown => {
                (StatusCode::SERVICE_UNAVAILABLE, Outcome::Unknown, ()).into_response()
            }
        }
    }
}

/// Makes the handler of a reconcile endpoint from one function. The route has one path parameter,
/// the derived key: `/reconcile/{derived_key}`. An error of the function means that the outcome is
/// unknown.
pub fn reconcile<F, Found, E>(
    find: F,
) -> impl Fn(Path<String>) -> std::pin::Pin<Box<dyn Future<Output = Reconciled> + Send>>
+ Clone
+ Send
+ Sync
+ 'static
where
    F: Fn(String) -> Found + Clone + Send + Sync + 'static,
    Found: Future<Output = Result<Reconciled, E>> + Send + 'static,
    E: Send + 'static,
{
    move |Path(derived_key)| {
        let found = find(derived_key);
        Box::pin(async move { found.await.unwrap_or(Reconciled::Unknown) })
    }
}
