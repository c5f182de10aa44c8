//! What tests of routers share: how a request is sent, and what came back.

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

pub(crate) const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answered {
    /// Its status, and a problem's code.
    pub(crate) fn problem(&self) -> (u16, String) {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        (self.status, body["code"].as_str().unwrap_or_default().to_owned())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answered {
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// A POST of somebody's under a key.
pub(crate) fn post_of(who: &str, path: &str, key: &str) -> Request<Body> {
    Request::post(path)
        .header("authorization", format!("Bearer {who}"))
        .header("idempotency-key", key)
        .body(Body::from("10"))
        .unwrap()
}
