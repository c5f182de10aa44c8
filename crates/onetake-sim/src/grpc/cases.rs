//! Cases of keyed gRPC calls. They hold on every store, and behind everything that calls pass.
#![expect(clippy::unwrap_used, reason = "a case says what is wrong by panicking")]

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};

use super::client::{GrpcCall, GrpcClient, GrpcReply};
use super::framed;
use super::service::GrpcService;

/// The path of the service's methods.
pub const PATH: &str = "/billing.v1.Payments";

/// The routes that the cases need.
pub const ROUTES: &str = r#"
[[route]]
match = "grpc billing.v1.Payments/Hold"
in_flight = "wait"
wait_timeout = "60s"
"#;

/// A client, and the service behind everything that is tested.
#[derive(Clone, Debug)]
pub struct Calls {
    /// The client.
    pub client: GrpcClient,
    /// The service.
    pub service: GrpcService,
}

/// The answer to the client if the response of a service breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenResponse {
    /// An error of onetake.
    Error,
    /// Whatever the proxy around onetake makes of it.
    OfTheProxy,
}

impl Calls {
    /// Returns a call of a method of `billing.v1.Payments`.
    #[must_use]
    pub fn call(&self, method: &str) -> GrpcCall {
        self.client.call(&format!("{PATH}/{method}"))
    }
}

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold within a minute.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = SystemClock.monotonic() + Duration::from_secs(60);
    while !holds() {
        assert!(SystemClock.monotonic() < end, "{what}");
        SystemClock.sleep(Duration::from_millis(5)).await;
    }
}

/// Runs all cases.
///
/// # Panics
/// If one does not hold.
pub async fn run(calls: &Calls, broken: BrokenResponse) {
    many_at_once_are_one_run(calls).await;
    a_replay_is_the_same_to_the_byte(calls).await;
    several_messages_are_one_outcome(calls).await;
    another_payload_is_refused(calls).await;
    another_tenant_is_another_operation(calls).await;
    an_unavailable_service_is_called_again(calls).await;
    an_unknown_outcome_is_not_run_again(calls, broken).await;
    what_is_not_one_message_is_refused(calls).await;
}

async fn many_at_once_are_one_run(calls: &Calls) {
    let key = "grpc-many-at-once-0001";
    let sent = (0..1000).map(|_| calls.call("Hold").key(key).send());
    let (replies, ()) = tokio::join!(join_all(sent), async {
        until("it runs", || calls.service.runs(key) == 1).await;
        calls.service.open(key);
    });
    for reply in replies {
        let reply = reply.unwrap();
        assert_eq!((reply.code(), reply.messages()), (Some(0), vec![Bytes::from("1:10")]));
    }
    assert_eq!(calls.service.runs(key), 1);
}

async fn a_replay_is_the_same_to_the_byte(calls: &Calls) {
    for (method, status, key) in [
        ("Charge", "0", "grpc-replay-of-a-charge"),
        ("LateStatus", "9", "grpc-replay-of-a-late-error"),
        ("Status", "5", "grpc-replay-of-trailers-only"),
    ] {
        let call = || calls.call(method).key(key).with("x-status", status);
        let first = call().send().await.unwrap();
        let again = call().send().await.unwrap();
        assert_eq!(first.code().map(|code| code.to_string()).as_deref(), Some(status), "{first:?}");
        assert!(!first.is_replay() && again.is_replay(), "{method}: {again:?}");
        assert_eq!(calls.service.runs(key), 1, "{method}");
        assert_eq!((&again.body, &again.trailers), (&first.body, &first.trailers), "{method}");
        assert_eq!(again.field("grpc-status-details-bin"), "CAUSBGFzaw", "{method}");
        assert_eq!(again.field("x-cost"), "7", "{method}");
        let kept = |reply: &GrpcReply| {
            let mut headers = reply.headers.clone();
            for added in ["date", "idempotent-replayed", "x-idempotency-replayed", "x-cache-lookup"]
            {
                headers.remove(added);
            }
            headers
        };
        assert_eq!(kept(&again), kept(&first), "{method}");
    }
}

async fn several_messages_are_one_outcome(calls: &Calls) {
    let key = "grpc-with-several-messages";
    let call = || {
        let call = calls.call("Source").key(key);
        call.with("x-count", "20").with("x-size", "10000").send()
    };
    let (first, again) = (call().await.unwrap(), call().await.unwrap());
    assert_eq!((first.code(), first.messages().len()), (Some(0), 20));
    assert!(again.is_replay(), "{:?}", again.headers);
    assert_eq!((first.body, first.trailers), (again.body, again.trailers));
    assert_eq!(calls.service.runs(key), 1);
}

