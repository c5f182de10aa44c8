//! One key, one operation; and the tenants of keys.

use futures_util::future::join_all;

use super::{World, pause};

pub(super) async fn a_thousand_at_once_wait_for_one_run(world: &World) {
    let key = "a-thousand-wait-0001";
    let call = || world.client.post("/wait/gate").key(key).send();
    let (answers, ()) = tokio::join!(join_all((0..1_000).map(|_| call())), async {
        world.upstream.ran(key, 1).await;
        // Most of them wait by now. The number does not matter for the result.
        pause(300).await;
        world.upstream.open(key);
    });
    let first = answers[0].as_ref().unwrap();
    for answer in &answers {
        let answer = answer.as_ref().unwrap();
        assert_eq!((answer.status(), &answer.body), (201, &first.body), "all get the same bytes");
    }
    assert_eq!(answers.iter().filter(|a| !a.as_ref().unwrap().is_replay()).count(), 1);
    assert_eq!(world.upstream.runs(key), 1, "the upstream saw exactly one");
}

pub(super) async fn a_thousand_at_once_are_told_that_it_runs(world: &World) {
    let key = "a-thousand-reject-01";
    let call = || world.client.post("/any/gate").key(key).send();
    let first = tokio::spawn(call());
    world.upstream.ran(key, 1).await;
    for answer in join_all((0..999).map(|_| call())).await {
        let answer = answer.unwrap();
        assert_eq!((answer.status(), answer.code().as_str()), (409, "request_in_progress"));
        assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
    }
    world.upstream.open(key);
    assert_eq!(first.await.unwrap().unwrap().status(), 201);
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn quoted_and_bare_are_one_operation(world: &World) {
    let key = "quoted-or-bare-00001";
    let bare = world.client.post("/any/charge").key(key).send().await.unwrap();
    let quoted = world.client.post("/any/charge").key(&format!("\"{key}\"")).send().await.unwrap();
    let alias =
        world.client.post("/any/charge").header("x-idempotency-key", key).header("x-case", key);
    let alias = alias.send().await.unwrap();
    assert_eq!((&bare.body, &bare.body), (&quoted.body, &alias.body));
    assert!(quoted.is_replay() && alias.is_replay());
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn another_body_is_refused_in_flight_too(world: &World) {
    let key = "another-body-0000001";
    let first = tokio::spawn(world.client.post("/any/gate").key(key).send());
    world.upstream.ran(key, 1).await;
    for _ in 0..2 {
        let other = world.client.post("/any/gate").key(key).body("99").send().await.unwrap();
        assert_eq!((other.status(), other.code().as_str()), (422, "idempotency_payload_mismatch"));
    }
    world.upstream.open(key);
    assert_eq!(first.await.unwrap().unwrap().status(), 201);
    let other = world.client.post("/any/gate").key(key).body("99").send().await.unwrap();
    assert_eq!(other.status(), 422);
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn another_credential_is_another_operation(world: &World) {
    let key = "another-credential-1";
    let call = |credential: &str| {
        let call = world.client.post("/any/charge").key(key).without("authorization");
        call.header("authorization", credential).body(credential.to_owned()).send()
    };
    let credentials = ["Bearer alice", "Bearer bob", "Basic YWxpY2U6MQ==", "Token alice"];
    for credential in credentials {
        let answer = call(credential).await.unwrap();
        assert!(!answer.is_replay(), "{credential} got somebody else's response");
        assert!(answer.text().contains(credential));
    }
    // The same holds for the same body: nothing of the first tenant is shown.
    let same = |credential: &str| {
        let call = world.client.post("/any/charge").key("another-credential-2");
        call.without("authorization").header("authorization", credential).body("same").send()
    };
    for credential in credentials {
        assert!(!same(credential).await.unwrap().is_replay(), "{credential}");
    }
    assert_eq!(world.upstream.runs(key), 4);
    assert_eq!(world.upstream.runs("another-credential-2"), 4);
    // A second credential beside a shared one; a wrong password; only a cookie.
    let call = || world.client.post("/any/charge").key("another-credential-3");
    for api_key in ["alice", "bob"] {
        let answer = call().header("x-api-key", api_key).send().await.unwrap();
        assert!(!answer.is_replay(), "{api_key}");
    }
    let password = |value| call().without("authorization").header("authorization", value).send();
    assert!(!password("Basic Ym9iOnJpZ2h0").await.unwrap().is_replay());
    let wrong = password("Basic Ym9iOndyb25n").await.unwrap();
    assert_eq!(wrong.status(), 422, "nobody behind checks a replay's password");
    assert!(password("Basic Ym9iOnJpZ2h0").await.unwrap().is_replay());
    let cookie = call().without("authorization").header("cookie", "session=1").send().await;
    assert_eq!(cookie.unwrap().code(), "tenant_unresolved");
}

pub(super) async fn another_path_never_gets_the_first_ones_response(world: &World) {
    let key = "another-path-0000001";
    let first = world.client.post("/any/charge").key(key).send().await.unwrap();
    for path in ["/any/refund", "/any/charge?x=1", "/wait/charge", "/json/charge"] {
        let other = world.client.post(path).key(key).send().await.unwrap();
        assert_eq!(other.status(), 422, "{path}");
        assert_ne!(other.body, first.body);
    }
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn a_namespace_is_another_operation(world: &World) {
    let key = "namespace-0000000001";
    world.client.post("/any/charge").key(key).send().await.unwrap();
    let other = world.client.post("/other-namespace/charge").key(key).send().await.unwrap();
    assert!(other.status() == 201 && !other.is_replay());
    assert_eq!(world.upstream.runs(key), 2);
}

pub(super) async fn a_tenant_header_names_the_tenant(world: &World) {
    let key = "tenant-header-000001";
    let call = |account: &str| {
        world.client.post("/account/charge").key(key).header("x-account", account).send()
    };
    assert!(!call("one").await.unwrap().is_replay());
    assert!(!call("two").await.unwrap().is_replay());
    assert!(call("one").await.unwrap().is_replay(), "the credential does not count here");
    let missing = world.client.post("/account/charge").key(key).send().await.unwrap();
    assert_eq!((missing.status(), missing.code().as_str()), (401, "tenant_unresolved"));
    assert_eq!(world.upstream.runs(key), 2);
}

pub(super) async fn an_impatient_waiter_is_told(world: &World) {
    let key = "impatient-waiter-001";
    let first = tokio::spawn(world.client.post("/impatient/gate").key(key).send());
    world.upstream.ran(key, 1).await;
    let waiter = world.client.post("/impatient/gate").key(key).send().await.unwrap();
    assert_eq!((waiter.status(), waiter.code().as_str()), (504, "in_progress_timeout"));
    assert!(!waiter.header("retry-after").is_empty());
    world.upstream.open(key);
    assert_eq!(first.await.unwrap().unwrap().status(), 201);
    assert!(world.client.post("/impatient/gate").key(key).send().await.unwrap().is_replay());
}

pub(super) async fn put_and_delete_are_keyed_where_a_route_says_so(world: &World) {
    for method in ["PUT", "DELETE"] {
        let key = format!("keyed-method-{method}-00001");
        let call = |path: &str| world.client.post(path).method(method).key(&key).send();
        call("/keyed/charge").await.unwrap();
        assert!(call("/keyed/charge").await.unwrap().is_replay());
        assert_eq!(world.upstream.runs(&key), 1);
        for _ in 0..2 {
            assert!(!call("/not-keyed/charge").await.unwrap().is_replay());
        }
        assert_eq!(world.upstream.runs(&key), 3);
    }
}
