//! The binary as a process: kills, signals, and its output.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::Client;
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::process::Process;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_nothing_is_lost_and_nothing_runs_twice() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let routes = "[[route]]\nmatch = \"POST /retry/{*rest}\"\non_unknown = \"retry\"\n";
    let mut acknowledged: Vec<(String, bytes::Bytes)> = Vec::new();
    let mut all = BTreeMap::new();
    let rounds = 5;
    for round in 0..rounds {
        let gateway = Process::start(folder.path(), routes, &upstream.url()).await;
        // Every acknowledged outcome is replayed after the kill.
        for (key, body) in &acknowledged {
            let retry = gateway.client.post("/any/slow?ms=5").key(key).send().await.unwrap();
            assert!(retry.is_replay() && retry.body == *body, "{key} was lost");
        }
        let answered = Arc::new(AtomicUsize::new(0));
        let tasks = (0..40).map(|task| {
            let (client, answered) = (gateway.client.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                let mut done = Vec::new();
                for number in 0.. {
                    let key = format!("kill-round-{round}-{task}-{number}");
                    let sent = client.post("/any/slow?ms=5").key(&key).send().await;
                    let Ok(answer) = sent else { return (done, key) };
                    assert_eq!(answer.status(), 201, "{}", answer.text());
                    done.push((key, answer.body));
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                panic!("it was never killed");
            })
        });
        let tasks: Vec<_> = tasks.collect();
        // One operation is certainly running when the process is killed.
        let running = format!("kill-round-{round}-running");
        let held = tokio::spawn(gateway.client.post("/any/gate").key(&running).send());
        upstream.ran(&running, 1).await;
        all.insert(running, "/any/gate");
        until("there is traffic", async || answered.load(Ordering::SeqCst) >= 50 + 30 * round)
            .await;
        gateway.kill().await;
        assert!(held.await.unwrap().is_err());
        for task in join_all(tasks).await {
            let (done, interrupted) = task.unwrap();
            all.extend(done.iter().map(|(key, _)| (key.clone(), "/any/slow?ms=5")));
            all.insert(interrupted, "/any/slow?ms=5");
            acknowledged.extend(done);
        }
    }
    let mut gateway = Process::start(folder.path(), routes, &upstream.url()).await;
    let mut unknown = 0;
    for (key, path) in &all {
        let retry = gateway.client.post(path).key(key).send().await.unwrap();
        match (retry.status(), retry.code().as_str()) {
            (201, _) => {}
            (500, "previous_attempt_failed") => unknown += 1,
            other => panic!("{key}: {other:?}"),
        }
        let runs = upstream.runs(key);
        assert!(runs <= 1 || retry.is_replay(), "{key} ran {runs} times");
        assert!(runs <= 1, "{key} ran {runs} times");
    }
    assert!(unknown >= rounds, "{unknown} were in the middle when it was killed");
    assert!(gateway.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_running_is_answered_as_its_route_says() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let routes = "[[route]]\nmatch = \"POST /retry/{*rest}\"\non_unknown = \"retry\"\n";
    let gateway = Process::start(folder.path(), routes, &upstream.url()).await;
    let (fail, retry) = ("running-when-killed-1", "running-when-killed-2");
    let calls = [("/any/gate", fail), ("/retry/gate", retry)];
    let sent: Vec<_> =
        calls.map(|(path, key)| tokio::spawn(gateway.client.post(path).key(key).send())).into();
    upstream.ran(fail, 1).await;
    upstream.ran(retry, 1).await;
    gateway.kill().await;
    assert!(join_all(sent).await.into_iter().all(|answer| answer.unwrap().is_err()));
    let mut gateway = Process::start(folder.path(), routes, &upstream.url()).await;
    let metrics = Client::new(gateway.admin).post("/metrics").method("GET").body("").send().await;
    let metrics = metrics.unwrap().text();
    assert!(metrics.contains("\nonetake_unknown_total 2\n"), "both are counted: {metrics}");
    let answer = gateway.client.post("/any/gate").key(fail).send().await.unwrap();
    assert_eq!((answer.status(), answer.code().as_str()), (500, "previous_attempt_failed"));
    assert!(answer.text().contains("its process ended before the outcome was saved"));
    let other = gateway.client.post("/any/gate").key(fail).body("99").send().await.unwrap();
    assert_eq!(other.status(), 422);
    let answer = gateway.client.post("/retry/gate").key(retry).send().await.unwrap();
    assert_eq!(answer.status(), 201, "run again, because the route says so");
    assert_eq!((upstream.runs(fail), upstream.runs(retry)), (1, 2));
    assert!(gateway.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_tells_the_truth_after_a_kill_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let routes = "[[route]]\nmatch = \"POST /async/{*rest}\"\nin_flight = \"async\"\n\
                  wait_timeout = \"50ms\"\ntenant = \"credential\"\n";
    let gateway = Process::start(folder.path(), routes, &upstream.url()).await;
    let (finished, killed) = ("answered-202-finished", "answered-202-killed01");
    let call = |client: &Client, path: &str, key: &str| client.post(path).key(key).send();
    let look = |client: &Client, handle: &str| client.post(handle).method("GET").body("").send();
    let later = call(&gateway.client, "/async/gate", finished).await.unwrap();
    assert_eq!(later.status(), 202);
    upstream.open(finished);
    let finished_handle = later.header("location").to_owned();
    while !look(&gateway.client, &finished_handle).await.unwrap().is_replay() {
        SystemClock.sleep(Duration::from_millis(10)).await;
    }
    let later = call(&gateway.client, "/async/gate", killed).await.unwrap();
    assert_eq!(later.status(), 202);
    let killed_handle = later.header("location").to_owned();
    upstream.ran(killed, 1).await;
    gateway.kill().await;
    let mut gateway = Process::start(folder.path(), routes, &upstream.url()).await;
    let found = look(&gateway.client, &finished_handle).await.unwrap();
    assert!(found.is_replay() && found.status() == 201, "{}", found.text());
    let found = look(&gateway.client, &killed_handle).await.unwrap();
    assert_eq!((found.status(), found.code().as_str()), (500, "previous_attempt_failed"));
    assert_eq!((upstream.runs(finished), upstream.runs(killed)), (1, 1));
    assert!(gateway.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let mut gateway = Process::start(folder.path(), "", &upstream.url()).await;
    let key = "running-when-stopped";
    let running = tokio::spawn(gateway.client.post("/any/gate").key(key).send());
    // An operation whose client has disconnected is finished as well.
    let orphan = "client-gone-when-stopped";
    let gone = tokio::spawn(gateway.client.post("/any/gate").key(orphan).send());
    upstream.ran(key, 1).await;
    upstream.ran(orphan, 1).await;
    gone.abort();
    let admin = Client::new(gateway.admin);
    let ready = || admin.post("/readyz").method("GET").body("").send();
    assert_eq!(ready().await.unwrap().status(), 200);
    gateway.signal();
    // Readiness changes first, while running operations are finished.
    let mut draining = ready().await.unwrap();
    while draining.status() == 200 {
        draining = ready().await.unwrap();
    }
    assert_eq!((draining.status(), draining.text().as_str()), (503, "draining\n"));
    upstream.open(key);
    upstream.open(orphan);
    assert!(gateway.child.wait().await.unwrap().success());
    assert_eq!(running.await.unwrap().unwrap().status(), 201, "what was running was answered");
    let mut gateway = Process::start(folder.path(), "", &upstream.url()).await;
    for key in [key, orphan] {
        let retry = gateway.client.post("/any/gate").key(key).send().await.unwrap();
        assert!(retry.status() == 201 && retry.is_replay(), "{key}: {}", retry.text());
        assert_eq!(upstream.runs(key), 1);
    }
    assert!(gateway.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_and_metrics_hold_no_key_no_credential_and_no_body() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let routes = "[[route]]\nmatch = \"POST /json/{*rest}\"\nfingerprint = { mode = \"json\" }\n";
    let mut gateway = Process::start(folder.path(), routes, &upstream.url()).await;
    let secrets = ["secret-key-0123456789", "secret-credential", "secret-body", "secret-query"];
    let [key, credential, body, query] = secrets;
    for path in
        ["/any/charge", "/any/500", "/any/close", "/json/charge", "/any/large?bytes=2000000"]
    {
        for _ in 0..2 {
            let path = format!("{path}{}q={query}", if path.contains('?') { '&' } else { '?' });
            let call = gateway.client.post(&path).key(&format!("{key}{}", path.len()));
            let call = call.without("authorization");
            let call = call.header("authorization", &format!("Bearer {credential}")).body(body);
            call.send().await.unwrap();
        }
    }
    let short = gateway.client.post("/any/charge").header("idempotency-key", "secret-key-1");
    assert_eq!(short.send().await.unwrap().status(), 400);
    let admin = Client::new(gateway.admin);
    let get = |path: &str| admin.post(path).method("GET").body("").send();
    assert_eq!(get("/livez").await.unwrap().status(), 200);
    assert_eq!(get("/readyz").await.unwrap().status(), 200);
    let metrics = get("/metrics").await.unwrap().text();
    for name in [
        "onetake_executed_total",
        "onetake_replayed_total",
        "onetake_in_flight_refused_total",
        "onetake_mismatches_total",
        "onetake_unknown_total",
        "onetake_store_seconds",
        "onetake_batch_size",
        "onetake_running",
        "onetake_waiting",
    ] {
        assert!(metrics.contains(name), "{name} is missing");
    }
    let count = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // The JSON route refuses the body before anything runs. The large response is recorded without
    // its body.
    assert_eq!(count("onetake_executed_total"), 4.0, "charge, 500, close, large");
    assert_eq!(count("onetake_replayed_total"), 2.0, "charge, and large as not replayable");
    assert_eq!(count("onetake_unknown_total"), 2.0, "500, close");
    assert!(gateway.terminate().await.success());
    let logs = gateway.logs.lock().unwrap().clone();
    assert!(logs.contains("onetake::access"), "requests are logged at this level");
    for secret in secrets {
        assert!(!logs.contains(secret), "the logs hold {secret}");
        assert!(!metrics.contains(secret), "the metrics hold {secret}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_closes_idle_connections_makes_no_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let idle = Some(Duration::from_secs(7));
    let upstream = Upstream::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), idle).await.unwrap();
    let mut gateway = Process::start(folder.path(), "", &upstream.url()).await;
    // Eight clients for a minute, with pauses around the upstream's seven seconds.
    let clients = (0..8_u64).map(|client| {
        let gateway = gateway.client.clone();
        tokio::spawn(async move {
            let (mut random, mut paused, mut sent) = (client * 7_919 + 1, 0, 0);
            while paused < 60_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let pause = 500 + (random >> 33) % 8_000;
                SystemClock.sleep(Duration::from_millis(pause)).await;
                paused += pause;
                let key = format!("keep-alive-client-{client}-{sent}");
                let answer = gateway.post("/any/charge").key(&key).send().await.unwrap();
                assert_eq!(answer.status(), 201, "{}", answer.text());
                sent += 1;
            }
            sent
        })
    });
    let sent: usize =
        join_all(clients.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).sum();
    assert!(sent > 8 * 8);
    assert_eq!(upstream.runs_in_all(), sent);
    assert!(gateway.terminate().await.success());
}

/// An upstream that closes idle connections just when a request arrives: requests after `idle` are
/// read and not answered. It counts its connections.
async fn gives_up_idle_connections(
    listener: tokio::net::TcpListener,
    idle: Duration,
    connections: Arc<AtomicUsize>,
) {
    while let Ok((mut stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            let mut since = SystemClock.monotonic();
            loop {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n10") {
                    let Ok(byte) = stream.read_u8().await else {
                        return;
                    };
                    request.push(byte);
                }
                if SystemClock.monotonic() - since >= idle {
                    return;
                }
                let answer = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                since = SystemClock.monotonic();
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_upstream_may_be_closing_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let idle = Duration::from_millis(4_300);
    let count = Arc::clone(&connections);
    tokio::spawn(gives_up_idle_connections(listener, idle, count));
    let mut gateway = Process::start(folder.path(), "", &url).await;
    let pay = async |number: usize| {
        let key = format!("idle-connection-{number:04}");
        let answer = gateway.client.post("/any/charge").key(&key).send().await.unwrap();
        assert_eq!(answer.status(), 201, "{}", answer.text());
        connections.load(Ordering::SeqCst)
    };
    // A connection is reused at once, and not after almost five seconds, when many servers close
    // it.
    let mut made = 0;
    for number in 0..10 {
        made = pay(number).await;
    }
    assert!(made < 10, "{made} connections for ten requests");
    for number in 10..12 {
        SystemClock.sleep(Duration::from_millis(4_600)).await;
        let before = std::mem::replace(&mut made, pay(number).await);
        assert!(made > before, "an old connection was used again");
    }
    assert!(gateway.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_head_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let gateway = Process::start(folder.path(), "", &upstream.url()).await;
    let mut half = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    half.write_all(b"POST /any/charge HTTP/1.1\r\nHost: a\r\n").await.unwrap();
    let mut nothing = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let mut rest = Vec::new();
    // Both connections end by themselves. The time is not measured here.
    let _reset = half.read_to_end(&mut rest).await;
    let _reset = nothing.read_to_end(&mut rest).await;
    assert_eq!(upstream.runs_in_all(), 0);
    gateway.kill().await;
}

fn onetake(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_onetake")).args(arguments).output().unwrap();
    let text =
        String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), text)
}

#[test]
fn bad_configuration_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.toml");
    let path = file.to_str().unwrap();
    let (code, text) = onetake(&["serve", "--config", path]);
    assert_eq!(code, 2);
    assert!(text.contains("cannot read the configuration file") && text.contains(path), "{text}");
    std::fs::write(&file, "[gateway]\nupstrem = \"http://127.0.0.1:1\"\n").unwrap();
    for command in ["serve", "check"] {
        let (code, text) = onetake(&[command, "--config", path]);
        assert_eq!(code, 2);
        assert!(
            text.contains("gateway.upstrem") && text.contains("did you mean `upstream`?"),
            "{text}"
        );
    }
    std::fs::write(&file, "[gateway]\nupstream = \"http://127.0.0.1:1\"\n").unwrap();
    let (code, text) = onetake(&["check", "--config", path]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = onetake(&["serve"]);
    assert_eq!(code, 2);
    assert!(text.contains("--upstream http://127.0.0.1:3000"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_or_port_in_use_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let gateway = Process::start(folder.path(), "", &upstream.url()).await;
    let store = format!("embedded:{}", folder.path().join("data").display());
    let url = upstream.url();
    let start = |listen: String, store: String| {
        let url = url.clone();
        tokio::task::spawn_blocking(move || {
            onetake(&[
                "serve",
                "--upstream",
                &url,
                "--listen",
                &listen,
                "--admin-listen",
                "127.0.0.1:0",
                "--store",
                &store,
            ])
        })
    };
    let (code, text) = start("127.0.0.1:0".into(), store).await.unwrap();
    assert_eq!(code, 3);
    assert!(text.contains("in use by another process"), "{text}");
    let other = format!("embedded:{}", folder.path().join("other").display());
    let (code, text) = start(gateway.address.to_string(), other).await.unwrap();
    assert_eq!(code, 3);
    assert!(text.contains("cannot listen on") && text.contains("gateway.listen"), "{text}");
    gateway.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encryption_key_that_was_removed_too_early_is_missed_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let k1 = "{ id = \"k1\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }";
    let k2 = "{ id = \"k2\", secret = \"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\" }";
    let secrets = |keys: &[&str]| format!("[secrets]\nencryption = [{}]\n", keys.join(", "));
    let mut gateway = Process::start(folder.path(), &secrets(&[k1]), &upstream.url()).await;
    for number in 0..3 {
        let key = format!("needs-its-key-for-{number}");
        let paid = gateway.client.post("/charge").key(&key).send().await.unwrap();
        assert_eq!(paid.status(), 201);
    }
    assert!(gateway.terminate().await.success());
    let missing = |logs: &str| {
        let is_it = |line: &&str| line.contains("recordings need an encryption key");
        logs.lines().find(is_it).map(str::to_owned)
    };
    let mut gateway = Process::start(folder.path(), &secrets(&[k2, k1]), &upstream.url()).await;
    let again = gateway.client.post("/charge").key("needs-its-key-for-0").send().await.unwrap();
    assert!(again.is_replay());
    assert!(gateway.terminate().await.success());
    assert_eq!(missing(&gateway.logs.lock().unwrap()), None);
    let gateway = Process::start(folder.path(), &secrets(&[k2]), &upstream.url()).await;
    let logs = Arc::clone(&gateway.logs);
    until("k1 is missed", async || missing(&logs.lock().unwrap()).is_some()).await;
    let missed = missing(&logs.lock().unwrap()).unwrap();
    assert!(missed.contains("\"key\":\"k1\"") && missed.contains("\"count\":3"), "{missed}");
    let refused = gateway.client.post("/charge").key("needs-its-key-for-0").send().await.unwrap();
    assert_eq!(refused.status(), 503);
}
