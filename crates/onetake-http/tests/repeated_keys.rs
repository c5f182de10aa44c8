//! Keys that a proxy repeated or joined on their way.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{HeaderMap, Request};
use tower::ServiceExt;

use onetake_core::MemoryStore;
use onetake_http::{OnetakeLayer, Policy};

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

/// Answers with the lines of the key that it got.
async fn key_lines(headers: HeaderMap) -> String {
    let lines = headers.get_all("idempotency-key").iter();
    lines.map(|line| line.to_str().unwrap()).collect::<Vec<_>>().join("|")
}

/// The status, whether it is a replay, and the body.
async fn send(app: &Router, lines: &[&str]) -> (u16, bool, String) {
    let mut request = Request::post("/");
    for line in lines {
        request = request.header("idempotency-key", *line);
    }
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, is_replay, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_retry_whose_key_was_repeated_is_a_replay() {
    let layer = OnetakeLayer::new(MemoryStore::new(), Policy::new()).unwrap();
    let app = Router::new().route("/", post(key_lines)).layer(layer);
    let (joined, spaced) = (format!("{KEY},{KEY}"), format!("\"{KEY}\" , {KEY}"));
    assert_eq!(send(&app, &[&joined]).await, (200, false, KEY.to_owned()));
    for retry in [&[KEY][..], &[&*joined], &[&*spaced], &[KEY, KEY], &[&*joined, KEY]] {
        assert_eq!(send(&app, retry).await, (200, true, KEY.to_owned()), "{retry:?}");
    }
    let different = format!("{KEY},{KEY}x");
    for refused in [&[&*different][..], &[KEY, "another-key-1234567890"]] {
        let (status, _, body) = send(&app, refused).await;
        assert_eq!(status, 400, "{refused:?}");
        assert!(body.contains("idempotency_key_invalid") && body.contains("several keys"));
    }
}
