//! Tests of references and audit entries as a server stores them.

use std::time::Duration;

use onetake_core::audit::{AUDIT_KEPT, AuditAction, AuditEntry, AuditPosition, AuditResult};
use onetake_core::store::{AuditLog, RecordIndex};
use onetake_core::{
    Clock, RecordId, Shift, Store, StoreErrorKind, SystemClock, SystemRng, Transition,
};
use onetake_sim::servers::Redis;
use onetake_stores::{RedisOptions, RedisStore};

use super::{claim, claim_of, done, granted, id, load, open, outcome, prefix, records};

fn keys(server: &Redis, pattern: &str) -> Vec<String> {
    server
        .cli(&["KEYS", pattern])
        .lines()
        .filter(|key| !key.is_empty())
        .map(str::to_owned)
        .collect()
}

fn ttl(server: &Redis, key: &str) -> i64 {
    server.cli(&["PTTL", key]).parse().unwrap()
}

async fn found(store: &RedisStore, id: RecordId) -> Vec<RecordId> {
    store.find(id.reference()).await.unwrap()
}

#[tokio::test]
async fn a_reference_is_known_for_as_long_as_its_record() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let first = granted(&store, "a").await;
    let [reference] = keys(&server, "*:ref:*").try_into().unwrap();
    let [record] = records(&server).try_into().unwrap();
    assert_eq!(ttl(&server, &reference), -1, "what runs never expires");
    done(&store, &first, Transition::Release).await;
    // Read in this order, the reference must not expire before the record.
    let (left, of_record) = (ttl(&server, &reference), ttl(&server, &record));
    assert!(left + 1_000 >= of_record && left > 0, "{left} of {of_record}");
    let second = granted(&store, "a").await;
    assert_eq!(ttl(&server, &reference), -1, "it runs again");
    assert_eq!(found(&store, first.id).await, [first.id]);
    // If it is lost or damaged, the next write to the record restores it, and nothing fails.
    server.cli(&["SET", &reference, "spoilt"]);
    assert!(!found(&store, second.id).await.contains(&second.id));
    done(&store, &second, Transition::Release).await;
    assert_eq!(found(&store, second.id).await, [second.id]);
    server.cli(&["DEL", &reference]);
    server.cli(&["RPUSH", &reference, "of another kind"]);
    let third = granted(&store, "a").await;
    assert_eq!(found(&store, third.id).await, [third.id]);
    done(&store, &third, outcome()).await;
    done(&store, &third, Transition::Forget).await;
    assert_eq!(keys(&server, "*:ref:*"), Vec::<String>::new(), "gone with its record");
    assert_eq!(records(&server), Vec::<String>::new());
}

#[tokio::test]
async fn records_of_one_reference_do_not_end_each_others() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    // The first is short-lived, the second runs while the first expires, the third lives for a day.
    let mut claims = ["a"; 3].map(claim_of);
    for (number, this) in claims.iter_mut().enumerate() {
        let mut id = *this.id.as_bytes();
        id[15] = u8::try_from(number).unwrap();
        this.id = RecordId::from_bytes(id);
    }
    let [short, runs, long] = &mut claims;
    short.terms.ttl = Duration::from_millis(50);
    for this in [&*short, runs, long] {
        claim(&store, this).await.unwrap();
    }
    let [reference] = keys(&server, "*:ref:*").try_into().unwrap();
    done(&store, long, outcome()).await;
    done(&store, short, outcome()).await;
    assert_eq!(ttl(&server, &reference), -1, "one of them still runs");
    assert_eq!(found(&store, short.id).await.len(), 3);
    onetake_sim::servers::until("it is deleted", async || {
        store.load(vec![short.id]).await.remove(0).unwrap().is_none()
    })
    .await;
    done(&store, runs, Transition::Release).await;
    let left = found(&store, runs.id).await;
    assert!(left.len() == 2 && !left.contains(&short.id), "{left:?}");
    let left = ttl(&server, &reference);
    assert!(left > 86_000_000, "{left}");
    done(&store, long, Transition::Forget).await;
    assert_eq!(found(&store, runs.id).await, [runs.id]);
}

