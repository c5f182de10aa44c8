//! Bad input: each gets a clear problem, and nothing is forwarded.

use super::World;

pub(super) async fn bad_keys_are_refused(world: &World) {
    let before = world.upstream.runs_in_all();
    let long = "x".repeat(256);
    let bad = ["", "fifteen-letters", &long, "schlüssel-0123456789", "\"unterminated-0123456"];
    for key in bad {
        let call = world.client.post("/any/charge").header("idempotency-key", key);
        let refused = call.send().await.unwrap();
        assert_eq!((refused.status(), refused.code().as_str()), (400, "idempotency_key_invalid"));
        assert_eq!(refused.header("content-type"), "application/problem+json");
        assert!(refused.header("link").contains("describedby"));
    }
    let twice = world.client.post("/any/charge").header("idempotency-key", "sent-twice-00000001");
    let twice = twice.header("idempotency-key", "sent-twice-00000002").send().await.unwrap();
    assert_eq!((twice.status(), twice.code().as_str()), (400, "idempotency_key_invalid"));
    let missing = world.client.post("/payment/charge").send().await.unwrap();
    assert_eq!((missing.status(), missing.code().as_str()), (400, "idempotency_key_missing"));
    assert_eq!(world.upstream.runs_in_all(), before, "nothing reached the upstream");
}

pub(super) async fn a_body_over_the_cap_is_refused(world: &World) {
    let key = "request-over-cap-001";
    let call = |bytes| world.client.post("/small/charge").key(key).body(vec![b'x'; bytes]).send();
    let refused = call(1_025).await.unwrap();
    assert_eq!((refused.status(), refused.code().as_str()), (413, "request_body_too_large"));
    assert_eq!(world.upstream.runs(key), 0);
    let fits = call(1_024).await.unwrap();
    assert!(fits.status() == 201, "nothing was claimed: the key is free for another body");
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn bad_json_is_refused(world: &World) {
    let key = "bad-json-00000000001";
    let call = |body: &str| world.client.post("/json/charge").key(key).body(body.to_owned()).send();
    for body in ["{", "{\"a\":1,\"a\":2}", "nothing", "{\"a\":1}x", &"[".repeat(100_000)] {
        let refused = call(body).await.unwrap();
        assert_eq!((refused.status(), refused.code().as_str()), (400, "request_body_invalid"));
    }
    let fine = call("{\"a\":1}").await.unwrap();
    assert!(fine.status() == 201 && !fine.is_replay(), "nothing was claimed before");
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn json_is_compared_by_value(world: &World) {
    let call = |path: &str, key: &str, body: &str| {
        world.client.post(path).key(key).body(body.to_owned()).send()
    };
    let key = "json-by-value-000001";
    call("/json/charge", key, r#"{"amount": 9007199254740993, "sent_at": "a"}"#).await.unwrap();
    let same = call("/json/charge", key, r#"{"sent_at":"b","amount":9007199254740993.0}"#).await;
    assert!(same.unwrap().is_replay());
    let other = call("/json/charge", key, r#"{"sent_at":"b","amount":9007199254740992}"#).await;
    assert_eq!(other.unwrap().status(), 422);
    let key = "json-included-000001";
    call("/included/charge", key, r#"{"amount": 10, "note": "a"}"#).await.unwrap();
    assert!(
        call("/included/charge", key, r#"{"amount": 10, "note": "b"}"#).await.unwrap().is_replay()
    );
    assert_eq!(call("/included/charge", key, r#"{"amount": 11}"#).await.unwrap().status(), 422);
}

pub(super) async fn unstable_and_missing_tenants_are_refused(world: &World) {
    let key = "unstable-tenant-0001";
    let call = || world.client.post("/payment/charge").key(key).without("authorization");
    let sigv4 = call().header("authorization", "AWS4-HMAC-SHA256 Credential=x, Signature=y");
    let refused = sigv4.send().await.unwrap();
    assert_eq!((refused.status(), refused.code().as_str()), (400, "tenant_unstable"));
    let refused = call().send().await.unwrap();
    assert_eq!((refused.status(), refused.code().as_str()), (401, "tenant_unresolved"));
    assert_eq!(world.upstream.runs(key), 0);
}
