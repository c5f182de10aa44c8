//! Operators: the admin API and `onetake keys`, with a running gateway.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

mod attacks;
mod token_guard;

use std::process::Output;

use serde_json::{Value, json};

use crate::common::admin_api::{TOKEN, World};

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn complained(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_key_is_found_explained_and_resolved() {
    let world = World::start().await;
    let key = "a-charge-that-failed-1";
    let first = world.send("/v1/500", key, "ada").await;
    let reference = first.header("idempotency-reference").to_owned();
    assert_eq!(first.status(), 500);

    // By the reference that the client got, by what it sent, and in a list.
    let life = world.keys_json(&["get", &reference]).await;
    assert_eq!(text(&life["key"], "state"), "unknown");
    assert!(text(&life["key"], "cause").contains("500"));
    assert_eq!(text(&life["key"], "route"), "POST /v1/{*rest}");
    let by_key = ["get", "--key", key, "--tenant", "bearer:ada", "--namespace", "money"];
    assert_eq!(world.keys_json(&by_key).await, life);
    let stranger = ["get", "--key", key, "--tenant", "bearer:eve", "--namespace", "money"];
    assert_eq!(complained(&world.keys(&stranger).await).0, Some(4));
    let unknown = world.keys_json(&["list", "--state", "unknown"]).await;
    assert_eq!(unknown["keys"], json!([life["key"]]));
    assert!(said(&world.keys(&["list"]).await).contains(&reference));

    // Another attempt than the key's: nothing is done, and the error names the key's attempt.
    let attempt = text(&life["key"], "attempt").to_owned();
    let stale = ["release", &reference, "--attempt", &"0".repeat(32), "--reason", "why"];
    let (code, complaint) = complained(&world.keys(&stale).await);
    assert_eq!(code, Some(4));
    assert!(complaint.contains(&attempt), "{complaint}");

    let resolve = [
        "resolve",
        &reference,
        "--attempt",
        &attempt,
        "--reason",
        "the bank says it was charged",
        "--status",
        "201",
        "--header",
        "Content-Type: application/json",
        "--body",
        "{\"id\":1}",
    ];
    let resolved = world.keys(&resolve).await;
    assert_eq!(complained(&resolved), (Some(0), String::new()));
    let retry = world.send("/v1/500", key, "ada").await;
    assert!(retry.is_replay() && retry.status() == 201, "{}", retry.text());
    assert_eq!(
        (retry.text().as_str(), retry.header("content-type")),
        ("{\"id\":1}", "application/json")
    );
    assert_eq!(world.upstream.runs(key), 1);

    // A recorded outcome never changes (S4).
    for action in ["release", "fail"] {
        let change = [action, &reference, "--attempt", &attempt, "--reason", "why"];
        let (code, complaint) = complained(&world.keys(&change).await);
        assert_eq!(code, Some(4));
        assert!(complaint.contains("completed"), "{complaint}");
    }
    let told = said(&world.keys(&["get", &reference, "--body"]).await);
    for part in
        ["completed: 201", "resolve by ada: done (the bank says", "{\"id\":1}", "replayed 1"]
    {
        assert!(told.contains(part), "no {part} in\n{told}");
    }
    let audit = world.keys_json(&["audit"]).await;
    let entry = &audit["entries"][0];
    assert_eq!(audit["entries"].as_array().unwrap().len(), 1, "what was refused did nothing");
    assert_eq!(
        (text(entry, "action"), text(entry, "ended"), text(entry, "by"), text(entry, "before")),
        ("resolve", "done", "ada", "unknown: the upstream answered 500")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_failed_and_forgotten_keys_do_as_they_are_told() {
    let world = World::start().await;
    for (action, key) in [
        ("release", "to-be-released-00001"),
        ("fail", "to-be-failed-0000001"),
        ("forget", "to-be-forgotten-0001"),
    ] {
        let reference = world.send("/v1/500", key, "ada").await;
        let reference = reference.header("idempotency-reference").to_owned();
        let before = world.get(&format!("/v1/keys/{reference}")).await["key"].clone();
        let mut change = json!({ "attempt": before["attempt"], "reason": "why", "by": "me" });
        if action == "forget" {
            change["state"] = json!("unknown");
        }
        let path = format!("/v1/keys/{reference}/{action}");
        let answer = world.ask("POST", &path, Some(change)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let retry = world.send("/v1/500", key, "ada").await;
        match action {
            "fail" => {
                assert_eq!(retry.status(), 500);
                assert!(retry.text().contains("An operator recorded"), "{}", retry.text());
                assert_eq!(world.upstream.runs(key), 1);
            }
            _ => assert_eq!(world.upstream.runs(key), 2, "{action}"),
        }
        let after = world.get(&format!("/v1/keys/{reference}")).await;
        let audit = after["audit"].as_array().unwrap();
        // An unknown key is released before it is forgotten.
        let entries = if action == "forget" { 2 } else { 1 };
        assert_eq!((audit.len(), text(&audit[0], "action")), (entries, action));
        // A forgotten key starts a new history, but its fences still rise.
        let attempts = if action == "release" { 2 } else { 1 };
        assert_eq!(after["key"]["attempts"], attempts, "{after}");
        if action != "fail" {
            assert!(after["key"]["fence"].as_u64() > before["fence"].as_u64());
        }
    }
    let outcome = world.send("/v1/charge", "forgotten-outcome-001", "ada").await;
    let path = format!("/v1/keys/{}", outcome.header("idempotency-reference"));
    let key = world.get(&path).await["key"].clone();
    assert!(world.send("/v1/charge", "forgotten-outcome-001", "ada").await.is_replay());
    let mut change = json!({ "attempt": key["attempt"], "reason": "the customer asked for it" });
    change["state"] = json!("failed");
    let seen_otherwise = world.ask("POST", &format!("{path}/forget"), Some(change.clone())).await;
    assert_eq!((seen_otherwise.status(), seen_otherwise.code().as_str()), (409, "key_settled"));
    change["state"] = json!("completed");
    let answer = world.ask("POST", &format!("{path}/forget"), Some(change)).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(world.ask("GET", &path, None).await.code(), "key_not_found");
    let audit = world.get(&format!("/v1/audit?key={}", text(&key, "id"))).await;
    assert_eq!(text(&audit["entries"][0], "reason"), "the customer asked for it");
    let again = world.send("/v1/charge", "forgotten-outcome-001", "ada").await;
    assert!(!again.is_replay() && again.status() == 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_is_left_alone() {
    let world = World::start().await;
    let key = "it-runs-for-a-while-1";
    let call = world.gateway.client.post("/v1/gate").key(key);
    let running =
        tokio::spawn(call.without("authorization").header("authorization", "Bearer ada").send());
    world.upstream.ran(key, 1).await;
    let list = world.get("/v1/keys?state=running").await;
    let found = &list["keys"][0];
    let reference = text(found, "reference");
    assert!(found["lease_until"].is_string() && found.get("expires_at").is_none());
    for action in ["release", "fail", "forget", "resolve"] {
        let mut change = json!({ "attempt": found["attempt"], "reason": "impatience" });
        match action {
            "resolve" => change["outcome"] = json!({ "status": 200 }),
            "forget" => change["state"] = json!("unknown"),
            _ => {}
        }
        let path = format!("/v1/keys/{reference}/{action}");
        let answer = world.ask("POST", &path, Some(change)).await;
        assert_eq!((answer.status(), answer.code().as_str()), (409, "key_running"));
    }
    world.upstream.open(key);
    assert_eq!(running.await.unwrap().unwrap().status(), 201);
    assert_eq!(world.upstream.runs(key), 1);
    let audit = world.get("/v1/audit").await;
    assert_eq!(audit["entries"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_counts_go_through_all_keys() {
    let world = World::start().await;
    for number in 0..90 {
        let path = if number % 3 == 0 { "/v1/500" } else { "/v1/charge" };
        let bearer = if number % 2 == 0 { "ada" } else { "bob" };
        world.send(path, &format!("one-of-many-keys-{number:03}"), bearer).await;
    }
    world.gateway.client.post("/other").key("of-another-route-0001").send().await.unwrap();
    for (filter, count) in [
        ("", 91),
        ("&state=unknown", 30),
        ("&tenant=bearer:ada", 45),
        ("&tenant=bearer:ada&state=completed", 30),
        ("&tenant=bearer:eve", 0),
        ("&route=POST%20/v1/%7B*rest%7D", 90),
        ("&min_age_seconds=3600", 0),
        ("&max_age_seconds=3600", 91),
    ] {
        for limit in [7, 500] {
            let mut found = Vec::new();
            let mut cursor = String::new();
            loop {
                let page = world.get(&format!("/v1/keys?limit={limit}{filter}{cursor}")).await;
                let keys = page["keys"].as_array().unwrap();
                assert!(keys.len() <= limit);
                found.extend(keys.iter().map(|key| text(key, "reference").to_owned()));
                match page["cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            found.sort();
            found.dedup();
            assert_eq!(found.len(), count, "{filter}");
        }
    }
    let counts = world.keys_json(&["count", "--tenant", "bearer:bob"]).await;
    assert_eq!((&counts["completed"], &counts["unknown"]), (&json!(30), &json!(15)));
    assert_eq!(counts["looked_at"], 91);
    // By the digest that every key shows.
    let one = world.keys_json(&["list", "--tenant", "bearer:bob", "--limit", "1"]).await;
    let digest = text(&one["keys"][0], "tenant").to_owned();
    let all = world.keys_json(&["list", "--tenant", &digest, "--limit", "1000"]).await;
    assert_eq!(all["keys"].as_array().unwrap().len(), 45);
    assert!(!one.to_string().contains("bob") && one["cursor"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attempt_of_a_life_is_told() {
    let world = World::start().await;
    let key = "tried-again-and-again";
    // The upstream reports that it did not handle the request.
    for _ in 0..3 {
        assert_eq!(world.send("/v1/derived", key, "ada").await.status(), 503);
    }
    let list = world.keys_json(&["list"]).await;
    let reference = text(&list["keys"][0], "reference").to_owned();
    let life = world.keys_json(&["get", &reference]).await;
    let earlier = life["earlier_attempts"].as_array().unwrap();
    assert_eq!((earlier.len(), &life["key"]["attempts"]), (2, &json!(3)));
    assert!(earlier.iter().all(|attempt| text(attempt, "state") == "released"));
    assert!(earlier[0]["fence"].as_u64() < earlier[1]["fence"].as_u64());
    let told = said(&world.keys(&["get", &reference]).await);
    for part in ["attempt 1 began", "attempt 2 was released", "attempt 3 is released"] {
        assert!(told.contains(part), "no {part} in\n{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_and_bodies_are_shown_to_those_who_ask() {
    let world = World::start().await;
    let sent = world.send("/v1/charge", "a-body-to-look-at-001", "ada").await;
    let path = format!("/v1/keys/{}", sent.header("idempotency-reference"));
    let without = world.get(&path).await.to_string();
    assert!(!without.contains("charged") && !without.contains("link"), "{without}");
    let with = world.get(&format!("{path}?body=true")).await;
    assert_eq!(text(&with["key"]["outcome"], "body"), sent.text());
    let lines = with["key"]["outcome"]["headers"].as_array().unwrap();
    assert_eq!(lines.iter().filter(|line| text(line, "name") == "link").count(), 2);
    // The whole output contains no key and no credential.
    assert!(!with.to_string().contains("a-body-to-look-at-001"));
    let large = world.send("/v1/large?bytes=3000", "a-body-of-many-bytes1", "ada").await;
    let path = format!("/v1/keys/{}?body=true", large.header("idempotency-reference"));
    let shown = world.get(&path).await;
    assert_eq!(shown["key"]["outcome"]["body_bytes"], 3000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_say_what_to_do() {
    let world = World::start().await;
    let config = world.folder.path().join("onetake.toml");
    for (arguments, code, part) in [
        (&["get", "0O1I"][..], 2, "without I and O"),
        (&["get", "ABCD-EFGH-JKLM"], 4, "does not exist"),
        (&["get"], 2, "required"),
        (&["get", "--key", "x", "--tenant", "nobody"], 2, "bearer:TOKEN"),
        (&["list", "--state", "lost"], 2, "running"),
        (&["list", "--cursor", "x"], 2, "cursor"),
        (&["list", "--older-than", "1w"], 2, "15m"),
        (&["release", "ABCD-EFGH-JKLM", "--reason", "x"], 2, "--attempt"),
        (&["release", "ABCD-EFGH-JKLM", "--attempt", "x", "--reason", "x"], 2, "32 hexadecimal"),
    ] {
        let (found, complaint) = complained(&world.keys(arguments).await);
        assert_eq!(found, Some(code), "{arguments:?}: {complaint}");
        assert!(complaint.contains(part), "{arguments:?}: {complaint}");
    }
    let run = |admin: String, token: &str| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.args(["keys", "list", "--admin", &admin]).env("ONETAKE_ADMIN_TOKEN", token);
        command.arg("--config").arg(&config).kill_on_drop(true).output()
    };
    let nobody = run("http://127.0.0.1:1".to_owned(), TOKEN).await.unwrap();
    let (code, complaint) = complained(&nobody);
    assert_eq!(code, Some(3));
    assert!(complaint.contains("Is the gateway running?"), "{complaint}");
    let wrong = run(format!("http://{}", world.gateway.admin), "another-token-of-mine").await;
    let (code, complaint) = complained(&wrong.unwrap());
    assert_eq!(code, Some(1));
    assert!(complaint.contains("ONETAKE_ADMIN_TOKEN"), "{complaint}");
}
