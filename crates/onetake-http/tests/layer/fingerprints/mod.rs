//! Fingerprints through the layer. Spellings of the same request are replayed, and different
//! requests are refused.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod json_bodies;
mod json_model;
mod properties;
mod protocols;
mod request_model;
mod seeded_random;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode, Version};
use http_body_util::BodyExt;
use onetake_core::{Engine, MemoryStore};
use onetake_http::json::{Pointer, Selection};
use onetake_http::{FingerprintMode, OnetakeLayer, Policy, Tenant};
use tower::ServiceExt;

/// An API behind the layer, with a counter of its runs.
pub(crate) struct Node {
    pub(crate) router: Router,
    pub(crate) store: MemoryStore,
    runs: Arc<AtomicUsize>,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Ran,
    Replayed,
    Refused(u16, String),
}

/// The refusal of a different request under the same key.
pub(crate) fn mismatch() -> Told {
    refused(422, "idempotency_payload_mismatch")
}

pub(crate) fn refused(status: u16, code: &str) -> Told {
    Told::Refused(status, code.to_owned())
}

pub(crate) fn json(selection: Selection) -> FingerprintMode {
    FingerprintMode::Json(selection)
}

pub(crate) fn pointers(texts: &[&str]) -> Vec<Pointer> {
    texts.iter().map(|text| Pointer::parse(text).unwrap()).collect()
}

impl Node {
    /// Accepts every method under every path.
    pub(crate) fn new(policy: Policy) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        // The response names the protocol version of the request.
        let run = move |version: Version| async move {
            counter.fetch_add(1, Ordering::SeqCst);
            (StatusCode::CREATED, format!("{version:?}"))
        };
        let store = MemoryStore::new();
        let engine = Engine::new(Arc::new(store.clone()));
        let layer = OnetakeLayer::new(engine, policy.tenant(Tenant::Public)).unwrap();
        Self { router: Router::new().fallback(run).layer(layer), store, runs }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Sends a request, and checks by the counter whether it ran.
    pub(crate) async fn send(&self, request: Request<Body>) -> Told {
        let before = self.runs();
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let is_replay = parts.headers.contains_key("idempotent-replayed");
        let told = match (parts.status.as_u16(), is_replay) {
            (201, true) => Told::Replayed,
            (201, false) => Told::Ran,
            (status, _) => {
                let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
                refused(status, problem["code"].as_str().unwrap())
            }
        };
        assert_eq!(self.runs() - before, usize::from(told == Told::Ran));
        told
    }
}
