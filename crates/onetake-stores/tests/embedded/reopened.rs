//! Tests of an embedded store that is opened again: terms, reconciliation, fences.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::clock::ManualClock;
use onetake_core::store::{AuditLog, Due, DueAttempt};
use onetake_core::{
    AttemptId, Cause, Claim, Clock, Fence, OnUnknown, Settled, Settlement, State, Store, Transition,
};
use onetake_stores::EmbeddedStore;

use crate::store_folder::{claim, complete, copy_open, granted, load, settle};

#[tokio::test(flavor = "multi_thread")]
async fn retry_terms_run_again_after_a_crash_with_a_higher_fence() {
    let folder = tempfile::tempdir().unwrap();
    let mut claims = Vec::new();
    let mut last = Fence::default();
    for round in 1..=3_u8 {
        let store = EmbeddedStore::open(folder.path()).unwrap();
        let mut claim = claim("retry", round);
        claim.terms.on_unknown = OnUnknown::Retry;
        let fence = granted(&store, &claim).await;
        assert!(fence > last, "fences rise across restarts");
        last = fence;
        for earlier in &claims {
            let settled = settle(&store, earlier, Transition::Release).await;
            assert!(matches!(settled, Settled::Stale { .. }));
        }
        claims.push(claim);
        store.close().await.unwrap();
    }
}

fn under(on_unknown: OnUnknown, key: &str) -> Claim {
    let mut claim = claim(key, 1);
    claim.terms.on_unknown = on_unknown;
    claim
}

fn named(claims: &[&Claim]) -> Vec<DueAttempt> {
    claims.iter().map(|claim| DueAttempt { id: claim.id, attempt: claim.attempt }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_to_be_asked_for_is_known_after_a_crash() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (live, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clock = ManualClock::default();
    let open = |path: &Path| EmbeddedStore::open_with(path, Arc::new(clock.clone())).unwrap();
    let [said, put_off, ran] =
        ["said", "put off", "ran"].map(|key| under(OnUnknown::Reconcile, key));
    let (settled, rolled) =
        (under(OnUnknown::Reconcile, "settled"), under(OnUnknown::Rollback, "rolled"));
    let store = open(live.path());
    for claim in [&said, &put_off, &settled] {
        granted(&store, claim).await;
        settle(&store, claim, Transition::Unknown(Cause::TimedOut)).await;
        clock.advance(Duration::from_secs(1));
    }
    settle(&store, &put_off, Transition::PostponeReconcile(HOUR)).await;
    complete(&store, &settled, "found").await;
    let mut last = Fence::default();
    for claim in [&ran, &rolled] {
        last = granted(&store, claim).await;
    }
    copy_open(live.path(), folder.path()).await;
    store.close().await.unwrap();

    let store = open(folder.path());
    assert_eq!(store.interrupted(), 1, "what rolled back is not unknown");
    let noted = store.audit_entries(None, None, 10).await.unwrap().entries;
    let mut noted: Vec<_> = noted.iter().map(|entry| (entry.id, &*entry.by)).collect();
    let mut lost = [(ran.id, "restart"), (rolled.id, "restart")];
    noted.sort_unstable();
    lost.sort_unstable();
    assert_eq!(noted, lost, "the audit has each");
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap(), named(&[&said, &ran]));
    assert_eq!(load(&store, &rolled).await.unwrap().state, State::Released { at: clock.now() });
    let again = Claim { attempt: AttemptId::from_bytes([2; 16]), ..rolled.clone() };
    assert!(granted(&store, &again).await > last);
    assert!(matches!(settle(&store, &rolled, Transition::Release).await, Settled::Stale { .. }));
    complete(&store, &said, "found").await;
    clock.advance(HOUR);
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap(), named(&[&ran, &put_off]));
    settle(&store, &ran, Transition::Forget).await;
    store.close().await.unwrap();
    let store = open(folder.path());
    assert_eq!(
        store.due(Due::Reconcile, 10).await.unwrap(),
        named(&[&put_off]),
        "also after a clean close"
    );
    store.close().await.unwrap();
}

/// One call reads at most a thousand entries, and the entries that it discards are not read again.
#[tokio::test(flavor = "multi_thread")]
async fn what_expired_hides_nothing_that_is_to_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let store = EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap();
    let lost = async |names: std::ops::Range<u32>| {
        let claims: Vec<Claim> =
            names.map(|name| under(OnUnknown::Reconcile, &format!("key {name}"))).collect();
        store.claim(claims.clone()).await;
        let transition = || Transition::Unknown(Cause::TimedOut);
        let unknown = claims.iter().map(|claim| (claim.id, claim.attempt));
        let unknown =
            unknown.map(|(id, attempt)| Settlement { id, attempt, transition: transition() });
        store.settle(unknown.collect()).await;
        claims
    };
    let old = lost(0..1_100).await;
    assert_eq!(store.due(Due::Reconcile, 2_000).await.unwrap().len(), 1_000);
    clock.advance(old[0].terms.ttl);
    let fresh = lost(2_000..2_200).await;
    assert!(
        store.due(Due::Reconcile, 10).await.unwrap().is_empty(),
        "of a thousand each is expired"
    );
    assert_eq!(store.due(Due::Reconcile, 200).await.unwrap().len(), 200);
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap().len(), 10);
    assert_eq!(store.sweep(2_000).await.unwrap().removed, 1_100);
    assert_eq!(store.due(Due::Reconcile, 2_000).await.unwrap().len(), fresh.len());
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_although_the_clock_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let start = clock.now();
    let open = || EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap();
    let mut last = Fence::default();
    for round in 0..4_u8 {
        let store = open();
        let claim = claim("a", round);
        let fence = granted(&store, &claim).await;
        assert!(fence > last, "round {round}");
        last = fence;
        settle(&store, &claim, Transition::Release).await;
        // The record is swept, and the clock is set back by a year.
        clock.advance(Duration::from_secs(100 * 86_400));
        assert_eq!(store.sweep(10).await.unwrap().removed, 1);
        clock.set_wall(onetake_core::Timestamp::from_micros(
            start.as_micros() - u64::from(round) * 31_536_000_000_000,
        ));
        store.close().await.unwrap();
    }
}
