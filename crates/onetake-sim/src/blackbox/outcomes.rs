//! Outcomes of attempts, and the answers to their retries.

use super::{World, pause};
use crate::client::ClientResponse;
use crate::upstream::Upstream;

async fn twice(world: &World, path: &str, key: &str) -> (ClientResponse, ClientResponse) {
    let first = world.client.post(path).key(key).send().await.unwrap();
    let retry = world.client.post(path).key(key).send().await.unwrap();
    (first, retry)
}

fn is_not_run_again(retry: &ClientResponse) {
    assert_eq!((retry.status(), retry.code().as_str()), (500, "previous_attempt_failed"));
}

pub(super) async fn a_replay_is_the_same_to_the_byte(world: &World) {
    let (first, retry) = twice(world, "/any/charge", "same-to-the-byte-001").await;
    assert_eq!((first.status(), &first.body), (retry.status(), &retry.body));
    assert_eq!(first.header("location"), "/charges/1");
    let mut of_the_first = first.headers.clone();
    let mut of_the_retry = retry.headers.clone();
    let links: Vec<_> = of_the_retry.get_all("link").iter().collect();
    assert_eq!(links, ["<a>", "<b>"], "repeated lines stay repeated");
    assert_eq!(first.header("set-cookie"), "session=secret", "the first client's own");
    assert!(!first.headers.contains_key("x-hop"), "a hop-by-hop header");
    let cookie = retry.header("set-cookie");
    assert_eq!(cookie, "", "the first client's cookie, given to another");
    of_the_first.remove("set-cookie");
    for headers in [&mut of_the_first, &mut of_the_retry] {
        headers.remove("date");
    }
    for name in ["x-idempotency-replayed", "idempotent-replayed", "x-cache-lookup"] {
        assert!(of_the_retry.remove(name).is_some(), "{name}");
    }
    if world.can.adds_content_type {
        assert_eq!(of_the_retry.remove("content-type").unwrap(), "text/plain");
    }
    assert_eq!(of_the_first, of_the_retry, "all other headers are the same");
}

