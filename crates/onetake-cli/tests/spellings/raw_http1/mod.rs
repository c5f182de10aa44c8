//! Raw HTTP/1 bytes into the gateway, nginx and HAProxy, each in front of a server that records its
//! requests (request smuggling).
//!
//! The gateway and a peer must pass on the same requests with the same bodies, or one of them
//! refuses. A byte sequence that both accept and read differently would let a client hide a request
//! from one of them.

mod bytes;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::{join, join_all};
use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::raw::{
    AT_ONCE, Dice, LONG_WAIT, Length, PEERS, Protocol, Recorder, Seen, Servers, WAIT, gateway,
};
use bytes::conversation;

/// The number of conversations, unless `ONETAKE_RAW_HTTP1_SECONDS` names a time instead.
const CONVERSATIONS: u64 = 600;

/// The requests that the gateway and a peer read from the same bytes.
#[derive(Debug)]
struct Compared {
    gateway: Vec<Seen>,
    peer: Vec<Seen>,
    /// True if the peer refused a part of it.
    is_refused_by_peer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// Both passed on the same requests.
    None,
    /// Neither passed on anything.
    BothRefused,
    /// The gateway refused something that the peer accepted.
    GatewayStricter,
    /// The peer refused something that the gateway accepted.
    PeerStricter,
    /// Both accepted the bytes, and read other requests.
    Disagreement,
}

impl Servers {
    /// Sends the same bytes to all. Returns one comparison for each peer.
    async fn compare(&self, case: u64, bytes: &[u8], wait: Duration) -> Vec<Compared> {
        let by_peers = self.peers.iter().map(|(server, _)| exchange(server.address(), bytes, wait));
        let by_gateway = exchange(self.gateway_address(), bytes, wait);
        let (_, by_peers) = join(by_gateway, join_all(by_peers)).await;
        let gateway = self.behind_gateway.take(case);
        let compared =
            self.peers.iter().zip(by_peers).map(|((_, recorder), (answer, is_reset))| {
                Compared {
                    gateway: gateway.clone(),
                    peer: recorder.take(case),
                    // A reset can destroy the refusal on its way.
                    is_refused_by_peer: is_reset || is_refusal(&answer),
                }
            });
        compared.collect()
    }

    /// Compares, and looks again with more time if the proxies differ: a machine that stalls could
    /// be the reason.
    async fn judge(&self, case: u64, bytes: &[u8]) -> Vec<(Difference, Compared)> {
        let judged = |compared: Vec<Compared>| {
            Vec::from_iter(compared.into_iter().map(|it| (it.difference(), it)))
        };
        let first = judged(self.compare(case, bytes, WAIT).await);
        let is_odd = |(difference, _): &(Difference, _)| {
            matches!(difference, Difference::Disagreement | Difference::PeerStricter)
        };
        if !first.iter().any(is_odd) {
            return first;
        }
        judged(self.compare(case, bytes, LONG_WAIT).await)
    }
}

/// True if an answer has a refusal.
fn is_refusal(answer: &[u8]) -> bool {
    let refusals = ["400", "405", "411", "413", "414", "417", "494", "500", "501", "505"];
    let answers = String::from_utf8_lossy(answer);
    // A status line follows directly behind the body before it. nginx answers a malformed request
    // line without a head.
    let mut statuses = answers.split("HTTP/1.1 ").skip(1);
    statuses.any(|text| refusals.iter().any(|code| text.starts_with(code)))
        || answers.contains("<title>400 Bad Request</title>")
}

impl Compared {
    fn difference(&self) -> Difference {
        let common = self.gateway.iter().zip(&self.peer).all(|(one, other)| one == other);
        match self.gateway.len().cmp(&self.peer.len()) {
            _ if self.gateway.is_empty() && self.peer.is_empty() => Difference::BothRefused,
            _ if !common => Difference::Disagreement,
            std::cmp::Ordering::Equal => Difference::None,
            std::cmp::Ordering::Less => Difference::GatewayStricter,
            std::cmp::Ordering::Greater if self.is_refused_by_peer => Difference::PeerStricter,
            std::cmp::Ordering::Greater => Difference::Disagreement,
        }
    }
}

