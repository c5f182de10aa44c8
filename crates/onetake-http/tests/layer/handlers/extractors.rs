//! Extractors: the facts that a handler can learn about its operation.

use std::sync::Arc;

use super::helpers::{Answered, KEY, post_of, send};
use axum::Router;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::routing::post;
use http::{Request, StatusCode};
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::{DerivedKey, DerivingSecret, Engine, Key, MemoryStore, Scope, Store};
use onetake_http::extract::{DownstreamKey, IdempotencyKey, RunningAttempt};
use onetake_http::json::Pointer;
use onetake_http::{KeySource, OnStoreDown, OnetakeLayer, Policy, Secrets, Tenant};

/// Responds with all values of the extractors. The status is 503, so that each attempt is released.
async fn tell(
    IdempotencyKey(key): IdempotencyKey,
    RunningAttempt(attempt): RunningAttempt,
    DownstreamKey(derived): DownstreamKey,
    headers: HeaderMap,
) -> impl IntoResponse {
    let line = |name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(line("idempotency-fence"), attempt.fence.to_string());
    assert_eq!(line("idempotency-derived-key"), derived.to_string());
    assert_eq!(headers.get_all("idempotency-derived-key").iter().count(), 1);
    assert!(headers["idempotency-derived-key"].is_sensitive(), "it is not shown in logs");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{} {derived} {}", key.as_str(), attempt.fence))
}

async fn tell_what_is_there(
    key: Option<IdempotencyKey>,
    attempt: Option<RunningAttempt>,
    derived: Option<DownstreamKey>,
) -> String {
    format!("{} {} {}", key.is_some(), attempt.is_some(), derived.is_some())
}

fn routes() -> Router {
    Router::new()
        .route("/tell", post(tell))
        .route("/there", post(tell_what_is_there))
        .route("/key", post(|_: IdempotencyKey| async { "a key" }))
        .route("/attempt", post(|_: RunningAttempt| async { "an attempt" }))
}

fn on(store: Arc<dyn Store>, policy: Policy, secrets: Secrets) -> Router {
    let engine = Engine::new(store);
    let policies = Arc::new(policy);
    routes()
        .layer(OnetakeLayer::builder(engine).resolve(policies).secrets(secrets).build().unwrap())
}

fn told(answered: &Answered) -> (String, DerivedKey, u64) {
    assert_eq!(answered.status, 503, "{}", answered.body);
    let words: Vec<&str> = answered.body.split(' ').collect();
    let [key, derived, fence] = words[..] else { panic!("{}", answered.body) };
    (key.to_owned(), derived.parse().unwrap(), fence.parse().unwrap())
}

#[tokio::test]
async fn every_attempt_has_the_same_derived_key_on_every_node() {
    let store = MemoryStore::new();
    let nodes = [0, 1].map(|_| on(Arc::new(store.clone()), Policy::new(), Secrets::default()));
    let quoted = format!("\"{KEY}\"");
    let (key, derived, first) = told(&send(&nodes[0], post_of("alice", "/tell", &quoted)).await);
    assert_eq!(key, KEY, "as the client means it");
    let (_, again, second) = told(&send(&nodes[0], post_of("alice", "/tell", KEY)).await);
    let (_, elsewhere, third) = told(&send(&nodes[1], post_of("alice", "/tell", KEY)).await);
    assert_eq!((again, elsewhere), (derived, derived));
    assert!(first < second && second < third);
    let other_key = KEY.replace('9', "8");
    for (who, key) in [("bob", KEY), ("alice", &other_key)] {
        let (_, other, _) = told(&send(&nodes[0], post_of(who, "/tell", key)).await);
        assert_ne!(other, derived);
    }
    let stranger = on(Arc::new(MemoryStore::new()), Policy::new(), Secrets::default());
    let (_, other, _) = told(&send(&stranger, post_of("alice", "/tell", KEY)).await);
    assert_ne!(other, derived, "another store has another secret");
}

#[tokio::test]
async fn a_secret_of_ones_own_is_what_is_used() {
    let secret = DerivingSecret::new(&[7; 32]);
    let secrets = Secrets::default().derived_keys(secret.clone());
    let policy = || Policy::new().tenant(Tenant::Public).namespace("pay");
    for _ in 0..2 {
        let router = on(Arc::new(MemoryStore::new()), policy(), secrets.clone());
        let (_, derived, _) = told(&send(&router, post_of("alice", "/tell", KEY)).await);
        let other = Scope::new("anything").namespace("pay");
        assert_ne!(derived, secret.derive(&other, &Key::new(KEY).unwrap()));
        let router = on(Arc::new(MemoryStore::new()), policy(), secrets.clone());
        assert_eq!(told(&send(&router, post_of("bob", "/tell", KEY)).await).1, derived);
    }
}

