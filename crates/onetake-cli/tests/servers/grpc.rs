//! gRPC through the gateway, on real servers.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::grpc::cases::until;
use onetake_sim::grpc::client::GrpcClient;
use onetake_sim::grpc::service::GrpcService;

use crate::common::grpc_world::{PATH, cases};
use crate::common::migrated_postgres;
use crate::common::process::Process;

/// A route with a short lease, so that the attempt of a killed gateway is abandoned soon.
const SHORT_LEASE: &str =
    "[[route]]\nmatch = \"grpc billing.v1.Payments/*\"\nlease = \"2s\"\ngrace = \"500ms\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    cases(&migrated_postgres().await).await;
}

/// A call that was running when its gateway was killed has an unknown outcome: on another gateway
/// with the same store, and on the killed one after its restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_killed_does_not_run_a_call_again() {
    let service = GrpcService::start().await.unwrap();
    let store = migrated_postgres().await;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = async |folder: &tempfile::TempDir| {
        let store = [("ONETAKE__STORE__URL", store.as_str())];
        Process::start_with(folder.path(), SHORT_LEASE, &service.url(), &store).await
    };
    let (killed, other) = (start(&folders[0]).await, start(&folders[1]).await);
    let key = "grpc-and-a-killed-gateway";
    let hold = async |gateway: &Process| {
        let client = GrpcClient::connect(gateway.address).await.unwrap();
        client.call(&format!("{PATH}/Hold")).key(key).send().await
    };
    let client = GrpcClient::connect(killed.address).await.unwrap();
    let call = client.call(&format!("{PATH}/Hold")).key(key);
    let (lost, ()) = tokio::join!(call.send(), async {
        until("it runs", || service.runs(key) == 1).await;
        // Another gateway says that the call runs.
        let again = hold(&other).await.unwrap();
        assert!(again.code() == Some(10) && again.tells("request_in_progress"), "{again:?}");
        killed.kill().await;
    });
    assert!(lost.is_err() || lost.is_ok_and(|reply| reply.is_broken));
    let end = SystemClock.monotonic() + Duration::from_secs(60);
    loop {
        let again = hold(&other).await.unwrap();
        if again.code() == Some(13) {
            assert!(again.tells("previous_attempt_failed"), "{again:?}");
            break;
        }
        assert_eq!(again.code(), Some(10), "{again:?}");
        assert!(SystemClock.monotonic() < end, "{again:?}");
        SystemClock.sleep(Duration::from_millis(50)).await;
    }
    // The service finishes, but its outcome arrives nowhere.
    service.open(key);
    let restarted = start(&folders[0]).await;
    for gateway in [&other, &restarted] {
        let again = hold(gateway).await.unwrap();
        assert!(again.code() == Some(13) && again.tells("previous_attempt_failed"), "{again:?}");
    }
    assert_eq!(service.runs(key), 1);
}
