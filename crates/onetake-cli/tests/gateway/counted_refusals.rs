//! Every refusal of the gateway is counted by its code.

use crate::common::process::Process;
use crate::common::raw_http::RawClient;
use onetake_sim::client::Client;
use onetake_sim::upstream::Upstream;

const ROUTES: &str = "[[route]]\nmatch = \"POST /required/charge\"\nkey = { required = true }\n\
    max_request_body = \"1KiB\"\n";

/// Requests, and the codes of their refusals.
fn requests() -> Vec<(&'static str, String)> {
    let post = |path: &str, headers: &str, body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n{headers}\
             Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let key = "Idempotency-Key: counted-refusals-0001\r\n";
    let many = (0..101).map(|number| format!("X-{number}: y\r\n")).collect::<String>();
    vec![
        // Of hyper itself, before there is a request.
        ("request_refused", "GET / HTTP/1.1\r\nHost : a\r\n\r\n".to_owned()),
        ("request_head_too_large", format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")),
        // Of the edge.
        ("request_refused", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned()),
        ("request_refused", "GET /../a HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()),
        // Of the layer.
        ("idempotency_key_missing", post("/required/charge", "", "10")),
        ("idempotency_key_invalid", post("/required/charge", "Idempotency-Key: x\r\n", "10")),
        ("request_body_too_large", post("/required/charge", key, &"x".repeat(2000))),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_counted_by_its_code() {
    let upstream = Upstream::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Process::start(folder.path(), ROUTES, &upstream.url()).await;
    let requests = requests();
    for (code, request) in &requests {
        let mut client = RawClient::connect(gateway.address).await;
        client.write(request).await;
        let answer = client.response().await.unwrap();
        assert!(answer.text().contains(&format!("\"code\":\"{code}\"")), "{request}: {answer:?}");
    }
    let metrics = Client::new(gateway.admin).post("/metrics").method("GET").body("");
    let metrics = metrics.send().await.unwrap().text();
    let counted = |code: &str| {
        let line = format!("onetake_problems_total{{code=\"{code}\"}} ");
        metrics.lines().find_map(|found| found.strip_prefix(&line)?.parse::<usize>().ok())
    };
    for (code, _) in &requests {
        let sent = requests.iter().filter(|(other, _)| other == code).count();
        assert_eq!(counted(code), Some(sent), "{code}\n{metrics}");
    }
    assert_eq!(counted("no_route"), Some(0), "codes without a problem are there too");
    assert_eq!(upstream.runs_in_all(), 0);
}
