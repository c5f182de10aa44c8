//! Keys from values that a request has anyway: a header, a parameter of the path or of the query.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::any;
use http::{HeaderMap, Request};

use onetake_core::MemoryStore;
use onetake_http::{KeySource, OnetakeLayer, Policy, Routes};

use crate::common::{Answered, send};

type Runs = Arc<AtomicUsize>;

/// Counts a run, and answers with the lines of the delivery's header.
async fn run(State(runs): State<Runs>, headers: HeaderMap) -> String {
    runs.fetch_add(1, Ordering::SeqCst);
    let lines = headers.get_all("x-delivery").iter();
    lines.map(|line| line.to_str().unwrap()).collect::<Vec<_>>().join("|")
}

fn app(runs: &Runs) -> Router {
    let account = |namespace: &str| Policy::new().tenant("credential").namespace(namespace);
    let parts = ["header:X-Delivery", "path:id", "query:step", "json:/n"];
    let routes = Routes::new()
        .route("POST /header", account("header").key_from(KeySource::header("X-Delivery")))
        .route("PUT /orders/{id}/pay", account("path").key_from(KeySource::path("id")))
        .route("POST /query", account("query").key_from(KeySource::query("order")))
        .route("POST /derived/{id}", account("derived").key_from(KeySource::derive(parts)));
    let layer = OnetakeLayer::builder(MemoryStore::new()).routes(routes).build().unwrap();
    Router::new().route("/{*any}", any(run)).with_state(Arc::clone(runs)).layer(layer)
}

async fn call(app: &Router, line: &str, headers: &[(&str, &str)], body: &'static str) -> Answered {
    let (method, target) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(app, request.body(Body::from(body)).unwrap()).await
}

const ALICE: (&str, &str) = ("authorization", "Bearer alice");
const BOB: (&str, &str) = ("authorization", "Bearer bob");

#[tokio::test]
async fn a_value_of_the_request_names_the_operation() {
    let runs = Runs::default();
    let app = app(&runs);
    let delivery = ("x-delivery", "d-1");
    for (line, other, body) in [
        ("POST /header", "", "{}"),
        ("PUT /orders/7/pay", "PUT /orders/8/pay", "{}"),
        ("POST /query?order=7", "POST /query?order=8", "{}"),
        ("POST /derived/7?step=1", "POST /derived/7?step=2", "{\"n\":1}"),
    ] {
        let before = runs.load(Ordering::SeqCst);
        let first = call(&app, line, &[ALICE, delivery], body).await;
        assert_eq!((first.status, first.is_replay()), (200, false), "{line}");
        assert!(!first.header("idempotency-reference").is_empty(), "{line}");
        let again = call(&app, line, &[ALICE, delivery], body).await;
        assert!(again.is_replay(), "{line}: {again:?}");
        // `Idempotency-Key` does not count on these routes.
        let keyed = [ALICE, delivery, ("idempotency-key", "a-key-of-the-client")];
        assert!(call(&app, line, &keyed, body).await.is_replay(), "{line}");
        // Another tenant has another operation (S8).
        assert!(!call(&app, line, &[BOB, delivery], body).await.is_replay(), "{line}");
        let mismatch = call(&app, line, &[ALICE, delivery], "{\"n\":1 }").await;
        assert_eq!(mismatch.code(), "idempotency_payload_mismatch", "{line}");
        let mut expected = before + 2;
        if !other.is_empty() {
            assert!(!call(&app, other, &[ALICE, delivery], body).await.is_replay(), "{other}");
            expected += 1;
        }
        assert_eq!(runs.load(Ordering::SeqCst), expected, "{line}");
    }
}

#[tokio::test]
async fn a_missing_or_ambiguous_value_runs_nothing() {
    let runs = Runs::default();
    let app = app(&runs);
    for (line, headers, code) in [
        ("POST /header", &[ALICE][..], "idempotency_key_missing"),
        ("POST /header", &[ALICE, ("x-delivery", "")], "idempotency_key_invalid"),
        ("POST /header", &[ALICE, ("x-delivery", "a,b")], "idempotency_key_invalid"),
        ("PUT /orders/7;v=1/pay", &[ALICE], "request_refused"),
        ("POST /query", &[ALICE], "idempotency_key_missing"),
        ("POST /query?order=1&order=2", &[ALICE], "idempotency_key_invalid"),
        ("POST /query?order=1&ORDER=2", &[ALICE], "idempotency_key_invalid"),
        ("POST /derived/7?step=1", &[ALICE], "idempotency_key_missing"),
        ("POST /header", &[("x-delivery", "d-1")], "tenant_unresolved"),
    ] {
        let refused = call(&app, line, headers, "{\"n\":1}").await;
        assert_eq!(refused.code(), code, "{line} {headers:?}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_service_sees_a_repeated_value_once() {
    let runs = Runs::default();
    let app = app(&runs);
    let twice = [ALICE, ("x-delivery", "d-1"), ("x-delivery", "d-1, d-1")];
    let first = call(&app, "POST /header", &twice, "").await;
    assert_eq!((first.status, &first.body[..]), (200, &b"d-1"[..]));
    assert!(call(&app, "POST /header", &[ALICE, ("x-delivery", "d-1")], "").await.is_replay());
}

#[test]
fn values_that_cannot_be_keys_are_refused() {
    let said = |pattern: &str, source: KeySource| {
        let policy = Policy::new().tenant("public").key_from(source);
        Routes::new().route(pattern, policy).build().unwrap_err().to_string()
    };
    let header = |name: &str| KeySource::header(name).unwrap();
    for (pattern, source, what) in [
        ("POST /a", header("X-Request-Id"), "changes with each attempt"),
        ("POST /a", header("Authorization"), "is a credential"),
        ("POST /a", header("Idempotency-Key"), "usual source of keys"),
        ("POST /a", KeySource::path("id"), "has no such parameter"),
        ("POST /{id}/{id}", KeySource::path("id"), "this parameter twice"),
        ("POST /a", KeySource::query(""), "not the name of a parameter"),
        ("POST /a", KeySource::derive(["path:id"]).unwrap(), "has no such parameter"),
    ] {
        let error = said(pattern, source);
        assert!(error.contains(what), "{error}\n\ndoes not say: {what}");
    }
    let guessed = Policy::new().key_from(header("X-Delivery"));
    let error = Routes::new().route("POST /a", guessed).build().unwrap_err().to_string();
    assert!(error.contains("can be guessed"), "{error}");
    let fine = KeySource::derive(["header:Idempotency-Key", "path:id"]);
    let fine = Policy::new().tenant("public").key_from(fine);
    assert!(Routes::new().route("POST /{id}", fine).build().is_ok());
    for text in ["x-shop", "headers:a", "header:a b", "path:", "json:", "json:a"] {
        assert!(KeySource::derive([text]).is_err(), "{text}");
    }
}

#[tokio::test]
async fn a_layer_without_routes_has_no_path_parameters() {
    let one = Policy::new().tenant("public").key_from(KeySource::path("id"));
    let error = OnetakeLayer::new(MemoryStore::new(), one).unwrap_err().to_string();
    assert!(error.contains("only a route has path parameters"), "{error}");
}
