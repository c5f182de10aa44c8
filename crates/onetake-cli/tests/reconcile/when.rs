//! The time of a reconciliation question, and the node that asks it.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::servers::{Postgres, until};

use crate::common::{InProcess, migrated};
use crate::desk::{Desk, http};
use crate::shop::Shop;
use crate::{PATIENT, World, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_asked_before_what_was_sent_must_have_arrived() {
    let (shop, desk) = (Shop::start().await, Desk::start().await);
    let text = config(&shop, &desk, "memory:", PATIENT, "");
    let text = text.replace("grace = \"100ms\"", "grace = \"500ms\"");
    let gateway = InProcess::start(text).await;
    let client = Client::new(gateway.address());
    let world = World { shop, desk, client, gateway };
    world.desk.says("early", http("200 OK", b"found"));
    let before = SystemClock.monotonic();
    world.lose("early").await;
    assert_eq!(world.settled("early").await.text(), "found");
    let waited = world.desk.asked()[0].at - before;
    assert!(waited >= Duration::from_millis(2_500), "{waited:?}: upstream timeout + grace");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_one_asks() {
    let server = Postgres::start().await;
    let store = migrated(server.database()).await;
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
