//! Route policies: sources of keys, fingerprints and formats of answers.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use onetake_core::clock::{ManualClock, Timestamp};
use onetake_core::{
    Clock, Engine, FingerprintKey, Limits, MemoryStore, Store, SystemClock, SystemRng,
};
use onetake_http::json::{Pointer, Selection};
use onetake_http::{
    Dialect, FingerprintMode, InFlight, IssuingKey, KeyFormat, KeySource, OnetakeLayer,
    OperationContext, Policy, Secrets, Tenant,
};
use serde_json::Value;
use tokio::sync::Notify;
use tower::ServiceExt;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

/// An API with a counter of its runs.
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

    fn on(&self, store: &MemoryStore, policy: Policy, secrets: Secrets) -> Router {
        let engine = Engine::new(Arc::new(store.clone()) as Arc<dyn Store>);
        let policy = Arc::new(policy);
        let policies = move |_: &http::request::Parts| Some(Arc::clone(&policy));
        let layer =
            OnetakeLayer::builder(engine).resolve(policies).secrets(secrets).build().unwrap();
        Router::new()
            .route("/charges", post(echo))
            .route("/slow", post(slow))
            .with_state(self.clone())
            .layer(layer)
    }

    fn with(&self, policy: Policy) -> Router {
        self.on(&MemoryStore::new(), policy, Secrets::default())
    }
}

/// Responds with the number of the run and the time that is left.
async fn echo(State(api): State<Api>, headers: HeaderMap) -> String {
    let run = api.runs.fetch_add(1, Ordering::SeqCst);
    let left = headers.get("x-request-timeout-ms").map(|value| value.to_str().unwrap().to_owned());
    format!("run {run}, left {}", left.unwrap_or_default())
}

async fn slow(State(api): State<Api>, request: Request<Body>) -> String {
    api.runs.fetch_add(1, Ordering::SeqCst);
    let context = OperationContext::of(request.extensions()).unwrap();
    assert!(context.time_left().is_some());
    api.started.notify_one();
    api.finish.notified().await;
    "slow".to_owned()
}

struct Answered {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answered {
    fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["code"].as_str().unwrap_or_default().to_owned()
    }

    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

/// Sends a POST of Alice with these headers.
async fn send(
    router: &Router,
    path: &str,
    lines: &[(&str, &str)],
    body: impl Into<Body>,
) -> Answered {
    let request = Request::post(path).header("authorization", "Bearer alice");
    let request =
        lines.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

#[tokio::test]
async fn a_member_of_the_body_names_the_operation() {
    let api = Api::default();
    let store = MemoryStore::new();
    let source = KeySource::json("/transfer/client_reference");
    let router =
        api.on(&store, Policy::new().tenant("public").key_from(source), Secrets::default());
    let transfer = |reference: &str, amount: u32| {
        format!("{{\"transfer\":{{\"client_reference\":{reference},\"amount\":{amount}}}}}")
    };
    let first = send(&router, "/charges", &[], transfer("\"A7\"", 1)).await;
    assert_eq!((first.status, first.is_replay()), (200, false));
    assert!(first.headers.contains_key("idempotency-reference"));
    let again = send(&router, "/charges", &[], transfer("\"A7\"", 1)).await;
    assert!(again.is_replay() && again.body == first.body);
    // The header does not count on this route.
    let with_header = [("idempotency-key", KEY)];
    assert!(send(&router, "/charges", &with_header, transfer("\"A7\"", 1)).await.is_replay());
    assert_eq!(send(&router, "/charges", &[], transfer("\"A7\"", 2)).await.status, 422);
    assert!(!send(&router, "/charges", &[], transfer("\"A8\"", 1)).await.is_replay());
    assert_eq!(api.runs(), 2);
    let before = store.len();
    for (body, code) in [
        ("{}", "idempotency_key_missing"),
        ("", "idempotency_key_missing"),
        ("{\"transfer\":{\"client_reference\":[]}}", "idempotency_key_invalid"),
        ("{\"transfer\":", "request_body_invalid"),
    ] {
        let refused = send(&router, "/charges", &[], body).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, code), "{body}");
    }
    assert_eq!((api.runs(), store.len()), (2, before));
}

