//! Keys that are forgotten or expire, and are used again while a caller waits for the first use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::{Answers, Claim, Claimed, Settled};
use onetake_core::{
    Answer, Begin, Fingerprint, FingerprintKey, Limits, MemoryStore, OnUnknown, Operation, Outcome,
    Recording, Settlement, Settling, Store, Terms, Transition, Verdict, WhileRunning,
    delegate_store,
};

use super::{engine_on, memory, operation, pass, settle_down};

const WAIT: WhileRunning = WhileRunning::Wait(Duration::from_secs(20));

/// Completes the running attempt of a key and forgets the key, as if its ttl were over.
async fn end_life(store: &MemoryStore, key: &str) {
    let id = operation(key).id;
    let record = store.load(vec![id]).await.remove(0).unwrap().unwrap();
    for transition in [Transition::Complete(Recording::new("the first life")), Transition::Forget] {
        let settlement = Settlement { id, attempt: record.attempt, transition };
        store.settle(vec![settlement]).await.remove(0).unwrap();
    }
    assert!(store.load(vec![id]).await.remove(0).unwrap().is_none());
}

fn other_payload(key: &str) -> Operation {
    Operation { fingerprint: Fingerprint::of(b"pay somebody else"), ..operation(key) }
}

/// A caller on another node waits for the first use of a key, and the poll finds the second use
/// (S9).
#[tokio::test]
async fn a_waiter_of_another_node_is_not_told_the_outcome_of_another_payload() {
    let (clock, store) = memory();
    let here = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let there = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let Begin::Run(lease) = there.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let waiting = tokio::spawn({
        let here = here.clone();
        async move { here.begin(&operation("a").in_flight(WAIT)).await }
    });
    settle_down().await;
    assert!(!waiting.is_finished());
    end_life(&store, "a").await;
    // Another engine is needed, because this one still holds the lease of the first use.
    let next = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let other = async |_| Verdict::Complete(Recording::new("the second life"));
    let ran = next.run(other_payload("a"), other).await.unwrap();
    assert!(matches!(ran, Outcome::Ran(_)), "{ran:?}");
    clock.advance(Duration::from_millis(25));
    let told = waiting.await.unwrap().unwrap();
    assert!(matches!(told, Begin::Answer(Answer::Mismatch)), "{told:?}");
}

/// If the second use has the same payload, its outcome is the right answer for the waiter.
#[tokio::test]
async fn a_waiter_of_another_node_is_told_the_outcome_of_its_own_payload() {
    let (clock, store) = memory();
    let here = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let there = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        let work = async move |_| {
            told.await.unwrap();
            Verdict::Complete(Recording::new("paid"))
        };
        there.run(operation("a"), work).await
    });
    settle_down().await;
    let waiting = tokio::spawn(async move { here.begin(&operation("a").in_flight(WAIT)).await });
    settle_down().await;
    tell.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert!(!waiting.is_finished(), "it is not polled before 25 ms are over");
    clock.advance(Duration::from_millis(25));
    let told = waiting.await.unwrap().unwrap();
    assert!(matches!(told, Begin::Answer(Answer::Replay(_))), "{told:?}");
}

/// A waiter whose key is free runs the operation. A waiter whose attempt was released gets that
/// answer.
#[tokio::test]
async fn a_waiter_of_another_node_runs_a_key_that_is_absent_and_not_one_that_is_released() {
    for is_released in [false, true] {
        let (clock, store) = memory();
        let here = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
        let there = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
        let Begin::Run(lease) = there.begin(&operation("a")).await.unwrap() else { panic!() };
        let waiting =
            tokio::spawn(async move { here.begin(&operation("a").in_flight(WAIT)).await });
        settle_down().await;
        if is_released {
            drop(lease.release().await);
        } else {
            end_life(&store, "a").await;
        }
        clock.advance(Duration::from_millis(25));
        let told = waiting.await.unwrap().unwrap();
        let expected = if is_released {
            matches!(told, Begin::Answer(Answer::InFlight))
        } else {
            matches!(told, Begin::Run(_))
        };
        assert!(expected, "{told:?}");
    }
}

/// A store in which a key is used again right after its first claim was answered.
#[derive(Debug)]
struct Rotating {
    memory: Arc<MemoryStore>,
    claims: AtomicUsize,
    /// The second use.
    next: Mutex<Option<Operation>>,
}

