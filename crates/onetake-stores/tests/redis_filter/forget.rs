//! Tests of forgetting: the filter and the authority forget a key, or neither does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Clock, ManualClock, MemoryStore, Recording, Settled, Settlement, Store,
    StoreErrorKind, SystemClock, Transition, delegate_store,
};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_stores::FilterOptions;
use tokio::sync::{Notify, watch};

use crate::counted_authority::Watched;
use crate::{
    body, claim, claim_of, completed, filtered, found, id, patient, place, redis, settled, written,
};

fn item(claim: &Claim, transition: Transition) -> Settlement {
    Settlement { id: claim.id, attempt: claim.attempt, transition }
}

fn complete(body: &'static str) -> Transition {
    Transition::Complete(Recording::new(body))
}

async fn running(store: &dyn Store, key: &str) -> Claim {
    let asked = claim_of(key, "pay");
    assert!(matches!(claim(store, &asked).await, Claimed::Granted { .. }));
    asked
}

fn names(answers: &Answers<Settled>) -> Vec<&'static str> {
    let name = |answer: &Result<Settled, _>| match answer {
        Ok(Settled::Done { record, .. }) => record.state.name(),
        Ok(Settled::Stale { .. }) => "stale",
        Err(_) => "error",
    };
    answers.iter().map(name).collect()
}

#[tokio::test]
async fn a_forgotten_key_is_not_replayed_by_the_filter() {
    let redis = redis().await;
    let authority = Watched::new();
    let store = filtered(&redis.url(), authority.clone(), patient()).await;
    let other = filtered(&redis.url(), authority.clone(), patient()).await;
    let asked = completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    assert_eq!(body(&*found(&other, &claim_of("a", "pay")).await), b"paid");
    assert_eq!(authority.asked(), 1, "it was the filter that answered");
    assert_eq!(settled(&store, &asked, Transition::Forget).await.state.name(), "released");
    assert!(other.load(vec![id("a")]).await.remove(0).unwrap().is_none());
    // As if the key had never been used: another payload runs, and is replayed afterwards.
    let again = claim_of("a", "something else");
    assert!(matches!(claim(&other, &again).await, Claimed::Granted { .. }));
    settled(&other, &again, complete("other")).await;
    let record = found(&store, &claim_of("a", "something else")).await;
    assert_eq!(body(&record), b"other");
}

#[tokio::test]
async fn what_is_not_forgotten_is_replayed_as_before() {
    let redis = redis().await;
    let store = filtered(&redis.url(), Watched::new(), patient()).await;
    let asked = completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    let stranger = claim_of("a", "pay");
    let answers = store.settle(vec![item(&stranger, Transition::Forget)]).await;
    assert_eq!(names(&answers), ["stale"]);
    assert_eq!(body(&*found(&store, &claim_of("a", "pay")).await), b"paid");
    assert_eq!(settled(&store, &asked, Transition::Forget).await.state.name(), "released");
}

#[tokio::test]
async fn a_batch_that_forgets_is_answered_in_its_order() {
    let redis = redis().await;
    let store = filtered(&redis.url(), Watched::new(), patient()).await;
    let (a, b) = (completed(&store, "a", "paid").await, running(&store, "b").await);
    let (c, d) = (running(&store, "c").await, completed(&store, "d", "paid").await);
    let answers = store
        .settle(vec![
            item(&b, complete("b")),
            item(&a, Transition::Forget),
            // These run one after the other: the key is settled, forgotten, and then absent.
            item(&c, complete("c")),
            item(&c, Transition::Forget),
            item(&c, complete("c")),
            item(&b, Transition::Release),
            item(&d, Transition::Forget),
        ])
        .await;
    let expected = ["completed", "released", "completed", "released", "stale", "stale", "released"];
    assert_eq!(names(&answers), expected);
    written(&redis, "b").await;
    for key in ["a", "c", "d"] {
        assert_eq!(redis.cli(&["GET", &place(key)]), "-", "{key} is not put back");
        assert!(store.load(vec![id(key)]).await.remove(0).unwrap().is_none());
    }
}

#[tokio::test]
async fn without_the_filter_nothing_is_forgotten_and_the_rest_is_done() {
    let redis = redis().await;
    let proxy = FaultProxy::start(redis.address()).await.unwrap();
    let authority = Watched::new();
    let url = format!("redis://{}", proxy.address());
    let store = filtered(&url, authority.clone(), patient()).await;
    let a = completed(&store, "a", "paid").await;
    written(&redis, "a").await;
    let (b, c) = (running(&store, "b").await, running(&store, "c").await);
    proxy.set(Weather::Dead);
    let answers = store
        .settle(vec![
            item(&b, complete("b")),
            item(&a, Transition::Forget),
            item(&c, complete("c")),
            item(&c, Transition::Forget),
        ])
        .await;
    assert_eq!(names(&answers), ["completed", "error", "completed", "error"]);
    for at in [1, 3] {
        let error = answers[at].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().starts_with("the key was not forgotten"), "{error}");
    }
    for key in ["a", "b", "c"] {
        let kept = authority.inner().load(vec![id(key)]).await.remove(0).unwrap();
        assert_eq!(kept.unwrap().state.name(), "completed", "{key}");
    }
    proxy.set(Weather::Fair);
    onetake_sim::servers::until("the filter is back", async || {
        let answers = store.settle(vec![item(&a, Transition::Forget)]).await;
        names(&answers) == ["released"]
    })
    .await;
    assert!(matches!(claim(&store, &claim_of("a", "pay")).await, Claimed::Granted { .. }));
}

