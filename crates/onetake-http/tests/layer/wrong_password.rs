//! A caller with a wrong password does not block the key of the right one.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{HeaderMap, Request, StatusCode};
use tower::ServiceExt;

use onetake_core::MemoryStore;
use onetake_http::{OnetakeLayer, Policy, Tenant};

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
/// `alice:right` and `alice:wrong`.
const RIGHT: &str = "Basic YWxpY2U6cmlnaHQ=";
const WRONG: &str = "Basic YWxpY2U6d3Jvbmc=";

async fn charge(headers: HeaderMap, body: String) -> StatusCode {
    let credential = headers.get("authorization").unwrap();
    match (credential == RIGHT, body.as_str()) {
        (false, _) => StatusCode::UNAUTHORIZED,
        (true, "later") => StatusCode::SERVICE_UNAVAILABLE,
        (true, _) => StatusCode::CREATED,
    }
}

/// The status, and whether it is a replay.
async fn send(app: &Router, credential: &str, body: &'static str) -> (u16, bool) {
    let request = Request::post("/").header("idempotency-key", KEY);
    let request = request.header("authorization", credential).body(Body::from(body)).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"))
}

fn app() -> Router {
    let policy = Policy::new().tenant(Tenant::Credential);
    let layer = OnetakeLayer::new(MemoryStore::new(), policy).unwrap();
    Router::new().route("/", post(charge)).layer(layer)
}

#[tokio::test]
async fn a_wrong_password_does_not_block_a_key() {
    let app = app();
    assert_eq!(send(&app, WRONG, "10").await, (401, false));
    assert_eq!(send(&app, WRONG, "10").await, (401, false));
    assert_eq!(send(&app, RIGHT, "10").await, (201, false));
    assert_eq!(send(&app, RIGHT, "10").await, (201, true));
    // No service behind the layer checks the password of a replay.
    assert_eq!(send(&app, WRONG, "10").await, (422, false));
}

/// The service accepted the caller and had no effect. The payload of the key stays (S9).
#[tokio::test]
async fn a_release_after_a_right_password_keeps_the_payload() {
    let app = app();
    assert_eq!(send(&app, RIGHT, "later").await, (503, false));
    assert_eq!(send(&app, RIGHT, "10").await, (422, false));
    assert_eq!(send(&app, WRONG, "later").await, (422, false));
    assert_eq!(send(&app, RIGHT, "later").await, (503, false));
}
