//! gRPC calls through Envoy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use onetake_cli::gateway::Gateway;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::{Clock, Store, SystemClock};
use onetake_sim::grpc::cases::{self, BrokenResponse, Calls, PATH, until};
use onetake_sim::grpc::client::{GrpcCall, GrpcClient, GrpcReply};
use onetake_sim::grpc::framed;
use onetake_sim::grpc::service::GrpcService;
use onetake_sim::servers::ProxyServer;
use tokio::sync::mpsc;

use super::faults::Held;
use super::{envoy, processor, with};
use crate::common::grpc_world::ROUTES;
use crate::common::migrated_postgres;

/// A route whose calls can have a key in their message.
const OPTIONAL: &str = r#"
[[route]]
match = "grpc optional.v1.Payments/*"
key = { from = "grpc", field_number = 5, required = false }
tenant = "credential"
"#;

struct World {
    envoy: ProxyServer,
    _processor: Gateway,
    calls: Calls,
}

impl World {
    async fn start(store: &str) -> Self {
        Self::start_with(store, |store| store, |file| file).await
    }

    async fn start_with(
        store: &str,
        decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let service = GrpcService::start().await.unwrap();
        let routes = format!("{}{ROUTES}{OPTIONAL}", cases::ROUTES);
        let processor = processor(&routes, store, decorate).await;
        let envoy = envoy(service.address(), processor.address(), change).await;
        let client = GrpcClient::connect(envoy.address()).await.unwrap();
        Self { envoy, _processor: processor, calls: Calls { client, service } }
    }

    fn call(&self, method: &str) -> GrpcCall {
        self.calls.call(method)
    }

    fn runs(&self, case: &str) -> usize {
        self.calls.service.runs(case)
    }
}

