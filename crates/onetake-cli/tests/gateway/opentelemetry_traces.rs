//! Traces of the binary, as a collector receives them.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::process::Command;
use std::time::Duration;

use crate::common::collector::{Collector, Manner, attribute, hex};
use crate::common::process::Process;
use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::{Call, Client, ClientResponse};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

const ROUTES: &str = "[[route]]\nmatch = \"POST /pay/{*rest}\"\ntenant = \"credential\"\n";

struct Setting {
    gateway: Process,
    upstream: Upstream,
    _folder: tempfile::TempDir,
}

impl Setting {
    async fn start(variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let upstream = Upstream::start().await.unwrap();
        let gateway = Process::start_with(folder.path(), ROUTES, &upstream.url(), variables).await;
        Self { gateway, upstream, _folder: folder }
    }

    /// A call whose response is the headers that the upstream got.
    fn head(&self, key: &str) -> Call {
        self.gateway.client.post("/pay/head").key(key)
    }
}

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// A header that the upstream got, from its response.
fn got(answer: &ClientResponse, name: &str) -> Vec<String> {
    let text = answer.text();
    let start = format!("\"{name}\": \"");
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix(&start));
    lines.map(|rest| rest.trim_end_matches("\",").to_owned()).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no span {name}: {spans:#?}"));
    assert!(found.next().is_none(), "two spans {name}");
    span
}

