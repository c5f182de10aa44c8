//! Every limit of `[limits]` has its effect, its metric, and a gauge with its value.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

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
use crate::common::raw_http::RawClient;

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
async fn connections_over_the_limit_wait_for_a_place() {
    let world = World::start("max_connections = 1").await;
    let mut first = RawClient::connect(world.gateway.address).await;
    first.post("/any/charge", "the-first-connection-00").await;
    assert_eq!(first.response().await.unwrap().status(), 201);
    let mut second = RawClient::connect(world.gateway.address).await;
    second.post("/any/charge", "the-second-connection-0").await;
    for number in 1..50 {
        first.post("/any/charge", &format!("the-first-connection-{number:02}")).await;
        assert_eq!(first.response().await.unwrap().status(), 201);
        assert_eq!(world.gateway.metric("onetake_connections").await, 1.0);
    }
    assert_eq!(world.upstream.runs("the-second-connection-0"), 0);
    drop(first);
    assert_eq!(second.response().await.unwrap().status(), 201);
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

/// The rows of `[limits]` in docs/CONFIGURATION.md: the name and the default of each option.
fn documented() -> Vec<(String, f64)> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("<!-- options of [limits] -->").unwrap();
    let (table, _) = table.split_once("<!-- end of options -->").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<_> = row.split(" | ").collect();
        let trimmed = |cell: &str| cell.trim_matches(['|', ' ', '`', '"']).to_owned();
        let (name, default) = (trimmed(cells.first().unwrap()), trimmed(cells.last().unwrap()));
        let digits = default.find(|c: char| !c.is_ascii_digit()).unwrap_or(default.len());
        let (number, unit) = default.split_at(digits);
        let factor = match unit {
            "" | "s" => 1.0,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            other => unreachable!("{other} of {name}"),
        };
        (name, number.parse::<f64>().unwrap() * factor)
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_limit_has_a_gauge_with_its_value() {
    let world = World::start("").await;
    let documented = documented();
    assert!(documented.len() > 15, "{documented:?}");
    for (name, default) in documented {
        let value = world.gateway.metric(&format!("onetake_limit{{limit=\"{name}\"}}")).await;
        // Few open files lower this one.
        let is_right = value == default || name == "max_connections" && value > 0.0;
        assert!(is_right, "{name}: {value} is not {default}");
    }
    for (name, default) in [("keep_alive", 75.0), ("upstream_keep_alive", 4.0)] {
        let value = world.gateway.metric(&format!("onetake_limit{{limit=\"{name}\"}}")).await;
        assert_eq!(value, default, "{name}");
    }
}
