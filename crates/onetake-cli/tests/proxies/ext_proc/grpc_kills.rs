//! Kills of the processor and of Envoy in the middle of a gRPC call.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::grpc::cases::{PATH, until};
use onetake_sim::grpc::client::{GrpcClient, GrpcReply};
use onetake_sim::grpc::service::GrpcService;
use onetake_sim::servers::ProxyServer;

use super::envoy;
use super::kills::Process;
use crate::common::migrated_postgres;

/// A route with a short lease, so that the attempt of a killed processor is abandoned soon.
const SHORT_LEASE: &str =
    "[[route]]\nmatch = \"grpc other.v1.Payments/*\"\nlease = \"2s\"\ngrace = \"500ms\"\n";

struct World {
    processor: Process,
    envoy: ProxyServer,
    service: GrpcService,
    client: GrpcClient,
}

impl World {
    async fn start(store: &str) -> Self {
        let service = GrpcService::start().await.unwrap();
        let processor = Process::start_on(store, SHORT_LEASE).await;
        let envoy = envoy(service.address(), processor.address(), |file| file).await;
        let client = GrpcClient::connect(envoy.address()).await.unwrap();
        Self { processor, envoy, service, client }
    }

    /// A call that lasts until its case is opened. A second one with its key does not wait.
    async fn hold(&self, key: &str) -> std::io::Result<GrpcReply> {
        self.client.call("/other.v1.Payments/Hold").key(key).send().await
    }

    async fn charge(&self, key: &str) -> GrpcReply {
        self.client.call(&format!("{PATH}/Charge")).key(key).send().await.unwrap()
    }

    /// Calls again until the call is known to have an unknown outcome. Until then the call must not
    /// succeed.
    async fn unknown(&self, key: &str) {
        let end = SystemClock.monotonic() + Duration::from_secs(60);
        loop {
            let again = self.hold(key).await.unwrap();
            if again.code() == Some(13) && again.tells("previous_attempt_failed") {
                break;
            }
            assert_ne!(again.code(), Some(0), "{again:?}");
            assert!(SystemClock.monotonic() < end, "{again:?}");
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(self.service.runs(key), 1);
        // The service finishes, but its outcome arrives nowhere. Later calls hear the same.
        self.service.open(key);
        let again = self.hold(key).await.unwrap();
        assert!(again.tells("previous_attempt_failed"), "{again:?}");
        assert_eq!(self.service.runs(key), 1);
    }
}

/// A call whose processor is killed while it runs has an unknown outcome. Nothing runs while the
/// processor is dead, and the restarted one goes on.
async fn a_killed_processor_on(store: &str) {
    let mut world = World::start(store).await;
    let key = "grpc-processor-dies-01";
    let running = tokio::spawn({
        let client = world.client.clone();
        async move { client.call("/other.v1.Payments/Hold").key(key).send().await }
    });
    until("it runs", || world.service.runs(key) == 1).await;
    world.processor.kill();
    let lost = running.await.unwrap();
    assert!(lost.as_ref().map_or(true, |reply| reply.code() != Some(0)), "{lost:?}");
    let unkeyed = world.client.call(&format!("{PATH}/Charge")).with("x-case", "unkeyed");
    assert_ne!(unkeyed.send().await.unwrap().code(), Some(0));
    assert_eq!(world.service.runs("unkeyed"), 0);
    world.processor.restart().await;
    world.unknown(key).await;
    assert_eq!(world.charge("grpc-after-the-kill-01").await.code(), Some(0));
}

/// A call whose Envoy is killed while it runs has an unknown outcome.
async fn a_killed_envoy_on(store: &str) {
    let mut world = World::start(store).await;
    let key = "grpc-envoy-dies-000001";
    let running = tokio::spawn({
        let client = world.client.clone();
        async move { client.call("/other.v1.Payments/Hold").key(key).send().await }
    });
    until("it runs", || world.service.runs(key) == 1).await;
    world.envoy.kill();
    let lost = running.await.unwrap();
    assert!(lost.as_ref().map_or(true, |reply| reply.is_broken), "{lost:?}");
    world.envoy.restart().await;
    world.client = GrpcClient::connect(world.envoy.address()).await.unwrap();
    world.unknown(key).await;
    assert_eq!(world.charge("grpc-after-the-kill-02").await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_processor_on_the_embedded_store() {
    a_killed_processor_on("embedded:data").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_processor_on_postgres() {
    a_killed_processor_on(&migrated_postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_envoy_on_the_embedded_store() {
    a_killed_envoy_on("embedded:data").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_envoy_on_postgres() {
    a_killed_envoy_on(&migrated_postgres().await).await;
}

/// A processor that hangs is noticed by the pings of its connection, although calls in full duplex
/// have no `message_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_while_the_processor_hangs() {
    let world = World::start("embedded:data").await;
    let key = "grpc-processor-hangs-1";
    world.processor.signal("STOP");
    let refused = world.charge(key).await;
    assert!(refused.code().is_some_and(|code| code != 0), "{refused:?}");
    world.processor.signal("CONT");
    assert_eq!(world.service.runs(key), 0);
}