pub(super) async fn a_client_that_goes_away_loses_nothing(world: &World) {
    let key = "client-goes-away-001";
    let call = || world.client.post("/wait/gate").key(key).send();
    let first = tokio::spawn(call());
    world.upstream.ran(key, 1).await;
    first.abort();
    assert!(first.await.is_err());
    let retry = tokio::spawn(call());
    // Time for the gateway to notice that the first client is gone, and for the second one to wait.
    pause(300).await;
    world.upstream.open(key);
    let retry = retry.await.unwrap().unwrap();
    assert_eq!(retry.status(), 201);
    assert!(retry.is_replay() || retry.text().starts_with("charged"), "the recorded outcome");
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn an_operation_may_outlast_its_lease(world: &World) {
    let key = "outlasts-its-lease-1";
    let call = || world.client.post("/short-lease/gate").key(key).send();
    let first = tokio::spawn(call());
    world.upstream.ran(key, 1).await;
    // Longer than lease and grace, two seconds each.
    for _ in 0..11 {
        pause(500).await;
        let other = call().await.unwrap();
        assert_eq!((other.status(), other.code().as_str()), (409, "request_in_progress"));
    }
    world.upstream.open(key);
    assert_eq!(first.await.unwrap().unwrap().status(), 201, "not preempted");
    assert!(call().await.unwrap().is_replay());
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn an_upstream_that_refuses_lets_the_retry_run(world: &World) {
    let key = "upstream-refuses-001";
    let call = || world.client.post("/dead/charge").key(key).send();
    for _ in 0..2 {
        let refused = call().await.unwrap();
        assert_eq!((refused.status(), refused.code().as_str()), (502, "upstream_unreachable"));
    }
    let alive = Upstream::start_on(world.dead, None).await.unwrap();
    let retry = call().await.unwrap();
    assert!(retry.status() == 201 && !retry.is_replay());
    assert!(call().await.unwrap().is_replay());
    assert_eq!(alive.runs(key), 1);
}

pub(super) async fn an_upstream_that_closes_makes_it_unknown(world: &World) {
    let key = "upstream-closes-0001";
    let (first, retry) = twice(world, "/any/close", key).await;
    assert_eq!((first.status(), first.code().as_str()), (502, "upstream_interrupted"));
    is_not_run_again(&retry);
    assert!(retry.text().contains("closed the connection without a response"), "{}", retry.text());
    assert!(!retry.text().contains("on_unknown"), "no configuration: {}", retry.text());
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn an_answer_that_breaks_off_makes_it_unknown(world: &World) {
    let key = "answer-breaks-off-01";
    let (first, retry) = twice(world, "/any/broken", key).await;
    assert_eq!((first.status(), first.code().as_str()), (502, "upstream_interrupted"));
    is_not_run_again(&retry);
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn a_500_is_unknown_and_not_run_again(world: &World) {
    let key = "answers-500-00000001";
    let (first, retry) = twice(world, "/any/500", key).await;
    assert_eq!((first.status(), first.text().as_str()), (500, "10"), "the upstream's own answer");
    is_not_run_again(&retry);
    assert!(retry.text().contains("the upstream answered 500"), "{}", retry.text());
    assert!(!retry.text().contains("release ="), "no configuration: {}", retry.text());
    let other = world.client.post("/any/500").key(key).body("99").send().await.unwrap();
    assert_eq!(other.status(), 422);
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn a_released_500_runs_again(world: &World) {
    let key = "released-500-0000001";
    let (first, retry) = twice(world, "/release-5xx/500", key).await;
    assert_eq!((first.status(), retry.status()), (500, 500));
    assert_eq!(world.upstream.runs(key), 2);
    let other = world.client.post("/release-5xx/500").key(key).body("99").send().await.unwrap();
    assert_eq!(other.status(), 422, "another body is still refused");
    assert_eq!(world.upstream.runs(key), 2);
}

pub(super) async fn an_unknown_may_be_retried(world: &World) {
    let key = "unknown-retried-0001";
    twice(world, "/retry-unknown/close", key).await;
    assert_eq!(world.upstream.runs(key), 2);
}

pub(super) async fn presets_decide_over_503(world: &World) {
    for (path, key, runs) in [
        ("/any/503", "preset-503-any-00001", 2),
        ("/payment/503", "preset-503-payment-1", 1),
        ("/signup/500", "preset-500-signup-01", 2),
        ("/signup/503", "preset-503-signup-01", 2),
        ("/payment/409", "preset-409-payment-1", 2),
        ("/payment/400", "preset-400-payment-1", 1),
    ] {
        twice(world, path, key).await;
        assert_eq!(world.upstream.runs(key), runs, "{path}");
    }
}

pub(super) async fn a_timeout_is_unknown(world: &World) {
    let key = "upstream-timeout-001";
    let (first, retry) = twice(world, "/impatient-upstream/gate", key).await;
    assert_eq!((first.status(), first.code().as_str()), (504, "upstream_timeout"));
    is_not_run_again(&retry);
    assert!(retry.text().contains("exceeded its time limit"), "{}", retry.text());
    world.upstream.ran(key, 1).await;
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn running_is_not_run_again_past_its_ttl(world: &World) {
    let key = "older-than-its-ttl-1";
    let call = || world.client.post("/short-ttl/gate").key(key).send();
    let first = tokio::spawn(call());
    world.upstream.ran(key, 1).await;
    pause(4_300).await;
    assert_eq!(call().await.unwrap().status(), 409, "the ttl is four seconds, and it still runs");
    world.upstream.open(key);
    assert_eq!(first.await.unwrap().unwrap().status(), 201);
    assert!(call().await.unwrap().is_replay());
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn a_key_is_reusable_after_it_expired_with_a_higher_fence(world: &World) {
    let key = "reusable-0000000001";
    let fence = |answer: &ClientResponse| -> u64 {
        answer.text().rsplit(' ').next().unwrap().parse().expect("the upstream was told a fence")
    };
    let first = world.client.post("/short-ttl/charge").key(key).send().await.unwrap();
    assert!(world.client.post("/short-ttl/charge").key(key).send().await.unwrap().is_replay());
    pause(4_300).await;
    let second = world.client.post("/short-ttl/charge").key(key).body("99").send().await.unwrap();
    if !world.can.expiry_margin.is_zero() {
        assert_eq!(second.status(), 422, "respected for longer: {}", second.text());
        assert_eq!(world.upstream.runs(key), 1);
        return;
    }
    assert!(second.status() == 201 && !second.is_replay(), "expired: it names a new operation");
    assert!(fence(&second) > fence(&first));
    assert_eq!(world.upstream.runs(key), 2);
}

pub(super) async fn a_large_response_is_passed_whole_and_not_run_again(world: &World) {
    // The route's cap, unless the store keeps less.
    let (cap, kept) = (1 << 20, world.can.body_bytes_max.min(1 << 20));
    let larger = if kept < cap { cap } else { cap + 1 };
    for (route, key, bytes) in [
        ("any", "large-response-00001", larger),
        ("any", "large-response-00002", 8_000_000),
        ("small", "large-response-00003", 1_025),
    ] {
        let path = &format!("/{route}/large?bytes={bytes}");
        let (first, retry) = twice(world, path, key).await;
        assert_eq!((first.status(), first.body.len()), (200, bytes), "{path}");
        assert_eq!((retry.status(), retry.code().as_str()), (410, "response_not_replayable"));
        assert!(retry.text().contains(r#""recorded_status":200"#), "{}", retry.text());
        assert_eq!(world.upstream.runs(key), 1);
    }
    let path = &format!("/any/large?bytes={kept}");
    let (_, retry) = twice(world, path, "large-response-00004").await;
    assert_eq!((retry.status(), retry.body.len()), (200, kept), "the cap itself is kept");
}

pub(super) async fn an_event_stream_is_passed_on(world: &World) {
    let key = "event-stream-0000001";
    let (first, retry) = twice(world, "/any/events", key).await;
    assert_eq!(first.text(), "data: 1\n\n");
    assert_eq!(retry.status(), 410);
    assert_eq!(world.upstream.runs(key), 1);
}
