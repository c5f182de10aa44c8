//! The layer around axum and around a plain tower service.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::{Engine, Limits, MemoryStore, OnUnknown, Store, SystemClock, SystemRng, Terms};
use onetake_http::json::{Pointer, Selection};
use onetake_http::{
    FingerprintMode, HttpLimits, InFlight, OnetakeLayer, OperationContext, Policy, Tenant,
};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt};

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

/// A small API with a counter of its runs.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<AtomicUsize>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

impl Api {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn router(&self, policy: Policy) -> Router {
        self.router_on(Engine::new(Arc::new(MemoryStore::new())), policy)
    }

    fn router_on(&self, engine: Engine, policy: Policy) -> Router {
        let answer = |status: u16| {
            move |State(api): State<Self>| async move {
                api.runs.fetch_add(1, Ordering::SeqCst);
                StatusCode::from_u16(status).unwrap()
            }
        };
        Router::new()
            .route("/charges", post(charge).get(charge))
            .route("/refunds", post(charge))
            .route("/slow", post(slow))
            .route("/panics", post(panics))
            .route("/large", post(large))
            .route("/stream", post(stream))
            .route("/said/{word}", post(said))
            .route("/400", post(answer(400)))
            .route("/409", post(answer(409)))
            .route("/500", post(answer(500)))
            .route("/503", post(answer(503)))
            .with_state(self.clone())
            .layer(OnetakeLayer::new(engine, policy).unwrap())
    }
}

async fn charge(State(api): State<Api>, body: Bytes) -> impl IntoResponse {
    let run = api.runs.fetch_add(1, Ordering::SeqCst);
    let headers = [
        ("location", format!("/charges/{run}")),
        ("set-cookie", "session=secret".to_owned()),
        ("x-charge", "kept".to_owned()),
    ];
    let mut response =
        (StatusCode::CREATED, headers, [b"charged ", &body[..]].concat()).into_response();
    response.headers_mut().append("link", "<a>".parse().unwrap());
    response.headers_mut().append("link", "<b>".parse().unwrap());
    response
}

async fn slow(State(api): State<Api>) -> &'static str {
    api.runs.fetch_add(1, Ordering::SeqCst);
    api.started.notify_one();
    api.finish.notified().await;
    "slow"
}

async fn panics(State(api): State<Api>) -> &'static str {
    api.runs.fetch_add(1, Ordering::SeqCst);
    // `panic!` would print a message.
    std::panic::resume_unwind(Box::new("panics"))
}

async fn large(State(api): State<Api>) -> Vec<u8> {
    api.runs.fetch_add(1, Ordering::SeqCst);
    vec![b'x'; (1 << 20) + 1]
}

async fn stream(State(api): State<Api>) -> impl IntoResponse {
    api.runs.fetch_add(1, Ordering::SeqCst);
    ([("content-type", "text/event-stream")], "data: 1\n\n")
}

async fn said(
    State(api): State<Api>,
    axum::extract::Path(word): axum::extract::Path<String>,
) -> impl IntoResponse {
    api.runs.fetch_add(1, Ordering::SeqCst);
    (StatusCode::OK, [("onetake-outcome", word)], "said")
}

fn request(path: &str, key: &str, body: impl Into<axum::body::Body>) -> Request<axum::body::Body> {
    Request::post(path)
        .header("idempotency-key", key)
        .header("authorization", "Bearer alice")
        .body(body.into())
        .unwrap()
}

struct Answered {
    status: u16,
    headers: http::HeaderMap,
    body: Bytes,
}

impl Answered {
    fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert!(self.headers.contains_key("link"));
        problem["code"].as_str().unwrap().to_owned()
    }

    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