fn audit(key: &str, reason: &str) -> AuditEntry {
    AuditEntry {
        place: AuditPosition::new(SystemClock.now(), &SystemRng),
        id: id(key),
        attempt: onetake_core::AttemptId::from_bytes([1; 16]),
        action: AuditAction::Forget,
        ended: AuditResult::Asked,
        before: "completed".to_owned(),
        by: "ops".to_owned(),
        reason: reason.to_owned(),
    }
}

#[tokio::test]
async fn a_full_server_still_forgets_and_takes_the_note_of_it() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let this = granted(&store, "a").await;
    done(&store, &this, outcome()).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let before = keys(&server, "*").len();
    let error = claim(&store, &claim_of("new")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(keys(&server, "*").len(), before, "nothing was written, no reference either");
    let noted = audit("a", "memory is full");
    store.audit(noted.clone()).await.unwrap();
    done(&store, &this, Transition::Forget).await;
    assert!(load(&store, "a").await.unwrap().is_none());
    assert_eq!(store.audit_entries(None, None, 10).await.unwrap().entries, [noted]);
}

#[tokio::test]
async fn old_notes_are_deleted_a_few_at_a_time_and_leave_nothing() {
    let server = Redis::start().await;
    let shift = Shift::default();
    let options =
        RedisOptions { prefix: prefix(), shift: shift.clone(), ..RedisOptions::default() };
    let store = RedisStore::open(&server.url(), options).await.unwrap();
    for number in 0..5 {
        store.audit(audit("a", &number.to_string())).await.unwrap();
    }
    shift.advance(AUDIT_KEPT - Duration::from_secs(60));
    store.sweep(100).await.unwrap();
    let left = async || store.audit_entries(Some(id("a")), None, 10).await.unwrap().entries;
    assert_eq!(left().await.len(), 5, "not before their time");
    shift.advance(Duration::from_secs(61));
    store.sweep(2).await.unwrap();
    let reasons: Vec<_> = left().await.into_iter().map(|entry| entry.reason).collect();
    assert_eq!(reasons, ["4", "3", "2"], "the oldest first");
    store.sweep(100).await.unwrap();
    assert_eq!(left().await, []);
    assert_eq!(keys(&server, "*{entries}*"), Vec::<String>::new());
}

#[tokio::test]
async fn a_damaged_note_hides_no_other() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let [first, damaged, last] = ["1", "2", "3"].map(|reason| audit("a", reason));
    for entry in [&first, &last] {
        store.audit(entry.clone()).await.unwrap();
    }
    store.audit(damaged.clone()).await.unwrap();
    let [entries] = keys(&server, "*{entries}:notes").try_into().unwrap();
    server.cli(&[
        "EVAL",
        "for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do \
         if string.find(redis.call('HGET', KEYS[1], name), '2', 50, true) then \
         redis.call('HSET', KEYS[1], name, 'damaged') end end",
        "1",
        &entries,
    ]);
    let mut told = Vec::new();
    let mut from = None;
    loop {
        let page = store.audit_entries(Some(id("a")), from, 1).await.unwrap();
        told.extend(page.entries);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(told, [last, first]);
}

/// Records as a build before origins and histories wrote them, under the same version `v = 1`.
#[tokio::test]
async fn records_of_before_origins_and_histories_are_replayed_claimed_and_forgotten() {
    let server = Redis::start().await;
    let store = open(&server.url()).await;
    let mut failed = Vec::new();
    for (key, transition) in [("completed", outcome()), ("released", Transition::Release)] {
        let first = granted(&store, key).await;
        done(&store, &first, transition).await;
        for record in records(&server) {
            server.cli(&["HDEL", &record, "origin", "claimed", "history"]);
        }
        if let Err(error) = store.load(vec![first.id]).await.remove(0) {
            failed.push(format!("load of what is {key}: {error}"));
        }
        if let Err(error) = claim(&store, &claim_of(key)).await {
            failed.push(format!("claim of what is {key}: {error}"));
        }
    }
    assert_eq!(failed, Vec::<String>::new());
}
