//! Tests of stored keys and their expiry, and of errors when opening.

use std::time::Duration;

use onetake_core::store::{Due, SharedSecrets};
use onetake_core::{Cause, Claimed, OnUnknown, Store, StoreErrorKind, Terms, Transition};
use onetake_sim::servers::{Redis, RedisCluster, free_port};
use onetake_stores::{RedisOptions, RedisStore};

use super::{
    claim, claim_of, done, granted, id, load, open, outcome, prefix, records, settle, settlement,
};

fn ttl(server: &Redis, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().unwrap()
}

#[tokio::test]
async fn what_runs_has_no_ttl_and_what_is_finished_has_one() {
    const DAY: i64 = 86_400_000;
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    for transition in [outcome(), Transition::Release, Transition::Unknown(Cause::TimedOut)] {
        server.cli(&["FLUSHALL"]);
        let this = granted(&store, "a").await;
        let [key] = records(&server).try_into().unwrap();
        assert_eq!(ttl(&server, &key), -1, "what runs never expires");
        done(&store, &this, Transition::Renew).await;
        assert_eq!(ttl(&server, &key), -1, "renewed or not");
        done(&store, &this, transition.clone()).await;
        let left = ttl(&server, &key);
        assert!((DAY - 60_000..=DAY).contains(&left), "{transition:?}: {left}");
        if transition == Transition::Release {
            granted(&store, "a").await;
            assert_eq!(ttl(&server, &key), -1, "it runs again");
        }
    }
}

#[tokio::test]
async fn a_secret_has_no_ttl_and_is_told_by_a_full_server() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    assert_eq!(store.secret("one", [1; 32]).await.unwrap(), [1; 32]);
    let keys = server.cli(&["KEYS", "*"]);
    assert!(keys.ends_with(":secret:one"), "{keys}");
    assert_eq!(ttl(&server, &keys), -1, "it never expires");
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(store.secret("one", [2; 32]).await.unwrap(), [1; 32]);
    let error = store.secret("other", [3; 32]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.secret("other", [4; 32]).await.unwrap(), [4; 32], "nothing was written");
    server.cli(&["SET", &keys, "too short"]);
    let error = store.secret("one", [5; 32]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert!(error.to_string().contains("`one`"), "{error}");
}

#[tokio::test]
async fn a_server_deletes_by_itself_what_expired() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let mut this = claim_of("a");
    this.terms.ttl = Duration::from_millis(50);
    claim(&store, &this).await.unwrap();
    done(&store, &this, outcome()).await;
    onetake_sim::servers::until("it is deleted", async || records(&server).is_empty()).await;
    assert!(load(&store, "a").await.unwrap().is_none());
}

#[tokio::test]
async fn fences_rise_although_the_record_is_gone_and_the_clock_went_back() {
    let server = Redis::start().await;
    let (prefix, shift) = (prefix(), onetake_core::Shift::default());
    shift.advance(Duration::from_secs(3_600));
    let ahead = RedisOptions { prefix: prefix.clone(), shift, ..RedisOptions::default() };
    let ahead = RedisStore::open(&server.url(), ahead).await.unwrap();
    let back = RedisOptions { prefix, ..RedisOptions::default() };
    let back = RedisStore::open(&server.url(), back).await.unwrap();
    let Claimed::Granted { fence: first } = claim(&ahead, &claim_of("a")).await.unwrap() else {
        panic!("not granted")
    };
    for key in records(&server) {
        server.cli(&["DEL", &key]);
    }
    let Claimed::Granted { fence: second } = claim(&back, &claim_of("a")).await.unwrap() else {
        panic!("not granted")
    };
    assert!(second > first, "{second} is not above {first} (S2)");
}

#[tokio::test]
async fn terms_of_any_length_are_kept() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let forever = Duration::from_micros(u64::MAX);
    let terms =
        Terms { ttl: forever, lease: forever, grace: forever, on_unknown: OnUnknown::Retry };
    let mut this = claim_of("a");
    this.terms = terms;
    claim(&store, &this).await.unwrap();
    assert_eq!(load(&store, "a").await.unwrap().unwrap().terms, terms);
    done(&store, &this, Transition::Renew).await;
    assert!(matches!(claim(&store, &claim_of("a")).await.unwrap(), Claimed::Found { .. }));
    let record = done(&store, &this, outcome()).await;
    assert_eq!(record.terms, terms);
    let [key] = records(&server).try_into().unwrap();
    let century = 100 * 365 * 86_400_000;
    assert!(ttl(&server, &key) > century);
    assert_eq!(load(&store, "a").await.unwrap(), Some(record));
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    let this = granted(&store, "a").await;
    server.cli(&["SCRIPT", "FLUSH"]);
    let batch = vec![settlement(&this, Transition::Renew), settlement(&this, outcome())];
    for answer in store.settle(batch).await {
        assert!(matches!(answer.unwrap(), onetake_core::Settled::Done { .. }), "in their order");
    }
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(load(&store, "a").await.unwrap().unwrap().state.name(), "completed");
}

