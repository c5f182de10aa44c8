//! Clients, upstreams and stores that fail in the middle of an operation, and Envoy's own retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::store::{Answers, Settled, Settlement};
use onetake_core::{Clock, Store, SystemClock, delegate_store};
use onetake_sim::servers::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::{World, with};

const NO_ROUTES: &str = "";

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_makes_the_outcome_unknown() {
    let world = World::start(NO_ROUTES).await;
    let key = "client-leaves-0000001";
    let call = || world.client.post("/any/gate").key(key).send();
    let first = tokio::spawn(call());
    world.upstream.ran(key, 1).await;
    first.abort();
    assert!(first.await.is_err());
    // Envoy breaks off the stream, and the attempt ends.
    until("the outcome is unknown", async || {
        let code = call().await.unwrap().code();
        assert!(["request_in_progress", "previous_attempt_failed"].contains(&code.as_str()));
        code == "previous_attempt_failed"
    })
    .await;
    let retry = call().await.unwrap().text();
    assert!(retry.contains("ended the request early"), "{retry}");
    assert_eq!(world.upstream.runs(key), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_makes_the_outcome_unknown() {
    let world = World::start(NO_ROUTES).await;
    let key = "answer-breaks-off-001";
    let call = || world.client.post("/any/broken").key(key).send();
    let first = call().await;
    assert!(first.as_ref().map_or(true, |answer| answer.status() >= 500), "{first:?}");
    assert_eq!(call().await.unwrap().code(), "previous_attempt_failed");
    assert_eq!(world.upstream.runs(key), 1);
}

/// A store that holds settlements back until a test lets them through.
#[derive(Debug)]
pub(super) struct Held {
    inner: Arc<dyn Store>,
    pub(super) arrived: AtomicUsize,
    pub(super) open: Semaphore,
}

impl Held {
    pub(super) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, arrived: AtomicUsize::new(0), open: Semaphore::new(0) })
    }
}

impl Store for Held {
    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            self.arrived.fetch_add(1, Ordering::SeqCst);
            let _open = self.open.acquire().await.unwrap();
            self.inner.settle(batch).await
        }
        .boxed()
    }

    delegate_store!(self => self.inner; name, claim, load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Held, self => self.inner);

/// S6: Envoy holds the response, head and body, until its outcome is durable.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_response_is_shown_before_it_is_durable() {
    let mut held = None;
    let decorate = |inner| -> Arc<dyn Store> {
        let store = Held::around(inner);
        held = Some(Arc::clone(&store));
        store
    };
    let world = World::start_with(NO_ROUTES, "memory:", decorate, |file| file).await;
    let held = held.unwrap();
    // A small response, one that is larger than the route's cap, and one without an end.
    for (nth, path) in ["/any/charge", "/any/large?bytes=8000000", "/any/events"].iter().enumerate()
    {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer a\r\n\
             Idempotency-Key: shown-when-durable-{nth}\r\nContent-Length: 2\r\n\r\n10"
        );
        let mut client = TcpStream::connect(world.envoy.address()).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        until("the settlement arrives", async || held.arrived.load(Ordering::SeqCst) > nth).await;
        // The upstream has answered. The head of the response would arrive in this time.
        let is_early = tokio::select! {
            _ = client.readable() => true,
            () = SystemClock.sleep(Duration::from_millis(500)) => false,
        };
        assert!(!is_early, "{path}: the first byte came before the outcome was durable");
        held.open.add_permits(1);
        let mut answer = Vec::new();
        let _closed = client.read_to_end(&mut answer).await;
        let head = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
        assert!(["HTTP/1.1 200", "HTTP/1.1 201"].contains(&head.as_str()), "{path}: {head}");
        held.open.forget_permits(1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_while_the_store_is_unreachable() {
    let mut faulty = None;
    let decorate = |inner| -> Arc<dyn Store> {
        let store = Faulty::around(inner);
        faulty = Some(Arc::clone(&store));
        store
    };
    let world = World::start_with(NO_ROUTES, "memory:", decorate, |file| file).await;
    let faulty = faulty.unwrap();
    let key = "store-unreachable-001";
    let call = || world.client.post("/any/charge").key(key).send();
    faulty.fail_claims(StoreFault::Unavailable);
    let refused = call().await.unwrap();
    assert_eq!((refused.status(), refused.code().as_str()), (503, "idempotency_store_unavailable"));
    assert_eq!(world.upstream.runs(key), 0);
    let unkeyed = world.client.post("/any/charge").header("x-case", "unkeyed").send().await;
    assert_eq!(unkeyed.unwrap().status(), 201);
    faulty.fail_claims(StoreFault::None);
    until("the store is used again", async || call().await.unwrap().status() == 201).await;
    assert_eq!(world.upstream.runs(key), 1);
}

/// The outcome cannot be saved. Envoy has the whole response, and shows a problem instead of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_not_durable_is_replaced() {
    let mut faulty = None;
    let decorate = |inner| -> Arc<dyn Store> {
        let store = Faulty::around(inner);
        faulty = Some(Arc::clone(&store));
        store
    };
    let world = World::start_with(NO_ROUTES, "memory:", decorate, |file| file).await;
    let faulty = faulty.unwrap();
    let key = "outcome-not-saved-001";
    let call = || world.client.post("/any/charge").key(key);
    faulty.fail_settlements(StoreFault::Unavailable);
    let pending = call().header("x-request-timeout-ms", "2000").send().await.unwrap();
    assert_eq!((pending.status(), pending.code().as_str()), (503, "outcome_pending"));
    assert_eq!(pending.header("location"), "", "nothing of the response is shown");
    faulty.fail_settlements(StoreFault::None);
    until("the outcome is saved", async || call().send().await.unwrap().is_replay()).await;
    assert_eq!(world.upstream.runs(key), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoys_timeout_is_unknown() {
    let change = |file: String| with(&file, "timeout: 35s", "timeout: 1s");
    let world = World::start_with(NO_ROUTES, "memory:", |store| store, change).await;
    let key = "timeout-of-envoy-0001";
    let call = || world.client.post("/any/gate").key(key).send();
    let first = call().await.unwrap();
    assert_eq!((first.status(), first.code().as_str()), (504, "upstream_timeout"));
    assert_eq!(call().await.unwrap().code(), "previous_attempt_failed");
    assert_eq!(world.upstream.runs(key), 1);
}

const RETRIES: &str = "timeout: 35s\n                  retry_policy: { retry_on: \"5xx,reset\", num_retries: 3, per_try_timeout: 1s }\n                  hedge_policy: { hedge_on_per_try_timeout: true }";

/// Envoy's retries and hedges are made behind the filter. The processor forbids them.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_does_not_retry_or_hedge_an_attempt() {
    let change = |file: String| with(&file, "timeout: 35s", RETRIES);
    let world = World::start_with(NO_ROUTES, "memory:", |store| store, change).await;
    for (path, key, status) in [
        ("/any/500", "retries-of-envoy-0001", 500),
        ("/any/close", "retries-of-envoy-0002", 502),
        ("/any/slow?ms=2500", "retries-of-envoy-0003", 504),
    ] {
        let answer = world.client.post(path).key(key).send().await.unwrap();
        assert_eq!(answer.status(), status, "{path}: {}", answer.text());
        assert_eq!(world.upstream.runs(key), 1, "{path}");
    }
    // Requests without a key are retried as before.
    let unkeyed = world.client.post("/any/500").header("x-case", "unkeyed").send().await.unwrap();
    assert_eq!((unkeyed.status(), world.upstream.runs("unkeyed")), (500, 4));
}

/// Without `allow_envoy`, Envoy ignores the headers that forbid retries. They are seen afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn retries_that_could_not_be_forbidden_are_counted() {
    let change = |file: String| {
        let file = with(&file, "mutation_rules: { allow_envoy: true }", "");
        with(&file, "timeout: 35s", RETRIES)
    };
    let world = World::start_with(NO_ROUTES, "memory:", |store| store, change).await;
    let key = "retries-of-envoy-0004";
    let answer = world.client.post("/any/500").key(key).send().await.unwrap();
    assert_eq!((answer.status(), world.upstream.runs(key)), (500, 4), "a warning in docs/ENVOY.md");
    let metrics = world.metrics().await;
    let counted = metrics.lines().find(|line| line.starts_with("onetake_ext_proc_retried_total"));
    assert!(counted.is_some_and(|line| !line.ends_with(" 0")), "{counted:?}");
}

