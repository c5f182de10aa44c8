//! Every limit of `[limits]` has its effect, its metric, a gauge with its value, and a row in
//! docs/OPERATIONS.md.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::{Client, ClientError, ClientResponse};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::common::process::Process;
use crate::common::raw_http::{RawClient, RawUpstream};

/// A gateway as a process, so that its metrics are its own, and its upstream.
struct World {
    upstream: Upstream,
    gateway: Process,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start(limits: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let upstream = Upstream::start().await.unwrap();
        let (limits, variables) = (format!("[limits]\n{limits}\n"), [("ONETAKE_LOG", "info")]);
        let gateway =
            Process::start_with(folder.path(), &limits, &upstream.url(), &variables).await;
        Self { upstream, gateway, _folder: folder }
    }

    /// Sends a request that the upstream answers when its gate is opened.
    async fn hold(
        &self,
        client: &Client,
        key: &str,
    ) -> JoinHandle<Result<ClientResponse, ClientError>> {
        let held = tokio::spawn(client.post("/any/gate").key(key).send());
        self.upstream.ran(key, 1).await;
        held
    }

    async fn overloaded(&self, reason: &str) -> f64 {
        self.gateway.metric(&format!("onetake_overloaded_total{{reason=\"{reason}\"}}")).await
    }
}

/// The metric of evicted connections.
const EVICTED: &str = "onetake_connections_evicted_total";

async fn charge(client: &Client, key: &str) -> ClientResponse {
    client.post("/any/charge").key(key).send().await.unwrap()
}

/// Options, the reason by which a refusal is counted, and the status of a request on another
/// connection.
const REFUSALS: &[(&str, &str, u16)] = &[
    ("max_requests = 1\nmax_queued_requests = 0", "requests", 503),
    ("max_requests_per_connection = 1\nmax_queued_requests = 0", "requests_per_connection", 201),
    ("max_requests_per_upstream = 1\nmax_queued_requests = 0", "requests_per_upstream", 503),
    ("max_requests = 1\nqueue_timeout = \"1ms\"", "requests", 503),
    ("max_operations = 1", "operations", 503),
];