#[tokio::test]
async fn an_optional_member_that_is_absent_names_nothing() {
    let api = Api::default();
    let store = MemoryStore::new();
    let mut policy = Policy::new().tenant("public").key_from(KeySource::json("/id"));
    policy.key.required = false;
    let router = api.on(&store, policy, Secrets::default());
    for _ in 0..2 {
        let passed = send(&router, "/charges", &[], "{\"other\":1}").await;
        assert_eq!(passed.status, 200);
        assert!(!passed.headers.contains_key("idempotency-reference"));
    }
    assert_eq!(api.runs(), 2);
    assert!(store.is_empty());
}

#[tokio::test]
async fn parts_of_the_body_name_the_operation() {
    let api = Api::default();
    let parts = ["/merchant_id", "/order_id", "/attempt_seq"];
    let json = FingerprintMode::Json(Selection::Exclude(vec![pointer("/sent_at")]));
    let policy = Policy::new().tenant("public").key_from(KeySource::derive(parts));
    let policy = policy.fingerprint(json);
    let router = api.with(policy);
    let order = |merchant: &str, order: u32, attempt: u32, at: u32| {
        format!(
            "{{\"merchant_id\":\"{merchant}\",\"order_id\":{order},\"attempt_seq\":{attempt},\"sent_at\":{at}}}"
        )
    };
    assert!(!send(&router, "/charges", &[], order("m", 1, 1, 1)).await.is_replay());
    assert!(send(&router, "/charges", &[], order("m", 1, 1, 2)).await.is_replay());
    assert!(!send(&router, "/charges", &[], order("m", 1, 2, 1)).await.is_replay());
    assert!(!send(&router, "/charges", &[], order("m", 11, 2, 1)).await.is_replay());
    assert_eq!(api.runs(), 3);
    let missing = send(&router, "/charges", &[], "{\"merchant_id\":\"m\"}").await;
    assert_eq!(missing.code(), "idempotency_key_missing");
}

#[tokio::test]
async fn a_route_may_ask_for_uuids() {
    let router = Api::default().with(Policy::new().key_format(KeyFormat::Uuid));
    let bad = send(&router, "/charges", &[("idempotency-key", "order-1234567890123")], "").await;
    assert_eq!((bad.status, bad.code().as_str()), (400, "idempotency_key_invalid"));
    assert_eq!(send(&router, "/charges", &[("idempotency-key", KEY)], "").await.status, 200);
    let upper = KEY.to_uppercase();
    assert!(send(&router, "/charges", &[("idempotency-key", &upper)], "").await.is_replay());
}

#[tokio::test]
async fn compressed_json_is_the_same_json() {
    use std::io::Write as _;
    let policy = Policy::new().fingerprint(FingerprintMode::Json(Selection::Whole));
    let router = Api::default().with(policy);
    let key = ("idempotency-key", KEY);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(b"{ \"a\": 1.0 }").unwrap();
    let gzip = gzip.finish().unwrap();
    assert_eq!(send(&router, "/charges", &[key], "{\"a\":1}").await.status, 200);
    let zipped = [key, ("content-encoding", "gzip")];
    assert!(send(&router, "/charges", &zipped, gzip).await.is_replay());
}

#[tokio::test]
async fn a_deadline_that_is_over_is_refused_before_the_store_is_asked() {
    let api = Api::default();
    let store = MemoryStore::new();
    let router = api.on(&store, Policy::new(), Secrets::default());
    let key = ("idempotency-key", KEY);
    for line in [
        ("x-request-deadline", "1000"),
        ("x-request-deadline", "2001-01-01T00:00:00Z"),
        ("x-request-timeout-ms", "0"),
        ("grpc-timeout", "0m"),
    ] {
        let refused = send(&router, "/charges", &[key, line], "").await;
        assert_eq!((refused.status, refused.code().as_str()), (504, "deadline_exceeded"));
    }
    let bad = send(&router, "/charges", &[key, ("grpc-timeout", "soon")], "").await;
    assert_eq!((bad.status, bad.code().as_str()), (400, "deadline_invalid"));
    assert!(store.is_empty() && api.runs() == 0);
    // The service gets the remaining time, which is at most the client's time.
    let ran = send(&router, "/charges", &[key, ("x-request-timeout-ms", "20000")], "").await;
    let left: u64 = ran.body.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((1..=20_000).contains(&left), "{left}");
    // The deadline is checked first, even if an outcome is recorded.
    let late = send(&router, "/charges", &[key, ("x-request-timeout-ms", "0")], "").await;
    assert_eq!(late.status, 504);
    assert!(send(&router, "/charges", &[key], "").await.is_replay());
}