/// An authority that loses its filter while it forgets.
#[derive(Debug)]
struct Cutting {
    inner: MemoryStore,
    proxy: Arc<FaultProxy>,
}

impl Store for Cutting {
    fn name(&self) -> &'static str {
        "cutting"
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        if batch.iter().any(|item| item.transition == Transition::Forget) {
            self.proxy.set(Weather::Dead);
        }
        self.inner.settle(batch).boxed()
    }

    delegate_store!(self => self.inner; claim, load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Cutting, self => self.inner);

#[tokio::test]
async fn a_filter_that_is_lost_in_the_middle_leaves_it_in_doubt() {
    let redis = redis().await;
    let proxy = Arc::new(FaultProxy::start(redis.address()).await.unwrap());
    let authority = Arc::new(Cutting { inner: MemoryStore::new(), proxy: Arc::clone(&proxy) });
    let url = format!("redis://{}", proxy.address());
    let options =
        FilterOptions { command_timeout: Duration::from_secs(20), ..FilterOptions::default() };
    let store = filtered(&url, authority, options).await;
    let asked = completed(&store, "a", "paid").await;
    let other = running(&store, "b").await;
    written(&redis, "a").await;
    let batch = vec![item(&asked, Transition::Forget), item(&other, complete("b"))];
    let answers = store.settle(batch).await;
    assert_eq!(names(&answers), ["error", "completed"]);
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Indeterminate);
    assert!(error.to_string().contains("forget the key again"), "{error}");
}

/// An authority that holds back its answers to claims while it is closed.
#[derive(Debug)]
struct Gated {
    inner: MemoryStore,
    open: watch::Sender<bool>,
    held: watch::Sender<usize>,
}

impl Gated {
    fn new() -> Arc<Self> {
        let (open, held) = (watch::Sender::new(true), watch::Sender::new(0));
        Arc::new(Self { inner: MemoryStore::new(), open, held })
    }

    /// Waits until an answer is held back.
    async fn holds(&self) {
        self.held.subscribe().wait_for(|held| *held > 0).await.unwrap();
    }
}

impl Store for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let answers = self.inner.claim(batch).await;
            if !*self.open.borrow() {
                self.held.send_modify(|held| *held += 1);
                self.open.subscribe().wait_for(|open| *open).await.unwrap();
            }
            answers
        }
        .boxed()
    }

    delegate_store!(self => self.inner; settle, load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Gated, self => self.inner);

/// A record that a node read before another node forgot the key does not come back, however late
/// the first node writes it.
#[tokio::test]
async fn an_entry_that_another_node_writes_late_does_not_replace_the_marker() {
    let redis = redis().await;
    let proxy = FaultProxy::start(redis.address()).await.unwrap();
    let authority = Gated::new();
    let through = format!("redis://{}", proxy.address());
    let late = filtered(&through, authority.clone(), patient()).await;
    let other = filtered(&redis.url(), authority.clone(), patient()).await;
    let asked = completed(&other, "a", "paid").await;
    written(&redis, "a").await;
    // A damaged entry is replaced by the node that reads it.
    redis.cli(&["SET", &place("a"), "damaged"]);
    authority.open.send_replace(false);
    let (retry, ()) = tokio::join!(found(&late, &asked), async {
        authority.holds().await;
        // From here on its write is in progress.
        proxy.set(Weather::Cut);
        authority.open.send_replace(true);
    });
    assert_eq!(body(&retry), b"paid");
    assert_eq!(settled(&other, &asked, Transition::Forget).await.state.name(), "released");
    proxy.set(Weather::Fair);
    // All earlier queued writes are done when this returns.
    late.forget(vec![id("another")], async { Ok(()) }).await.unwrap();
    assert_eq!(redis.cli(&["GET", &place("a")]), "-");
    for store in [&late, &other] {
        assert!(store.load(vec![id("a")]).await.remove(0).unwrap().is_none());
    }
    assert!(matches!(claim(&late, &claim_of("a", "pay")).await, Claimed::Granted { .. }));
}

