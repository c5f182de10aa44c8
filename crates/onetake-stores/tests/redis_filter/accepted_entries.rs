//! Tests of which store answers, and of which entries are accepted.

use std::sync::Arc;
use std::time::Duration;

use onetake_conformance::{Faulty, StoreFault};
use onetake_core::store::Due;
use onetake_core::{
    Cause, Claimed, Failure, ManualClock, MemoryStore, OnUnknown, Recording, Settlement, State,
    Store, StoreErrorKind, Terms, Transition,
};
use onetake_sim::servers::{RedisCluster, free_port, until};
use onetake_stores::filtered::CLOCK_MARGIN;
use onetake_stores::{FilterOptions, FilteredStore, Weight};

use crate::counted_authority::Watched;
use crate::{
    SECRET, body, claim, claim_of, completed, filtered, found, id, patient, place, redis, settled,
    written,
};

#[tokio::test]
async fn a_retry_of_a_finished_operation_is_answered_by_redis_alone() {
    let redis = redis().await;
    let authority = Watched::new();
    let store = filtered(&redis.url(), authority.clone(), patient()).await;
    completed(&store, "done", "paid").await;
    let failing = claim_of("failed", "pay");
    claim(&store, &failing).await;
    let failure = Failure { code: "declined".into(), detail: "no".into() };
    settled(&store, &failing, Transition::Fail(failure.clone())).await;
    written(&redis, "done").await;
    written(&redis, "failed").await;

    let before = authority.asked();
    for _ in 0..3 {
        assert_eq!(body(&*found(&store, &claim_of("done", "pay")).await), b"paid");
        let record = found(&store, &claim_of("failed", "pay")).await;
        assert!(matches!(&record.state, State::Failed { failure: kept, .. } if *kept == failure));
        let loaded = store.load(vec![id("done"), id("failed")]).await;
        assert!(loaded.iter().all(|answer| answer.as_ref().is_ok_and(Option::is_some)));
    }
    assert_eq!(authority.asked(), before, "the authority was asked");

    // Only the rest of a batch goes to the authority, and every answer is in its place.
    let batch = ["new-1", "done", "new-2", "done", "failed"].map(|key| claim_of(key, "pay"));
    let answers = store.claim(batch.to_vec()).await;
    let granted: Vec<bool> =
        answers.iter().map(|a| matches!(a, Ok(Claimed::Granted { .. }))).collect();
    assert_eq!(granted, [true, false, true, false, false]);
    assert_eq!(authority.asked(), before + 2);
    let loaded = store.load(["done", "new-1", "absent", "done"].map(id).to_vec()).await;
    let states: Vec<Option<&str>> =
        loaded.iter().map(|a| a.as_ref().unwrap().as_ref().map(|r| r.state.name())).collect();
    assert_eq!(states, [Some("completed"), Some("running"), None, Some("completed")]);
    assert_eq!(authority.asked(), before + 4);
}

#[tokio::test]
async fn what_another_node_finished_is_answered_by_redis_alone() {
    let redis = redis().await;
    let authority = Watched::new();
    let one = filtered(&redis.url(), authority.clone(), patient()).await;
    let other = filtered(&redis.url(), authority.clone(), patient()).await;
    let first = completed(&one, "a", "paid").await;
    written(&redis, "a").await;
    let before = authority.asked();
    assert_eq!(found(&other, &claim_of("a", "pay")).await.attempt, first.attempt);
    // Another payload gets the record too, and the caller compares the fingerprints (S9).
    let record = found(&other, &claim_of("a", "pay more")).await;
    assert_eq!(record.fingerprint, first.fingerprint);
    assert_eq!(authority.asked(), before);
}

#[tokio::test]
async fn what_the_authority_has_and_the_filter_lost_is_put_back() {
    let redis = redis().await;
    let authority = Watched::new();
    let store = filtered(&redis.url(), authority.clone(), patient()).await;
    completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    redis.cli(&["FLUSHALL"]);
    found(&store, &claim_of("a", "pay")).await;
    written(&redis, "a").await;
    let before = authority.asked();
    assert_eq!(body(&*found(&store, &claim_of("a", "pay")).await), b"paid");
    assert_eq!(authority.asked(), before);
}