/// A 503 of Envoy and one of the upstream look the same. Without the attributes that tell them
/// apart, neither lets the key run again.
#[tokio::test(flavor = "multi_thread")]
async fn responses_of_unknown_origin_are_not_released() {
    let attributes = "response_attributes: [response.code_details, upstream.request_attempt_count]";
    for (has_attributes, runs) in [(true, 2), (false, 1)] {
        let change = |file: String| match has_attributes {
            true => file,
            false => with(&file, attributes, ""),
        };
        let world = World::start_with(NO_ROUTES, "memory:", |store| store, change).await;
        let key = "origin-of-a-503-00001";
        for _ in 0..2 {
            let answer = world.client.post("/any/503").key(key).send().await.unwrap();
            assert!(answer.status() >= 500);
        }
        assert_eq!(world.upstream.runs(key), runs, "attributes: {has_attributes}");
    }
}

/// A filter that does not hold bodies would let requests run without a claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_does_not_hold_bodies_gets_nothing_through() {
    for mode in ["request_body_mode", "response_body_mode"] {
        let (right, wrong) = (format!("{mode}: BUFFERED_PARTIAL"), format!("{mode}: NONE"));
        let change = |file: String| with(&file, &right, &wrong);
        let world = World::start_with(NO_ROUTES, "memory:", |store| store, change).await;
        let key = "bodies-not-held-00001";
        let refused = world.client.post("/any/charge").key(key).send().await.unwrap();
        assert_eq!((refused.status(), refused.code().as_str()), (500, "misconfigured"));
        assert_eq!(world.upstream.runs(key), 0);
    }
}

/// Without mode overrides everything is slower, and right.
#[tokio::test(flavor = "multi_thread")]
async fn mode_overrides_are_not_needed_to_be_right() {
    let change = |file: String| with(&file, "allow_mode_override: true", "");
    let world = World::start_with(NO_ROUTES, "memory:", |store| store, change).await;
    let key = "without-overrides-001";
    let call = || world.client.post("/any/charge").key(key).send();
    assert_eq!(call().await.unwrap().status(), 201);
    assert!(call().await.unwrap().is_replay());
    let large = vec![b'x'; 3_000_000];
    let echoed = world.client.post("/any/200").body(large.clone()).send().await.unwrap();
    assert!(echoed.body == large);
    assert_eq!(world.upstream.runs(key), 1);
    let key = "without-overrides-002";
    let call = || world.client.post("/any/large?bytes=3000000").key(key).send();
    assert_eq!(call().await.unwrap().body.len(), 3_000_000);
    assert_eq!(call().await.unwrap().code(), "response_not_replayable");
    assert_eq!(world.upstream.runs(key), 1);
}
