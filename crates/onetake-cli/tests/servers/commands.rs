//! `migrate`, `doctor` and `serve`, as commands, against real servers.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::process::{Command, Stdio};

use onetake_sim::servers::{Dynamo, Postgres, Redis};

/// Runs the binary. Returns its exit code, standard output and standard error.
fn onetake(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_onetake")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The error of `serve` on a store.
fn refused(store: &str) -> String {
    let (code, _, errors) = onetake(&[
        "serve",
        "--store",
        store,
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    assert_eq!(code, 3, "{errors}");
    errors
}

#[tokio::test]
async fn postgres_is_migrated_once_and_looked_at() {
    let server = Postgres::shared().await;
    let url = &server.database();
    let errors = refused(url);
    assert!(errors.contains("onetake migrate"), "the error names the fix: {errors}");
    let (code, said, errors) = onetake(&["migrate", "--store", url]);
    assert_eq!(code, 0, "{errors}");
    assert!(said.contains("the schema was created, version "), "{said}");
    let (code, said, _) = onetake(&["migrate", "--store", url]);
    assert!(code == 0 && said.contains("already"), "{said}");
    let (code, said, errors) = onetake(&["doctor", "--store", url, "--format", "json"]);
    assert_eq!(code, 0, "{said}{errors}");
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    let store = &found["stores"][0];
    assert!(store["server"].as_str().unwrap().contains("PostgreSQL"), "{said}");
    assert!(store["round_trip_micros"].as_u64().unwrap() > 0, "{said}");
    assert!(store["clock_ahead_micros"].is_i64(), "{said}");
    let wrong = url.replace("takes%20one", "hunter2");
    let errors = refused(&wrong);
    assert!(errors.contains("onetake:***@") && !errors.contains("hunter2"), "{errors}");
}

#[tokio::test]
async fn a_postgres_that_loses_writes_is_refused_unless_told() {
    let server = Postgres::start_with(&["fsync = off"]).await;
    let url = &server.database();
    assert_eq!(onetake(&["migrate", "--store", url]).0, 0);
    let (code, said, _) = onetake(&["doctor", "--store", url]);
    assert!(code == 1 && said.contains("broken") && said.contains("fsync"), "{said}");
    assert!(refused(url).contains("fsync"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:9\"\n[admin]\n\
         listen = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\nallow_lossy = true\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_onetake"));
    command.args(["serve", "--config"]).arg(&file).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let errors = tokio::io::BufReader::new(child.stderr.take().unwrap());
    let mut lines = tokio::io::AsyncBufReadExt::lines(errors);
    let mut seen = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        seen.push_str(&line);
        if line.contains("onetake is ready") {
            assert!(line.contains("onetake:***@"), "{line}");
            return;
        }
    }
    assert_eq!(seen, "", "it did not start");
}

#[tokio::test]
async fn redis_is_looked_at_alone_and_as_a_filter() {
    let (redis, postgres) = (Redis::start().await, Postgres::start().await);
    let (code, said, errors) = onetake(&["doctor", "--store", &redis.url()]);
    assert!(code != 3 && said.contains("Redis"), "{said}{errors}");
    let url = postgres.database();
    assert_eq!(onetake(&["migrate", "--store", &url]).0, 0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.toml");
    let text = format!("[store]\nurl = \"{url}\"\nfilter = \"{}\"\n", redis.url());
    std::fs::write(&file, text).unwrap();
    let arguments = ["doctor", "--config", file.to_str().unwrap(), "--format", "json"];
    let (code, said, errors) = onetake(&arguments);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &found["stores"][1]["role"]), (0, &"filter".into()), "{said}{errors}");
    let mut redis = redis;
    redis.kill();
    let (code, said, errors) = onetake(&arguments);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, found["worst"].as_str()), (0, Some("weak")), "latency only: {said}{errors}");
}

#[tokio::test]
async fn a_table_is_made_once() {
    let server = Dynamo::start().await;
    let url = &server.table();
    let errors = refused(url);
    assert!(errors.contains("onetake migrate"), "the error names the fix: {errors}");
    let (code, said, errors) = onetake(&["migrate", "--store", url]);
    assert!(code == 0 && said.contains("the table was created"), "{said}{errors}");
    let (code, said, _) = onetake(&["migrate", "--store", url]);
    assert!(code == 0 && said.contains("already exists"), "{said}");
    let (code, said, errors) = onetake(&["doctor", "--store", url]);
    assert!(code != 3 && said.contains("round trip"), "{said}{errors}");
}
