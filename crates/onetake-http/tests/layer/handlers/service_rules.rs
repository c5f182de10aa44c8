//! The rules in docs/LIBRARY.md for services that use the layer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::StatusCode;
use onetake_core::{Engine, MemoryStore};
use onetake_http::{OnetakeLayer, Policy, PolicyError, Preset, Routes, Stored, Tenant, Typed};
use serde_json::Value;

use super::helpers::{KEY, counting, logs, post_of, send};

/// The user that authentication has found.
#[derive(Clone)]
struct User {
    name: String,
}

/// Authentication that a service has outside the layer: the bearer token is the user's name.
async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
    let header = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    match header.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned) {
        Some(name) if name == "stranger" => StatusCode::FORBIDDEN.into_response(),
        Some(name) => {
            request.extensions_mut().insert(User { name });
            next.run(request).await
        }
        None => next.run(request).await,
    }
}

fn layer(policy: Policy) -> Result<OnetakeLayer, PolicyError> {
    let routes = Routes::new().route("POST /charges", policy).build()?;
    OnetakeLayer::builder(Engine::new(Arc::new(MemoryStore::new()))).routes(routes).build()
}

#[tokio::test]
async fn the_tenant_is_the_user_that_authentication_outside_the_layer_has_found() {
    let (charge, runs) = counting();
    let tenant = Tenant::extension(|user: &User| user.name.clone());
    let layer = layer(Policy::preset(Preset::Payment).tenant(tenant)).unwrap();
    let authentication = axum::middleware::from_fn(authenticate);
    let app = Router::new().route("/charges", charge).layer(layer).layer(authentication);

    let first = send(&app, post_of("alice", "/charges", KEY)).await;
    assert_eq!((first.status, first.body.as_str()), (200, "1"));
    let again = send(&app, post_of("alice", "/charges", KEY)).await;
    assert!(again.is_replay() && again.body == "1", "{}", again.body);
    let other = send(&app, post_of("bob", "/charges", KEY)).await;
    assert_eq!((other.body.as_str(), other.is_replay()), ("2", false), "another user's key");
    assert_eq!(send(&app, post_of("stranger", "/charges", KEY)).await.status, 403);
    let request = Request::post("/charges").header("idempotency-key", KEY);
    let anonymous = send(&app, request.body(Body::from("10")).unwrap()).await;
    assert_eq!(anonymous.problem(), (401, "tenant_unresolved".to_owned()));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_refusal_of_an_extractor_is_recorded_unless_the_policy_releases_it() {
    async fn parse(Json(value): Json<Value>) -> String {
        value.to_string()
    }
    let app = |policy| Router::new().route("/charges", post(parse)).layer(layer(policy).unwrap());
    let request = |body: &str| {
        let mut request = post_of("alice", "/charges", KEY);
        request.headers_mut().insert("content-type", "application/json".parse().unwrap());
        *request.body_mut() = Body::from(body.to_owned());
        request
    };
    let bytes = Policy::new().fingerprint(onetake_http::FingerprintMode::Bytes);
    let recorded = app(bytes.clone());
    let refused = send(&recorded, request("{")).await;
    assert_eq!(refused.status, 400);
    assert!(send(&recorded, request("{")).await.is_replay());
    let corrected = send(&recorded, request("{}")).await;
    assert_eq!(corrected.problem(), (422, "idempotency_payload_mismatch".to_owned()));

    let released = app(bytes.release(["400"]));
    assert_eq!(send(&released, request("{")).await.status, 400);
    let again = send(&released, request("{")).await;
    assert_eq!((again.status, again.is_replay()), (400, false), "it ran again");
}

tokio::task_local! {
    static CALLER: &'static str;
}

#[tokio::test]
async fn task_locals_of_the_caller_are_not_set_in_the_operation() {
    let tell = async || CALLER.try_with(|caller| *caller).unwrap_or("none");
    let layer = layer(Policy::new()).unwrap();
    let app = Router::new().route("/charges", post(tell)).layer(layer);
    let answered = CALLER.scope("caller", send(&app, post_of("alice", "/charges", KEY))).await;
    assert_eq!(answered.body, "none");
}

#[tokio::test]
async fn a_type_that_was_not_registered_is_named_in_the_log() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Receipt {
        number: u32,
    }
    impl Typed for Receipt {
        const NAME: &'static str = "receipt";

        fn respond(&self) -> http::Response<Bytes> {
            http::Response::new(Bytes::from(self.number.to_string()))
        }
    }
    let (lines, _guard) = logs();
    let charge = async || Stored(Receipt { number: 7 });
    let app = Router::new().route("/charges", post(charge)).layer(layer(Policy::new()).unwrap());
    let answered = send(&app, post_of("alice", "/charges", KEY)).await;
    assert_eq!((answered.status, answered.body.as_str()), (200, "7"));
    let lines = lines.lock().unwrap();
    let told = lines.iter().any(|line| line.contains("Receipt") && line.contains(".typed::<"));
    assert!(told, "{lines:?}");
}

/// Clients learn what they can do. Advice for operators is in the log, once for each route and
/// cause.
#[tokio::test]
async fn advice_for_operators_is_logged_once_for_each_route_and_cause() {
    let policy = |bytes| Policy::new().max_request_body(bytes);
    let routes = Routes::new().route("POST /a", policy(4)).route("POST /b", policy(8));
    let layer = OnetakeLayer::builder(MemoryStore::new()).routes(routes).build().unwrap();
    let router = Router::new().route("/a", counting().0).route("/b", counting().0).layer(layer);
    let request = |path: &str, header: &str, value: &str, body: &'static str| {
        let request = Request::post(path).header("idempotency-key", KEY).header(header, value);
        request.body(Body::from(body)).unwrap()
    };
    let causes = [
        ("cookie", "session=secret", "10", 401, "send an authorization", "cookies"),
        ("authorization", "Signed secret", "10", 400, "send a credential", "Authorization scheme"),
        ("x-api-key", "secret", "too many bytes", 413, "send a smaller body", "max_request_body"),
    ];
    for (header, value, body, status, detail, logged) in causes {
        let (lines, _guard) = logs();
        for path in ["/a", "/b", "/a", "/b"] {
            let refused = send(&router, request(path, header, value, body)).await;
            assert_eq!(refused.status, status);
            let text = refused.body.to_lowercase();
            assert!(text.contains(detail), "for the client: {text}");
            let is_for_operators = ["in the file", "in rust", "max_request_body", "tenant ="];
            assert!(!is_for_operators.iter().any(|word| text.contains(word)), "{text}");
        }
        let lines = lines.lock().unwrap();
        let warnings: Vec<_> = lines.iter().filter(|line| line.starts_with("WARN")).collect();
        for route in ["POST /a", "POST /b"] {
            let of_route: Vec<_> = warnings.iter().filter(|line| line.contains(route)).collect();
            assert!(matches!(&*of_route, [line] if line.contains(logged)), "{warnings:?}");
        }
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        let is_for_rust = |line: &&&String| line.contains("Tenant::extension");
        let for_rust = warnings.iter().filter(is_for_rust).count();
        assert_eq!(for_rust, if status == 413 { 0 } else { 2 }, "{warnings:?}");
        assert!(!warnings.iter().any(|line| line.contains("secret")), "{warnings:?}");
    }
}
