//! A gateway with verbose output, requests with every possible result, and a search for secrets in
//! everything that the gateway wrote.

pub(crate) mod requests;
mod search;

use onetake_sim::client::Client;
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;

use super::collector::{Collector, Manner};
use super::process::Process;
use requests::{ALL, ANSWERED, MEMBER, ROUTES, Sender};
use search::holds;

/// A gateway with verbose output, and a collector for its traces.
pub(crate) struct Scene {
    pub(crate) gateway: Process,
    pub(crate) collector: Collector,
    pub(crate) upstream: Upstream,
    pub(crate) sender: Sender,
    _folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) async fn start(format: &str, variables: &[(&str, &str)]) -> Self {
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
    pub(crate) async fn said_nothing_of(mut self, more: &[&str]) {
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
        let named = |text: &[u8]| holds(text, MEMBER);
        assert!(
            said.iter().all(|(what, text)| named(text) == (*what == "the problems")),
            "{MEMBER}"
        );
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
