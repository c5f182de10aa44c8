//! Reconciliation by several nodes on one PostgreSQL.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../../gateway/reconcile/configuration.rs"]
mod configuration;
#[path = "../../gateway/reconcile/interrupted_upstream.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "other programs use all of it")]
mod interrupted_upstream;
#[path = "../../gateway/reconcile/reconciliation_service.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "other programs use all of it")]
mod reconciliation_service;

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::servers::until;

use crate::common::{InProcess, migrated_postgres};
use configuration::{PATIENT, config};
use interrupted_upstream::Shop;
use reconciliation_service::Desk;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_one_asks() {
    let store = migrated_postgres().await;
    let (shop, desk) = (Shop::start().await, Desk::start().await);
    let text = config(&shop, &desk, &store, PATIENT, "");
    let nodes = [InProcess::start(text.clone()).await, InProcess::start(text).await];
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    for (key, node) in keys.iter().zip(nodes.iter().cycle()) {
        let call = Client::new(node.address()).post("/pay").without("authorization");
        let lost = call.header("idempotency-key", key).send().await.unwrap();
        assert_eq!(lost.code(), "upstream_interrupted", "{}", lost.text());
    }
    let asked = |key: &String| desk.asked_for(key).len();
    until("all are asked for", async || keys.iter().all(|key| asked(key) > 0)).await;
    // After one more check by each node, it is still one question.
    SystemClock.sleep(Duration::from_millis(1_200)).await;
    assert_eq!(keys.iter().map(asked).collect::<Vec<_>>(), vec![1; keys.len()]);
}