/// Sends bytes, and returns everything that comes back until the connection ends or time is over,
/// and whether the server reset the connection.
async fn exchange(server: SocketAddr, bytes: &[u8], wait: Duration) -> (Vec<u8>, bool) {
    let mut answer = Vec::new();
    let exchanged = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(bytes).await?;
        let mut part = [0; 4096];
        loop {
            match stream.read(&mut part).await? {
                0 => return Ok::<(), std::io::Error>(()),
                count => answer.extend(part.iter().take(count)),
            }
        }
    };
    let is_reset = tokio::select! {
        biased;
        ended = exchanged => ended.is_err(),
        () = SystemClock.sleep(wait) => false,
    };
    (answer, is_reset)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_and_its_peers_read_the_same_requests() {
    let length = Length::new(CONVERSATIONS, "ONETAKE_RAW_HTTP1_SECONDS");
    let servers = Servers::start(Protocol::Http1).await;
    let mut counts = [[0_u64; 5]; PEERS.len()];
    let mut findings = Vec::new();
    let mut number = 0;
    while length.is_short_of(number) {
        let batch = (number..number + AT_ONCE).map(|case| {
            let bytes = conversation(case, &mut Dice::new(case));
            let servers = &servers;
            async move { (servers.judge(case, &bytes).await, bytes) }
        });
        for (judged, bytes) in join_all(batch).await {
            let text = String::from_utf8_lossy(&bytes);
            for ((peer, counts), (difference, compared)) in
                PEERS.iter().zip(&mut counts).zip(judged)
            {
                counts[difference as usize] += 1;
                if std::env::var_os("ONETAKE_RAW_LIST").is_some() {
                    println!("{peer:?} {difference:?} {text:?}");
                }
                if difference == Difference::Disagreement {
                    findings.push(format!("{peer:?} {text:?}\n{compared:?}"));
                }
            }
        }
        number += AT_ONCE;
    }
    for (peer, [alike, by_both, by_gateway, by_peer, differently]) in PEERS.iter().zip(counts) {
        println!(
            "{number} conversations with {peer:?}: {alike} read alike, {by_both} refused by both, \
             {by_gateway} by the gateway alone, {by_peer} by {peer:?} alone, {differently} read \
             differently"
        );
        // If most conversations were refused at once, they would test nothing.
        assert!(alike > number / 3 && by_both > 0 && by_gateway > 0, "{counts:?}");
    }
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n\n"));
}

/// Sends bytes to a gateway. Returns the answer and the requests that arrived behind it.
async fn passed_on(bytes: &str) -> (String, Vec<Seen>) {
    let recorder = Recorder::start().await;
    let gateway = gateway(&recorder).await;
    let (answer, _) = exchange(gateway.address(), bytes.as_bytes(), Duration::from_secs(20)).await;
    (String::from_utf8_lossy(&answer).into_owned(), recorder.take(1))
}

/// hyper drops the chunked body of a GET that has no `Transfer-Encoding` header.
#[tokio::test(flavor = "multi_thread")]
async fn a_chunked_body_of_a_get_is_passed_on() {
    for method in ["GET", "HEAD", "POST"] {
        let (answer, seen) = passed_on(&format!(
            "{method} /1/a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\
             Connection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        ))
        .await;
        assert_eq!(seen, [Seen::new(method, "/1/a", "hello")], "{answer}");
    }
    // Without a body, none is announced.
    let bytes = "GET /1/b HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    assert_eq!(passed_on(bytes).await.1, [Seen::new("GET", "/1/b", "")]);
}

/// The bytes behind a request that two servers could read differently are not read as a request.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_follows_an_ambiguous_request() {
    let hidden = "GET /1/hidden HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    for head in [
        "POST /1/a HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\nContent_Length: 64",
        "POST /1/a HTTP/1.1\r\nHost: a.test\r\nConnection: content-length",
        "POST /1/../a HTTP/1.1\r\nHost: a.test",
        "POST http://a.test/1/a HTTP/1.1",
    ] {
        let (answer, seen) = passed_on(&format!("{head}\r\n\r\n{hidden}")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert_eq!(seen, [], "{head}: {answer}");
    }
}

/// A request with `Content-Length` and `Transfer-Encoding` is refused, as by nginx, and is the last
/// one of its connection. The bytes behind it are no request, whichever of the two a server in front
/// believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_two_lengths_is_refused() {
    let first = "GET /1/first HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let hidden = "GET /1/hidden HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked\r\nContent-Length: 70\r\nContent-Length: 70",
    ] {
        // Behind another request too: hyper reads both heads from one buffer.
        for before in ["", first] {
            let head = format!("POST /1/a HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n");
            let bytes = format!("{before}{head}5\r\nhello\r\n0\r\n\r\n{hidden}");
            let (answer, seen) = passed_on(&bytes).await;
            let expected = match before {
                "" => vec![],
                _ => vec![Seen::new("GET", "/1/first", "")],
            };
            assert_eq!(seen, expected, "{framing}: {answer}");
            let answers: Vec<_> = answer.split("HTTP/1.1 ").skip(1).collect();
            assert_eq!(answers.len(), expected.len() + 1, "{answer}");
            let refusal = answers.last().unwrap().to_ascii_lowercase();
            assert!(refusal.starts_with("400 "), "{answer}");
            assert!(refusal.contains("\r\nconnection: close\r\n"), "{answer}");
            assert!(refusal.contains("content-length beside"), "{answer}");
        }
    }
}
