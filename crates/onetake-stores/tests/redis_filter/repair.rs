//! Tests of entries that differ from the authority.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onetake_core::{Claimed, ManualClock, MemoryStore, Recording, Settlement, Store, Transition};
use onetake_sim::servers::{Redis, until};
use onetake_stores::{FilterOptions, FilteredStore};

use crate::counted_authority::Watched;
use crate::{
    body, claim, claim_of, completed, filtered, found, id, patient, redis, settled, written,
};

/// A store that compares every answer of its filter, with its parts.
async fn suspicious() -> (Redis, Arc<Watched>, FilteredStore) {
    let redis = redis().await;
    let authority = Watched::new();
    let options = FilterOptions { check_every: 1, ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    (redis, authority, store)
}

/// Returns the authority's own recording.
async fn authority_has(authority: &Watched, key: &str) -> Option<Vec<u8>> {
    let record = authority.inner().load(vec![id(key)]).await.remove(0).unwrap()?;
    (record.state.name() == "completed").then(|| body(&record).to_vec())
}

#[tokio::test]
async fn an_outcome_that_the_authority_lost_is_given_back() {
    let (redis, authority, store) = suspicious().await;
    let first = completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    authority.replace(MemoryStore::new());
    let retry = found(&store, &claim_of("a", "pay")).await;
    assert_eq!(body(&retry), b"paid", "it is still replayed");
    until("the authority has it back", async || authority_has(&authority, "a").await.is_some())
        .await;
    // From now on it does not need the filter, and it expires at its original time.
    redis.cli(&["FLUSHALL"]);
    let restored = found(&store, &claim_of("a", "pay")).await;
    assert_eq!((body(&restored), restored.attempt), (&b"paid"[..], first.attempt));
    assert!(restored.fence > retry.fence, "(S2)");
    let (was, is) = (retry.expires_at().unwrap(), restored.expires_at().unwrap());
    assert!(is >= was && is.since(was).as_secs() < 5, "{was:?} {is:?} (S12)");
}

#[tokio::test]
async fn an_attempt_that_the_authority_remembers_as_running_is_finished() {
    let (redis, authority, store) = suspicious().await;
    let asked = claim_of("a", "pay");
    claim(&store, &asked).await;
    settled(&store, &asked, Transition::Complete(Recording::new("paid"))).await;
    written(&redis, "a").await;
    // A backup from the middle of the run.
    let backup = MemoryStore::new();
    backup.claim(vec![asked.clone()]).await.remove(0).unwrap();
    authority.replace(backup);
    found(&store, &claim_of("a", "pay")).await;
    until("the authority has it back", async || authority_has(&authority, "a").await.is_some())
        .await;
    assert_eq!(authority_has(&authority, "a").await.unwrap(), b"paid");
}

#[tokio::test]
async fn a_release_from_before_the_outcome_does_not_run_again() {
    let (redis, authority, store) = suspicious().await;
    let released = claim_of("a", "pay");
    let backup = MemoryStore::new();
    backup.claim(vec![released.clone()]).await.remove(0).unwrap();
    let transition = Transition::Release;
    let settlement = Settlement { id: released.id, attempt: released.attempt, transition };
    backup.settle(vec![settlement]).await.remove(0).unwrap();
    completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    authority.replace(backup);
    found(&store, &claim_of("a", "pay")).await;
    until("the authority has it back", async || authority_has(&authority, "a").await.is_some())
        .await;
}

#[tokio::test]
async fn where_the_authority_has_another_record_it_wins() {
    let (redis, authority, store) = suspicious().await;
    completed(&store, "finished", "old").await;
    completed(&store, "running", "old").await;
    written(&redis, "finished").await;
    written(&redis, "running").await;
    let other = Arc::new(MemoryStore::new());
    completed(&*other, "finished", "new").await;
    claim(&*other, &claim_of("running", "pay")).await;
    authority.replace((*other).clone());
    for key in ["finished", "running"] {
        found(&store, &claim_of(key, "pay")).await;
    }
    until("the filter says what the authority says", async || {
        body_or_state(&store, "finished").await == "new"
            && body_or_state(&store, "running").await == "running"
    })
    .await;
    let asked = authority.claims.load(Ordering::SeqCst);
    assert_eq!(body_or_state(&store, "finished").await, "new");
    assert_eq!(authority.claims.load(Ordering::SeqCst), asked, "by the filter alone again");
}

async fn body_or_state(store: &dyn Store, key: &str) -> String {
    let record = found(store, &claim_of(key, "pay")).await;
    match record.state.name() {
        "completed" => String::from_utf8(body(&record).to_vec()).unwrap(),
        other => other.to_owned(),
    }
}

#[tokio::test]
async fn what_was_forgotten_in_the_meantime_is_not_given_back() {
    let redis = redis().await;
    let clock = ManualClock::default();
    let authority = Watched::with_clock(Arc::new(clock.clone()));
    let options = FilterOptions { clock: Arc::new(clock.clone()), check_every: 1, ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    let compared = || authority.loads.load(Ordering::SeqCst);
    found(&store, &claim_of("a", "pay")).await;
    until("it pauses after the first", async || compared() == 1 && clock.sleepers() == 1).await;
    // This one waits in the queue, and finds the authority without the key.
    found(&store, &claim_of("a", "pay")).await;
    let nothing = MemoryStore::with_clock(Arc::new(clock.clone()));
    let forget = store.forget(vec![id("a")], async {
        authority.replace(nothing);
        Ok(())
    });
    forget.await.unwrap();
    clock.advance(Duration::from_secs(1));
    until("it is compared", async || compared() == 2).await;
    store.close().await.unwrap();
    assert!(authority.inner().load(vec![id("a")]).await.remove(0).unwrap().is_none());
    assert_eq!(authority.claims.load(Ordering::SeqCst), 1, "nothing was claimed for it");
}

#[tokio::test]
async fn comparing_is_a_sample_and_bounded() {
    let redis = redis().await;
    let authority = Watched::new();
    let options = FilterOptions { check_every: 10, ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    let before = authority.asked();
    for _ in 0..200 {
        found(&store, &claim_of("a", "pay")).await;
    }
    store.close().await.unwrap();
    let checked = authority.asked() - before;
    assert!((1..=20).contains(&checked), "{checked} of 200");
    // Answers after the close are not compared.
    let before = authority.asked();
    for _ in 0..50 {
        assert!(matches!(claim(&store, &claim_of("a", "pay")).await, Claimed::Found { .. }));
    }
    assert_eq!(authority.asked(), before);
}
