//! Informational responses of upstreams, such as `103 Early Hints`.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use onetake_sim::blackbox::Target;
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
    let gateway = InProcess::start(configuration(&url, "", "")).await;
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
    let gateway = InProcess::start(configuration(&url, "", "")).await;
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
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.write(&get("1.1").repeat(20)).await;
    for number in 0..20 {
        assert_hint(&next(&mut client).await);
        let answer = next(&mut client).await;
        assert_eq!((answer.status(), answer.text()), (200, "ok".to_owned()), "{number}");
    }
}

/// HTTP/1.0 has no informational responses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_http_1_0_gets_no_hint() {
    let upstream = RawUpstream::start(format!("{HINT}{FINAL}")).await;
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
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
    let gateway = InProcess::start(configuration(&url, "", route)).await;
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
