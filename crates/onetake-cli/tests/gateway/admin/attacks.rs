//! Attacks by clients that can connect to the admin listener, or to the gateway behind it.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::upstream::Upstream;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::admin_api::World;
use crate::common::process::Process;

/// Longer than the data listener allows for a head.
const LONG_ENOUGH: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_begins_a_request_and_never_ends_it_is_let_go() {
    let world = World::start().await;
    let mut connection = TcpStream::connect(world.gateway.admin).await.unwrap();
    connection.write_all(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n").await.unwrap();
    let mut answer = Vec::new();
    tokio::select! {
        _ended = connection.read_to_end(&mut answer) => {}
        () = SystemClock.sleep(LONG_ENOUGH) => panic!("held for more than {LONG_ENOUGH:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_no_client_can_read_is_refused() {
    let world = World::start().await;
    let mut taken = Vec::new();
    for (number, (what, outcome)) in [
        ("a head of 3 MB", json!({ "status": 200, "headers": [{ "name": "x-a", "value": "y".repeat(3_000_000) }] })),
        ("a 204 with a body", json!({ "status": 204, "body": "lost" })),
        ("a 304 with a body", json!({ "status": 304, "body": "lost" })),
        ("a header that is dropped", json!({ "status": 200, "headers": [{ "name": "set-cookie", "value": "a=b" }] })),
    ]
    .into_iter()
    .enumerate()
    {
        let sent = world.send("/v1/500", &format!("to-be-resolved-badly-{number}"), "ada").await;
        let path = format!("/v1/keys/{}", sent.header("idempotency-reference"));
        let attempt = world.get(&path).await["key"]["attempt"].clone();
        let change = json!({ "attempt": attempt, "reason": "x", "outcome": outcome });
        let answer = world.ask("POST", &format!("{path}/resolve"), Some(change)).await;
        if answer.status() == 200 {
            taken.push(what);
        }
    }
    assert_eq!(taken, [""; 0], "recorded for good (S4)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_refused_is_a_problem() {
    let world = World::start().await;
    for path in ["/v1/keys/%ff", "/v1/keys/%ff/release"] {
        let method = if path.ends_with("release") { "POST" } else { "GET" };
        let answer = world.ask(method, path, Some(json!({}))).await;
        assert_eq!(answer.header("content-type"), "application/problem+json", "{}", answer.text());
    }
}

/// The members of RFC 9457, and those that every problem of the gateway has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_problem_has_the_members_of_all_problems() {
    let world = World::start().await;
    let sent = world.send("/v1/500", "to-be-asked-about-01", "ada").await;
    let reference = sent.header("idempotency-reference");
    let stale = json!({ "attempt": "0".repeat(32), "reason": "why" });
    let about_key = format!("urn:onetake:reference:{reference}");
    let mut instances = Vec::new();
    for (method, path, body, code) in [
        ("GET", "/nowhere".to_owned(), None, "not_found"),
        ("DELETE", "/v1/keys".to_owned(), None, "method_not_allowed"),
        ("GET", "/v1/keys?state=x".to_owned(), None, "request_invalid"),
        ("GET", "/v1/keys/9B5H-6U57-LCAG".to_owned(), None, "key_not_found"),
        ("POST", format!("/v1/keys/{reference}/release"), Some(stale), "attempt_stale"),
    ] {
        let answer = world.ask(method, &path, body).await;
        let problem: Value = serde_json::from_slice(&answer.body).unwrap();
        let kind = format!("urn:onetake:admin-problem:{code}");
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["type"], kind, "{problem}");
        assert_eq!(problem["status"], answer.status(), "{problem}");
        assert_eq!(problem["retryable"], false, "{problem}");
        for text in ["title", "detail"] {
            assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        let instance = problem["instance"].as_str().unwrap().to_owned();
        assert_eq!(instance == about_key, code == "attempt_stale", "{problem}");
        assert!(instance == about_key || instance.starts_with("urn:onetake:request:"), "{problem}");
        instances.push(instance);
    }
    instances.sort();
    instances.dedup();
    assert_eq!(instances.len(), 5);
    let description = world.get("/openapi.json").await;
    let refusal = &description["paths"]["/v1/keys"]["get"]["responses"]["400"]["content"];
    let schema = &refusal["application/problem+json"]["schema"];
    for member in ["type", "title", "status", "detail", "instance", "code", "retryable"] {
        let required = schema["required"].as_array().unwrap_or_else(|| panic!("{schema}"));
        assert!(required.iter().any(|name| name == member), "{member}: {schema}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_names_are_refused_wherever_a_request_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let gateway = Process::start(folder.path(), "", &upstream.url()).await;
    let mut answered = Vec::new();
    for head in [
        "GET /v1/keys HTTP/1.1\r\nHost: rebound.example\r\n",
        "GET http://rebound.example/v1/keys HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        "GET http://rebound.example/v1/keys HTTP/1.1\r\n",
        "GET /v1/keys HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: rebound.example\r\n",
    ] {
        let mut connection = TcpStream::connect(gateway.admin).await.unwrap();
        let request = format!("{head}Connection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).await.unwrap();
        if answer.starts_with(b"HTTP/1.1 200") {
            answered.push(head);
        }
    }
    assert_eq!(answered, [""; 0]);
}
