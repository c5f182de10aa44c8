//! Options of a route for keys, refusals and answers.

use futures_util::future::join_all;
use onetake_core::{Clock, DerivedKey, SystemClock};
use serde_json::Value;
use std::time::Duration;

use super::World;
use crate::client::ClientResponse;

fn json(answer: &ClientResponse) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

pub(super) async fn a_member_of_the_body_names_the_operation(world: &World) {
    let case = "key-in-the-body";
    let call = |reference: &str, amount: u32| {
        let body = format!("{{\"transfer\":{{\"ref\":\"{reference}\",\"amount\":{amount}}}}}");
        world.client.post("/json-key/charge").header("x-case", case).body(body).send()
    };
    let first = call("A-1", 10).await.unwrap();
    assert_eq!((first.status(), first.is_replay()), (201, false));
    let again = call("A-1", 10).await.unwrap();
    assert!(again.is_replay() && again.body == first.body);
    assert_eq!(call("A-1", 11).await.unwrap().code(), "idempotency_payload_mismatch");
    assert!(!call("A-2", 10).await.unwrap().is_replay());
    assert_eq!(world.upstream.runs(case), 2);
    let without = world.client.post("/json-key/charge").header("x-case", case).body("{}");
    assert_eq!(without.send().await.unwrap().code(), "idempotency_key_missing");
    assert_eq!(world.upstream.runs(case), 2);
}

pub(super) async fn parts_of_the_body_name_the_operation(world: &World) {
    let case = "key-from-parts";
    let call = |order: &str| {
        let body = format!("{{\"merchant\":\"m\",\"order\":{order}}}");
        world.client.post("/derived/charge").header("x-case", case).body(body).send()
    };
    let answers = join_all((0..20).map(|_| call("7"))).await;
    for answer in answers {
        assert!([201, 409].contains(&answer.unwrap().status()));
    }
    assert!(call("7").await.unwrap().is_replay());
    assert!(!call("8").await.unwrap().is_replay());
    assert_eq!(world.upstream.runs(case), 2);
}

pub(super) async fn only_issued_keys_where_a_route_says_so(world: &World) {
    let case = "issued-keys";
    let ask = world.client.post("/idempotency-tokens");
    let ask = ask.body("{\"method\":\"POST\",\"path\":\"/issued/charge\"}");
    let issued = ask.send().await.unwrap();
    assert_eq!(issued.status(), 201, "{}", issued.text());
    let key = json(&issued)["key"].as_str().unwrap().to_owned();
    let call = |path: &str, key: &str| {
        let call = world.client.post(path).header("idempotency-key", key);
        call.header("x-case", case).send()
    };
    assert_eq!(call("/issued/charge", &key).await.unwrap().status(), 201);
    assert!(call("/issued/charge", &key).await.unwrap().is_replay());
    let tampered = format!("{key}A");
    for (path, key) in [
        ("/issued/charge", "made-up-by-a-client-01"),
        ("/issued/charge", tampered.as_str()),
        ("/issued/slow", key.as_str()),
    ] {
        assert_eq!(call(path, key).await.unwrap().code(), "idempotency_key_invalid", "{path}");
    }
    let bob = world.client.post("/issued/charge").without("authorization");
    let bob = bob.header("authorization", "Bearer bob").header("idempotency-key", &key);
    assert_eq!(bob.header("x-case", case).send().await.unwrap().status(), 400);
    assert_eq!(world.upstream.runs(case), 1);
}

