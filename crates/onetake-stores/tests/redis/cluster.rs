//! Tests of a cluster that changes while it is used.

use std::process::Command;
use std::time::Duration;

use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Store, SystemClock, SystemRng, Terms, Transition,
};
use onetake_sim::servers::{Redis, RedisCluster, until};

use onetake_stores::{RedisOptions, RedisStore};

use super::{Race, claim_of, done, granted, load, open, outcome, prefix, records, settlement};

fn hex(claim: &Claim) -> String {
    claim.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_primary(node: &Redis) -> bool {
    node.cli(&["ROLE"]).starts_with("master")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_takes_over_from_a_dead_primary() {
    let mut cluster = RedisCluster::start().await;
    until("every primary has its replica", async || {
        let mut primaries = cluster.nodes().iter().filter(|node| is_primary(node));
        primaries.all(|node| node.cli(&["INFO", "replication"]).contains("state=online"))
    })
    .await;
    let options = RedisOptions { prefix: prefix(), ..RedisOptions::default() };
    // This store has known the replicas from the start.
    let all: Vec<_> = cluster.nodes().iter().map(|node| node.address().to_string()).collect();
    let url = format!("redis-cluster://{}", all.join(","));
    let store = RedisStore::open(&url, options.clone()).await.unwrap();
    // A failover keeps what the replicas have.
    let url = format!("{}?wait_replicas=1&wait_timeout=5s", cluster.url());
    let careful = RedisStore::open(&url, options).await.unwrap();
    let keys: Vec<_> = (0..100).map(|key| format!("key {key}")).collect();
    let claims: Vec<_> = keys.iter().map(|key| claim_of(key)).collect();
    for answer in careful.claim(claims.clone()).await {
        assert!(matches!(answer.unwrap(), Claimed::Granted { .. }));
    }
    let done = claims.iter().map(|this| settlement(this, outcome())).collect();
    for answer in careful.settle(done).await {
        answer.unwrap();
    }

    // Operations whose lease and grace will have ended when the replica takes over.
    let (lease, grace) = (Duration::from_millis(100), Duration::from_secs(6));
    let mut running: Vec<_> = (0..30).map(|key| claim_of(&format!("running {key}"))).collect();
    for this in &mut running {
        this.terms = Terms { lease, grace, ..Terms::default() };
    }
    let from = SystemClock.monotonic();
    for answer in careful.claim(running.clone()).await {
        assert!(matches!(answer.unwrap(), Claimed::Granted { .. }));
    }

    let primary = cluster.nodes().iter().position(is_primary).unwrap();
    let lost: Vec<_> = running
        .iter()
        .filter(|this| {
            records(&cluster.nodes()[primary]).iter().any(|key| key.ends_with(&hex(this)))
        })
        .cloned()
        .collect();
    assert!(!lost.is_empty());
    cluster.nodes_mut()[primary].kill();
    SystemClock.sleep((from + lease + grace).saturating_sub(SystemClock.monotonic())).await;
    until("the store answers again for every key", async || {
        let batch = keys.iter().map(|key| claim_of(key)).collect();
        store.claim(batch).await.iter().all(Result::is_ok)
    })
    .await;
    let again = |this: &Claim| Claim { attempt: AttemptId::random(&SystemRng), ..this.clone() };
    for answer in store.claim(lost.iter().map(again).collect()).await {
        let Claimed::Found { record, .. } = answer.unwrap() else { panic!("granted") };
        assert_eq!(record.state.name(), "running", "its owner could not renew: grace anew");
    }
    for key in &keys {
        let record = load(&store, key).await.unwrap().expect("nothing acknowledged is lost");
        assert_eq!(record.state.name(), "completed");
    }
    let new = (0..100).map(|key| claim_of(&format!("new {key}"))).collect();
    for answer in store.claim(new).await {
        assert!(matches!(answer.unwrap(), Claimed::Granted { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_granted_twice_while_slots_move() {
    let cluster = RedisCluster::start().await;
    let race = Race::on(&cluster.url()).await;
    let primaries: Vec<_> = cluster.nodes().iter().filter(|node| is_primary(node)).collect();
    let names: Vec<_> = primaries.iter().map(|node| node.cli(&["CLUSTER", "MYID"])).collect();
    let address = primaries[0].address().to_string();
    race.run(async {
        // A third of each node's slots, in a circle.
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            let (from, to) = (&names[from], &names[to]);
            // It fails until all nodes know of the last move.
            until("slots move", async || {
                let mut reshard = Command::new("redis-cli");
                reshard.args(["--cluster", "reshard", &address, "--cluster-yes"]);
                reshard.args(["--cluster-from", from, "--cluster-to", to]);
                reshard.args(["--cluster-slots", "1500"]);
                let output = tokio::task::spawn_blocking(move || reshard.output()).await.unwrap();
                output.unwrap().status.success()
            })
            .await;
            race.goes_on(200).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_slot_on_its_way_and_one_that_moved_are_found_at_once() {
    let cluster = RedisCluster::start().await;
    let store = open(&cluster.url()).await;
    let this = granted(&store, "a").await;
    let mut primaries: Vec<_> = cluster.nodes().iter().filter(|node| is_primary(node)).collect();
    primaries.sort_by_key(|node| records(node).is_empty());
    let (from, to) = (primaries[0], primaries[1]);
    let [key] = records(from).try_into().unwrap();
    let slot = from.cli(&["CLUSTER", "KEYSLOT", &key]);
    let (from_name, to_name) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));

    to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_name]);
    from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_name]);
    let port = to.address().port().to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
    migrate.extend(keys.lines());
    assert_eq!(from.cli(&migrate), "OK");
    // The slot still belongs to the first node, which redirects to the second (`ASK`).
    done(&store, &this, Transition::Renew).await;
    assert_eq!(load(&store, "a").await.unwrap().unwrap().attempt, this.attempt);

    for node in [to, from] {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_name]);
    }
    // Now the first node redirects for good (`MOVED`).
    done(&store, &this, outcome()).await;
    assert_eq!(load(&store, "a").await.unwrap().unwrap().state.name(), "completed");
}