#[tokio::test]
async fn only_what_is_finished_and_durable_gets_in() {
    let redis = redis().await;
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let faulty = Faulty::around(memory);
    let store = filtered(&redis.url(), faulty.clone(), patient()).await;
    for (key, transition) in [
        ("running", Transition::Renew),
        ("released", Transition::Release),
        ("unknown", Transition::Unknown(Cause::TimedOut)),
    ] {
        let asked = claim_of(key, "pay");
        claim(&store, &asked).await;
        settled(&store, &asked, transition).await;
        store.load(vec![asked.id]).await;
    }
    let lost = claim_of("lost", "pay");
    claim(&store, &lost).await;
    let transition = Transition::Complete(Recording::new("never seen"));
    let settlement = Settlement { id: lost.id, attempt: lost.attempt, transition };
    for fault in [StoreFault::Unavailable, StoreFault::LostWrite, StoreFault::LostAnswer] {
        faulty.fail_settlements(fault);
        store.settle(vec![settlement.clone()]).await.remove(0).unwrap_err();
    }
    faulty.fail_settlements(StoreFault::None);
    // Writes keep their order: when this entry exists, the others would exist too.
    completed(&store, "last", "paid").await;
    written(&redis, "last").await;
    assert_eq!(redis.cli(&["DBSIZE"]), "1");
}

#[tokio::test]
async fn who_asks_what_became_of_a_key_leaves_nothing_in_the_filter() {
    let redis = redis().await;
    let authority = Watched::new();
    let store = filtered(&redis.url(), authority.clone(), patient()).await;
    let mut asked = claim_of("unknown", "pay");
    asked.terms.on_unknown = OnUnknown::Reconcile;
    claim(&store, &asked).await;
    settled(&store, &asked, Transition::Unknown(Cause::TimedOut)).await;
    assert_eq!(
        store.due(Due::Reconcile, 9).await.unwrap(),
        authority.due(Due::Reconcile, 9).await.unwrap()
    );
    settled(&store, &asked, Transition::PostponeReconcile(Duration::from_secs(5))).await;
    assert!(
        store.due(Due::Reconcile, 9).await.unwrap().is_empty(),
        "the authority knows that somebody asks"
    );
    // Writes keep their order: the later entry exists, and the earlier ones do not.
    completed(&store, "done", "paid").await;
    written(&redis, "done").await;
    assert_eq!(redis.cli(&["EXISTS", &place("unknown")]), "0");
    settled(&store, &asked, Transition::Complete(Recording::new("found"))).await;
    written(&redis, "unknown").await;
    assert_eq!(body(&*found(&store, &claim_of("unknown", "pay")).await), b"found");
}

#[tokio::test]
async fn an_entry_of_another_key_or_of_another_secret_or_a_damaged_one_is_refused() {
    let redis = redis().await;
    let authority = Watched::new();
    let store = filtered(&redis.url(), authority.clone(), patient()).await;
    completed(&store, "a", "of a").await;
    completed(&store, "b", "of b").await;
    written(&redis, "a").await;
    written(&redis, "b").await;
    let (a, b) = (place("a"), place("b"));
    redis.cli(&["COPY", &a, "kept"]);
    let huge = "x".repeat(100_000);
    let damages: [&[&str]; 8] = [
        &["COPY", &b, &a, "REPLACE"],
        &["SETRANGE", &a, "5", "x"],
        &["SETRANGE", &a, "100", "x"],
        &["APPEND", &a, "x"],
        &["SET", &a, "garbage"],
        &["SET", &a, &huge],
        &["SETRANGE", &a, "20000000", "x"],
        &["EVAL", "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')", "1", &a],
    ];
    for damage in damages {
        redis.cli(&["COPY", "kept", &a, "REPLACE"]);
        redis.cli(damage);
        let before = authority.asked();
        assert_eq!(body(&*found(&store, &claim_of("a", "pay")).await), b"of a", "{damage:?}");
        assert_eq!(authority.asked(), before + 1, "{damage:?}: the authority is asked");
        // The damaged entry is replaced.
        until("the entry is right again", async || {
            let before = authority.asked();
            found(&store, &claim_of("a", "pay")).await;
            authority.asked() == before
        })
        .await;
    }
    // An empty value counts as absent.
    redis.cli(&["SET", &a, ""]);
    assert_eq!(body(&*found(&store, &claim_of("a", "pay")).await), b"of a");

    let authority_of_others = Watched::new();
    let other = b"another secret of other nodes";
    let stranger =
        FilteredStore::open(&redis.url(), other, authority_of_others, patient()).await.unwrap();
    let granted = claim(&stranger, &claim_of("b", "pay")).await;
    assert!(matches!(granted, Claimed::Granted { .. }), "another secret is another world");
}