#[tokio::test]
async fn a_client_cannot_name_a_derived_key_or_an_attempt() {
    let router = on(Arc::new(MemoryStore::new()), Policy::new(), Secrets::default());
    let mut request = post_of("alice", "/tell", KEY);
    for name in ["idempotency-derived-key", "idempotency-fence"] {
        request.headers_mut().append(name, "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90".parse().unwrap());
        request.headers_mut().append(name, "9".parse().unwrap());
    }
    let (_, forged, _) = told(&send(&router, request).await);
    let (_, derived, _) = told(&send(&router, post_of("alice", "/tell", KEY)).await);
    assert_eq!(forged, derived);
}

#[tokio::test]
async fn the_key_is_there_wherever_it_came_from() {
    let pointer = Pointer::parse("/order").unwrap();
    let policy = Policy::new().key_from(KeySource::json(pointer)).tenant(Tenant::Public);
    let router = on(Arc::new(MemoryStore::new()), policy, Secrets::default());
    let request = Request::post("/tell").header("content-type", "application/json");
    let request = request.body(Body::from(r#"{"order":"A-77"}"#)).unwrap();
    assert_eq!(told(&send(&router, request).await).0, "A-77");
}

#[tokio::test]
async fn without_a_key_there_is_nothing_to_know() {
    let router = on(Arc::new(MemoryStore::new()), Policy::new(), Secrets::default());
    let unkeyed = |path: &str| Request::post(path).body(Body::empty()).unwrap();
    for path in ["/tell", "/key", "/attempt"] {
        let refused = send(&router, unkeyed(path)).await;
        assert_eq!(refused.problem(), (400, "idempotency_key_missing".to_owned()), "{path}");
        assert!(refused.body.contains("Idempotency-Key"), "{}", refused.body);
    }
    assert_eq!(send(&router, unkeyed("/there")).await.body, "false false false");
    assert_eq!(send(&router, post_of("alice", "/there", KEY)).await.body, "true true true");
}

#[tokio::test]
async fn a_handler_without_the_layer_is_a_mistake_that_shows() {
    for path in ["/tell", "/there", "/key"] {
        assert_eq!(send(&routes(), post_of("alice", path, KEY)).await.status, 500, "{path}");
    }
}

#[tokio::test]
async fn what_runs_unrecorded_is_no_attempt() {
    let store = Faulty::around(Arc::new(MemoryStore::new()));
    let policy = || Policy::new().on_store_down(OnStoreDown::FailOpen);
    let router = on(store.clone(), policy(), Secrets::default());
    let key = |digit: &str| KEY.replace('9', digit);
    // This request makes the layer load the secret.
    assert_eq!(send(&router, post_of("alice", "/there", &key("1"))).await.body, "true true true");
    store.fail_claims(StoreFault::Unavailable);
    store.fail_loads(StoreFault::Unavailable);
    assert_eq!(send(&router, post_of("alice", "/there", &key("2"))).await.body, "true false true");
    assert_eq!(send(&router, post_of("alice", "/key", &key("3"))).await.body, "a key");
    let refused = send(&router, post_of("alice", "/attempt", &key("4"))).await;
    assert_eq!(refused.problem(), (503, "idempotency_store_unavailable".to_owned()));
    // A layer that never reached the store has no secret. It gives no derived key rather than a
    // different one each time.
    let router = on(store, policy(), Secrets::default());
    assert_eq!(send(&router, post_of("alice", "/there", &key("5"))).await.body, "true false false");
}

#[tokio::test]
async fn the_whole_path_counts_inside_of_nested_routers() {
    let inner = on(Arc::new(MemoryStore::new()), Policy::new(), Secrets::default());
    let outer = Router::new().nest("/accounts/{id}", inner.clone()).nest("/v2", inner);
    let ran = send(&outer, post_of("alice", "/accounts/1/there", KEY)).await;
    assert_eq!((ran.status, ran.is_replay()), (200, false));
    assert!(send(&outer, post_of("alice", "/accounts/1/there", KEY)).await.is_replay());
    for other in ["/accounts/2/there", "/v2/there"] {
        let refused = send(&outer, post_of("alice", other, KEY)).await;
        assert_eq!(refused.problem(), (422, "idempotency_payload_mismatch".to_owned()), "{other}");
    }
}
