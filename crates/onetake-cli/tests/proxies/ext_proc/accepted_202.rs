//! Operations that may be answered with 202. The processor sends them itself.

use onetake_sim::upstream::Upstream;

use super::World;

/// The requests of the processor pass the same limits as those of the gateway. All clients come
/// through one connection of Envoy, which may use a limit as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn operations_that_the_processor_sends_are_limited() {
    let upstream = Upstream::start().await.unwrap();
    let sections = format!(
        "[limits]\nmax_requests_per_upstream = 3\nmax_queued_requests = 0\n\
         [[route]]\nmatch = \"POST /async/{{*rest}}\"\nin_flight = \"async\"\n\
         wait_timeout = \"30s\"\nupstream = \"{}\"\n",
        upstream.url()
    );
    let world = World::start(&sections).await;
    let call = |key: &str| world.client.post("/async/gate").key(key).send();
    let keys = ["accepted-and-limited-01", "accepted-and-limited-02", "accepted-and-limited-03"];
    let running = keys.map(|key| tokio::spawn(call(key)));
    for key in keys {
        upstream.ran(key, 1).await;
    }
    let last = "accepted-and-limited-04";
    let refused = call(last).await.unwrap();
    assert_eq!((refused.status(), refused.code().as_str()), (503, "overloaded"));
    assert_eq!(upstream.runs(last), 0);
    for (key, running) in keys.iter().zip(running) {
        upstream.open(key);
        assert_eq!(running.await.unwrap().unwrap().status(), 201);
    }
    // The key of the refused operation is free.
    upstream.open(last);
    assert_eq!(call(last).await.unwrap().status(), 201);
    assert_eq!((upstream.runs(last), world.upstream.runs(last)), (1, 0));
}