async fn send(router: &Router, request: Request<axum::body::Body>) -> Answered {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

fn waiting() -> Policy {
    Policy::new().in_flight(InFlight::Wait(Duration::from_secs(10)))
}

#[tokio::test]
async fn a_retry_gets_the_same_status_headers_and_body() {
    let api = Api::default();
    let router = api.router(Policy::new());
    let first = send(&router, request("/charges", KEY, "10")).await;
    assert_eq!((first.status, &first.body[..]), (201, &b"charged 10"[..]));
    assert!(!first.is_replay() && first.headers.contains_key("set-cookie"));
    for form in [KEY.to_owned(), format!("\"{KEY}\"")] {
        let retry = send(&router, request("/charges", &form, "10")).await;
        assert_eq!((retry.status, &retry.body), (201, &first.body));
        for name in ["x-idempotency-replayed", "idempotent-replayed"] {
            assert_eq!(retry.headers[name], "true");
        }
        assert_eq!(retry.headers["x-cache-lookup"], "HIT");
        assert_eq!(retry.headers["location"], "/charges/0");
        assert_eq!(retry.headers["x-charge"], "kept");
        let links: Vec<_> = retry.headers.get_all("link").iter().collect();
        assert_eq!(links, ["<a>", "<b>"], "repeated lines stay repeated");
        assert!(!retry.headers.contains_key("set-cookie"), "the first client's cookie");
        assert_eq!(retry.headers["idempotency-reference"], first.headers["idempotency-reference"]);
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn another_body_path_query_or_method_is_refused() {
    let api = Api::default();
    let router = api.router(Policy::new());
    send(&router, request("/charges", KEY, "10")).await;
    let mut patch = request("/charges", KEY, "10");
    *patch.method_mut() = http::Method::PATCH;
    for other in [
        request("/charges", KEY, "99"),
        request("/refunds", KEY, "10"),
        request("/charges?x=1", KEY, "10"),
        patch,
    ] {
        let other = send(&router, other).await;
        assert_eq!((other.status, other.code().as_str()), (422, "idempotency_payload_mismatch"));
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn tenants_do_not_meet() {
    let api = Api::default();
    let router = api.router(Policy::new());
    let first = send(&router, request("/charges", KEY, "alice's")).await;
    let mut bob = request("/charges", KEY, "bob's");
    bob.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
    let second = send(&router, bob).await;
    assert_eq!((second.status, &second.body[..]), (201, &b"charged bob's"[..]));
    assert!(!second.is_replay());
    assert_ne!(first.headers["idempotency-reference"], second.headers["idempotency-reference"]);
    let mut nobody = request("/charges", KEY, "nobody's");
    nobody.headers_mut().remove("authorization");
    assert_eq!(send(&router, nobody).await.body, "charged nobody's");
    assert_eq!(api.runs(), 3);
}

#[tokio::test]
async fn requests_without_a_key_pass_through() {
    let api = Api::default();
    let router = api.router(Policy::new());
    for _ in 0..2 {
        let mut plain = request("/charges", KEY, "10");
        plain.headers_mut().remove("idempotency-key");
        assert_eq!(send(&router, plain).await.status, 201);
        let mut get = request("/charges", KEY, "");
        *get.method_mut() = http::Method::GET;
        assert!(!send(&router, get).await.headers.contains_key("idempotency-reference"));
    }
    assert_eq!(api.runs(), 4, "GET is never keyed");
    let required = api.router(Policy::new().key_required());
    let mut plain = request("/charges", KEY, "10");
    plain.headers_mut().remove("idempotency-key");
    let refused = send(&required, plain).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "idempotency_key_missing"));
}

#[tokio::test]
async fn a_method_that_the_policy_does_not_name_is_not_keyed() {
    let api = Api::default();
    let router = api.router(Policy::new().methods([http::Method::PUT]));
    for _ in 0..2 {
        let post = send(&router, request("/charges", KEY, "10")).await;
        assert!(!post.headers.contains_key("idempotency-reference"));
    }
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn bad_keys_are_refused_and_nothing_is_claimed() {
    let api = Api::default();
    let store = MemoryStore::new();
    let router = api.router_on(Engine::new(Arc::new(store.clone())), Policy::new());
    let mut bad: Vec<Request<axum::body::Body>> =
        ["", "fifteen-letters", &"x".repeat(256)].map(|key| request("/charges", key, "10")).into();
    let mut non_ascii = request("/charges", KEY, "10");
    let value = http::HeaderValue::from_bytes("schlüssel-0123456789".as_bytes()).unwrap();
    non_ascii.headers_mut().insert("idempotency-key", value);
    let mut twice = request("/charges", KEY, "10");
    twice.headers_mut().append("idempotency-key", "another-key-1234567890".parse().unwrap());
    bad.extend([non_ascii, twice]);
    for request in bad {
        let refused = send(&router, request).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "idempotency_key_invalid"));
    }
    assert!(store.is_empty() && api.runs() == 0);
}

#[tokio::test]
async fn many_at_once_run_once() {
    let api = Api::default();
    let router = api.router(waiting());
    let all: Vec<_> = (0..200).map(|_| send(&router, request("/slow", KEY, "10"))).collect();
    let finish = async {
        api.started.notified().await;
        api.finish.notify_one();
    };
    let (answers, ()) = tokio::join!(join_all(all), finish);
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.body == "slow"));
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1);
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn while_it_runs_others_are_told_so() {
    let api = Api::default();
    let router = api.router(Policy::new());
    let first = tokio::spawn({
        let router = router.clone();
        async move { send(&router, request("/slow", KEY, "10")).await }
    });
    api.started.notified().await;
    let same = send(&router, request("/slow", KEY, "10")).await;
    assert_eq!((same.status, same.code().as_str()), (409, "request_in_progress"));
    assert!(same.headers.contains_key("retry-after"));
    let other = send(&router, request("/slow", KEY, "99")).await;
    assert_eq!((other.status, other.code().as_str()), (422, "idempotency_payload_mismatch"));
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn a_client_that_goes_away_changes_nothing() {
    let api = Api::default();
    let router = api.router(waiting());
    let first = tokio::spawn({
        let router = router.clone();
        async move { send(&router, request("/slow", KEY, "10")).await }
    });
    api.started.notified().await;
    first.abort();
    assert!(first.await.is_err());
    api.finish.notify_one();
    let retry = send(&router, request("/slow", KEY, "10")).await;
    assert_eq!((retry.status, &retry.body[..]), (200, &b"slow"[..]));
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn statuses_decide_what_becomes_of_the_attempt() {
    let api = Api::default();
    let router = api.router(Policy::new());
    let twice = async |path: &str| {
        let before = api.runs();
        let first = send(&router, request(path, &format!("{KEY}{path}"), "10")).await;
        let retry = send(&router, request(path, &format!("{KEY}{path}"), "10")).await;
        (first.status, retry, api.runs() - before)
    };
    let (first, retry, runs) = twice("/400").await;
    assert_eq!((first, retry.status, runs), (400, 400, 1), "recorded");
    assert!(retry.is_replay());
    for path in ["/409", "/503"] {
        let (first, retry, runs) = twice(path).await;
        assert_eq!((first, runs), (retry.status, 2), "{path} is released");
    }
    let (first, retry, runs) = twice("/500").await;
    assert_eq!((first, retry.status, runs), (500, 500, 1));
    assert_eq!(retry.code(), "previous_attempt_failed");
    let detail = String::from_utf8(retry.body.to_vec()).unwrap();
    assert!(detail.contains("answered 500") && detail.contains("new key"), "{detail}");
    assert!(!detail.contains("release ="), "advice for operators is in the log: {detail}");
    for (word, runs_twice) in [("record", 1), ("release", 2), ("unknown", 1)] {
        let (first, retry, runs) = twice(&format!("/said/{word}")).await;
        assert_eq!((first, runs), (200, runs_twice), "{word}");
        assert!(!retry.headers.contains_key("onetake-outcome"), "never passed on");
    }
}

#[tokio::test]
async fn a_released_5xx_runs_again_but_not_with_another_body() {
    let api = Api::default();
    let router = api.router(Policy::new().release(["5xx"]));
    for _ in 0..3 {
        assert_eq!(send(&router, request("/500", KEY, "10")).await.status, 500);
    }
    assert_eq!(api.runs(), 3);
    assert_eq!(send(&router, request("/500", KEY, "99")).await.status, 422);
    assert_eq!(api.runs(), 3);
}

#[tokio::test]
async fn on_unknown_retry_runs_again() {
    let api = Api::default();
    let terms = Terms { on_unknown: OnUnknown::Retry, ..Terms::default() };
    let router = api.router(Policy::new().terms(terms));
    for run in 1..=3 {
        assert_eq!(send(&router, request("/500", KEY, "10")).await.status, 500);
        assert_eq!(api.runs(), run);
    }
}

#[tokio::test]
async fn a_panic_is_unknown_and_not_run_again() {
    let api = Api::default();
    let router = api.router(waiting());
    for _ in 0..2 {
        let answer = send(&router, request("/panics", KEY, "10")).await;
        assert_eq!((answer.status, answer.code().as_str()), (500, "previous_attempt_failed"));
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn an_operation_that_takes_too_long_is_unknown() {
    let api = Api::default();
    let router = api.router(Policy::new().upstream_timeout(Duration::from_millis(30)));
    let first = send(&router, request("/slow", KEY, "10")).await;
    assert_eq!((first.status, first.code().as_str()), (504, "upstream_timeout"));
    let retry = send(&router, request("/slow", KEY, "10")).await;
    assert_eq!((retry.status, retry.code().as_str()), (500, "previous_attempt_failed"));
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn what_is_not_kept_is_passed_whole_and_never_run_again() {
    let api = Api::default();
    let router = api.router(Policy::new());
    let first = send(&router, request("/large", KEY, "10")).await;
    assert_eq!((first.status, first.body.len()), (200, (1 << 20) + 1));
    let stream = send(&router, request("/stream", &format!("{KEY}-s"), "10")).await;
    assert_eq!(stream.body, "data: 1\n\n");
    for (path, key) in [("/large", KEY.to_owned()), ("/stream", format!("{KEY}-s"))] {
        let retry = send(&router, request(path, &key, "10")).await;
        assert_eq!((retry.status, retry.code().as_str()), (410, "response_not_replayable"));
        let problem: serde_json::Value = serde_json::from_slice(&retry.body).unwrap();
        assert_eq!(problem["recorded_status"], 200);
    }
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn a_request_over_the_cap_is_refused_before_anything_is_claimed() {
    let api = Api::default();
    let store = MemoryStore::new();
    let router = api.router_on(Engine::new(Arc::new(store.clone())), Policy::new());
    let body = vec![b'x'; (1 << 20) + 1];
    let chunks = body.chunks(1000).map(|chunk| Ok::<_, Infallible>(Bytes::copy_from_slice(chunk)));
    let chunked =
        axum::body::Body::from_stream(futures_util::stream::iter(chunks.collect::<Vec<_>>()));
    for body in [axum::body::Body::from(body.clone()), chunked] {
        let refused = send(&router, request("/charges", KEY, body)).await;
        assert_eq!((refused.status, refused.code().as_str()), (413, "request_body_too_large"));
    }
    assert!(store.is_empty() && api.runs() == 0);
    let exact = send(&router, request("/charges", KEY, vec![b'x'; 1 << 20])).await;
    assert_eq!(exact.status, 201, "the cap itself is fine");
}

#[tokio::test]
async fn json_mode_compares_values() {
    let api = Api::default();
    let store = MemoryStore::new();
    let exclude = Selection::Exclude(vec![Pointer::parse("/sent_at").unwrap()]);
    let policy = Policy::new().fingerprint(FingerprintMode::Json(exclude));
    let router = api.router_on(Engine::new(Arc::new(store.clone())), policy);
    let bad = send(&router, request("/charges", KEY, "{not json")).await;
    assert_eq!((bad.status, bad.code().as_str()), (400, "request_body_invalid"));
    let mut brotli = request("/charges", KEY, "{}");
    brotli.headers_mut().insert("content-encoding", "br".parse().unwrap());
    assert_eq!(send(&router, brotli).await.code(), "request_encoding_unsupported");
    assert!(store.is_empty(), "nothing is claimed for bad input");

    send(&router, request("/charges", KEY, r#"{"amount": 10, "sent_at": 1}"#)).await;
    let retry = send(&router, request("/charges", KEY, r#"{"sent_at":2,"amount":1e1}"#)).await;
    assert!(retry.is_replay());
    let other = send(&router, request("/charges", KEY, r#"{"sent_at":2,"amount":11}"#)).await;
    assert_eq!(other.status, 422);
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn a_tenant_that_changes_or_is_missing_is_refused() {
    let api = Api::default();
    let router = api.router(Policy::new().tenant(Tenant::Credential));
    let mut sigv4 = request("/charges", KEY, "10");
    sigv4.headers_mut().insert("authorization", "AWS4-HMAC-SHA256 x".parse().unwrap());
    let refused = send(&router, sigv4).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "tenant_unstable"));
    let mut nobody = request("/charges", KEY, "10");
    nobody.headers_mut().remove("authorization");
    let refused = send(&router, nobody).await;
    assert_eq!((refused.status, refused.code().as_str()), (401, "tenant_unresolved"));
    assert_eq!(api.runs(), 0);
}

#[tokio::test]
async fn a_draining_engine_runs_nothing_new() {
    let api = Api::default();
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let router = api.router_on(engine.clone(), waiting());
    let first = tokio::spawn({
        let router = router.clone();
        async move { send(&router, request("/slow", KEY, "10")).await }
    });
    api.started.notified().await;
    let drained = tokio::spawn(async move { engine.shutdown(Duration::from_secs(30)).await });
    let mut refused = false;
    for number in 0..1_000 {
        // Each request has a new key. With an old key, it would be replayed instead of refused.
        let key = format!("another-key-0123456789-{number}");
        refused = send(&router, request("/charges", &key, "x")).await.status == 503;
        if refused {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(refused, "a draining engine runs nothing new");
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().status, 200, "what ran was finished");
    assert!(drained.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_store_that_fails_shows_nothing_and_runs_nothing_twice() {
    let api = Api::default();
    let store = Faulty::around(Arc::new(MemoryStore::new()));
    let limits = Limits { settle_patience: Duration::from_millis(30), ..Limits::default() };
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    let engine = Engine::with(shared, Arc::new(SystemClock), Arc::new(SystemRng), limits);
    let router = api.router_on(engine, waiting());
    store.fail_claims(StoreFault::Unavailable);
    let down = send(&router, request("/charges", KEY, "10")).await;
    assert_eq!((down.status, down.code().as_str()), (503, "idempotency_store_unavailable"));
    assert!(down.headers.contains_key("retry-after") && api.runs() == 0);
    store.fail_claims(StoreFault::None);
    store.fail_settlements(StoreFault::Unavailable);
    let pending = send(&router, request("/charges", KEY, "10")).await;
    assert_eq!((pending.status, pending.code().as_str()), (503, "outcome_pending"));
    assert!(pending.headers.contains_key("retry-after"));
    store.fail_settlements(StoreFault::None);
    let retry = send(&router, request("/charges", KEY, "10")).await;
    assert!(retry.is_replay() && retry.body == "charged 10", "recorded when the store was back");
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn too_much_memory_for_bodies_is_refused() {
    let api = Api::default();
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let policy = Arc::new(Policy::new());
    let limits = HttpLimits::default().body_bytes_max(7_000);
    let resolve = move |_: &http::request::Parts| Some(Arc::clone(&policy));
    let router = Router::new()
        .route("/slow", post(slow))
        .route("/charges", post(charge))
        .with_state(api.clone())
        .layer(OnetakeLayer::builder(engine).resolve(resolve).limits(limits).build().unwrap());
    let first = tokio::spawn({
        let router = router.clone();
        async move { send(&router, request("/slow", KEY, "10")).await }
    });
    api.started.notified().await;
    let one_more = send(&router, request("/charges", "another-key-0123456789", "10")).await;
    assert_eq!((one_more.status, one_more.code().as_str()), (503, "overloaded"));
    assert!(one_more.headers.contains_key("idempotency-reference"));
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(api.runs(), 1);
}

/// The memory of a request is given back with its outcome, unless its service still needs the body.
#[tokio::test]
async fn a_service_may_hold_the_memory_of_a_request_beyond_its_outcome() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let layer = OnetakeLayer::builder(engine).policy(Policy::new()).build().unwrap();
    let held = Arc::new(Mutex::new(None));
    let hold = Arc::clone(&held);
    let router = Router::new()
        .route("/dropped", post(|_: String| async { "done" }))
        .route(
            "/held",
            post(|Extension(context): Extension<OperationContext>| async move {
                *hold.lock().unwrap() = Some((context.memory().unwrap(), context));
            }),
        )
        .layer(layer.clone());
    assert_eq!(send(&router, request("/dropped", KEY, "10")).await.status, 200);
    assert_eq!(layer.body_bytes(), 0);
    let body = "1".repeat(10_000);
    assert_eq!(send(&router, request("/held", "another-key-0123456789", body)).await.status, 200);
    assert!(layer.body_bytes() > 10_000);
    let (memory, context) = held.lock().unwrap().take().unwrap();
    drop(memory);
    assert_eq!(layer.body_bytes(), 0);
    assert!(context.memory().is_none());
}

/// While there is no memory for anything new, retries of recorded operations are answered.
#[tokio::test]
async fn replays_are_answered_without_memory_for_more() {
    let api = Api::default();
    let limits = HttpLimits::default().body_bytes_max(60_000);
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let layer = OnetakeLayer::builder(engine).policy(Policy::new()).limits(limits);
    let layer = layer.build().unwrap();
    let router = Router::new()
        .route("/stuck", post(std::future::pending::<()>))
        .route("/charges", post(charge))
        .with_state(api.clone())
        .layer(layer.clone());
    assert_eq!(send(&router, request("/charges", KEY, "10")).await.status, 201);
    let mut stuck = Vec::new();
    for number in 0..9 {
        let request = request("/stuck", &format!("stuck-0123456789-{number}"), "10");
        let router = router.clone();
        stuck.push(tokio::spawn(async move { send(&router, request).await }));
    }
    while layer.body_bytes() < 36_000 {
        tokio::task::yield_now().await;
    }
    let fresh = send(&router, request("/charges", "another-key-0123456789", "10")).await;
    assert_eq!((fresh.status, fresh.code().as_str()), (503, "overloaded"));
    let replay = send(&router, request("/charges", KEY, "10")).await;
    assert!(replay.is_replay(), "{:?}", replay.body);
    let mismatch = send(&router, request("/charges", KEY, "11")).await;
    assert_eq!(mismatch.status, 422);
    stuck.into_iter().for_each(|stuck| stuck.abort());
    assert_eq!(api.runs(), 1);
}

/// The same holds for a body without an announced length. That there is no memory for it shows while
/// it arrives.
#[tokio::test]
async fn replays_of_unknown_length_are_answered_without_memory_for_more() {
    let api = Api::default();
    // An eighth of this is for replays. One tenant may have 253,000 bytes beside a body of 15,000.
    let limits = HttpLimits::default().body_bytes_max(400_000);
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let layer = OnetakeLayer::builder(engine).policy(Policy::new()).limits(limits);
    let layer = layer.build().unwrap();
    let router = Router::new()
        .route("/stuck", post(std::future::pending::<()>))
        .route("/charges", post(charge))
        .with_state(api.clone())
        .layer(layer.clone());
    let chunks = "x".repeat(1_000);
    let send = |key: &'static str| {
        let chunks = std::iter::repeat_n(Ok::<_, Infallible>(chunks.clone()), 15);
        let body = axum::body::Body::from_stream(futures_util::stream::iter(chunks));
        assert_eq!(http_body::Body::size_hint(&body).lower(), 0);
        let router = router.clone();
        async move { send(&router, request("/charges", key, body)).await }
    };
    assert_eq!(send(KEY).await.status, 201);
    let mut stuck = Vec::new();
    while layer.body_bytes() < 258_000 {
        let (number, before) = (stuck.len(), layer.body_bytes());
        let request = request("/stuck", &format!("stuck-0123456789-{number}"), "10");
        stuck.push(tokio::spawn(router.clone().oneshot(request)));
        while layer.body_bytes() == before {
            tokio::task::yield_now().await;
        }
    }
    let fresh = send("another-key-0123456789").await;
    assert_eq!((fresh.status, fresh.code().as_str()), (503, "overloaded"));
    let replay = send(KEY).await;
    assert!(replay.is_replay(), "{:?}", replay.body);
    assert_eq!(api.runs(), 1);
    stuck.into_iter().for_each(|stuck| stuck.abort());
}

#[tokio::test]
async fn over_the_bounds_nothing_runs_and_everybody_is_told() {
    let api = Api::default();
    let limits = Limits { running_max: 1, waiting_max: 1, ..Limits::default() };
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::with(store, Arc::new(SystemClock), Arc::new(SystemRng), limits);
    let router = api.router_on(engine, waiting());
    let spawned = |key: &'static str| {
        let router = router.clone();
        tokio::spawn(async move { send(&router, request("/slow", key, "10")).await })
    };
    let first = spawned(KEY);
    api.started.notified().await;
    let other = send(&router, request("/slow", "another-key-0123456789", "10")).await;
    assert_eq!(
        (other.status, other.code().as_str()),
        (503, "overloaded"),
        "one more operation (S19)"
    );
    assert!(other.headers.contains_key("retry-after"));
    // Of two retries, one waits and the other gets a 409. Either can be first.
    let mut retries = [spawned(KEY), spawned(KEY)];
    while !retries.iter().any(|retry| retry.is_finished()) {
        tokio::task::yield_now().await;
    }
    retries.sort_by_key(|retry| !retry.is_finished());
    let [surplus, waiter] = retries;
    let surplus = surplus.await.unwrap();
    assert_eq!(
        (surplus.status, surplus.code().as_str()),
        (409, "request_in_progress"),
        "one more waiter (S19)"
    );
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().status, 200);
    assert!(waiter.await.unwrap().is_replay());
    assert_eq!(api.runs(), 1);
}

/// A plain tower service with its own error type.
#[derive(Clone)]
struct Plain(Arc<AtomicUsize>);

#[derive(Debug, PartialEq)]
struct Broken;

impl<B: Send + 'static> Service<Request<B>> for Plain {
    type Response = Response<Full<Bytes>>;
    type Error = Broken;
    type Future = std::future::Ready<Result<Self::Response, Broken>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Broken>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.0.fetch_add(1, Ordering::SeqCst);
        let fence = request.headers().get("idempotency-fence").map(|value| value.to_str().unwrap());
        std::future::ready(match request.uri().path() {
            "/breaks" => Err(Broken),
            _ => Ok(Response::new(Full::from(format!("fence {}", fence.unwrap_or("none"))))),
        })
    }
}

#[tokio::test]
async fn a_plain_tower_service_keeps_its_error_type() {
    let runs = Arc::new(AtomicUsize::new(0));
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let service = OnetakeLayer::new(engine, Policy::new()).unwrap().layer(Plain(Arc::clone(&runs)));
    let call = |path: &str, key: &str| {
        let request = Request::post(path).header("idempotency-key", key);
        service.clone().oneshot(request.body(Full::<Bytes>::from("10")).unwrap())
    };
    let text = async |response: Response<_>| {
        let body: onetake_http::ResponseBody<Full<Bytes>> = response.into_body();
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    };
    let first = text(call("/a", KEY).await.unwrap()).await;
    assert!(first.starts_with("fence 1"), "{first}");
    assert_eq!(text(call("/a", KEY).await.unwrap()).await, first);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let key = "another-key-0123456789";
    assert_eq!(call("/breaks", key).await.err(), Some(Broken));
    let retry = call("/breaks", key).await.unwrap();
    assert_eq!(retry.status(), 500, "an error after the start is unknown");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// The reset of an HTTP/2 stream in the middle of a body can look like the end of the body.
#[tokio::test]
async fn a_body_of_another_length_than_announced_runs_nothing() {
    let api = Api::default();
    let router = api.router(Policy::new());
    for announced in ["3", "1", "0", "-2", "two", "2, 2", "99999999999999999999999"] {
        let mut broken = request("/charges", KEY, "10");
        broken.headers_mut().insert("content-length", announced.parse().unwrap());
        let answered = send(&router, broken).await;
        let told = (answered.status, answered.code());
        assert_eq!(told, (408, "request_body_incomplete".to_owned()), "{announced}");
    }
    assert_eq!(api.runs(), 0);
    // The partial payload was not claimed, so the whole one runs under the same key.
    let mut whole = request("/charges", KEY, "100");
    whole.headers_mut().insert("content-length", "3".parse().unwrap());
    let answered = send(&router, whole).await;
    assert_eq!((answered.status, &answered.body[..]), (201, &b"charged 100"[..]));
    assert_eq!(api.runs(), 1);
}

/// A layer around a single route never sees requests to its own endpoints. They are mounted beside
/// it.
#[tokio::test]
async fn endpoints_are_mounted_beside_a_layer_of_one_route() {
    let (api, engine) = (Api::default(), Engine::new(Arc::new(MemoryStore::new())));
    let policy = Policy::new().in_flight(onetake_http::InFlight::Async(Duration::ZERO));
    let (layer, _) = OnetakeLayer::builder(engine).policy(policy).build_with_endpoints().unwrap();
    let router = Router::new()
        .route("/slow", post(slow).layer(layer.clone()))
        .with_state(api.clone())
        .fallback_service(layer.endpoints());
    let accepted = send(&router, request("/slow", KEY, "")).await;
    assert_eq!(accepted.status, 202);
    let location = accepted.headers["location"].to_str().unwrap().to_owned();
    let get = |path: &str| {
        let request = Request::get(path).header("authorization", "Bearer alice");
        request.body(axum::body::Body::empty()).unwrap()
    };
    assert!(send(&router, get(&location)).await.body.starts_with(b"{"), "it runs");
    api.finish.notify_one();
    loop {
        let told = send(&router, get(&location)).await;
        if told.is_replay() {
            assert_eq!(told.body, "slow");
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(send(&router, get("/.onetake/problems")).await.status, 200);
    assert_eq!(send(&router, get("/elsewhere")).await.status, 404);
}

/// The layer reads a keyed body whole. The service gets its data and its trailers.
#[tokio::test]
async fn the_service_gets_the_trailers_of_a_keyed_request() {
    let layer = OnetakeLayer::new(MemoryStore::new(), Policy::new()).unwrap();
    let service = layer.layer(tower::service_fn(async |request: Request<_>| {
        let body = BodyExt::collect(request.into_body()).await?;
        let checksum = body.trailers().map(|trailers| trailers["checksum"].clone());
        let checksum = checksum.map(|value| value.to_str().unwrap().to_owned());
        let text = format!("{:?} {}", body.to_bytes(), checksum.unwrap_or_default());
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
    }));
    let trailers = http::HeaderMap::from_iter([(
        http::HeaderName::from_static("checksum"),
        http::HeaderValue::from_static("7"),
    )]);
    let request = Request::post("/charges")
        .header("idempotency-key", KEY)
        .header("authorization", "Bearer alice")
        .body(Full::new(Bytes::from("100")).with_trailers(async { Some(Ok(trailers)) }))
        .unwrap();
    let answered = service.oneshot(request).await.unwrap();
    let body = answered.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "b\"100\" 7");
}
