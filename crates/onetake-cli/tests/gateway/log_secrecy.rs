//! Log secrecy: logs, metrics, traces and problems of the binary hold no key, no credential and no
//! body, for any kind of request.

use onetake_sim::client::Client;

use crate::common::collector::attribute;
use crate::common::log_secrecy::Scene;
use crate::common::log_secrecy::requests::ROUTES;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_embedded_store_with_logs_for_machines() {
    let mut scene = Scene::start("json", &[]).await;
    let upstream = scene.upstream.clone();
    scene.sender.everything(&upstream).await;
    scene.said_nothing_of(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_in_the_document() {
    let mut scene = Scene::start("json", &[]).await;
    let upstream = scene.upstream.clone();
    scene.sender.everything(&upstream).await;
    let document = include_str!("../../../../docs/OPERATIONS.md");
    let is_documented = |name: &str| document.contains(&format!("`{name}`"));
    let admin = Client::new(scene.gateway.admin);
    let metrics = admin.post("/metrics").method("GET").body("").send().await.unwrap().text();
    let types: Vec<_> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(types.len() > 15, "{metrics}");
    for name in types.iter().filter_map(|line| line.split(' ').next()) {
        let is_labelled = document.contains(&format!("`{name}{{"));
        assert!(is_documented(name) || is_labelled, "{name} is not in the document");
    }
    assert!(scene.gateway.terminate().await.success());
    let spans = scene.collector.spans();
    assert!(spans.len() > 100, "{}", spans.len());
    for span in &spans {
        assert!(span.events.is_empty(), "what is logged stays in the log: {span:?}");
        let is_route = ROUTES.contains(&format!("\"{}\"", span.name));
        assert!(is_route || is_ours(&span.name) || is_documented(&span.name), "{}", span.name);
        for field in &span.attributes {
            let _once = attribute(&span.attributes, &field.key);
            assert!(is_documented(&field.key), "{} is not in the document", field.key);
        }
        let outcome = attribute(&span.attributes, "onetake.outcome");
        assert!(outcome.is_empty() || is_documented(&outcome), "{outcome} is not in the document");
    }
}

/// Paths that the gateway itself serves.
fn is_ours(name: &str) -> bool {
    ["POST /idempotency-tokens", "GET /.onetake/operations/{handle}"].contains(&name)
}
