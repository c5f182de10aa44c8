//! First runs, retries, refusals and passing requests through Envoy.

use futures_util::future::join_all;

use super::World;

const ROUTES: &str = "[[route]]\nmatch = \"POST /wait/{*rest}\"\nin_flight = \"wait\"\n\
    wait_timeout = \"20s\"\n\
    [[route]]\nmatch = \"POST /payment/{*rest}\"\npreset = \"payment\"\ntenant = \"credential\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gets_the_recorded_response() {
    let world = World::start(ROUTES).await;
    let call = || world.client.post("/any/charge").key("through-envoy-000001").send();
    let (first, retry) = (call().await.unwrap(), call().await.unwrap());
    assert_eq!(first.status(), 201, "{} {}", first.text(), world.envoy.log());
    assert!(!first.is_replay() && retry.is_replay(), "{:?}", retry.headers);
    assert_eq!((first.status(), &first.body), (retry.status(), &retry.body));
    assert_eq!(first.header("location"), retry.header("location"));
    assert_eq!(first.header("idempotency-reference"), retry.header("idempotency-reference"));
    assert!(!first.header("idempotency-reference").is_empty());
    assert!(!first.text().ends_with("fence -"), "the upstream gets a fence: {}", first.text());
    assert_eq!(world.upstream.runs("through-envoy-000001"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_refused_before_anything_runs() {
    let world = World::start(ROUTES).await;
    let key = "refused-by-envoy-0001";
    let call = |body: &str| world.client.post("/any/charge").key(key).body(body.to_owned()).send();
    assert_eq!(call("10").await.unwrap().status(), 201);
    let other = call("99").await.unwrap();
    assert_eq!((other.status(), other.code().as_str()), (422, "idempotency_payload_mismatch"));
    assert_eq!(other.header("content-type"), "application/problem+json");
    let missing = world.client.post("/payment/charge").header("x-case", "missing").send();
    let missing = missing.await.unwrap();
    assert_eq!((missing.status(), missing.code().as_str()), (400, "idempotency_key_missing"));
    assert_eq!((world.upstream.runs(key), world.upstream.runs("missing")), (1, 0));
    let bob = world.client.post("/any/charge").key(key).without("authorization");
    let bob = bob.header("authorization", "Bearer bob").send().await.unwrap();
    assert!(bob.status() == 201 && !bob.is_replay(), "another tenant");
    assert_eq!(world.upstream.runs(key), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_at_once_run_once() {
    let world = World::start(ROUTES).await;
    let key = "hundred-at-once-00001";
    let call = || world.client.post("/wait/gate").key(key).send();
    let (answers, ()) = tokio::join!(join_all((0..100).map(|_| call())), async {
        world.upstream.ran(key, 1).await;
        world.upstream.open(key);
    });
    let first = answers.iter().flatten().next().unwrap().body.clone();
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!((answer.status(), &answer.body), (201, &first), "{}", answer.text());
    }
    assert_eq!(world.upstream.runs(key), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_forge_the_headers_of_an_attempt() {
    let world = World::start(ROUTES).await;
    let forged = [("idempotency-fence", "9"), ("idempotency-derived-key", "forged")];
    for key in [None, Some("forged-headers-000001")] {
        let mut call = world.client.post("/any/head");
        if let Some(key) = key {
            call = call.key(key);
        }
        for (name, value) in forged {
            call = call.header(name, value);
        }
        let seen = call.send().await.unwrap().text();
        assert!(!seen.contains("forged\"") && !seen.contains("\"9\""), "{seen}");
        assert_eq!(seen.contains("idempotency-fence"), key.is_some(), "{seen}");
        assert_eq!(seen.contains("idempotency-derived-key"), key.is_some(), "{seen}");
        assert!(!seen.contains("x-envoy-max-retries"), "{seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_dies_leaves_an_unknown_outcome() {
    let world = World::start(ROUTES).await;
    let key = "upstream-dies-0000001";
    let call = || world.client.post("/any/close").key(key).send();
    let first = call().await.unwrap();
    assert_eq!((first.status(), first.code().as_str()), (502, "upstream_interrupted"));
    assert_eq!(call().await.unwrap().code(), "previous_attempt_failed");
    assert_eq!(world.upstream.runs(key), 1);
}
