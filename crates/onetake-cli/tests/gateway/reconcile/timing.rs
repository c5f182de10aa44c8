//! The time of a reconciliation question, and the node that asks it.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;

use super::interrupted_upstream::Shop;
use super::reconciliation_service::{Desk, http};
use super::{PATIENT, World, config};
use crate::common::InProcess;

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