impl Store for Rotating {
    delegate_store!(self => self.memory; name, settle, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            self.claims.fetch_add(1, Ordering::SeqCst);
            let answers = self.memory.claim(batch).await;
            let next = self.next.lock().unwrap().take();
            if let Some(next) = next {
                let id = next.id;
                let record = self.memory.load(vec![id]).await.remove(0).unwrap().unwrap();
                let forget =
                    Settlement { id, attempt: record.attempt, transition: Transition::Forget };
                self.memory.settle(vec![forget]).await.remove(0).unwrap();
                let other_node =
                    onetake_core::Engine::new(Arc::clone(&self.memory) as Arc<dyn Store>);
                let paid = async |_| Verdict::Complete(Recording::new("the second life"));
                other_node.run(next, paid).await.unwrap();
            }
            answers
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Rotating, self => self.memory);

/// A record of an earlier secret is recognised. Then the key is found again, sealed with the
/// current secret.
#[tokio::test]
async fn a_key_is_recognised_by_the_current_secret_after_an_earlier_one() {
    let plain = Fingerprint::of(b"pay");
    let sealed = ["old", "new"].map(|id| FingerprintKey::new(id, &[7; 32]).seal(plain));
    let [earlier, current] = sealed;
    let memory = Arc::new(MemoryStore::new());
    let first = Operation { fingerprint: earlier, ..operation("a") };
    let before = onetake_core::Engine::new(Arc::clone(&memory) as Arc<dyn Store>);
    // It is released, so that the operation is requested again under the fingerprint that was
    // found.
    before.run(first, async |_| Verdict::Release).await.unwrap();
    let asked = Operation { fingerprint: current, ..operation("a") }.earlier(vec![earlier]);
    let next = Mutex::new(Some(Operation { earlier: Vec::new(), ..asked.clone() }));
    let store = Arc::new(Rotating { memory, claims: AtomicUsize::new(0), next });
    let engine = onetake_core::Engine::new(Arc::clone(&store) as Arc<dyn Store>);
    let told = engine.begin(&asked).await.unwrap();
    let Begin::Answer(Answer::Replay(record)) = &told else { panic!("{told:?}") };
    assert_eq!(record.fingerprint, current);
    assert_eq!(store.claims.load(Ordering::SeqCst), 2, "one with each secret");
}

/// A key that was released under an earlier secret runs again, and keeps that fingerprint.
#[tokio::test]
async fn a_released_key_of_an_earlier_secret_runs_again() {
    let plain = Fingerprint::of(b"pay");
    let sealed = ["old", "new", "other"].map(|id| FingerprintKey::new(id, &[7; 32]).seal(plain));
    let [earlier, current, foreign] = sealed;
    let engine = onetake_core::Engine::new(Arc::new(MemoryStore::new()));
    let of = |fingerprint| Operation { fingerprint, ..operation("a") };
    engine.run(of(earlier), async |_| Verdict::Release).await.unwrap();
    let asked = of(current).earlier(vec![earlier]);
    let paid = async |_| Verdict::Complete(Recording::new("paid"));
    let ran = engine.run(asked.clone(), paid).await.unwrap();
    assert_eq!(ran.recording(), Some(&Recording::new("paid")));
    let again = engine.begin(&asked).await.unwrap();
    assert!(matches!(again, Begin::Answer(Answer::Replay(_))), "{again:?}");
    for fingerprint in [current, foreign] {
        let other = engine.begin(&of(fingerprint)).await.unwrap();
        assert!(matches!(other, Begin::Answer(Answer::Mismatch)), "{other:?}");
    }
}

/// Found by the simulation: the outcome of a transaction was cached for its whole ttl from the
/// moment at which the engine saw it, however long ago it was committed.
#[tokio::test]
async fn an_outcome_that_a_transaction_recorded_long_ago_is_not_replayed_when_it_has_expired() {
    let (clock, memory) = memory();
    let engine = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let (ttl, on_unknown) = (Duration::from_secs(10), OnUnknown::Rollback);
    let operation = operation("t").terms(Terms { ttl, on_unknown, ..Terms::default() });
    let Begin::Run(lease) = engine.begin(&operation).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let transition = Transition::Complete(Recording::new("paid"));
    let committed = Settlement { id: lease.id(), attempt: lease.attempt(), transition };
    assert!(matches!(memory.settle(vec![committed]).await.remove(0), Ok(Settled::Done { .. })));
    // The check for the commit is late.
    pass(&clock, Duration::from_secs(1), 9).await;
    assert!(matches!(lease.release().await, Settling::Stale(Some(_))));
    let again = engine.begin(&operation).await.unwrap();
    assert!(matches!(again, Begin::Answer(Answer::Replay(_))), "{again:?}");
    pass(&clock, Duration::from_secs(1), 2).await;
    let after = engine.begin(&operation).await.unwrap();
    assert!(matches!(after, Begin::Run(_)), "it has expired: {after:?}");
}
