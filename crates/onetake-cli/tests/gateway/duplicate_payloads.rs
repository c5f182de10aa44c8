//! `duplicate_payload` as operators see it: the metric, and the log with both references.

use crate::common::process::Process;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;

const ROUTES: &str = "[[route]]\nmatch = \"POST /log/charge\"\nduplicate_payload = { action = \"log\" }\n\
    [[route]]\nmatch = \"POST /reject/charge\"\nduplicate_payload = { window = \"1h\", action = \"reject\" }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_for_each_retry_is_seen() {
    let upstream = Upstream::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Process::start(folder.path(), ROUTES, &upstream.url()).await;
    let pay = |route: &str, number: usize| {
        let key = format!("a-new-key-for-each-retry-{number}");
        gateway.client.post(&format!("/{route}/charge")).key(&key).send()
    };
    let reference = |answer: &ClientResponse| answer.header("idempotency-reference").to_owned();
    let first = pay("log", 1).await.unwrap();
    let second = pay("log", 2).await.unwrap();
    assert_eq!((first.status(), second.status()), (201, 201));
    let (earlier, later) = (reference(&first), reference(&second));
    until("the log has both references", async || {
        let logs = gateway.logs.lock().unwrap();
        logs.lines().any(|line| {
            line.contains("under a new key")
                && line.contains(&format!("\"earlier\":\"{earlier}\""))
                && line.contains(&format!("\"reference\":\"{later}\""))
        })
    })
    .await;
    assert_eq!(pay("reject", 3).await.unwrap().status(), 201);
    let refused = pay("reject", 4).await.unwrap();
    assert_eq!((refused.status(), refused.code().as_str()), (409, "duplicate_payload"));
    assert_eq!(upstream.runs_in_all(), 3);
    let metrics = Client::new(gateway.admin).post("/metrics").method("GET").body("");
    let metrics = metrics.send().await.unwrap().text();
    for (action, count) in [("logged", 1), ("rejected", 1), ("allowed", 0)] {
        let line = format!("onetake_duplicate_payloads_total{{action=\"{action}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    assert!(metrics.contains("onetake_duplicate_payloads_evicted_total 0"), "{metrics}");
}