#[tokio::test]
async fn one_poisoned_key_fails_alone() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    for (key, field) in [("wrong version", ["v", "7"]), ("wrong field", ["state", "asleep"])] {
        let known = records(&server);
        granted(&store, key).await;
        let new = records(&server).into_iter().find(|key| !known.contains(key)).unwrap();
        server.cli(&["HSET", &new, field[0], field[1]]);
    }
    let known = records(&server);
    granted(&store, "wrong type").await;
    let new = records(&server).into_iter().find(|key| !known.contains(key)).unwrap();
    server.cli(&["SET", &new, "not a hash"]);

    let keys = ["good", "wrong version", "wrong field", "wrong type", "fine"];
    let answers = store.claim(keys.map(claim_of).to_vec()).await;
    let worked: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(worked, [true, false, false, false, true], "{answers:?} (S21)");
    for (answer, says) in answers[1..4].iter().zip(["version 7", "state", "WRONGTYPE"]) {
        let error = answer.as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        assert!(error.to_string().contains(says), "{error}");
    }
    for answer in store.load(keys[1..4].iter().map(|key| id(key)).collect()).await {
        assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Invalid);
    }
    store.ready().await.unwrap();
}

#[tokio::test]
async fn a_full_server_refuses_claims_and_takes_outcomes() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let (one, other) = (granted(&store, "one").await, granted(&store, "other").await);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = claim(&store, &claim_of("new")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("maxmemory"), "{error}");
    assert!(load(&store, "new").await.unwrap().is_none(), "nothing was written");
    done(&store, &one, outcome()).await;
    done(&store, &other, Transition::Renew).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    granted(&store, "new").await;
}

#[tokio::test]
async fn leases_of_deleted_records_are_forgotten() {
    let server = Redis::start().await;
    let shift = onetake_core::Shift::default();
    let clock = onetake_core::ManualClock::default();
    let options = RedisOptions {
        prefix: prefix(),
        shift: shift.clone(),
        clock: std::sync::Arc::new(clock.clone()),
        ..RedisOptions::default()
    };
    let store = RedisStore::open(&server.url(), options).await.unwrap();
    for key in ["a", "b"] {
        granted(&store, key).await;
        for key in records(&server) {
            server.cli(&["DEL", &key]);
        }
    }
    let alive = granted(&store, "c").await;
    let leases = || server.cli(&["KEYS", "*:leases"]).lines().count();
    assert_eq!(leases(), 3);
    shift.advance(Duration::from_secs(120));
    clock.advance(Duration::from_secs(120));
    assert_eq!(store.sweep(100).await.unwrap(), onetake_core::store::Swept::default());
    assert_eq!(leases(), 1, "the one that runs is still known");
    let found = store.due(Due::LeaseEnd, 100).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].attempt, alive.attempt);
    settle(&store, &alive, Transition::ExpireLease).await.unwrap();
    assert_eq!(leases(), 0);
}

/// Makes a key unknown whose outcome is to be reconciled.
async fn unknown(store: &dyn Store, key: &str, ttl: Duration) -> onetake_core::Claim {
    let mut this = claim_of(key);
    this.terms = Terms { on_unknown: OnUnknown::Reconcile, ttl, ..this.terms };
    assert!(matches!(claim(store, &this).await.unwrap(), Claimed::Granted { .. }));
    done(store, &this, Transition::Unknown(Cause::TimedOut)).await;
    this
}

#[tokio::test]
async fn what_expired_before_it_was_settled_is_not_asked_for_for_ever() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    for (key, ttl) in [("a", Duration::from_millis(1)), ("b", Duration::from_secs(3_600))] {
        unknown(&store, key, ttl).await;
    }
    onetake_sim::servers::until("the server deletes it", async || records(&server).len() == 1)
        .await;
    let sets = || server.cli(&["KEYS", "*:leases"]).lines().count();
    assert_eq!(sets(), 2);
    store.sweep(100).await.unwrap();
    assert_eq!(sets(), 1);
    let found = store.due(Due::Reconcile, 100).await.unwrap();
    assert_eq!(found.iter().map(|found| found.id).collect::<Vec<_>>(), [id("b")]);
}

