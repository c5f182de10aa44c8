//! Helpers of the router tests: requests and responses.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use tower::ServiceExt;

#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answered {
    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answered {
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// The body of a problem without the random identifier of its request.
pub(crate) fn without_identifier(body: &str) -> String {
    let Some((before, behind)) = body.split_once("urn:onetake:request:") else {
        return body.to_owned();
    };
    let digits = behind.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(behind.len());
    format!("{before}urn:onetake:request:…{}", &behind[digits..])
}

/// A key of the required length.
pub(crate) fn key(number: usize) -> String {
    format!("key-{number:020}")
}