pub(super) async fn a_long_operation_is_answered_later(world: &World) {
    let key = "answered-later-000001";
    let call = || world.client.post("/async/gate").key(key).send();
    let (first, retry) = tokio::join!(call(), async {
        world.upstream.ran(key, 1).await;
        call().await
    });
    let (first, retry) = (first.unwrap(), retry.unwrap());
    assert_eq!((first.status(), retry.status()), (202, 202), "{}", first.text());
    let handle = first.header("location").to_owned();
    assert_eq!(retry.header("location"), handle);
    let look = |handle: &str, who: &str| {
        let call = world.client.post(handle).method("GET").without("authorization");
        call.header("authorization", who).body("").send()
    };
    let running = look(&handle, "Bearer alice").await.unwrap();
    assert_eq!((running.status(), json(&running)["status"].as_str()), (200, Some("running")));
    for (handle, who) in
        [(handle.as_str(), "Bearer bob"), ("/.onetake/operations/AAAA", "Bearer alice")]
    {
        assert_eq!(look(handle, who).await.unwrap().code(), "operation_not_found");
    }
    world.upstream.open(key);
    loop {
        let answer = look(&handle, "Bearer alice").await.unwrap();
        if answer.is_replay() {
            assert_eq!(answer.status(), 201);
            break;
        }
        assert_eq!(answer.status(), 200, "{}", answer.text());
        SystemClock.sleep(Duration::from_millis(20)).await;
    }
    assert!(call().await.unwrap().is_replay());
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn a_deadline_that_is_over_runs_nothing(world: &World) {
    let key = "deadline-is-over-0001";
    let call = || world.client.post("/any/charge").key(key);
    for (name, value) in [
        ("x-request-deadline", "2001-01-01T00:00:00Z"),
        ("x-request-timeout-ms", "0"),
        ("grpc-timeout", "0S"),
    ] {
        let answer = call().header(name, value).send().await.unwrap();
        assert_eq!((answer.status(), answer.code().as_str()), (504, "deadline_exceeded"), "{name}");
    }
    let bad = call().header("grpc-timeout", "later").send().await.unwrap();
    assert_eq!((bad.status(), bad.code().as_str()), (400, "deadline_invalid"));
    assert_eq!(world.upstream.runs(key), 0);
    assert_eq!(call().header("x-request-timeout-ms", "9000").send().await.unwrap().status(), 201);
}

pub(super) async fn a_deadline_ends_the_wait_for_the_upstream(world: &World) {
    let key = "deadline-in-between-1";
    let call = || world.client.post("/any/gate").key(key);
    // Long enough to reach the upstream, even on a slow machine.
    let from = SystemClock.monotonic();
    let cut = call().header("x-request-timeout-ms", "5000").send().await.unwrap();
    assert_eq!((cut.status(), cut.code().as_str()), (504, "upstream_timeout"));
    // The route's own timeout is thirty seconds.
    assert!(SystemClock.monotonic() - from < Duration::from_secs(25));
    assert_eq!(call().send().await.unwrap().code(), "previous_attempt_failed");
    world.upstream.ran(key, 1).await;
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn too_many_new_operations_are_refused_and_known_ones_are_not(world: &World) {
    let case = "velocity";
    let call = |key: String, card: &str| {
        let call = world.client.post("/velocity/charge").header("idempotency-key", &key);
        call.header("x-case", case).body(format!("{{\"card\":\"{card}\"}}")).send()
    };
    let key = |n: usize| format!("velocity-key-0000{n}");
    // Three in an hour. If a shared counter does not answer in time, the node counts by itself, and
    // then allows three of its own.
    let mut allowed = 0;
    let refused = loop {
        let answer = call(key(allowed), "4242").await.unwrap();
        if answer.status() != 201 {
            break answer;
        }
        allowed += 1;
        assert!(allowed <= 6, "nothing is refused");
    };
    assert!(allowed >= 3, "{allowed} were allowed");
    assert_eq!((refused.status(), refused.code().as_str()), (429, "velocity_limit_exceeded"));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() > 60);
    assert!(refused.header("ratelimit").contains("r=0"), "{:?}", refused.headers);
    assert!(call(key(0), "4242").await.unwrap().is_replay(), "a known key is not limited");
    assert_eq!(call(key(9), "5555").await.unwrap().status(), 201, "nor is another card");
    assert_eq!(world.upstream.runs(case), allowed + 1);
}

pub(super) async fn errors_in_the_words_of_stripe(world: &World) {
    let key = "words-of-stripe-00001";
    let call = |body: &'static str| world.client.post("/stripe/charge").key(key).body(body).send();
    assert_eq!(call("amount=1").await.unwrap().status(), 201);
    let other = call("amount=2").await.unwrap();
    assert_eq!(other.status(), 400);
    assert_eq!(json(&other)["error"]["type"], "idempotency_error");
    assert_eq!(other.header("stripe-should-retry"), "false");
    assert!(call("amount=1").await.unwrap().is_replay());
    assert_eq!(world.upstream.runs(key), 1);
    // A request without an outcome gets an error in the same format: Stripe's SDK for Node takes
    // every response without `error` for a success.
    let lost = world.client.post("/stripe/close").key("words-of-stripe-00002").send();
    let lost = lost.await.unwrap();
    assert_eq!(lost.status(), 502, "{}", lost.text());
    assert_eq!(json(&lost)["error"]["code"], "upstream_interrupted");
}

pub(super) async fn statuses_and_headers_that_a_route_chose(world: &World) {
    let key = "chosen-statuses-00001";
    let call = |account: &'static str| {
        world.client.post("/chosen/charge").key(key).header("x-shop", account).send()
    };
    assert_eq!(call("a").await.unwrap().status(), 201);
    let other = call("b").await.unwrap();
    assert_eq!((other.status(), other.code().as_str()), (409, "idempotency_payload_mismatch"));
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn the_upstream_gets_the_same_derived_key_in_every_attempt(world: &World) {
    let call = |key: &'static str, who: &'static str| async move {
        let call = world.client.post("/any/derived").without("authorization").key(key);
        let call = call.header("authorization", who).header("idempotency-derived-key", "forged");
        call.send().await.unwrap().text()
    };
    let key = "derived-key-000000001";
    let first = call(key, "Bearer alice").await;
    assert!(first.parse::<DerivedKey>().is_ok(), "{first}");
    assert_eq!(call(key, "Bearer alice").await, first);
    assert_eq!(world.upstream.runs(key), 2, "the first attempt was released");
    assert_ne!(call(key, "Bearer bob").await, first);
    assert_ne!(call("derived-key-000000002", "Bearer alice").await, first);
    let unkeyed = world.client.post("/any/derived").header("idempotency-derived-key", "forged");
    assert_eq!(unkeyed.send().await.unwrap().text(), "");
}
