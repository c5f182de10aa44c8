//! Routes that answer 202: the handle shows how the operation ended, and nothing is released.

use std::sync::Arc;

use onetake_sim::servers::until;
use tokio::sync::Semaphore;

use super::World;
use super::interrupted_upstream::Shop;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_executed_is_the_end_of_it() {
    let slow = Arc::new(Semaphore::new(0));
    let shop = Shop::start_slow(Some(Arc::clone(&slow))).await;
    let more = "timeout = \"30s\", not_executed = [\"404\"]";
    let lines = "in_flight = \"async\"\nwait_timeout = \"50ms\"";
    let world = World::start_with(shop, more, lines).await;
    let key = "promised-and-not-done";
    let accepted = world.pay(key).await;
    assert_eq!(accepted.status(), 202, "{}", accepted.text());
    let handle = accepted.header("location").to_owned();
    slow.add_permits(1);
    let mut told = None;
    until("it is settled", async || {
        let look = world.client.post(&handle).method("GET").without("authorization").body("");
        let answer = look.send().await.unwrap();
        let is_over = answer.status() == 500;
        told = Some(answer);
        is_over
    })
    .await;
    slow.add_permits(100);
    for answer in [told.unwrap(), world.pay(key).await] {
        assert_eq!((answer.status(), &*answer.code()), (500, "previous_attempt_failed"));
        assert!(answer.text().contains("use a new key"), "{}", answer.text());
    }
    assert_eq!(world.shop.runs(key), 1, "its handle would have had two ends");
}
