//! Spellings of a path, against real frameworks and nginx, without the gateway and behind it.
//!
//! A route requires a key. Whatever spelling a framework takes for the route, nothing runs without
//! the key if the gateway is in front.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;
mod raw;
mod raw_http1;
mod raw_http2;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use common::InProcess;
use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::servers::{Framework, FrameworkServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
/// The maximum time for an answer. Some servers do not answer malformed requests.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Methods and targets that a server could take for `POST /v1/charges`.
const SPELLINGS: &[(&str, &str)] = &[
    ("POST", "/v1/charges"),
    ("POST", "http://charges.test/v1/charges"),
    ("POST", "/v1/charges?"),
    ("POST", "/v1/charges?a=%2f"),
    ("POST", "//v1/charges"),
    ("POST", "/v1//charges"),
    ("POST", "///v1///charges"),
    ("POST", "/v1/charges/"),
    ("POST", "/v1/charges//"),
    ("POST", "/V1/charges"),
    ("POST", "/v1/CHARGES"),
    ("POST", "/v1/%63harges"),
    ("POST", "/%76%31/charges"),
    ("POST", "/v1%2fcharges"),
    ("POST", "/v1%2Fcharges"),
    ("POST", "/%2fv1/charges"),
    ("POST", "/v1/charges%2f"),
    ("POST", "/v1%252fcharges"),
    ("POST", "/v1%5ccharges"),
    ("POST", "/v1\\charges"),
    ("POST", "/v1/charges%00"),
    ("POST", "/v1/charges%0a"),
    ("POST", "/v1/charges%0d%0a"),
    ("POST", "/v1/charges%09"),
    ("POST", "/v1/charges%20"),
    ("POST", "/v1/charges%7f"),
    ("POST", "/./v1/charges"),
    ("POST", "/v1/./charges"),
    ("POST", "/x/../v1/charges"),
    ("POST", "/v1/x/%2e%2e/charges"),
    ("POST", "/v1/x%2f%2e%2e%2fcharges"),
    ("POST", "/v1/charges/."),
    ("POST", "/v1/charges/x/.."),
    ("POST", "/x/..;/v1/charges"),
    ("POST", "/v1/.;/charges"),
    ("POST", "/x/..%3b/v1/charges"),
    ("POST", "/x/%2e%2e;a=b/v1/charges"),
    ("POST", "/v1/charges;a=b"),
    ("POST", "/v1;a/charges"),
    ("POST", "/v1/charges%3ba"),
    ("POST", "/v1/charges%3fa"),
    ("POST", "/v1/charges%23a"),
    ("POST", "/v1/charges#a"),
    ("POST", "/v1/charges."),
    ("POST", "/v1/charges%"),
    ("POST", "/v1/charges%zz"),
    ("POST", "/v1%c0%afcharges"),
    ("POST", "/v1%ef%bc%8fcharges"),
    ("POST", "/v1/%ef%bd%83harges"),
    ("post", "/v1/charges"),
    ("Post", "/v1/charges"),
    ("pOST", "//v1/charges/"),
];

/// Sends a request as it is written, and returns the status line and the body.
async fn send(
    server: SocketAddr,
    method: &str,
    target: &str,
    key: Option<&str>,
) -> (String, String) {
    let mut request =
        format!("{method} {target} HTTP/1.1\r\nHost: charges.test\r\nConnection: close\r\n");
    if let Some(key) = key {
        write!(request, "Idempotency-Key: {key}\r\n").unwrap();
    }
    request.push_str("Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n10");
    let exchange = async {
        let mut stream = TcpStream::connect(server).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A server may reset the connection after its answer.
        let _reset = stream.read_to_end(&mut answer).await;
        answer
    };
    let answer = tokio::select! {
        biased;
        answer = exchange => answer,
        () = SystemClock.sleep(ANSWER_MAX) => Vec::new(),
    };
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

async fn runs(server: SocketAddr, (method, target): (&str, &str)) -> bool {
    send(server, method, target, None).await.1.contains("ran")
}

/// The gateway in front of a server. Express ignores letter case, so its route does, too.
async fn gateway(framework: Framework, upstream: SocketAddr) -> InProcess {
    let case = if framework == Framework::Express { "ignore" } else { "exact" };
    InProcess::start(format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{upstream}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nmatch = \"POST /v1/charges\"\nkey = {{ required = true }}\npath_case = \"{case}\"\n"
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_without_its_key_in_any_spelling() {
    let mut table = Table::new();
    let mut without_key = Vec::new();
    for framework in Framework::ALL {
        let server = FrameworkServer::start(framework).await;
        let gateway = gateway(framework, server.address()).await;
        let (status, body) = send(gateway.address(), "POST", "/v1/charges", Some(KEY)).await;
        assert!(body.contains("ran"), "{framework:?} does not run at all: {status}\n{body}");
        let mut alone = Vec::new();
        for (number, spelling) in SPELLINGS.iter().enumerate() {
            let runs_alone = runs(server.address(), *spelling).await;
            let runs_behind = runs(gateway.address(), *spelling).await;
            table.set(number, runs_alone, runs_behind);
            if runs_alone {
                alone.push(spelling);
            }
            if runs_behind {
                without_key.push((framework, spelling));
            }
        }
        assert!(alone.len() > 4, "the spellings do not reach {framework:?}: {alone:?}");
    }
    let table = table.written();
    println!("{table}");
    assert!(without_key.is_empty(), "ran without a key: {without_key:?}\n{table}");
}

/// The table of all spellings and servers, in Markdown.
struct Table(Vec<String>);

impl Table {
    fn new() -> Self {
        Self(SPELLINGS.iter().map(|(method, target)| format!("| `{method} {target}` |")).collect())
    }

    /// Notes for the next server whether its handler ran: alone, and behind the gateway.
    fn set(&mut self, spelling: usize, alone: bool, behind: bool) {
        let word = |ran| if ran { "ran" } else { "–" };
        write!(self.0.get_mut(spelling).unwrap(), " {} / {} |", word(alone), word(behind)).unwrap();
    }

    fn written(self) -> String {
        let servers = Framework::ALL.map(|framework| format!("{framework:?}")).join(" | ");
        let line = " --- |".repeat(Framework::ALL.len());
        format!("| spelling | {servers} |\n| --- |{line}\n{}\n", self.0.join("\n"))
    }
}

/// Shows that the test above can fail: letter case counts by default, and Express ignores it.
#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_counts_letter_case_does_not_fit_express() {
    let server = FrameworkServer::start(Framework::Express).await;
    let exact = gateway(Framework::Nginx, server.address()).await;
    assert!(runs(exact.address(), ("POST", "/V1/charges")).await);
    assert!(!runs(exact.address(), ("POST", "/v1/charges")).await);
}