/// Both wait for a slow write, and are sent together.
#[tokio::test]
async fn an_entry_that_waits_behind_a_forget_does_not_undo_it() {
    let redis = redis().await;
    let proxy = FaultProxy::start(redis.address()).await.unwrap();
    let authority = Gated::new();
    let through = format!("redis://{}", proxy.address());
    let store = filtered(&through, authority.clone(), patient()).await;
    let (asked, other) = (completed(&store, "a", "paid").await, running(&store, "b").await);
    written(&redis, "a").await;
    redis.cli(&["SET", &place("a"), "damaged"]);
    authority.open.send_replace(false);
    let forgotten = Notify::new();
    let forget = store.forget(vec![id("a")], async {
        let settled = authority.settle(vec![item(&asked, Transition::Forget)]).await;
        assert_eq!(names(&settled), ["released"]);
        proxy.set(Weather::Cut);
        // This write is stuck, and the marker waits for it.
        settled_by(&store, &other).await;
        forgotten.notify_one();
        Ok(())
    });
    let retry = found(&store, &asked);
    let (forget, retry, ()) = tokio::join!(
        async {
            // The retry already has its answer from before.
            authority.holds().await;
            forget.await
        },
        retry,
        async {
            forgotten.notified().await;
            authority.open.send_replace(true);
            tokio::task::yield_now().await;
            proxy.set(Weather::Fair);
        }
    );
    forget.unwrap();
    assert_eq!(body(&retry), b"paid");
    store.forget(vec![id("another")], async { Ok(()) }).await.unwrap();
    assert_eq!(redis.cli(&["GET", &place("a")]), "-");
    assert!(matches!(claim(&store, &claim_of("a", "pay")).await, Claimed::Granted { .. }));
}

/// An answer that is older than half of a marker's life is not written: the key may have been
/// forgotten, and the marker may have expired.
#[tokio::test]
async fn what_the_authority_said_long_ago_is_not_written() {
    let redis = redis().await;
    let authority = Gated::new();
    let clock = ManualClock::new(SystemClock.now());
    let options = FilterOptions { clock: Arc::new(clock.clone()), ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    let asked = completed(&authority.inner, "a", "paid").await;
    authority.open.send_replace(false);
    for (age, expected) in [(31, "0"), (29, "1")] {
        let (retry, ()) = tokio::join!(found(&store, &asked), async {
            authority.holds().await;
            clock.advance(Duration::from_secs(age));
            authority.held.send_replace(0);
            authority.open.send_replace(true);
        });
        assert_eq!(body(&retry), b"paid");
        store.forget(vec![id("another")], async { Ok(()) }).await.unwrap();
        assert_eq!(redis.cli(&["EXISTS", &place("a")]), expected, "after {age} seconds");
        authority.open.send_replace(false);
    }
}

/// The authority lost the record, and the filter is about to restore the outcome when an operator
/// forgets the key.
#[tokio::test]
async fn what_is_forgotten_during_a_repair_is_not_given_back() {
    let redis = redis().await;
    let before = filtered(&redis.url(), Gated::new(), patient()).await;
    completed(&before, "a", "paid").await;
    written(&redis, "a").await;
    let authority = Gated::new();
    let options = FilterOptions { check_every: 1, ..patient() };
    let store = filtered(&redis.url(), authority.clone(), options).await;
    authority.open.send_replace(false);
    assert_eq!(body(&*found(&store, &claim_of("a", "pay")).await), b"paid");
    // The repair has read the entry, and its claim is held back.
    authority.holds().await;
    store.forget(vec![id("a")], async { Ok(()) }).await.unwrap();
    authority.open.send_replace(true);
    store.close().await.unwrap();
    let kept = authority.inner.load(vec![id("a")]).await.remove(0).unwrap();
    assert_eq!(kept.map(|record| record.state.name()), Some("released"));
    assert!(matches!(claim(&store, &claim_of("a", "pay")).await, Claimed::Granted { .. }));
}

async fn settled_by(store: &dyn Store, claim: &Claim) {
    settled(store, claim, complete("b")).await;
}

#[tokio::test]
async fn an_operator_who_looks_through_all_keys_does_not_fill_the_filter() {
    let redis = redis().await;
    let authority = Arc::new(MemoryStore::new());
    // Outcomes without retries, whose entries are no longer in the filter.
    for number in 0..64 {
        completed(&*authority, &format!("key {number}"), "paid").await;
    }
    let store = Arc::new(filtered(&redis.url(), authority, patient()).await);
    let engine = onetake_core::Engine::new(store.clone());
    let page = engine.page(None, 64).await.unwrap();
    assert_eq!(engine.inspect(page.ids).await.unwrap().len(), 64);
    store.forget(vec![id("another")], async { Ok(()) }).await.unwrap();
    // Only the marker of `another`.
    assert_eq!(redis.cli(&["DBSIZE"]), "1");
}
