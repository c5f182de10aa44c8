//! Outcomes of keyed calls, by their code.

use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::grpc::cases::until;
use onetake_sim::grpc::client::GrpcClient;
use onetake_sim::grpc::framed;
use onetake_sim::grpc::service::GrpcService;
use std::time::Duration;

use super::{GrpcWorld, PATH};
use crate::common::grpc_world::cases;
use crate::common::process::Process;

#[tokio::test(flavor = "multi_thread")]
async fn on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    cases(&format!("embedded:{}", folder.path().join("data").display())).await;
}

/// The effect of a retry after each code.
#[derive(Debug, PartialEq)]
enum Retry {
    Replays,
    Runs,
    IsRefused,
}

async fn retry_after(client: &GrpcClient, service: &str, method: &str, code: u8) -> Retry {
    let key = format!("{service}-{method}-with-code-{code}");
    let call = || {
        let call = client.call(&format!("/{service}/{method}"));
        call.key(&key).with("x-status", &code.to_string()).send()
    };
    let first = call().await.unwrap();
    assert_eq!(first.code(), Some(code), "{service}/{method}");
    let again = call().await.unwrap();
    match again.code() {
        Some(13) if again.tells("previous_attempt_failed") => Retry::IsRefused,
        Some(same) if same == code && again.is_replay() => Retry::Replays,
        Some(same) if same == code => Retry::Runs,
        other => panic!("{other:?}: {again:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_code_decides_whether_a_retry_runs() {
    let world = GrpcWorld::start("memory:", "").await;
    let expected = |code: u8| match code {
        0 | 3 | 5 | 6 | 7 | 9 | 11 | 12 => Retry::Replays,
        8 | 14 | 16 => Retry::Runs,
        _ => Retry::IsRefused,
    };
    for code in 0..=16 {
        for method in ["Status", "LateStatus"] {
            let retry = retry_after(&world.client, "billing.v1.Payments", method, code).await;
            assert_eq!(retry, expected(code), "{method} {code}");
        }
    }
    // A preset and the lists of a route change that.
    for (service, code, expected) in [
        ("signup.v1.Users", 13, Retry::Runs),
        ("signup.v1.Users", 10, Retry::IsRefused),
        ("signup.v1.Users", 5, Retry::Replays),
        ("chosen.v1.Payments", 13, Retry::Replays),
        ("chosen.v1.Payments", 5, Retry::Runs),
        ("chosen.v1.Payments", 0, Retry::IsRefused),
        ("chosen.v1.Payments", 14, Retry::Runs),
        ("retry.v1.Payments", 13, Retry::Runs),
    ] {
        let retry = retry_after(&world.client, service, "LateStatus", code).await;
        assert_eq!(retry, expected, "{service} {code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_refuses_lets_the_retry_run() {
    let service = GrpcService::start().await.unwrap();
    let address = service.address();
    drop(service);
    let dead = GrpcService::start().await.unwrap();
    let world = GrpcWorld::in_front_of(dead, &format!("h2c://{address}"), "memory:", "").await;
    let key = "grpc-to-a-dead-upstream";
    let first = world.call("Charge").key(key).send().await.unwrap();
    assert_eq!(first.code(), Some(14));
    assert!(first.tells("upstream_unreachable"), "{first:?}");
    // Up to two seconds are added at random, so that clients do not all come back at once.
    let wait: u64 = first.field("retry-after").parse().unwrap();
    assert!((1..=3).contains(&wait), "{first:?}");
    assert_eq!(first.field("grpc-retry-pushback-ms"), (1000 * wait).to_string());
    let service = GrpcService::start_on(address).await.unwrap();
    let again = world.call("Charge").key(key).send().await.unwrap();
    assert_eq!((again.code(), service.runs(key)), (Some(0), 1), "{again:?}");
}

/// gRPC servers in C++, Python and other languages refuse calls without it.
#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_gets_te_trailers() {
    let world = GrpcWorld::start("memory:", "").await;
    let keyed = world.call("Charge").key("grpc-with-te-trailers").send().await.unwrap();
    let other = world.client.call("/other.v1.Other/Charge").with("x-case", "no key");
    let other = other.send().await.unwrap();
    assert_eq!((keyed.code(), other.code()), (Some(0), Some(0)), "{keyed:?} {other:?}");
    for case in ["grpc-with-te-trailers", "no key"] {
        let headers = world.service.headers(case);
        assert_eq!(headers.get("te").unwrap(), "trailers", "{case}");
        assert!(!headers.contains_key("connection"), "{case}");
    }
}

/// The upstream speaks HTTP/2, and its URL says otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn http1_to_a_grpc_service_leaves_no_unknown_outcome() {
    let service = GrpcService::start().await.unwrap();
    let wrong = service.url().replace("h2c", "http");
    let world = GrpcWorld::in_front_of(service, &wrong, "memory:", "").await;
    let key = "http1-on-a-grpc-upstream";
    let http1 = Client::new(world.gateway.address());
    for _ in 0..2 {
        let told = http1.post(&format!("{PATH}/Charge")).key(key).send().await.unwrap();
        assert_eq!((told.status(), told.code().as_str()), (502, "upstream_unreachable"));
        let told = world.call("Charge").key(key).send().await.unwrap();
        assert!(told.tells("upstream_unreachable") || told.tells("payload_mismatch"), "{told:?}");
    }
    assert_eq!(world.service.runs_in_all(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_are_grpc_errors() {
    let world = GrpcWorld::start("memory:", "").await;
    let told = |reply: onetake_sim::grpc::client::GrpcReply, code: u8, problem: &str| {
        assert_eq!((reply.status, reply.code()), (200, Some(code)), "{reply:?}");
        assert!(reply.tells(problem) && reply.tells("google.rpc.ErrorInfo"), "{reply:?}");
        assert!(reply.tells("urn:onetake:re") && reply.tells("retryable"), "{reply:?}");
        assert!(!reply.field("grpc-message").is_empty());
    };
    let missing = world.call("Required").with("x-case", "none").send().await.unwrap();
    told(missing, 3, "idempotency_key_missing");
    let short = world.call("Charge").with("idempotency-key", "short").send().await.unwrap();
    told(short, 3, "idempotency_key_invalid");
    let late = world.call("Charge").key("grpc-that-is-late-01").with("grpc-timeout", "0n");
    told(late.send().await.unwrap(), 4, "deadline_exceeded");
    let unreadable = world.call("Charge").key("grpc-that-is-late-02").with("grpc-timeout", "soon");
    told(unreadable.send().await.unwrap(), 3, "deadline_invalid");
    let unstable = world.call("Charge").key("grpc-with-a-digest-01");
    let unstable = unstable.with("authorization", "Digest a=b").send().await.unwrap();
    told(unstable, 3, "tenant_unstable");
    let large = world.client.call("/small.v1.Payments/Charge").key("grpc-that-is-too-large");
    told(large.message(&[1; 2000]).send().await.unwrap(), 8, "request_body_too_large");
    let encoded = world.client.call("/billing.v1.Payments/a%2fb").send().await.unwrap();
    told(encoded, 3, "request_refused");
    assert_eq!(world.service.runs_in_all(), 0, "nothing ran");
    for nth in 0..3 {
        let call = world.client.call("/limited.v1.Payments/Charge");
        let reply = call.key(&format!("grpc-velocity-number-{nth}")).send().await.unwrap();
        match nth {
            0 | 1 => assert_eq!(reply.code(), Some(0)),
            _ => told(reply, 8, "velocity_limit_exceeded"),
        }
    }
    // An attempt that runs: ABORTED, with the time to wait.
    let key = "grpc-in-progress-0001";
    let hold = || world.client.call("/other.v1.Payments/Hold").key(key).send();
    let (first, ()) = tokio::join!(hold(), async {
        until("it runs", || world.service.runs(key) == 1).await;
        let second = hold().await.unwrap();
        assert!(second.tells("google.rpc.RetryInfo"), "{second:?}");
        told(second, 10, "request_in_progress");
        world.service.open(key);
    });
    assert_eq!(first.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_call_ends_it() {
    let world = GrpcWorld::start("memory:", "").await;
    let key = "grpc-with-a-deadline-1";
    let began = SystemClock.monotonic();
    let call = || world.call("Hang").key(key).with("grpc-timeout", "500m").send();
    let first = call().await.unwrap();
    assert_eq!(first.code(), Some(4), "{first:?}");
    assert!(SystemClock.monotonic() - began < Duration::from_secs(20));
    let passed = world.service.headers(key);
    let passed = passed["grpc-timeout"].to_str().unwrap().trim_end_matches('m').to_owned();
    assert!((1..=500).contains(&passed.parse::<u32>().unwrap()), "{passed}");
    let again = call().await.unwrap();
    assert_eq!((again.code(), world.service.runs(key)), (Some(13), 1), "{again:?}");
    // A call without a key has its deadline too, and is cancelled at the upstream.
    let unkeyed = world.call("Hang").with("grpc-timeout", "500m").send().await.unwrap();
    assert_eq!(unkeyed.code(), Some(4), "{unkeyed:?}");
    until("both were cancelled", || world.service.cancelled() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_response_is_passed_whole_and_not_run_again() {
    let world = GrpcWorld::start("memory:", "").await;
    let key = "grpc-with-a-large-response";
    let call = || {
        let call = world.client.call("/small.v1.Payments/Source");
        call.key(key).with("x-count", "100").with("x-size", "100").send()
    };
    let first = call().await.unwrap();
    assert_eq!((first.code(), first.messages().len()), (Some(0), 100));
    let again = call().await.unwrap();
    assert_eq!(again.code(), Some(9));
    assert!(again.tells("response_not_replayable"), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_in_a_field_of_the_message() {
    let world = GrpcWorld::start("memory:", "").await;
    let call = |id: &str, case: &str| {
        let mut message = b"\x08\x01\x2a".to_vec();
        message.push(id.len() as u8);
        message.extend_from_slice(id.as_bytes());
        let call = world.client.call("/numbered.v1.Payments/Charge").with("x-case", case);
        call.body(framed(&message)).send()
    };
    let first = call("request-1", "by-number").await.unwrap();
    let again = call("request-1", "by-number").await.unwrap();
    assert_eq!((first.code(), again.code()), (Some(0), Some(0)));
    assert!(again.is_replay());
    assert_eq!((again.body, world.service.runs("by-number")), (first.body, 1));
    call("request-2", "by-number").await.unwrap();
    assert_eq!(world.service.runs("by-number"), 2);
    let missing = call("", "missing").await.unwrap();
    assert_eq!(missing.code(), Some(3));
    assert!(missing.tells("idempotency_key_missing"), "{missing:?}");
    assert_eq!(world.service.runs("missing"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_killed_does_not_run_a_call_again() {
    let service = GrpcService::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Process::start(folder.path(), "", &service.url()).await;
    let key = "grpc-and-a-killed-gateway";
    let client = GrpcClient::connect(gateway.address).await.unwrap();
    let call = client.call(&format!("{PATH}/Hold")).key(key);
    let (lost, ()) = tokio::join!(call.send(), async {
        until("it runs", || service.runs(key) == 1).await;
        gateway.kill().await;
    });
    assert!(lost.is_err() || lost.is_ok_and(|reply| reply.is_broken));
    let gateway = Process::start(folder.path(), "", &service.url()).await;
    let client = GrpcClient::connect(gateway.address).await.unwrap();
    let again = client.call(&format!("{PATH}/Hold")).key(key).send().await.unwrap();
    assert_eq!(again.code(), Some(13), "{again:?}");
    assert!(again.tells("previous_attempt_failed"));
    assert_eq!(service.runs(key), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_answers_probes_of_grpc() {
    let world = GrpcWorld::start("memory:", "").await;
    let client = GrpcClient::connect(world.gateway.admin()).await.unwrap();
    let ask = |method: &str, message: &[u8]| {
        client.call(&format!("/grpc.health.v1.Health/{method}")).message(message).send()
    };
    let healthy = ask("Check", b"").await.unwrap();
    assert_eq!((healthy.code(), &*healthy.messages()[0]), (Some(0), &b"\x08\x01"[..]));
    let unknown = ask("Check", b"\x0a\x01a").await.unwrap();
    assert_eq!(unknown.code(), Some(5), "a service that the gateway does not know");
    let body = onetake_sim::grpc::framed(b"");
    let body = http_body_util::BodyExt::boxed(http_body_util::BodyExt::map_err(
        http_body_util::Full::new(body),
        |never| match never {},
    ));
    let mut watching =
        client.start("/grpc.health.v1.Health/Watch", &[], body).await.unwrap().into_body();
    let first = http_body_util::BodyExt::frame(&mut watching).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), onetake_sim::grpc::framed(b"\x08\x01"));
}
