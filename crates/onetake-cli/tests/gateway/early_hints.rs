//! Informational responses of upstreams, such as `103 Early Hints`.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::common::raw_http::{Message, RawClient, RawUpstream};
use crate::common::{InProcess, configuration};

const HINT: &str = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n";
const FINAL: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An upstream that sends a hint at once, then one hint and the final response for each permit.
async fn slow_upstream() -> (String, Arc<Semaphore>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let permits = Arc::new(Semaphore::new(0));
    let taken = Arc::clone(&permits);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let permits = Arc::clone(&taken);
            tokio::spawn(async move {
                let mut read = [0; 4096];
                while stream.read(&mut read).await.is_ok_and(|count| count > 0) {
                    stream.write_all(HINT.as_bytes()).await.unwrap();
                    permits.acquire().await.unwrap().forget();
                    let rest = format!("{HINT}{FINAL}");
                    stream.write_all(rest.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (url, permits)
}

/// A gateway that forwards hints.
async fn gateway(upstream: &str, sections: &str) -> InProcess {
    InProcess::start(configuration(upstream, "early_hints = true", sections)).await
}

fn get(version: &str) -> String {
    format!("GET /page HTTP/{version}\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")
}

async fn next(client: &mut RawClient) -> Message {
    client.response().await.unwrap()
}

/// Checks that this is the hint of the upstream.
fn assert_hint(message: &Message) {
    assert_eq!((message.status(), message.header("link")), (103, Some("</style.css>")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_arrives_before_the_response() {
    let (url, permits) = slow_upstream().await;
    let gateway = gateway(&url, "").await;
    let mut client = RawClient::connect(gateway.address()).await;
    for round in 0..3 {
        client.write(&get("1.1")).await;
        assert_hint(&next(&mut client).await);
        permits.add_permits(1);
        // This one is in the same packet as the response.
        assert_hint(&next(&mut client).await);
        let answer = next(&mut client).await;
        assert_eq!((answer.status(), answer.text()), (200, "ok".to_owned()), "{round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyed_request_gets_hints_and_its_replay_none() {
    let (url, permits) = slow_upstream().await;
    let gateway = gateway(&url, "").await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.post("/any/charge", "early-hints-of-a-key").await;
    assert_hint(&next(&mut client).await);
    permits.add_permits(1);
    assert_hint(&next(&mut client).await);
    let first = next(&mut client).await;
    assert_eq!((first.status(), first.header("idempotent-replayed")), (200, None));
    client.post("/any/charge", "early-hints-of-a-key").await;
    let replay = next(&mut client).await;
    assert_eq!((replay.status(), replay.header("idempotent-replayed")), (200, Some("true")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_get_their_own_hints() {
    let upstream = RawUpstream::start(format!("{HINT}{FINAL}")).await;
    let gateway = gateway(&upstream.url(), "").await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.write(&get("1.1").repeat(20)).await;
    for number in 0..20 {
        assert_hint(&next(&mut client).await);
        let answer = next(&mut client).await;
        assert_eq!((answer.status(), answer.text()), (200, "ok".to_owned()), "{number}");
    }
}

/// Some clients take a hint for the final response, so none is forwarded unless the operator says
/// so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_are_dropped_by_default() {
    let upstream = RawUpstream::start(format!("{HINT}{FINAL}")).await;
    for line in ["", "early_hints = false"] {
        let gateway = InProcess::start(configuration(&upstream.url(), line, "")).await;
        let mut client = RawClient::connect(gateway.address()).await;
        client.write(&get("1.1").repeat(2)).await;
        client.post("/any/charge", "early-hints-of-a-key").await;
        for _ in 0..3 {
            let answer = next(&mut client).await;
            assert_eq!((answer.status(), answer.text()), (200, "ok".to_owned()), "{line}");
        }
    }
}

/// HTTP/1.0 has no informational responses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_http_1_0_gets_no_hint() {
    let upstream = RawUpstream::start(format!("{HINT}{FINAL}")).await;
    let gateway = gateway(&upstream.url(), "").await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.write(&get("1.0")).await;
    assert_eq!(next(&mut client).await.status(), 200);
    client.write(&get("1.1")).await;
    assert_hint(&next(&mut client).await);
    assert_eq!(next(&mut client).await.status(), 200);
}

/// Hints of an operation that goes on after its response are not mixed into the next response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_in_the_background_sends_no_hints() {
    let (url, permits) = slow_upstream().await;
    let route = "[[route]]\nmatch = \"POST /jobs\"\nin_flight = \"async\"\n";
    let gateway = gateway(&url, route).await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.post("/jobs", "a-job-in-the-background").await;
    let mut accepted = next(&mut client).await;
    while accepted.status() == 103 {
        accepted = next(&mut client).await;
    }
    assert_eq!(accepted.status(), 202, "{accepted:?}");
    client.write(&get("1.1")).await;
    assert_hint(&next(&mut client).await);
    // Both operations end now. Only the second one is of the present request.
    permits.add_permits(2);
    assert_hint(&next(&mut client).await);
    let answer = next(&mut client).await;
    assert_eq!((answer.status(), answer.text()), (200, "ok".to_owned()));
}

/// An upstream that sends more hints than a client is sent, and hints that are too large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_hints_leaves_the_response_whole() {
    let large = format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "x".repeat(60 << 10));
    let flood = format!("{}{large}{large}", HINT.repeat(2_000));
    let upstream = RawUpstream::start(format!("{flood}{FINAL}")).await;
    let gateway = gateway(&upstream.url(), "").await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.write(&get("1.1").repeat(3)).await;
    for number in 0..3 {
        let mut answer = next(&mut client).await;
        let mut hints = 0;
        while answer.status() == 103 {
            assert_hint(&answer);
            hints += 1;
            answer = next(&mut client).await;
        }
        assert_eq!((answer.status(), answer.text()), (200, "ok".to_owned()), "{number}");
        assert!(hints > 0, "{number}");
    }
    let dropped = Client::new(gateway.admin()).post("/metrics").method("GET").body("");
    let metrics = dropped.send().await.unwrap().text();
    let name = "onetake_early_hints_dropped_total ";
    let dropped = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert!(dropped.parse::<f64>().unwrap() >= 6.0, "the large ones: {dropped}");
}

/// The gateway itself asks the client to continue. What the upstream says about that is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_beside_100_continue() {
    let upstream = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";
    let upstream = RawUpstream::start(format!("{upstream}{HINT}{FINAL}")).await;
    let gateway = gateway(&upstream.url(), "").await;
    let mut client = RawClient::connect(gateway.address()).await;
    for number in 0..2 {
        let request = "POST /any/charge HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\
                       Content-Length: 2\r\n\r\n";
        client.write(request).await;
        assert_eq!(next(&mut client).await.status(), 100, "{number}");
        client.write("10").await;
        assert_eq!(next(&mut client).await.status(), 102, "{number}");
        assert_hint(&next(&mut client).await);
        assert_eq!(next(&mut client).await.status(), 200, "{number}");
    }
}

/// The bytes of hints cannot end their own head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_hint_is_no_response() {
    for hint in [
        "HTTP/1.1 103 Early Hints\r\nlink: a\rb\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: a\0b\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nli nk: a\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: a\r\n b\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    ] {
        let upstream = RawUpstream::start(format!("{hint}{FINAL}")).await;
        let gateway = gateway(&upstream.url(), "").await;
        let mut client = RawClient::connect(gateway.address()).await;
        client.write(&get("1.1")).await;
        assert_eq!(next(&mut client).await.status(), 502, "{hint:?}");
    }
}
