//! The guard refuses every request without the token.

use onetake_sim::client::Client;
use serde_json::{Value, json};

use crate::common::admin_api::{TOKEN, World};

/// Every path and method of the description, with sample values for parameters.
async fn operations(world: &World) -> Vec<(String, String)> {
    let description = world.get("/openapi.json").await;
    let mut all = vec![("GET".to_owned(), "/openapi.json".to_owned())];
    all.push(("GET".to_owned(), "/metrics".to_owned()));
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{name}", &"0".repeat(32));
            all.push((method.to_uppercase(), path));
        }
    }
    assert!(all.len() >= 11, "{all:?}");
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_probes_is_answered_without_the_token() {
    let world = World::start().await;
    let admin = Client::new(world.gateway.admin);
    for (method, path) in operations(&world).await {
        for wrong in ["", "Bearer", "Bearer the-token-of-these-test", "Basic dGhlOnRva2Vu"] {
            let call = admin.post(&path).method(&method).without("authorization").body("");
            let call = if wrong.is_empty() {
                call
            } else {
                call.without("authorization").header("authorization", wrong)
            };
            let answer = call.send().await.unwrap();
            // A client that keeps guessing gets 429.
            assert!([401, 429].contains(&answer.status()), "{method} {path} {}", answer.status());
            assert!(!answer.text().contains("keys\":"), "{}", answer.text());
        }
        let answer = world.ask(&method, &path, None).await;
        assert_ne!(answer.status(), 401, "{method} {path}");
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
    for path in ["/livez", "/readyz"] {
        let answer =
            admin.post(path).method("GET").without("authorization").body("").send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    // The response does not reveal which paths exist.
    let nowhere = admin
        .post("/v1/nowhere")
        .method("GET")
        .without("authorization")
        .body("")
        .send()
        .await
        .unwrap();
    assert!([401, 429].contains(&nowhere.status()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_pages_are_refused() {
    let world = World::start().await;
    let sent = world.send("/v1/500", "of-interest-to-a-page", "ada").await;
    let path = format!("/v1/keys/{}", sent.header("idempotency-reference"));
    let key = world.get(&path).await["key"].clone();
    let change = json!({ "attempt": key["attempt"], "reason": "a page", "state": "unknown" });
    let change = change.to_string();
    let admin = Client::new(world.gateway.admin);
    let call = |kind: &str| {
        let call = admin.post(&format!("{path}/forget")).without("content-type");
        let call =
            call.without("authorization").header("authorization", &format!("Bearer {TOKEN}"));
        call.header("content-type", kind).body(change.clone())
    };
    // Requests that a page may send without a preflight.
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    {
        assert_eq!(call(kind).send().await.unwrap().status(), 415, "{kind}");
    }
    let asked = call("application/json").header("origin", "https://evil.example");
    assert_eq!(asked.send().await.unwrap().code(), "cross_origin_refused");
    let fetched = call("application/json").header("sec-fetch-site", "cross-site");
    assert_eq!(fetched.send().await.unwrap().status(), 403);
    // The preflight is refused.
    let preflight = admin.post(&path).method("OPTIONS").body("");
    let preflight = preflight.header("origin", "https://evil.example");
    let preflight = preflight.header("access-control-request-method", "POST");
    let answer = preflight.send().await.unwrap();
    assert_eq!((answer.status(), answer.header("access-control-allow-origin")), (403, ""));
    assert_eq!(world.get(&path).await["key"], key, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_and_changes_nothing() {
    let world = World::start().await;
    let sent = world.send("/v1/500", "something-to-attack-1", "ada").await;
    let path = format!("/v1/keys/{}", sent.header("idempotency-reference"));
    let key = world.get(&path).await["key"].clone();
    let attempt = key["attempt"].clone();
    let outcome = |outcome: Value| json!({ "attempt": attempt, "reason": "x", "outcome": outcome });
    let wrong = [
        ("release", json!({ "attempt": attempt })),
        ("release", json!({ "attempt": attempt, "reason": "  " })),
        ("release", json!({ "attempt": attempt, "reason": "a\u{7}" })),
        ("release", json!({ "attempt": attempt, "reason": "x".repeat(501) })),
        ("release", json!({ "attempt": attempt, "reason": "x", "by": "" })),
        ("release", json!({ "attempt": attempt, "reason": "x", "force": true })),
        ("release", json!({ "attempt": "x", "reason": "x" })),
        ("release", json!([])),
        ("fail", json!({ "attempt": attempt, "reason": "x", "code": "" })),
        ("resolve", json!({ "attempt": attempt, "reason": "x" })),
        ("resolve", outcome(json!({ "status": 100 }))),
        ("resolve", outcome(json!({ "status": 200, "body": "a", "body_base64": "YQ==" }))),
        ("resolve", outcome(json!({ "status": 200, "body_base64": "%" }))),
        ("resolve", outcome(json!({ "status": 200, "body": "x".repeat((1 << 20) + 1) }))),
        ("resolve", outcome(json!({ "status": 200, "headers": [{ "name": "a b", "value": "" }] }))),
        ("resolve", outcome(json!({ "status": 200, "headers": [{ "name": "a", "value": "\n" }] }))),
    ];
    for (action, body) in wrong {
        let answer = world.ask("POST", &format!("{path}/{action}"), Some(body.clone())).await;
        assert_eq!((answer.status(), answer.code().as_str()), (400, "request_invalid"), "{body}");
    }
    let large = json!({ "attempt": attempt, "reason": "x".repeat(5 << 20) });
    let answer = world.ask("POST", &format!("{path}/release"), Some(large)).await;
    assert_eq!(answer.status(), 413);
    for path in [
        "/v1/keys/ABCD-EFGH-JKL1",
        "/v1/keys/%00",
        "/v1/keys?limit=0",
        "/v1/keys?limit=501",
        "/v1/keys?limit=-1",
        "/v1/keys?state=lost",
        "/v1/keys?tenant=nobody",
        "/v1/keys?min_age_seconds=9999999999999999",
        "/v1/keys?unknown=1",
        "/v1/counts?cursor=AAAA",
        "/v1/audit?cursor=AAAA",
        "/v1/audit?key=x",
    ] {
        let answer = world.ask("GET", path, None).await;
        assert_eq!((answer.status(), answer.code().as_str()), (400, "request_invalid"), "{path}");
    }
    assert_eq!(world.get(&path).await["key"], key);
    assert_eq!(world.get("/v1/audit").await["entries"], json!([]));
}