fn field(span: &Span, name: &str) -> String {
    attribute(&span.attributes, name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_part_of_the_trace_that_it_comes_with() {
    let collector = Collector::start(Manner::Takes).await;
    let mut setting = Setting::start(&[(ENDPOINT, &collector.url())]).await;
    let call = || {
        let call = setting.head("a-key-of-a-trace-01").header("traceparent", &traceparent("01"));
        call.header("tracestate", "vendor=a-state").send()
    };
    let answer = call().await.unwrap();
    assert_eq!(answer.status(), 200);
    let spans = collector.trace(TRACE, 4).await;
    let request = named(&spans, "POST /pay/{*rest}");
    assert_eq!(hex(&request.parent_span_id), PARENT);
    assert_eq!(request.kind, SpanKind::Server as i32);
    assert_eq!(request.trace_state, "vendor=a-state");
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.response.status_code", "200"),
        ("onetake.route", "POST /pay/{*rest}"),
        ("onetake.reference", answer.header("idempotency-reference")),
        ("onetake.outcome", "executed"),
        ("onetake.problem", ""),
        ("onetake.fence", &got(&answer, "idempotency-fence")[0]),
    ] {
        assert_eq!(field(request, name), value, "{name}");
    }
    for child in ["claim", "upstream", "settle"] {
        assert_eq!(named(&spans, child).parent_span_id, request.span_id, "{child}");
    }
    assert_eq!(field(named(&spans, "settle"), "onetake.transition"), "complete");
    let upstream = named(&spans, "upstream");
    assert_eq!(upstream.kind, SpanKind::Client as i32);
    assert_eq!(field(upstream, "http.response.status_code"), "200");
    // The upstream's own spans are children of the call to it.
    let passed_on = format!("00-{TRACE}-{}-01", hex(&upstream.span_id));
    assert_eq!(got(&answer, "traceparent"), [passed_on]);
    assert_eq!(got(&answer, "tracestate"), ["vendor=a-state"]);

    // A replay makes no call, and does not show the first attempt's trace.
    let again = call().await.unwrap();
    assert!(again.is_replay() && again.body == answer.body);
    let spans = collector.trace(TRACE, 5).await;
    let is_replay = |span: &&Span| field(span, "onetake.outcome") == "replayed";
    let replay = spans.iter().find(is_replay).unwrap();
    assert_eq!(field(replay, "onetake.reference"), field(request, "onetake.reference"));
    assert!(spans.iter().all(|span| span.parent_span_id != replay.span_id), "it has no children");
    assert!(setting.gateway.terminate().await.success());
    assert_eq!(collector.trace(TRACE, 5).await.len(), 5);
    assert_eq!(collector.resource("service.name"), "onetake");
    assert_eq!(collector.heads()[0], "POST /v1/traces application/x-protobuf");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_of_a_request_is_in_its_span() {
    let collector = Collector::start(Manner::Takes).await;
    let variables = [(ENDPOINT, &*collector.url()), ("OTEL_SERVICE_NAME", "payments-edge")];
    let mut setting = Setting::start(&variables).await;
    let (client, upstream) = (&setting.gateway.client, &setting.upstream);
    let post = |path: &str, key: &str| client.post(path).key(key);
    let running = tokio::spawn(post("/pay/gate", "in-flight-key-0001").send());
    upstream.ran("in-flight-key-0001", 1).await;
    let calls = [
        (post("/pay/gate", "in-flight-key-0001"), "in_flight", "request_in_progress"),
        (post("/pay/charge", "executed-key-00001"), "executed", ""),
        (
            post("/pay/charge", "executed-key-00001").body("11"),
            "mismatch",
            "idempotency_payload_mismatch",
        ),
        (post("/pay/500", "unknown-key-000001"), "executed", ""),
        (post("/pay/500", "unknown-key-000001"), "unknown", "previous_attempt_failed"),
        (post("/pay/charge", "short"), "refused", "idempotency_key_invalid"),
        (client.post("/pay/charge"), "passed_on", ""),
        (client.post("/elsewhere").method("GET").body(""), "passed_on", ""),
    ];
    let mut expected = Vec::new();
    for (number, (call, outcome, problem)) in calls.into_iter().enumerate() {
        let id = format!("{:032x}", number + 1);
        let answer = call.header("traceparent", &format!("00-{id}-{PARENT}-01")).send().await;
        expected.push((id, outcome, problem, answer.unwrap()));
    }
    upstream.open("in-flight-key-0001");
    assert_eq!(running.await.unwrap().unwrap().status(), 201);
    assert!(setting.gateway.terminate().await.success());
    let spans = collector.spans();
    for (id, outcome, problem, answer) in expected {
        let is_its =
            |span: &&Span| hex(&span.trace_id) == id && hex(&span.parent_span_id) == PARENT;
        let request = spans.iter().find(is_its).unwrap();
        assert_eq!(field(request, "onetake.outcome"), outcome, "{id}: {}", answer.text());
        assert_eq!(field(request, "onetake.problem"), problem, "{id}");
        let reference = field(request, "onetake.reference");
        assert_eq!(reference, answer.header("idempotency-reference"), "{id}");
        assert_eq!(field(request, "http.response.status_code"), answer.status().to_string());
        let is_error = request.status.as_ref().is_some_and(|status| status.code == 2);
        assert_eq!(is_error, answer.status() >= 500, "{id}");
    }
    assert_eq!(collector.resource("service.name"), "payments-edge");
    assert!(spans.iter().any(|span| field(span, "onetake.transition") == "unknown"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_that_cannot_be_read_is_begun_anew() {
    let collector = Collector::start(Manner::Takes).await;
    let mut setting = Setting::start(&[(ENDPOINT, &collector.url())]).await;
    let bad = format!("00-{}-{PARENT}-01", TRACE.to_uppercase());
    let call = setting.head("a-key-of-a-trace-02").header("traceparent", &bad);
    let answer = call.header("tracestate", "vendor=a-state").send().await.unwrap();
    let passed_on = got(&answer, "traceparent");
    assert!(passed_on.len() == 1 && !passed_on[0].contains(PARENT), "{passed_on:?}");
    assert_eq!(got(&answer, "tracestate"), [""; 0], "it belongs to the trace that is not ours");
    let spans = collector.trace(passed_on[0].split('-').nth(1).unwrap(), 4).await;
    assert!(named(&spans, "POST /pay/{*rest}").parent_span_id.is_empty());
    // A trace that is not sampled: the gateway exports nothing, and passes the decision on.
    let call = setting.head("a-key-of-a-trace-03").header("traceparent", &traceparent("00"));
    let answer = call.send().await.unwrap();
    let passed_on = got(&answer, "traceparent");
    assert!(passed_on[0].starts_with(&format!("00-{TRACE}-")) && passed_on[0].ends_with("-00"));
    assert!(setting.gateway.terminate().await.success());
    assert!(collector.spans().iter().all(|span| hex(&span.trace_id) != TRACE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_collector_trace_headers_pass_through() {
    let mut setting = Setting::start(&[]).await;
    for (number, value) in [traceparent("01"), "what nobody can read".to_owned()].iter().enumerate()
    {
        let call = setting.head(&format!("a-key-of-a-trace-{number}0"));
        let call = call.header("traceparent", value).header("tracestate", "vendor=a-state");
        let answer = call.send().await.unwrap();
        assert_eq!(got(&answer, "traceparent"), [value.as_str()]);
        assert_eq!(got(&answer, "tracestate"), ["vendor=a-state"]);
    }
    assert!(setting.gateway.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_or_refuses_holds_up_nobody() {
    let collector = Collector::start(Manner::Hangs).await;
    // As in production: logging each request would take most of the time.
    let variables = [(ENDPOINT, &*collector.url()), ("ONETAKE_LOG", "info")];
    let mut setting = Setting::start(&variables).await;
    let client = &setting.gateway.client;
    let send = async |round: usize| {
        let calls = (0..50).map(|number| {
            let key = format!("hanging-collector-{round}-{number}");
            client.post("/pay/charge").key(&key).send()
        });
        for answer in join_all(calls).await {
            assert_eq!(answer.unwrap().status(), 201);
        }
    };
    let from = SystemClock.monotonic();
    // Far more spans than the queue holds.
    for round in 0..40 {
        send(round).await;
    }
    let took = SystemClock.monotonic() - from;
    // If requests waited for the collector, each of the forty rounds would take ten seconds.
    assert!(took < Duration::from_secs(120), "2000 requests took {took:?}");
    let admin = Client::new(setting.gateway.admin);
    let dropped = async || -> u64 {
        let metrics = admin.post("/metrics").method("GET").body("").send().await.unwrap().text();
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix("onetake_spans_dropped_total "));
        line.unwrap().parse().unwrap()
    };
    until("what does not fit is counted", async || dropped().await > 0).await;
    collector.change(Manner::Refuses);
    until("a refusal is counted, too", {
        let before = dropped().await;
        async move || dropped().await > before
    })
    .await;
    // The collector works again, and spans arrive.
    collector.change(Manner::Takes);
    send(40).await;
    until("spans arrive again", async || !collector.spans().is_empty()).await;
    until("that is said", async || {
        setting.gateway.logs.lock().unwrap().contains("traces are sent again")
    })
    .await;
    let logs = setting.gateway.logs.lock().unwrap().clone();
    assert_eq!(logs.matches("traces cannot be sent").count(), 1, "{logs}");
    // Remaining spans are sent at shutdown. A hanging collector delays it by five seconds.
    collector.change(Manner::Hangs);
    send(41).await;
    let from = SystemClock.monotonic();
    assert!(setting.gateway.terminate().await.success());
    let took = SystemClock.monotonic() - from;
    assert!(took < Duration::from_secs(30), "it took {took:?} to end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_spans_are_sent_at_the_end() {
    let collector = Collector::start(Manner::Takes).await;
    let mut setting = Setting::start(&[(ENDPOINT, &collector.url())]).await;
    let call = setting.head("a-key-of-a-trace-04").header("traceparent", &traceparent("01"));
    call.send().await.unwrap();
    assert!(setting.gateway.terminate().await.success());
    let ended = collector.spans();
    assert_eq!(ended.iter().filter(|span| hex(&span.trace_id) == TRACE).count(), 4);
}

#[test]
fn a_variable_that_means_nothing_is_an_error() {
    for (name, value, said) in [
        (ENDPOINT, "not a url", ENDPOINT),
        ("OTEL_TRACES_SAMPLER", "half", "OTEL_TRACES_SAMPLER = \"half\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.args(["serve", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]);
        command.args(["--admin-listen", "127.0.0.1:0", "--store"]);
        command.arg(format!("embedded:{}", folder.path().join("data").display()));
        command.env(ENDPOINT, "http://127.0.0.1:1").env(name, value);
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{error}");
    }
}
