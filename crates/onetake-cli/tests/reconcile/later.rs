//! Routes that answer 202: whoever was told to come back is told how it ended, and nothing is released.

use onetake_sim::servers::until;

use crate::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_executed_is_the_end_of_it() {
    let more = "timeout = \"30s\", not_executed = [\"404\"]";
    let world = World::start(more, "in_flight = \"async\"").await;
    let key = "promised-and-not-done";
    world.lose(key).await;
    until("it is settled", async || {
        let counts = world.admin_json("/v1/counts").await;
        counts["failed"].as_u64() == Some(1)
    })
    .await;
    let retry = world.pay(key).await;
    assert_eq!((retry.status(), &*retry.code()), (500, "previous_attempt_failed"));
    assert!(retry.text().contains("a new try needs a new key"), "{}", retry.text());
    assert_eq!(world.shop.runs(key), 1, "its handle would have had two ends");
}