/// Asserts that a reply is an error of onetake.
fn told(reply: &GrpcReply, code: u8, problem: &str) {
    assert_eq!((reply.status, reply.code()), (200, Some(code)), "{reply:?}");
    assert!(reply.tells(problem) && reply.tells("google.rpc.ErrorInfo"), "{reply:?}");
    assert!(reply.tells("urn:onetake:re") && reply.tells("retryable"), "{reply:?}");
    assert!(!reply.field("grpc-message").is_empty(), "{reply:?}");
    assert!(reply.body.is_empty() && reply.trailers.is_empty(), "trailers only: {reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(&format!("embedded:{}", folder.path().display())).await;
    cases::run(&world.calls, BrokenResponse::OfTheProxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    let world = World::start(&migrated_postgres().await).await;
    cases::run(&world.calls, BrokenResponse::OfTheProxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_gets_the_call_as_it_was_sent() {
    let world = World::start("memory:").await;
    let key = "grpc-as-it-was-sent-01";
    let message: Vec<u8> = (0..500_000_u32).map(|nth| (nth % 251) as u8).collect();
    let call = world.call("Charge").key(key).message(&message).with("x-kept", "yes");
    let call = call.with("idempotency-fence", "9").with("idempotency-derived-key", "forged");
    let reply = call.send().await.unwrap();
    assert_eq!(reply.code(), Some(0), "{:?} {}", reply.headers, world.envoy.log());
    assert_eq!(reply.messages(), [Bytes::from([b"1:", &message[..]].concat())]);
    assert_eq!(reply.field("x-cost"), "7");
    assert!(!reply.field("idempotency-reference").is_empty());
    let seen = world.calls.service.headers(key);
    assert_eq!(
        (&seen["x-kept"], &seen["te"]),
        (&"yes".parse().unwrap(), &"trailers".parse().unwrap())
    );
    assert!(seen.contains_key("idempotency-fence") && seen["idempotency-fence"] != "9");
    assert_ne!(seen["idempotency-derived-key"], "forged");
    assert!(!seen.contains_key("x-envoy-max-retries"));
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_are_grpc_errors() {
    let world = World::start("memory:").await;
    let missing = world.call("Required").with("x-case", "none").send().await.unwrap();
    told(&missing, 3, "idempotency_key_missing");
    let short = world.call("Charge").with("idempotency-key", "short").send().await.unwrap();
    told(&short, 3, "idempotency_key_invalid");
    let large = world.calls.client.call("/small.v1.Payments/Charge").key("grpc-too-large-000001");
    told(&large.message(&[1; 2000]).send().await.unwrap(), 8, "request_body_too_large");
    // Larger than every buffer on the way: the rest of it is never read.
    let large = world.call("Charge").key("grpc-too-large-000002").message(&vec![1; 8 << 20]);
    if let Ok(reply) = large.send().await {
        told(&reply, 8, "request_body_too_large");
    }
    assert_eq!(world.calls.service.runs_in_all(), 0, "nothing ran");
    let key = "grpc-in-progress-0001";
    let hold = || world.calls.client.call("/other.v1.Payments/Hold").key(key).send();
    let (first, ()) = tokio::join!(hold(), async {
        until("it runs", || world.runs(key) == 1).await;
        let second = hold().await.unwrap();
        told(&second, 10, "request_in_progress");
        assert!(second.tells("google.rpc.RetryInfo"), "{second:?}");
        world.calls.service.open(key);
    });
    assert_eq!(first.unwrap().code(), Some(0));
}

/// A call whose message has to be read, and turns out to have no key, goes on as it was.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_in_a_field_of_the_message() {
    let world = World::start("memory:").await;
    let call = |message: &[u8], case: &str| {
        let call = world.calls.client.call("/numbered.v1.Payments/Charge").with("x-case", case);
        call.message(message).send()
    };
    let keyed = b"\x08\x01\x2a\x09request-1";
    let (first, again) = (call(keyed, "by-number").await.unwrap(), call(keyed, "by-number").await);
    let again = again.unwrap();
    assert_eq!((first.code(), again.code(), again.is_replay()), (Some(0), Some(0), true));
    assert_eq!((again.body, world.runs("by-number")), (first.body, 1));
    told(&call(b"\x08\x01", "missing").await.unwrap(), 3, "idempotency_key_missing");
    assert_eq!(world.runs("missing"), 0);
    let optional = || {
        let call = world.calls.client.call("/optional.v1.Payments/Charge");
        call.with("x-case", "optional").message(b"\x08\x01").send()
    };
    for run in [&b"1:\x08\x01"[..], b"2:\x08\x01"] {
        let reply = optional().await.unwrap();
        assert_eq!((reply.code(), reply.messages()), (Some(0), vec![Bytes::from(run)]));
        assert_eq!(reply.field("x-cost"), "7", "{reply:?}");
    }
}

/// A body of messages that a test sends one by one.
fn channel() -> (mpsc::Sender<Bytes>, onetake_sim::grpc::client::CallBody) {
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let frames = stream::unfold(receiver, |mut receiver| async {
        let message = receiver.recv().await?;
        Some((Ok::<_, io::Error>(Frame::data(message)), receiver))
    });
    (sender, BodyExt::boxed(StreamBody::new(frames)))
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_without_a_key_pass() {
    let world = World::start("memory:").await;
    let source = world.call("Source").with("x-count", "50").with("x-size", "3");
    assert_eq!(source.send().await.unwrap().messages().len(), 50);
    let sink = world.call("Sink").body([framed(b"a"), framed(b"b")].concat().into());
    assert_eq!(sink.send().await.unwrap().messages(), [Bytes::from("2")]);
    let (sender, body) = channel();
    let path = format!("{PATH}/Echo");
    let starting = world.calls.client.start(&path, &[("x-case", "talk")], body);
    sender.send(framed(b"0")).await.unwrap();
    let mut response = starting.await.unwrap();
    for nth in 1..100_u8 {
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), framed((nth - 1).to_string().as_bytes()));
        sender.send(framed(nth.to_string().as_bytes())).await.unwrap();
    }
    drop(sender);
    let rest = response.into_body().collect().await.unwrap();
    assert_eq!(rest.trailers().unwrap()["grpc-status"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_response_is_passed_whole_and_not_run_again() {
    let world = World::start("memory:").await;
    let key = "grpc-with-a-large-response";
    let call = || {
        let call = world.calls.client.call("/small.v1.Payments/Source");
        call.key(key).with("x-count", "1000").with("x-size", "10000").send()
    };
    let first = call().await.unwrap();
    assert_eq!((first.code(), first.messages().len()), (Some(0), 1000), "{:?}", first.headers);
    assert_eq!(first.field("x-cost"), "7");
    told(&call().await.unwrap(), 9, "response_not_replayable");
    assert_eq!(world.runs(key), 1);
}

/// S6: Envoy shows nothing of a response before its outcome is durable.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_response_is_shown_before_it_is_durable() {
    let mut held = None;
    let decorate = |inner| -> Arc<dyn Store> {
        let store = Held::around(inner);
        held = Some(Arc::clone(&store));
        store
    };
    let world = World::start_with("memory:", decorate, |file| file).await;
    let held = held.unwrap();
    for (nth, method) in ["Charge", "Status", "LateStatus"].iter().enumerate() {
        let key = format!("grpc-when-durable-{nth:04}");
        let call = world.call(method).key(&key).with("x-status", "5");
        let mut call = tokio::spawn(call.send());
        until("the settlement arrives", || held.arrived.load(Ordering::SeqCst) > nth).await;
        let is_early = tokio::select! {
            _ = &mut call => true,
            () = SystemClock.sleep(Duration::from_millis(300)) => false,
        };
        assert!(!is_early, "{method}");
        held.open.add_permits(1);
        assert!(call.await.unwrap().unwrap().code().is_some());
        held.open.forget_permits(1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_is_a_grpc_error() {
    let mut faulty = None;
    let decorate = |inner| -> Arc<dyn Store> {
        let store = Faulty::around(inner);
        faulty = Some(Arc::clone(&store));
        store
    };
    let world = World::start_with("memory:", decorate, |file| file).await;
    let faulty = faulty.unwrap();
    // The outcome cannot be saved. Envoy has the head of the response, and sends an error instead.
    let key = "grpc-not-saved-000001";
    faulty.fail_settlements(StoreFault::Unavailable);
    let pending = world.call("Charge").key(key).with("x-request-timeout-ms", "2000");
    told(&pending.send().await.unwrap(), 14, "outcome_pending");
    faulty.fail_settlements(StoreFault::None);
    let mut again = world.call("Charge").key(key).send().await.unwrap();
    while !again.is_replay() {
        SystemClock.sleep(Duration::from_millis(50)).await;
        again = world.call("Charge").key(key).send().await.unwrap();
    }
    assert_eq!((again.messages(), world.runs(key)), (vec!["1:10".into()], 1));
    faulty.fail_claims(StoreFault::Unavailable);
    let key = "grpc-not-claimed-0001";
    let refused = world.call("Charge").key(key).send().await.unwrap();
    told(&refused, 14, "idempotency_store_unavailable");
    let unkeyed = world.call("Charge").with("x-case", "unkeyed").send().await.unwrap();
    assert_eq!((unkeyed.code(), world.runs(key)), (Some(0), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_makes_the_outcome_unknown() {
    let world = World::start("memory:").await;
    let key = "grpc-client-leaves-001";
    let call = || world.calls.client.call("/other.v1.Payments/Hold").key(key).send();
    let first = tokio::spawn(call());
    until("it runs", || world.runs(key) == 1).await;
    first.abort();
    assert!(first.await.is_err());
    let mut again = call().await.unwrap();
    while again.code() == Some(10) {
        SystemClock.sleep(Duration::from_millis(20)).await;
        again = call().await.unwrap();
    }
    told(&again, 13, "previous_attempt_failed");
    assert_eq!(world.runs(key), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoys_own_answers_are_understood() {
    let retries = "timeout: 1s\n                  retry_policy: { retry_on: \"unavailable,reset,5xx\", num_retries: 3 }";
    let change = |file: String| with(&file, "timeout: 35s", retries);
    let world = World::start_with("memory:", |store| store, change).await;
    let key = "grpc-timeout-of-envoy1";
    let call = || world.calls.client.call("/other.v1.Payments/Hold").key(key).send();
    told(&call().await.unwrap(), 4, "upstream_timeout");
    told(&call().await.unwrap(), 13, "previous_attempt_failed");
    assert_eq!(world.runs(key), 1);
    // Envoy does not retry an attempt.
    let key = "grpc-retries-of-envoy1";
    let reply = world.call("Status").key(key).with("x-status", "14").send().await.unwrap();
    assert_eq!((reply.code(), world.runs(key)), (Some(14), 1));
    let unkeyed = world.call("Status").with("x-case", "unkeyed").with("x-status", "14");
    assert_eq!((unkeyed.send().await.unwrap().code(), world.runs("unkeyed")), (Some(14), 4));
}

/// `message_timeout` does not count for a call that waits: see docs/ENVOY.md.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_longer_than_the_message_timeout() {
    let change = |file: String| with(&file, "message_timeout: 40s", "message_timeout: 0.5s");
    let world = World::start_with("memory:", |store| store, change).await;
    let key = "grpc-that-waits-000001";
    let first = tokio::spawn(world.call("Hold").key(key).send());
    until("it runs", || world.runs(key) == 1).await;
    let second = tokio::spawn(world.call("Hold").key(key).send());
    SystemClock.sleep(Duration::from_millis(1500)).await;
    world.calls.service.open(key);
    for call in [first, second] {
        let reply = call.await.unwrap().unwrap();
        assert_eq!(reply.code(), Some(0), "{reply:?}");
    }
    assert_eq!(world.runs(key), 1);
}

/// Without the modes that calls need, calls with a key are refused before anything runs, and others
/// pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_without_the_modes_for_calls_gets_nothing_through() {
    let for_calls = "processing_mode: { request_body_mode: NONE, response_body_mode: NONE }";
    let as_others = "grpc_initial_metadata: []";
    for (right, wrong, code) in
        [(for_calls, as_others, 13), ("allow_mode_override: true", "allow_mode_override: false", 2)]
    {
        let change = |file: String| with(&file, right, wrong);
        let world = World::start_with("memory:", |store| store, change).await;
        let key = "grpc-without-its-modes";
        let refused = world.call("Charge").key(key).send().await.unwrap();
        assert_eq!((refused.code(), world.runs(key)), (Some(code), 0), "{refused:?}");
        assert_eq!(refused.tells("misconfigured"), code == 13, "{refused:?}");
        let unkeyed = world.call("Charge").with("x-case", "unkeyed").send().await.unwrap();
        assert_eq!((unkeyed.code(), world.runs("unkeyed")), (Some(0), 1), "{unkeyed:?}");
    }
}