#[tokio::test]
async fn a_full_server_still_lets_one_ask() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let this = unknown(&store, "a", Duration::from_secs(3_600)).await;
    let [key] = records(&server).try_into().unwrap();
    let left = ttl(&server, &key);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    done(&store, &this, Transition::PostponeReconcile(Duration::from_secs(60))).await;
    assert!((1..=left).contains(&ttl(&server, &key)), "asking keeps nothing alive");
    assert!(store.due(Due::Reconcile, 9).await.unwrap().is_empty());
    let again = settle(&store, &this, Transition::PostponeReconcile(Duration::ZERO)).await.unwrap();
    assert!(matches!(again, onetake_core::Settled::Stale { .. }), "{again:?}");
    done(&store, &this, outcome()).await;
}

#[tokio::test]
async fn nothing_is_lost_by_kill_9() {
    let mut server = Redis::start().await;
    let store = open(&server.url()).await;
    let claims: Vec<_> = (0..300).map(|key| claim_of(&format!("key {key}"))).collect();
    for answer in store.claim(claims.clone()).await {
        assert!(matches!(answer.unwrap(), Claimed::Granted { .. }));
    }
    let done = claims.iter().take(200).map(|this| settlement(this, outcome())).collect();
    for answer in store.settle(done).await {
        answer.unwrap();
    }
    let ids: Vec<_> = claims.iter().map(|this| this.id).collect();
    let read = async || {
        let answers = store.load(ids.clone()).await;
        answers.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let before = read().await.unwrap();
    assert!(before.iter().all(Option::is_some));
    server.kill();
    server.restart().await;
    let mut after = None;
    onetake_sim::servers::until("the store is back by itself", async || {
        after = read().await.ok();
        after.is_some()
    })
    .await;
    assert_eq!(after.unwrap(), before, "what was acknowledged is there (S18)");
}

#[tokio::test]
async fn opening_says_what_is_wrong() {
    let refused = async |url: &str, kind: StoreErrorKind, says: &[&str]| {
        let error = RedisStore::open(url, RedisOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        for says in says {
            assert!(error.to_string().contains(says), "{error}: {says}");
        }
        assert!(!error.to_string().contains("mypass"), "{error}");
    };
    let nobody = format!("redis://u:mypass@127.0.0.1:{}", free_port());
    refused(
        &nobody,
        StoreErrorKind::Unavailable,
        &["127.0.0.1:", "refused", "check that it is running"],
    )
    .await;
    refused("redis://no-such-host.invalid", StoreErrorKind::Unavailable, &["no-such-host.invalid"])
        .await;
    refused("mysql://x", StoreErrorKind::Invalid, &["redis://"]).await;

    let server = Redis::start().await;
    let address = server.address();
    let unknown = format!("redis://{address}?wait=1");
    refused(&unknown, StoreErrorKind::Invalid, &["`wait`", "wait_replicas, wait_timeout"]).await;
    let cluster = format!("redis-cluster://{address}");
    refused(&cluster, StoreErrorKind::Invalid, &["not a node of a cluster", "redis://"]).await;
    let tls = format!("rediss://{address}");
    refused(&tls, StoreErrorKind::Unavailable, &["TLS"]).await;

    server.cli(&["ACL", "SETUSER", "poor", "on", ">poor", "~*", "+ping"]);
    let poor = format!("redis://poor:poor@{address}");
    refused(&poor, StoreErrorKind::Invalid, &["NOPERM", "EVALSHA"]).await;
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]);
    let wrong = format!("redis://:mypass@{address}");
    refused(&wrong, StoreErrorKind::Invalid, &["password", &address.to_string()]).await;
    refused(&server.url(), StoreErrorKind::Invalid, &["NOAUTH", "password"]).await;
    let right = format!("redis://:secret@{address}");
    let store = RedisStore::open(&right, RedisOptions::default()).await.unwrap();
    store.ready().await.unwrap();

    let cluster = RedisCluster::start().await;
    let node = cluster.nodes()[0].url();
    refused(&node, StoreErrorKind::Invalid, &["redis-cluster://"]).await;
}