/// While one request is in flight, the next one is one too many.
async fn one_more_is_refused((limits, reason, elsewhere): (&str, &str, u16)) {
    let world = World::start(limits).await;
    let client = Client::http2(world.gateway.address);
    let held = world.hold(&client, "the-only-request-0001").await;
    let refused = charge(&client, "one-request-too-many-1").await;
    assert_eq!((refused.status(), &*refused.code()), (503, "overloaded"), "{limits}");
    assert!(!refused.header("retry-after").is_empty(), "{limits}");
    assert_eq!(world.overloaded(reason).await, 1.0, "{limits}");
    let other = charge(&world.gateway.client, "one-request-too-many-2").await;
    assert_eq!(other.status(), elsewhere, "{limits}: {}", other.text());
    world.upstream.open("the-only-request-0001");
    assert_eq!(held.await.unwrap().unwrap().status(), 201, "{limits}");
    // The gateway may learn of the end of the response after the client.
    until(limits, async || charge(&client, "one-request-too-many-1").await.status() == 201).await;
    assert_eq!(world.upstream.runs("one-request-too-many-1"), 1, "{limits}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_a_limit_is_refused_and_counted() {
    join_all(REFUSALS.iter().map(|row| one_more_is_refused(*row))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_has_the_configured_places() {
    let limits = "max_requests = 1\nmax_queued_requests = 1\nqueue_timeout = \"60s\"";
    let world = World::start(limits).await;
    let held = world.hold(&world.gateway.client, "the-only-request-0002").await;
    let waiting = world.gateway.client.clone();
    let waiting = tokio::spawn(async move { charge(&waiting, "a-request-in-the-queue").await });
    until("one waits", async || world.gateway.metric("onetake_requests_queued").await == 1.0).await;
    let surplus = charge(&world.gateway.client, "a-request-without-a-place").await;
    assert_eq!((surplus.status(), &*surplus.code()), (503, "overloaded"));
    assert_eq!(world.overloaded("requests").await, 1.0);
    world.upstream.open("the-only-request-0002");
    assert_eq!(held.await.unwrap().unwrap().status(), 201);
    assert_eq!(waiting.await.unwrap().status(), 201);
}

/// The default is a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_the_configured_time() {
    let world = World::start("max_requests = 1\nqueue_timeout = \"2500ms\"").await;
    let held = world.hold(&world.gateway.client, "the-only-request-0003").await;
    let since = SystemClock.monotonic();
    let refused = charge(&world.gateway.client, "a-request-that-waited").await;
    let took = SystemClock.monotonic() - since;
    assert_eq!((refused.status(), &*refused.code()), (503, "overloaded"));
    assert!(took >= Duration::from_millis(2_500), "{took:?}");
    assert_eq!(world.overloaded("requests").await, 1.0);
    world.upstream.open("the-only-request-0003");
    assert_eq!(held.await.unwrap().unwrap().status(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_the_wait_in_the_queue() {
    let world = World::start("max_requests = 1\nqueue_timeout = \"60s\"").await;
    let held = world.hold(&world.gateway.client, "the-only-request-0004").await;
    for (name, value) in [("x-request-timeout-ms", "200"), ("grpc-timeout", "200m")] {
        let since = SystemClock.monotonic();
        let call = world.gateway.client.post("/any/charge").key("a-request-with-a-deadline");
        let refused = call.header(name, value).send().await.unwrap();
        let took = SystemClock.monotonic() - since;
        assert_eq!((refused.status(), &*refused.code()), (504, "deadline_exceeded"), "{name}");
        assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(30), "{took:?}");
    }
    assert_eq!(world.overloaded("requests").await, 0.0);
    assert_eq!(world.gateway.metric("onetake_requests_queued").await, 0.0, "they have left");
    world.upstream.open("the-only-request-0004");
    assert_eq!(held.await.unwrap().unwrap().status(), 201);
    assert_eq!(world.upstream.runs("a-request-with-a-deadline"), 0);
    let charged = charge(&world.gateway.client, "a-request-with-a-deadline").await;
    assert_eq!(charged.status(), 201, "its key is free");
}

/// The upstream is told what is left of the time that the request has spent in the queue, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_in_the_queue_counts_for_the_deadline() {
    let upstream = RawUpstream::start("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n").await;
    let folder = tempfile::tempdir().unwrap();
    let limits = "[limits]\nmax_requests = 1\nqueue_timeout = \"60s\"\n";
    let gateway = Process::start_with(folder.path(), limits, &upstream.url(), &[]).await;
    // A request whose body is not complete yet.
    let mut held = RawClient::connect(gateway.address).await;
    let head = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";
    held.write(head).await;
    until("it runs", async || gateway.metric("onetake_requests_in_flight").await == 1.0).await;
    let mut waiting = RawClient::connect(gateway.address).await;
    waiting.write("POST /b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\nContent-Length: 0\r\nIdempotency-Key: a-request-in-the-queue\r\nX-Request-Timeout-Ms: 60000\r\n\r\n").await;
    until("it waits", async || gateway.metric("onetake_requests_queued").await == 1.0).await;
    SystemClock.sleep(Duration::from_secs(1)).await;
    held.write("1").await;
    assert_eq!(waiting.response().await.unwrap().status(), 201);
    let received = upstream.received();
    let keyed = received.iter().find(|message| message.head.starts_with("post /b ")).unwrap();
    let left: u64 = keyed.header("x-request-timeout-ms").unwrap().parse().unwrap();
    assert!(left <= 59_000, "{left}");
}

/// A connection waits while the others have requests. It gets the place of one that became idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_over_the_limit_wait_for_a_place() {
    let world = World::start("max_connections = 1").await;
    let mut first = RawClient::connect(world.gateway.address).await;
    first.post("/any/gate", "the-first-connection-00").await;
    world.upstream.ran("the-first-connection-00", 1).await;
    let mut second = RawClient::connect(world.gateway.address).await;
    second.post("/any/charge", "the-second-connection-0").await;
    until("one waits", async || world.overloaded("connections").await == 1.0).await;
    // Idle connections are evicted after a second.
    SystemClock.sleep(Duration::from_secs(2)).await;
    assert_eq!(world.upstream.runs("the-second-connection-0"), 0);
    assert_eq!(world.gateway.metric("onetake_connections").await, 1.0);
    assert_eq!(world.gateway.metric(EVICTED).await, 0.0);
    world.upstream.open("the-first-connection-00");
    assert_eq!(first.response().await.unwrap().status(), 201);
    assert_eq!(second.response().await.unwrap().status(), 201);
    assert_eq!(first.rest().await, b"", "it is evicted");
    assert_eq!(world.gateway.metric(EVICTED).await, 1.0);
    assert_eq!(world.overloaded("connections").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_has_the_configured_number_of_streams() {
    let world = World::start("max_streams = 3").await;
    let stream = TcpStream::connect(world.gateway.address).await.unwrap();
    let (mut connection, driver) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(driver.await) });
    let request = || Request::get("http://a.test/any/charge").body(()).unwrap();
    let (first, _) = connection.send_request(request(), true).unwrap();
    assert_eq!(first.await.unwrap().status(), 201);
    // The client knows the limit now, and keeps it.
    assert_eq!(connection.current_max_send_streams(), 3);
    assert_eq!(world.gateway.metric("onetake_limit{limit=\"max_streams\"}").await, 3.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_over_the_limit_is_refused_and_counted() {
    for (limits, headers, bytes) in
        [("max_headers = 16", 17, 1), ("max_header_bytes = \"8KiB\"", 1, 9_000)]
    {
        let world = World::start(limits).await;
        for client in [Client::new(world.gateway.address), Client::http2(world.gateway.address)] {
            let (mut call, value) = (client.post("/any/charge"), "x".repeat(bytes));
            for number in 0..headers {
                call = call.header(&format!("x-filler-{number}"), &value);
            }
            let refused = call.send().await.unwrap();
            let found = (refused.status(), &*refused.code());
            assert_eq!(found, (431, "request_head_too_large"), "{limits}");
        }
        let counted = "onetake_problems_total{code=\"request_head_too_large\"}";
        assert_eq!(world.gateway.metric(counted).await, 2.0, "{limits}");
        assert_eq!(charge(&world.gateway.client, "a-head-below-the-limit").await.status(), 201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_takes_too_long_is_cut_off_and_counted() {
    let world = World::start("header_timeout = \"100ms\"").await;
    let mut slow = RawClient::connect(world.gateway.address).await;
    slow.write("POST /any/charge HTTP/1.1\r\nHost: a\r\n").await;
    let since = SystemClock.monotonic();
    assert_eq!(slow.rest().await, b"");
    // The default is fifteen seconds.
    let took = SystemClock.monotonic() - since;
    assert!(took < Duration::from_secs(12), "{took:?}");
    let cut = "onetake_connections_cut_total{reason=\"head\"}";
    until("it is counted", async || world.gateway.metric(cut).await == 1.0).await;
}

/// With the default rate, a body that has sent 100 kB has several minutes left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_below_the_least_rate_is_refused_and_counted() {
    let world = World::start("min_body_rate = 1000000").await;
    let mut slow = RawClient::connect(world.gateway.address).await;
    let part = "x".repeat(100_000);
    let head = "POST /any/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
                Idempotency-Key: a-slow-body-00000001\r\nContent-Length: 200000\r\n\r\n";
    slow.write(&format!("{head}{part}")).await;
    let refused = slow.response().await.unwrap();
    assert_eq!(refused.status(), 408, "{}", refused.text());
    assert!(refused.text().contains("too slowly"), "{}", refused.text());
    assert_eq!(world.gateway.metric("onetake_slow_bodies_total").await, 1.0);
}

fn page(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
    std::fs::read_to_string(format!("{folder}{name}")).unwrap()
}

/// The number of a cell, such as `16384`, `16,384`, `"15s"` or `256 MiB`. Sizes are in bytes, times
/// in seconds.
fn number(cell: &str) -> Option<f64> {
    let text = cell.replace(['`', '"', ',', ' '], "");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "s" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// The defaults of the options of a section in docs/CONFIGURATION.md, by name.
fn defaults(section: &str) -> BTreeMap<String, Option<f64>> {
    let page = page("CONFIGURATION.md");
    let (_, table) = page.split_once(&format!("<!-- options of {section} -->")).unwrap();
    let (table, _) = table.split_once("<!-- end of options -->").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
        (cells.first().unwrap().trim_matches('`').to_owned(), number(cells.last().unwrap()))
    })
    .collect()
}

/// The rows of the tables below "Limits" in docs/OPERATIONS.md, by cells.
fn rows_of_limits() -> Vec<Vec<String>> {
    let page = page("OPERATIONS.md");
    let (_, section) = page.split_once("\n## Limits\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let trimmed = |cell: &str| cell.trim().to_owned();
    rows.map(|row| row.trim_matches('|').split(" | ").map(trimmed).collect()).collect()
}

/// The metrics that a cell names. `code` and `reason` are short for labels of two metrics.
fn metrics_of(cell: &str) -> Vec<String> {
    let names = cell.split('`').skip(1).step_by(2).map(|name| match name.split_once('=') {
        Some(("code", _)) => format!("onetake_problems_total{{{name}}}"),
        Some(("reason", _)) => format!("onetake_overloaded_total{{{name}}}"),
        _ => name.to_owned(),
    });
    names.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limit_has_a_gauge_with_its_value() {
    let world = World::start("").await;
    let limits = defaults("[limits]");
    assert!(limits.len() > 15, "{limits:?}");
    for (name, default) in &limits {
        let value = world.gateway.metric(&format!("onetake_limit{{limit=\"{name}\"}}")).await;
        // Few open files lower this one.
        let is_right = Some(value) == *default || name == "max_connections" && value > 0.0;
        assert!(is_right, "{name}: {value} is not {default:?}");
    }
    for (name, default) in [("keep_alive", 75.0), ("upstream_keep_alive", 4.0)] {
        let value = world.gateway.metric(&format!("onetake_limit{{limit=\"{name}\"}}")).await;
        assert_eq!(value, default, "{name}");
    }
}

/// The page names every limit with its default, and with a metric that the gateway has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_limits_is_that_of_the_code() {
    let world = World::start("").await;
    let metrics = world.gateway.metrics().await;
    let (limits, gateway, route) =
        (defaults("[limits]"), defaults("[gateway]"), defaults("[[route]]"));
    let mut listed = BTreeSet::new();
    for row in rows_of_limits() {
        // A table begins with its header. In tables of options, the name is in backticks.
        let option = row[0].strip_prefix('`').and_then(|name| name.strip_suffix('`'));
        let metrics_cell = row.last().unwrap();
        for metric in metrics_of(metrics_cell) {
            let is_there = |line: &str| {
                let rest = line.strip_prefix(&metric);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            };
            assert!(metrics.lines().any(is_there), "{row:?}: the gateway has no metric {metric}");
        }
        let Some(option) = option else { continue };
        let default = match option.strip_prefix("[gateway] ") {
            Some(name) => gateway.get(name),
            None => limits.get(option).or_else(|| route.get(option)),
        };
        let default = default.unwrap_or_else(|| panic!("{option} is no option"));
        assert_eq!(number(&row[1]), *default, "the default of {option}");
        assert!(!metrics_of(metrics_cell).is_empty(), "{option} has no metric");
        listed.insert(option.to_owned());
    }
    let missing: Vec<_> = limits.keys().filter(|name| !listed.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/OPERATIONS.md has no row for {missing:?}");
    for option in ["[gateway] duplicate_payloads_max", "max_request_body", "upstream_timeout"] {
        assert!(listed.contains(option), "docs/OPERATIONS.md has no row for {option}");
    }
}