#[tokio::test]
async fn a_deadline_bounds_the_run_and_the_wait() {
    let api = Api::default();
    let hour = Duration::from_secs(3600);
    let router = api.with(Policy::new().in_flight(InFlight::Wait(hour)).upstream_timeout(hour));
    let lines = [("idempotency-key", KEY), ("x-request-timeout-ms", "2000")];
    let both = async {
        tokio::join!(send(&router, "/slow", &lines, ""), async {
            api.started.notified().await;
            send(&router, "/slow", &lines, "").await
        })
    };
    let (first, second) = tokio::select! {
        both = both => both,
        () = SystemClock.sleep(Duration::from_secs(20)) => panic!("the deadline bounds nothing"),
    };
    assert_eq!((first.status, first.code().as_str()), (504, "upstream_timeout"));
    // The deadline ends the wait. The route alone would allow an hour.
    assert!([500, 504].contains(&second.status), "{}", second.body);
    let after = send(&router, "/slow", &[("idempotency-key", KEY)], "").await;
    assert_eq!(after.code(), "previous_attempt_failed");
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn stripe_clients_are_told_in_their_words() {
    let api = Api::default();
    let router = api.with(Policy::new().key_required().errors(Dialect::Stripe));
    let key = ("idempotency-key", KEY);
    assert_eq!(send(&router, "/charges", &[key], "a").await.status, 200);
    let other = send(&router, "/charges", &[key], "b").await;
    let body: Value = serde_json::from_str(&other.body).unwrap();
    assert_eq!((other.status, body["error"]["type"].as_str()), (400, Some("idempotency_error")));
    assert_eq!(other.headers["stripe-should-retry"], "false");
    let missing = send(&router, "/charges", &[], "a").await;
    let body: Value = serde_json::from_str(&missing.body).unwrap();
    assert_eq!(body["error"]["type"], "invalid_request_error");
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn secrets_may_change_while_keys_live() {
    let api = Api::default();
    let store = MemoryStore::new();
    let key = |id: &str, byte| FingerprintKey::new(id, &[byte; 32]);
    let node = |keys: Vec<FingerprintKey>| {
        api.on(&store, Policy::new(), Secrets::default().fingerprint(keys))
    };
    let line = [("idempotency-key", KEY)];
    let plain = node(Vec::new());
    assert_eq!(send(&plain, "/charges", &line, "a").await.status, 200);
    for keys in
        [vec![key("f1", 1)], vec![key("f2", 2), key("f1", 1)], vec![key("f3", 3), key("f2", 2)]]
    {
        let router = node(keys);
        assert!(send(&router, "/charges", &line, "a").await.is_replay());
        assert_eq!(send(&router, "/charges", &line, "b").await.status, 422);
    }
    // A fingerprint that was sealed cannot be compared under another secret alone. The request is
    // refused and does not run.
    let other = [("idempotency-key", "another-key-1234567890")];
    assert_eq!(send(&node(vec![key("f1", 1)]), "/charges", &other, "a").await.status, 200);
    let rotated = node(vec![key("f2", 2), key("f1", 1)]);
    assert!(send(&rotated, "/charges", &other, "a").await.is_replay());
    assert_eq!(send(&rotated, "/charges", &other, "b").await.status, 422);
    let stranger = node(vec![key("f9", 9)]);
    assert_eq!(send(&stranger, "/charges", &other, "a").await.status, 422);
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn chosen_headers_make_another_request() {
    let api = Api::default();
    let account = http::HeaderName::from_static("x-account");
    let policy = Policy::new().tenant(Tenant::Public).fingerprint_headers([account]);
    let router = api.with(policy);
    let lines = |account: &'static str| [("idempotency-key", KEY), ("x-account", account)];
    assert_eq!(send(&router, "/charges", &lines("a"), "").await.status, 200);
    assert!(send(&router, "/charges", &lines("a"), "").await.is_replay());
    assert_eq!(send(&router, "/charges", &lines("b"), "").await.status, 422);
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn issued_keys_and_no_others() {
    let api = Api::default();
    let store = MemoryStore::new();
    let policy = Policy::new().key_from(KeySource::Issued);
    let secrets = || Secrets::default().issued_keys([IssuingKey::new(&[5; 32])]);
    let router = api.on(&store, policy.clone(), secrets());
    let ask = "{\"method\":\"POST\",\"path\":\"/charges\"}";
    let asked = send(&router, "/idempotency-tokens", &[], ask).await;
    assert_eq!(asked.status, 201);
    assert_eq!(asked.headers["cache-control"], "no-store");
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let (key, at) = (body["key"].as_str().unwrap(), body["expires_at"].as_str().unwrap());
    assert!(at.starts_with("20") && at.ends_with('Z'), "{at}");
    assert!(store.is_empty(), "nothing is stored until it is used");
    let line = [("idempotency-key", key)];
    let first = send(&router, "/charges", &line, "a").await;
    assert_eq!((first.status, first.is_replay()), (200, false));
    assert!(send(&router, "/charges", &line, "a").await.is_replay());
    assert_eq!(send(&router, "/charges", &line, "b").await.status, 422);
    // A key for another route, a key of another tenant, a key that was not issued here, and no key.
    let elsewhere = send(&router, "/slow", &line, "a").await;
    assert_eq!((elsewhere.status, elsewhere.code().as_str()), (400, "idempotency_key_invalid"));
    let bob = Request::post("/charges").header("authorization", "Bearer bob");
    let bob = bob.header("idempotency-key", key).body(Body::from("a")).unwrap();
    assert_eq!(router.clone().oneshot(bob).await.unwrap().status(), 400);
    assert_eq!(send(&router, "/charges", &[("idempotency-key", KEY)], "a").await.status, 400);
    assert_eq!(send(&router, "/charges", &[], "a").await.code(), "idempotency_key_missing");
    let foreign = Secrets::default().issued_keys([IssuingKey::new(&[6; 32])]);
    let stranger = api.on(&store, policy, foreign);
    assert_eq!(send(&stranger, "/charges", &line, "a").await.status, 400);
    assert_eq!((api.runs(), store.len()), (1, 1));
    // A request for a key that cannot be issued gets an explanation.
    for (body, status) in [("{}", 400), ("{\"method\":\"GET\",\"path\":\"/charges\"}", 400)] {
        assert_eq!(send(&router, "/idempotency-tokens", &[], body).await.status, status);
    }
    // If the layer issues no keys, the path belongs to the service.
    let plain = api.with(Policy::new());
    assert_eq!(send(&plain, "/idempotency-tokens", &[], ask).await.status, 404);
}

#[tokio::test]
async fn an_issued_key_that_expires_still_replays_and_never_runs() {
    let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
    let api = Api::default();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let engine = Engine::with(
        Arc::new(store.clone()),
        Arc::new(clock.clone()),
        Arc::new(SystemRng),
        Limits::default(),
    );
    let policy = Arc::new(Policy::new().key_from(KeySource::Issued));
    let policies = move |_: &http::request::Parts| Some(Arc::clone(&policy));
    let secrets = Secrets::default().issued_keys([IssuingKey::new(&[5; 32])]);
    let layer = OnetakeLayer::builder(engine).resolve(policies).secrets(secrets).build().unwrap();
    let router = Router::new().route("/charges", post(echo)).with_state(api.clone()).layer(layer);
    let mut keys = Vec::new();
    for _ in 0..2 {
        let ask = "{\"method\":\"POST\",\"path\":\"/charges\"}";
        let asked = send(&router, "/idempotency-tokens", &[], ask).await;
        let body: Value = serde_json::from_str(&asked.body).unwrap();
        keys.push(body["key"].as_str().unwrap().to_owned());
    }
    let used = [("idempotency-key", keys[0].as_str())];
    let unused = [("idempotency-key", keys[1].as_str())];
    assert_eq!(send(&router, "/charges", &used, "a").await.status, 200);
    clock.advance(Duration::from_secs(3601));
    assert!(send(&router, "/charges", &used, "a").await.is_replay());
    let late = send(&router, "/charges", &unused, "a").await;
    assert_eq!((late.status, late.code().as_str()), (400, "idempotency_key_invalid"));
    // The record has expired too, so the key is not valid any more.
    clock.advance(Duration::from_secs(86_400));
    assert_eq!(send(&router, "/charges", &used, "a").await.status, 400);
    assert_eq!(api.runs(), 1);
}