async fn another_payload_is_refused(calls: &Calls) {
    let key = "grpc-with-another-payload";
    assert_eq!(calls.call("Charge").key(key).send().await.unwrap().code(), Some(0));
    let other = calls.call("Charge").key(key).message(b"20").send().await.unwrap();
    assert_eq!((other.status, other.code()), (200, Some(9)));
    assert!(other.tells("idempotency_payload_mismatch"), "{other:?}");
    assert!(other.body.is_empty() && other.trailers.is_empty(), "trailers only");
    assert_eq!(calls.service.runs(key), 1);
}

async fn another_tenant_is_another_operation(calls: &Calls) {
    let key = "grpc-of-another-tenant";
    let first = calls.call("Charge").key(key).send().await.unwrap();
    let other = calls.call("Charge").key(key).with("authorization", "Bearer bob");
    let other = other.send().await.unwrap();
    assert_eq!((first.messages(), other.messages()), (vec!["1:10".into()], vec!["2:10".into()]));
}

async fn an_unavailable_service_is_called_again(calls: &Calls) {
    for method in ["Status", "LateStatus"] {
        let key = format!("grpc-that-is-unavailable-{method}");
        for runs in 1..=2 {
            let call = calls.call(method).key(&key).with("x-status", "14");
            let reply = call.send().await.unwrap();
            assert_eq!((reply.code(), reply.is_replay()), (Some(14), false), "{method}");
            assert_eq!(calls.service.runs(&key), runs, "{method}");
        }
    }
}

async fn an_unknown_outcome_is_not_run_again(calls: &Calls, broken: BrokenResponse) {
    for (method, key) in [
        ("NoStatus", "grpc-without-a-status"),
        ("Break", "grpc-that-is-broken-off"),
        ("LateStatus", "grpc-with-an-internal-error"),
    ] {
        let call = || calls.call(method).key(key).with("x-status", "13");
        let first = call().send().await;
        match (method, broken) {
            ("Break", BrokenResponse::OfTheProxy) => {
                assert!(first.is_err() || first.is_ok_and(|reply| reply.code() != Some(0)));
            }
            ("LateStatus", _) => assert_eq!(first.unwrap().code(), Some(13)),
            _ => {
                let first = first.unwrap();
                assert_eq!(first.code(), Some(14), "{method}: {first:?}");
                assert!(first.tells("upstream_interrupted"), "{method}: {first:?}");
            }
        }
        let mut again = call().send().await.unwrap();
        // The attempt may still be on its way to its end.
        while again.code() == Some(10) {
            SystemClock.sleep(Duration::from_millis(20)).await;
            again = call().send().await.unwrap();
        }
        assert_eq!(again.code(), Some(13), "{method}: {again:?}");
        assert!(again.tells("previous_attempt_failed"), "{method}: {again:?}");
        assert_eq!(calls.service.runs(key), 1, "{method}");
    }
}

async fn what_is_not_one_message_is_refused(calls: &Calls) {
    let key = "grpc-that-is-malformed";
    for (why, body) in [
        ("no message", Bytes::new()),
        ("half a prefix", Bytes::from_static(b"\0\0\0")),
        ("shorter than it says", Bytes::from_static(b"\0\0\0\0\x09ab")),
        ("four gigabytes", Bytes::from_static(b"\0\xff\xff\xff\xffab")),
        ("longer than it says", Bytes::from_static(b"\0\0\0\0\x01ab")),
        ("two messages", [framed(b"a"), framed(b"b")].concat().into()),
        ("a flag that is not defined", super::framed_as(2, b"10")),
        ("compressed, and nobody says how", super::framed_as(1, b"10")),
    ] {
        let reply = calls.call("Charge").key(key).body(body).send().await.unwrap();
        assert_eq!(reply.code(), Some(3), "{why}: {reply:?}");
        assert!(reply.tells("request_body_invalid"), "{why}: {reply:?}");
    }
    assert_eq!(calls.service.runs(key), 0);
    // Nothing was claimed: the key runs with another message.
    let reply = calls.call("Charge").key(key).send().await.unwrap();
    assert_eq!((reply.code(), calls.service.runs(key)), (Some(0), 1));
}
