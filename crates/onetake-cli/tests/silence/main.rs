//! Log secrecy: logs, metrics, traces and problems of the binary hold no key, no credential and no
//! body, for any kind of request.
#![cfg(feature = "otlp")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

#[path = "../common/process.rs"]
mod binary;
#[path = "../common/collector.rs"]
mod collector;
mod requests;
mod search;

use std::process::Command;

use binary::Process;
use collector::{Collector, Manner, attribute};
use onetake_sim::client::Client;
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, Redis, until};
use onetake_sim::upstream::Upstream;

use requests::{ALL, ANSWERED, ROUTES, Sender};
use search::holds;

/// A gateway with verbose output, and a collector for its traces.
struct Scene {
    gateway: Process,
    collector: Collector,
    upstream: Upstream,
    sender: Sender,
    _folder: tempfile::TempDir,
}

impl Scene {
    async fn start(format: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let upstream = Upstream::start().await.unwrap();
        let collector = Collector::start(Manner::Takes).await;
        let url = collector.url();
        let mut all = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", &*url)];
        all.extend(variables);
        let arguments = ["--log-format", format, "--drain-seconds", "30"];
        let gateway =
            Process::start_as(&arguments, folder.path(), ROUTES, &upstream.url(), &all).await;
        let sender = Sender::new(gateway.address);
        Self { gateway, collector, upstream, sender, _folder: folder }
    }

    /// Stops the gateway, and searches all of its output.
    async fn said_nothing_of(mut self, more: &[&str]) {
        let logs = || self.gateway.logs.lock().unwrap().clone();
        let asked = "the outcome of an operation is still unknown after a reconciliation";
        until("somebody was asked what became of one", async || logs().contains(asked)).await;
        let admin = Client::new(self.gateway.admin);
        let metrics = admin.post("/metrics").method("GET").body("").send().await.unwrap();
        assert!(self.gateway.terminate().await.success());
        let logs = self.gateway.logs.lock().unwrap().clone();
        let problems = self.sender.answers.iter().filter(|answer| {
            let kind = answer.header("content-type");
            kind == "application/problem+json" || !answer.header("stripe-should-retry").is_empty()
        });
        let problems = problems.map(|problem| format!("{:?} {}", problem.headers, problem.text()));
        let problems = problems.collect::<Vec<_>>().join("\n");
        let said = [
            ("the logs", logs.into_bytes()),
            ("the metrics", metrics.body.to_vec()),
            ("the spans", self.collector.bytes()),
            ("the problems", problems.into_bytes()),
        ];
        // The search finds text that must be there, so it works.
        let reference = self.sender.answers[0].header("idempotency-reference");
        for (text, known) in
            said.iter().zip([reference, "onetake_executed_total", reference, "code"])
        {
            assert!(holds(&text.1, known), "{} do not even hold {known}", text.0);
        }
        let made = self.sender.made.iter().map(String::as_str);
        let secrets = ALL.into_iter().chain(ANSWERED).chain(made).chain(more.iter().copied());
        for secret in secrets {
            for (what, text) in &said {
                if holds(text, secret) {
                    let text = String::from_utf8_lossy(text);
                    let lines: Vec<_> =
                        text.lines().filter(|line| holds(line.as_bytes(), secret)).collect();
                    panic!("{what} hold {secret}:\n{}", lines.join("\n"));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_embedded_store_with_logs_for_machines() {
    let mut scene = Scene::start("json", &[]).await;
    let upstream = scene.upstream.clone();
    scene.sender.everything(&upstream).await;
    scene.said_nothing_of(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_servers_that_go_away_with_logs_for_people() {
    let server = Postgres::start().await;
    let database = server.database();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let name = database.rsplit('/').next().unwrap();
    let url = server.url_at(proxy.address(), name);
    let password = url.split([':', '@']).nth(2).unwrap().to_owned();
    let migrate =
        Command::new(env!("CARGO_BIN_EXE_onetake")).args(["migrate", "--store", &url]).output();
    assert!(migrate.unwrap().status.success());
    let mut redis = Redis::start().await;
    let (store, filter) = ("ONETAKE__STORE__URL", "ONETAKE__STORE__FILTER");
    let mut scene = Scene::start("text", &[(store, &url), (filter, &redis.url())]).await;
    let upstream = scene.upstream.clone();
    scene.sender.everything(&upstream).await;
    proxy.set(Weather::Dead);
    redis.kill();
    let closed = scene.sender.call("/any/charge", 90);
    scene.sender.send(closed, 503, "idempotency_store_unavailable").await;
    let open = scene.sender.call("/open/charge", 91);
    scene.sender.send(open, 201, "").await;
    proxy.set(Weather::Fair);
    scene.said_nothing_of(&[&password]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_in_the_document() {
    let mut scene = Scene::start("json", &[]).await;
    let upstream = scene.upstream.clone();
    scene.sender.everything(&upstream).await;
    let document = include_str!("../../../../docs/OPERATIONS.md");
    let is_documented = |name: &str| document.contains(&format!("`{name}`"));
    let admin = Client::new(scene.gateway.admin);
    let metrics = admin.post("/metrics").method("GET").body("").send().await.unwrap().text();
    let types: Vec<_> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(types.len() > 15, "{metrics}");
    for name in types.iter().filter_map(|line| line.split(' ').next()) {
        let is_labelled = document.contains(&format!("`{name}{{"));
        assert!(is_documented(name) || is_labelled, "{name} is not in the document");
    }
    assert!(scene.gateway.terminate().await.success());
    let spans = scene.collector.spans();
    assert!(spans.len() > 100, "{}", spans.len());
    for span in &spans {
        assert!(span.events.is_empty(), "what is logged stays in the log: {span:?}");
        let is_route = ROUTES.contains(&format!("\"{}\"", span.name));
        assert!(is_route || is_ours(&span.name) || is_documented(&span.name), "{}", span.name);
        for field in &span.attributes {
            let _once = attribute(&span.attributes, &field.key);
            assert!(is_documented(&field.key), "{} is not in the document", field.key);
        }
        let outcome = attribute(&span.attributes, "onetake.outcome");
        assert!(outcome.is_empty() || is_documented(&outcome), "{outcome} is not in the document");
    }
}

/// Paths that the gateway itself serves.
fn is_ours(name: &str) -> bool {
    ["POST /idempotency-tokens", "GET /.onetake/operations/{handle}"].contains(&name)
}