#[tokio::test]
async fn a_huge_value_is_not_even_read() {
    let redis = redis().await;
    let store = filtered(&redis.url(), Watched::new(), patient()).await;
    redis.cli(&["SETRANGE", &place("a"), "200000000", "x"]);
    assert!(matches!(claim(&store, &claim_of("a", "pay")).await, Claimed::Granted { .. }));
    let stats = redis.cli(&["INFO", "stats"]);
    let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    assert!(sent.unwrap().trim().parse::<u64>().unwrap() < 1 << 20, "{sent:?}");
}

#[tokio::test]
async fn a_recording_that_is_too_large_is_replayed_by_the_authority() {
    let redis = redis().await;
    let authority = Watched::new();
    let options = FilterOptions { entry_bytes_max: 1_000, ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    let large = "x".repeat(1_000);
    completed(&store, "large", &large).await;
    completed(&store, "small", "paid").await;
    written(&redis, "small").await;
    assert_eq!(body(&*found(&store, &claim_of("large", "pay")).await), large.as_bytes());
    assert_eq!(redis.cli(&["DBSIZE"]), "1");
}

#[tokio::test]
async fn an_entry_ends_before_its_record_does() {
    let redis = redis().await;
    let clock = ManualClock::default();
    let authority = Watched::with_clock(Arc::new(clock.clone()));
    let options = FilterOptions { clock: Arc::new(clock.clone()), ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    let ttl = Duration::from_secs(600);
    let mut asked = claim_of("a", "pay");
    asked.terms = Terms { ttl, ..Terms::default() };
    claim(&store, &asked).await;
    settled(&store, &asked, Transition::Complete(Recording::new("first life"))).await;
    written(&redis, "a").await;
    let left: u128 = redis.cli(&["PTTL", &place("a")]).parse().unwrap();
    assert!(left <= (ttl - CLOCK_MARGIN).as_millis(), "Redis forgets it in time: {left} ms");
    redis.cli(&["PERSIST", &place("a")]);
    redis.cli(&["COPY", &place("a"), "kept"]);

    clock.advance(ttl - CLOCK_MARGIN - Duration::from_secs(1));
    let before = authority.asked();
    found(&store, &claim_of("a", "pay")).await;
    assert_eq!(authority.asked(), before);
    clock.advance(Duration::from_secs(1));
    found(&store, &claim_of("a", "pay")).await;
    assert_eq!(authority.asked(), before + 1, "so close to its end the authority is asked");

    // The key is claimed again after its expiry, and Redis is rolled back to the entry from before.
    clock.advance(CLOCK_MARGIN);
    let second = claim_of("a", "another payload");
    redis.cli(&["COPY", "kept", &place("a"), "REPLACE"]);
    assert!(matches!(claim(&store, &second).await, Claimed::Granted { .. }), "reusable (S12)");
    redis.cli(&["COPY", "kept", &place("a"), "REPLACE"]);
    let running = found(&store, &claim_of("a", "another payload")).await;
    assert_eq!(running.state.name(), "running");
    settled(&store, &second, Transition::Complete(Recording::new("second life"))).await;
    for _ in 0..3 {
        redis.cli(&["COPY", "kept", &place("a"), "REPLACE"]);
        let record = found(&store, &claim_of("a", "another payload")).await;
        assert_eq!(body(&record), b"second life");
    }
}

#[tokio::test]
async fn an_entry_lives_no_longer_than_it_may() {
    let redis = redis().await;
    let clock = ManualClock::default();
    let authority = Watched::with_clock(Arc::new(clock.clone()));
    let entry_age_max = Duration::from_secs(100);
    let options = FilterOptions { clock: Arc::new(clock.clone()), entry_age_max, ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    redis.cli(&["PERSIST", &place("a")]);
    clock.advance(entry_age_max);
    let before = authority.asked();
    assert_eq!(body(&*found(&store, &claim_of("a", "pay")).await), b"paid");
    assert_eq!(authority.asked(), before + 1, "however long Redis keeps it");
}

#[tokio::test]
async fn a_clock_that_is_behind_does_not_replay_what_expired() {
    let redis = redis().await;
    let (own, of_authority) = (ManualClock::default(), ManualClock::default());
    let authority = Watched::with_clock(Arc::new(of_authority.clone()));
    let options = FilterOptions { clock: Arc::new(own.clone()), ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    of_authority.advance(Terms::default().ttl);
    // Every answer of the authority contains its time.
    claim(&store, &claim_of("b", "pay")).await;
    found(&store, &claim_of("b", "pay")).await;
    assert!(matches!(claim(&store, &claim_of("a", "pay")).await, Claimed::Granted { .. }));
}

#[tokio::test]
async fn what_is_forgotten_is_gone_from_both() {
    let redis = redis().await;
    let authority = Watched::new();
    let store = filtered(&redis.url(), authority.clone(), patient()).await;
    completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    let had_it = authority.inner();
    let forget = store.forget(vec![id("a")], async {
        // A retry reads it at the worst moment.
        found(&store, &claim_of("a", "pay")).await;
        authority.replace(MemoryStore::new());
        Ok(())
    });
    forget.await.unwrap();
    // A node that read the key before the authority forgot it writes its entry late.
    let late = filtered(&redis.url(), had_it, patient()).await;
    found(&late, &claim_of("a", "pay")).await;
    completed(&late, "last", "paid").await;
    written(&redis, "last").await;
    assert!(store.load(vec![id("a")]).await[0].as_ref().unwrap().is_none());
    assert!(matches!(claim(&store, &claim_of("a", "pay")).await, Claimed::Granted { .. }));

    let away = format!("redis://127.0.0.1:{}", free_port());
    let store = filtered(&away, Watched::new(), patient()).await;
    let refused = store.forget(vec![id("a")], async { panic!("not before the filter") });
    let refused: Result<(), _> = refused.await;
    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_answers_too() {
    let cluster = RedisCluster::start().await;
    let authority = Watched::new();
    let store = filtered(&cluster.url(), authority.clone(), patient()).await;
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        completed(&store, key, key).await;
    }
    let all = || keys.iter().map(|key| claim_of(key, "pay")).collect::<Vec<_>>();
    until("all entries are written", async || {
        let before = authority.asked();
        store.claim(all()).await;
        authority.asked() == before
    })
    .await;
    for (key, answer) in keys.iter().zip(store.claim(all()).await) {
        let Ok(Claimed::Found { record, .. }) = answer else { panic!("{key}: not found") };
        assert_eq!(body(&record), key.as_bytes());
    }
    assert!(store.diagnose().await.unwrap().server.starts_with("Redis"));
}

#[tokio::test]
async fn the_doctor_and_wrong_settings() {
    let redis = redis().await;
    let store = filtered(&redis.url(), Watched::new(), patient()).await;
    let diagnosis = store.diagnose().await.unwrap();
    assert!(diagnosis.server.starts_with("Redis 7"), "{diagnosis:?}");
    assert_eq!((diagnosis.worst(), diagnosis.clock_ahead_micros), (Weight::Weak, None));
    assert!(diagnosis.findings[0].fix.contains("maxmemory"), "{diagnosis:?}");
    assert_eq!((store.name(), store.authority().name()), ("filtered", "watched"));

    let open = async |url: &str, secret: &[u8]| {
        let opened = FilteredStore::open(url, secret, Watched::new(), patient()).await;
        opened.map(|_| ()).map_err(|error| (error.kind(), error.to_string()))
    };
    let (kind, what) = open(&redis.url(), b"short").await.unwrap_err();
    assert!(kind == StoreErrorKind::Invalid && what.contains("secret"), "{what}");
    let wrong = redis.url().replace("redis://", "redis://user:hunter2@");
    let (kind, what) = open(&wrong, SECRET).await.unwrap_err();
    assert!(kind == StoreErrorKind::Invalid && what.contains("password"), "{what}");
    assert!(!what.contains("hunter2"), "{what}");
    open(&format!("redis://127.0.0.1:{}", free_port()), SECRET).await.unwrap();
}
