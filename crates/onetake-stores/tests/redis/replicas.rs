//! Tests of `wait_replicas`.

use onetake_core::store::SharedSecrets;
use onetake_core::{Claimed, StoreErrorKind};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Flavour, Redis, until};
use onetake_stores::{RedisOptions, RedisStore, Weight};

use super::{claim, claim_of, done, granted, load, open, outcome, prefix, settle};

/// A server, a replica, and the link between them.
async fn pair() -> (Redis, Redis, FaultProxy) {
    let primary = Redis::start().await;
    let link = FaultProxy::start(primary.address()).await.unwrap();
    let port = link.address().port().to_string();
    let replica =
        Redis::start_with(Flavour::Redis, &["--replicaof", "127.0.0.1", port.as_str()]).await;
    until("the replica follows", async || {
        primary.cli(&["INFO", "replication"]).contains("state=online")
    })
    .await;
    (primary, replica, link)
}

#[tokio::test]
async fn too_few_replicas_make_it_indeterminate() {
    let (primary, replica, link) = pair().await;
    // Both use the same keys: one waits for what must succeed, and one for what cannot.
    let prefix = prefix();
    let waiting = async |within: &str| {
        let url = format!("{}?wait_replicas=1&wait_timeout={within}", primary.url());
        let options = RedisOptions { prefix: prefix.clone(), ..RedisOptions::default() };
        RedisStore::open(&url, options).await.unwrap()
    };
    let (patient, store) = (waiting("10s").await, waiting("100ms").await);
    let this = granted(&patient, "a").await;
    assert!(!super::records(&replica).is_empty(), "granted means that the replica has it");

    link.set(Weather::Cut);
    let error = settle(&store, &this, outcome()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Indeterminate);
    assert!(error.to_string().contains("wait_replicas"), "{error}");
    let error = claim(&store, &claim_of("b")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Indeterminate);
    // A read after the failed write does not confirm it.
    let error = load(&store, "a").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    // A secret that a failover could lose is not returned, whether it was created or found.
    for fresh in [1, 2] {
        let error = store.secret("one", [fresh; 32]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Indeterminate);
    }
    // A store without `wait_replicas` gets what the primary has.
    let hasty = open(&primary.url()).await;
    assert!(matches!(claim(&hasty, &claim_of("c")).await.unwrap(), Claimed::Granted { .. }));

    link.set(Weather::Fair);
    until("the replica is back", async || settle(&patient, &this, outcome()).await.is_ok()).await;
    assert_eq!(done(&patient, &this, outcome()).await.state.name(), "completed");
    assert_eq!(load(&patient, "a").await.unwrap().unwrap().state.name(), "completed");
    assert_eq!(patient.secret("one", [3; 32]).await.unwrap(), [1; 32], "the first that landed");
}

#[tokio::test]
async fn doctor_says_what_a_failover_loses() {
    let (primary, _replica, _link) = pair().await;
    let found = open(&primary.url()).await.diagnose().await.unwrap();
    let first = found.findings.first().unwrap();
    assert_eq!(first.weight, Weight::Broken);
    assert!(first.what.contains("asynchronous"), "{found:?}");
    assert!(first.fix.contains("wait_replicas"), "{found:?}");

    let waits = open(&format!("{}?wait_replicas=1", primary.url())).await;
    let found = waits.diagnose().await.unwrap();
    assert_eq!(found.worst(), Weight::Weak, "{found:?}");
    assert!(found.findings.first().unwrap().what.contains("less likely"), "{found:?}");

    let more = open(&format!("{}?wait_replicas=2", primary.url())).await;
    let found = more.diagnose().await.unwrap();
    assert!(found.findings.first().unwrap().what.contains("requires 2"), "{found:?}");
}
