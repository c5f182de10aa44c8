//! A gateway in front of a gRPC service, and the cases that hold on every store.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::grpc::client::{GrpcCall, GrpcClient};
use onetake_sim::grpc::framed;
use onetake_sim::grpc::service::GrpcService;

use super::InProcess;

/// The path of the service's methods.
pub(crate) const PATH: &str = "/billing.v1.Payments";

/// A gateway in front of a gRPC service, and a client.
pub(crate) struct GrpcWorld {
    pub(crate) gateway: InProcess,
    pub(crate) service: GrpcService,
    pub(crate) client: GrpcClient,
}

const ROUTES: &str = r#"
[[route]]
match = "grpc billing.v1.Payments/Hold"
in_flight = "wait"
wait_timeout = "60s"

[[route]]
match = "grpc billing.v1.Payments/Required"
key = { required = true }

[[route]]
match = "grpc signup.v1.Users/*"
preset = "signup"

[[route]]
match = "grpc chosen.v1.Payments/*"
record = ["INTERNAL"]
release = ["NOT_FOUND"]
mark_unknown = ["OK"]

[[route]]
match = "grpc small.v1.Payments/*"
max_request_body = "1KiB"
max_response_body = "1KiB"

[[route]]
match = "grpc numbered.v1.Payments/*"
key = { from = "grpc", field_number = 5 }
tenant = "credential"

[[route]]
match = "grpc retry.v1.Payments/*"
on_unknown = "retry"

[[route]]
match = "grpc limited.v1.Payments/*"
tenant = "credential"
key = { required = true }
velocity = [{ by = ["tenant"], limit = "2/h" }]
"#;

impl GrpcWorld {
    /// Starts a gateway on a store, with more routes.
    pub(crate) async fn start(store: &str, routes: &str) -> Self {
        let service = GrpcService::start().await.unwrap();
        Self::in_front_of(service.clone(), &service.url(), store, routes).await
    }

    /// Starts a gateway for a service at a URL.
    pub(crate) async fn in_front_of(
        service: GrpcService,
        upstream: &str,
        store: &str,
        routes: &str,
    ) -> Self {
        let configuration = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n{ROUTES}{routes}"
        );
        let gateway = InProcess::start(configuration).await;
        let client = GrpcClient::connect(gateway.address()).await.unwrap();
        Self { gateway, service, client }
    }

    /// A call of a method of `billing.v1.Payments`.
    pub(crate) fn call(&self, method: &str) -> GrpcCall {
        self.client.call(&format!("{PATH}/{method}"))
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = SystemClock.monotonic() + Duration::from_secs(60);
    while !holds() {
        assert!(SystemClock.monotonic() < end, "{what}");
        SystemClock.sleep(Duration::from_millis(5)).await;
    }
}

/// The cases that every store passes.
pub(crate) async fn cases(store: &str) {
    let world = GrpcWorld::start(store, "").await;
    many_at_once_are_one_run(&world).await;
    a_replay_is_the_same_to_the_byte(&world).await;
    another_payload_is_refused(&world).await;
    another_tenant_is_another_operation(&world).await;
    an_unknown_outcome_is_not_run_again(&world).await;
}

async fn many_at_once_are_one_run(world: &GrpcWorld) {
    let key = "grpc-many-at-once-0001";
    let calls = (0..1000).map(|_| world.call("Hold").key(key).send());
    let (replies, ()) = tokio::join!(join_all(calls), async {
        until("it runs", || world.service.runs(key) == 1).await;
        world.service.open(key);
    });
    for reply in replies {
        let reply = reply.unwrap();
        assert_eq!((reply.code(), reply.messages()), (Some(0), vec![Bytes::from("1:10")]));
    }
    assert_eq!(world.service.runs(key), 1);
}

async fn a_replay_is_the_same_to_the_byte(world: &GrpcWorld) {
    for (method, status, key) in [
        ("Charge", "0", "grpc-replay-of-a-charge"),
        ("LateStatus", "9", "grpc-replay-of-a-late-error"),
        ("Status", "5", "grpc-replay-of-trailers-only"),
    ] {
        let call = || world.call(method).key(key).with("x-status", status);
        let first = call().send().await.unwrap();
        let again = call().send().await.unwrap();
        assert_eq!(first.code().map(|code| code.to_string()).as_deref(), Some(status), "{method}");
        assert!(!first.is_replay() && again.is_replay(), "{method}");
        assert_eq!(world.service.runs(key), 1, "{method}");
        assert_eq!((&again.body, &again.trailers), (&first.body, &first.trailers), "{method}");
        assert_eq!(again.field("grpc-status-details-bin"), "CAUSBGFzaw", "{method}");
        assert_eq!(again.field("x-cost"), "7", "{method}");
        let kept = |reply: &onetake_sim::grpc::client::GrpcReply| {
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

async fn another_payload_is_refused(world: &GrpcWorld) {
    let key = "grpc-with-another-payload";
    assert_eq!(world.call("Charge").key(key).send().await.unwrap().code(), Some(0));
    let other = world.call("Charge").key(key).message(b"20").send().await.unwrap();
    assert_eq!((other.status, other.code()), (200, Some(9)));
    assert!(other.tells("idempotency_payload_mismatch"), "{other:?}");
    assert!(other.body.is_empty() && other.trailers.is_empty(), "trailers only");
    assert_eq!(world.service.runs(key), 1);
}

async fn another_tenant_is_another_operation(world: &GrpcWorld) {
    let key = "grpc-of-another-tenant";
    let first = world.call("Charge").key(key).send().await.unwrap();
    let other = world.call("Charge").key(key).with("authorization", "Bearer bob");
    let other = other.send().await.unwrap();
    assert_eq!((first.messages(), other.messages()), (vec!["1:10".into()], vec!["2:10".into()]));
}

async fn an_unknown_outcome_is_not_run_again(world: &GrpcWorld) {
    for (method, key) in
        [("NoStatus", "grpc-without-a-status"), ("Break", "grpc-that-is-broken-off")]
    {
        let call = || world.call(method).key(key).body(framed(b"10"));
        let first = call().send().await.unwrap();
        assert_eq!(first.code(), Some(14), "{method}");
        assert!(first.tells("upstream_interrupted"), "{method}: {first:?}");
        let again = call().send().await.unwrap();
        assert_eq!(again.code(), Some(13), "{method}");
        assert!(again.tells("previous_attempt_failed"), "{method}: {again:?}");
        assert_eq!(world.service.runs(key), 1, "{method}");
    }
}
