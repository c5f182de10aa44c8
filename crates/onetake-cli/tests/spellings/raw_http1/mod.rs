//! Raw HTTP/1 bytes into the gateway and into nginx, both in front of a server that records its
//! requests (request smuggling).
//!
//! The two must pass on the same requests with the same bodies, or one of them refuses. A byte
//! sequence that both accept and read differently would let a client hide a request from one of
//! them.

mod bytes;
mod recorder;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::servers::NginxProxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::common::InProcess;
use bytes::{Dice, conversation};
use recorder::{Recorder, Seen};

/// The number of conversations, unless `ONETAKE_RAW_HTTP1_SECONDS` names a time instead.
const CONVERSATIONS: u64 = 600;
/// The number of conversations at once.
const AT_ONCE: u64 = 24;
/// The longest wait for the end of a connection. A server may wait for bytes that never come.
const WAIT: Duration = Duration::from_millis(400);
/// The same, for a conversation that is looked at again.
const LONG_WAIT: Duration = Duration::from_secs(3);

/// The two proxies, each with a recorder behind it.
struct Servers {
    gateway: InProcess,
    nginx: NginxProxy,
    behind_gateway: Recorder,
    behind_nginx: Recorder,
}

/// What the two proxies made of the same bytes.
#[derive(Debug)]
struct Compared {
    gateway: Vec<Seen>,
    nginx: Vec<Seen>,
    /// True if nginx refused a part of it.
    is_refused_by_nginx: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// Both passed on the same requests.
    None,
    /// Neither passed on anything.
    BothRefused,
    /// The gateway refused something that nginx accepted.
    GatewayStricter,
    /// nginx refused something that the gateway accepted.
    NginxStricter,
    /// Both accepted the bytes, and read other requests.
    Disagreement,
}

impl Servers {
    async fn start() -> Self {
        let (behind_gateway, behind_nginx) = (Recorder::start().await, Recorder::start().await);
        let gateway = InProcess::start(format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{}\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
            behind_gateway.address()
        ))
        .await;
        let nginx = NginxProxy::start(behind_nginx.address()).await;
        Self { gateway, nginx, behind_gateway, behind_nginx }
    }

    /// Sends the same bytes to both.
    async fn compare(&self, case: u64, bytes: &[u8], wait: Duration) -> Compared {
        let (_, (by_nginx, is_reset)) = tokio::join!(
            exchange(self.gateway.address(), bytes, wait),
            exchange(self.nginx.address(), bytes, wait)
        );
        let refusals = ["400", "405", "411", "413", "414", "417", "494", "500", "501", "505"];
        let answers = String::from_utf8_lossy(&by_nginx).into_owned();
        // A status line follows directly behind the body before it.
        let mut statuses = answers.split("HTTP/1.1 ").skip(1);
        let is_status = statuses.any(|text| refusals.iter().any(|code| text.starts_with(code)));
        // nginx answers a malformed request line without a head.
        let is_page = answers.contains("<title>400 Bad Request</title>");
        Compared {
            gateway: self.behind_gateway.take(case),
            nginx: self.behind_nginx.take(case),
            // A reset can destroy the refusal on its way.
            is_refused_by_nginx: is_reset || is_page || is_status,
        }
    }

    /// Compares, and looks again with more time if the proxies differ: a machine that stalls could
    /// be the reason.
    async fn judge(&self, case: u64, bytes: &[u8]) -> (Difference, Compared) {
        let compared = self.compare(case, bytes, WAIT).await;
        let difference = compared.difference();
        if !matches!(difference, Difference::Disagreement | Difference::NginxStricter) {
            return (difference, compared);
        }
        let compared = self.compare(case, bytes, LONG_WAIT).await;
        (compared.difference(), compared)
    }
}

impl Compared {
    fn difference(&self) -> Difference {
        let common = self.gateway.iter().zip(&self.nginx).all(|(one, other)| one == other);
        match self.gateway.len().cmp(&self.nginx.len()) {
            _ if self.gateway.is_empty() && self.nginx.is_empty() => Difference::BothRefused,
            _ if !common => Difference::Disagreement,
            std::cmp::Ordering::Equal => Difference::None,
            std::cmp::Ordering::Less => Difference::GatewayStricter,
            std::cmp::Ordering::Greater if self.is_refused_by_nginx => Difference::NginxStricter,
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
async fn the_gateway_and_nginx_read_the_same_requests() {
    let seconds = std::env::var("ONETAKE_RAW_HTTP1_SECONDS").ok();
    let seconds: Option<u64> = seconds.and_then(|text| text.parse().ok());
    let end = SystemClock.monotonic() + Duration::from_secs(seconds.unwrap_or(0));
    let servers = Servers::start().await;
    let mut counts = [0_u64; 5];
    let mut findings = Vec::new();
    let mut number = 0;
    while if seconds.is_some() { SystemClock.monotonic() < end } else { number < CONVERSATIONS } {
        let batch = (number..number + AT_ONCE).map(|case| {
            let bytes = conversation(case, &mut Dice::new(case));
            let servers = &servers;
            async move {
                let (difference, compared) = servers.judge(case, &bytes).await;
                (difference, compared, bytes)
            }
        });
        for (difference, compared, bytes) in join_all(batch).await {
            counts[difference as usize] += 1;
            if std::env::var_os("ONETAKE_RAW_HTTP1_LIST").is_some() {
                println!("{difference:?} {:?}", String::from_utf8_lossy(&bytes));
            }
            if difference == Difference::Disagreement {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                findings.push(format!("{difference:?} {text:?}\n{compared:?}"));
            }
        }
        number += AT_ONCE;
    }
    let [alike, by_both, by_gateway, by_nginx, differently] = counts;
    println!(
        "{number} conversations: {alike} read alike, {by_both} refused by both, {by_gateway} refused \
         by the gateway alone, {by_nginx} by nginx alone, {differently} read differently"
    );
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n\n"));
    // If most conversations were refused at once, they would test nothing.
    assert!(alike > number / 3 && by_both > 0 && by_gateway > 0, "{counts:?}");
}

/// Sends bytes to a gateway. Returns the answer and the requests that arrived behind it.
async fn passed_on(bytes: &str) -> (String, Vec<Seen>) {
    let recorder = Recorder::start().await;
    let gateway = InProcess::start(format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
        recorder.address()
    ))
    .await;
    let (answer, _) = exchange(gateway.address(), bytes.as_bytes(), Duration::from_secs(20)).await;
    (String::from_utf8_lossy(&answer).into_owned(), recorder.take(1))
}

/// hyper drops the chunked body of a GET unless it is told not to.
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
