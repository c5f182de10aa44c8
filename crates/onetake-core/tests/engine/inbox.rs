//! An inbox: its answers, and what it counts while its database is unreachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::audit::{AuditAction, AuditEntry, AuditPage, AuditPosition, AuditResult};
use onetake_core::store::{Answers, AuditLog, Claim, Claimed, Cursor, RecordIndex, Settled};
use onetake_core::{
    Attempt, Inbox, InboxOptions, Limits, ManualClock, MemoryStore, Received, Record, RecordId,
    Recording, Settlement, Store, StoreError, StoreErrorKind, SystemRng, Timestamp, Transition,
    delegate_store,
};

use super::lease_check_at_start::SlowClaims;
use super::{engine_on, memory, pass, settle, take_over};

/// A store that can be made unreachable right after it granted a claim.
#[derive(Debug)]
struct Unreachable {
    memory: Arc<MemoryStore>,
    fails_after_claims: AtomicBool,
    is_down: AtomicBool,
}

impl Unreachable {
    fn error(&self) -> Option<StoreError> {
        let is_down = self.is_down.load(Ordering::SeqCst);
        is_down.then(|| StoreError::new(StoreErrorKind::Unavailable, "the database is unreachable"))
    }

    async fn or_error<T>(
        &self,
        answer: BoxFuture<'_, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.error() {
            Some(error) => Err(error),
            None => answer.await,
        }
    }

    async fn or_errors<T>(&self, items: usize, answers: BoxFuture<'_, Answers<T>>) -> Answers<T> {
        match self.error() {
            Some(error) => (0..items).map(|_| Err(error.clone())).collect(),
            None => answers.await,
        }
    }
}

impl Store for Unreachable {
    delegate_store!(self => self.memory; name, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let answers = self.memory.claim(batch).await;
            if self.fails_after_claims.load(Ordering::SeqCst) {
                self.is_down.store(true, Ordering::SeqCst);
            }
            answers
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        let items = batch.len();
        async move { self.or_errors(items, self.memory.settle(batch)).await }.boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        let items = ids.len();
        async move { self.or_errors(items, self.memory.load(ids)).await }.boxed()
    }
}

impl AuditLog for Unreachable {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { self.or_error(self.memory.audit(entry)).await }.boxed()
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        async move { self.or_error(self.memory.audit_entries(of, from, limit)).await }.boxed()
    }
}

delegate_store!(impl RecordIndex, SharedSecrets, Sealing for Unreachable, self => self.memory);

/// An inbox on such a store, and the number of runs of its work.
struct World {
    clock: Arc<ManualClock>,
    store: Arc<Unreachable>,
    inbox: Inbox,
    runs: Arc<AtomicU32>,
}

impl World {
    fn new() -> Self {
        let (clock, memory) = memory();
        let (fails_after_claims, is_down) = (AtomicBool::new(false), AtomicBool::new(false));
        let store = Arc::new(Unreachable { memory, fails_after_claims, is_down });
        let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
        let inbox = Inbox::new(engine, "mailer", InboxOptions::default());
        Self { clock, store, inbox, runs: Arc::default() }
    }

    /// Delivers the message once, with an outage of this length after the claim. The work fails.
    async fn deliver(&self, outage: Duration) -> Received<&'static str> {
        let (inbox, runs) = (self.inbox.clone(), Arc::clone(&self.runs));
        self.store.fails_after_claims.store(!outage.is_zero(), Ordering::SeqCst);
        let delivery = tokio::spawn(async move {
            let work = async move |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                Err("cannot be dealt with")
            };
            inbox.receive("message 1", work).await
        });
        pass(&self.clock, Duration::from_millis(100), outage.as_millis() as usize / 100).await;
        self.store.is_down.store(false, Ordering::SeqCst);
        while !delivery.is_finished() {
            pass(&self.clock, Duration::from_millis(100), 1).await;
        }
        // Time for all pending writes.
        pass(&self.clock, Duration::from_millis(500), 20).await;
        delivery.await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_delivery_whose_database_was_unreachable_is_no_try() {
    for outage in [10, 60].map(Duration::from_secs) {
        let world = World::new();
        for number in 0..7 {
            let received = world.deliver(outage).await;
            assert!(matches!(received, Received::InProgress), "{number}: {received:?}");
        }
        assert_eq!(world.runs.load(Ordering::SeqCst), 0);
        for number in 1..=4 {
            let received = world.deliver(Duration::ZERO).await;
            let Received::Failed { attempts, error, .. } = received else { panic!("{received:?}") };
            assert_eq!((attempts, error), (number, Some("cannot be dealt with")));
            if number == 2 {
                let received = world.deliver(outage).await;
                assert!(matches!(received, Received::InProgress), "{received:?}");
            }
        }
        let received = world.deliver(Duration::ZERO).await;
        let Received::Poisoned { failure, .. } = received else { panic!("{received:?}") };
        assert_eq!(failure.detail, "it failed 5 times and is not tried again");
        assert_eq!(world.runs.load(Ordering::SeqCst), 5);
    }
}

/// The store answers again while the inbox still asks for earlier tries: the work runs.
#[tokio::test]
async fn a_short_outage_delays_a_delivery() {
    for outage in [Duration::from_millis(300), Duration::from_secs(3)] {
        let world = World::new();
        let received = world.deliver(outage).await;
        let Received::Failed { attempts, error, .. } = received else { panic!("{received:?}") };
        assert_eq!((attempts, error), (1, Some("cannot be dealt with")));
    }
}

/// The work itself reports that its database was unreachable.
#[tokio::test]
async fn work_that_could_not_begin_is_no_try() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let options = InboxOptions { attempts_max: 2, ..InboxOptions::default() };
    let inbox = Inbox::new(engine, "mailer", options);
    let deliver = |error: &'static str| {
        let is_try: fn(&&'static str) -> bool = |error| *error != "unreachable";
        inbox.receive_counting("message 1", is_try, async move |_| Err(error))
    };
    let expected = [("unreachable", 0), ("unreachable", 0), ("refused", 1), ("unreachable", 1)];
    for (said, number) in expected {
        let received = deliver(said).await.unwrap();
        let Received::Failed { again, attempts, error } = received else { panic!("{received:?}") };
        assert_eq!((attempts, error, again), (number, Some(said), Duration::from_secs(1)));
    }
    let received = deliver("refused").await.unwrap();
    assert!(matches!(received, Received::Poisoned { .. }), "{received:?}");
}

/// An operator's release of a message does not undo the try.
#[tokio::test]
async fn what_an_operator_released_is_a_try() {
    let (clock, memory) = memory();
    let engine = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let inbox = Inbox::new(engine, "mailer", InboxOptions::default());
    for number in 1..=3 {
        let received = inbox.receive("message 1", async move |_| Err("refused")).await.unwrap();
        let Received::Failed { attempts, .. } = received else { panic!("{received:?}") };
        assert_eq!(attempts, number);
        let id = memory.page(None, 10).await.unwrap().ids.remove(0);
        let record = memory.load(vec![id]).await.remove(0).unwrap().unwrap();
        for (action, before) in
            [(AuditAction::Release, "unknown"), (AuditAction::Resolve, "running")]
        {
            let at = Timestamp::from_micros(record.fence.get());
            let entry = AuditEntry {
                place: AuditPosition::new(at, &SystemRng),
                id,
                attempt: record.attempt,
                action,
                ended: AuditResult::Done,
                before: before.to_owned(),
                by: "somebody".to_owned(),
                reason: "it had no effect".to_owned(),
            };
            memory.audit(entry).await.unwrap();
        }
    }
}

/// The engine releases a claim whose answer was lost. Nothing ran.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_no_try() {
    let (clock, memory) = memory();
    let faulty = Faulty::around(memory);
    let engine = engine_on(Arc::clone(&faulty) as Arc<dyn Store>, &clock, Limits::default());
    let inbox = Inbox::new(engine, "mailer", InboxOptions::default());
    let deliver = || inbox.receive("message 1", async move |_| Err("cannot be dealt with"));
    for number in 0..6 {
        faulty.fail_claims(StoreFault::LostAnswer);
        faulty.fail_settlements(StoreFault::Unavailable);
        let lost = deliver().await;
        assert!(lost.is_err(), "{number}: {lost:?}");
        faulty.fail_claims(StoreFault::None);
        faulty.fail_settlements(StoreFault::None);
        pass(&clock, Duration::from_secs(1), 10).await;
    }
    let received = deliver().await.unwrap();
    let Received::Failed { attempts, .. } = received else { panic!("{received:?}") };
    assert_eq!(attempts, 1);
}

/// The store grants claims after the engine has stopped waiting for them.
#[tokio::test]
async fn a_claim_that_is_granted_too_late_is_no_try() {
    let (clock, memory) = memory();
    let takes = Duration::from_secs(6);
    let slow = SlowClaims { memory: Arc::clone(&memory), clock: Arc::clone(&clock), takes };
    let slow = Inbox::new(
        engine_on(Arc::new(slow), &clock, Limits::default()),
        "mailer",
        InboxOptions::default(),
    );
    let quick = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let quick = Inbox::new(quick, "mailer", InboxOptions::default());
    let work = async |_| Err::<(), _>("cannot be dealt with");
    let received = quick.receive("message 1", work).await.unwrap();
    assert!(matches!(received, Received::Failed { attempts: 1, .. }), "{received:?}");
    for number in 0..6 {
        let (late, ()) =
            tokio::join!(slow.receive("message 1", work), pass(&clock, Duration::from_secs(1), 10));
        assert!(late.is_err(), "{number}: {late:?}");
    }
    let received = quick.receive("message 1", work).await.unwrap();
    assert!(matches!(received, Received::Failed { attempts: 2, .. }), "{received:?}");
}

#[tokio::test]
async fn a_message_is_done_once_and_then_a_duplicate() {
    let (clock, memory) = memory();
    let engine = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let inbox = Inbox::new(engine, "mailer", InboxOptions::default());
    let deliver = |outcome: &'static str| {
        let memory = Arc::clone(&memory);
        inbox.receive("message 1", async move |attempt| {
            settle(&*memory, attempt, Transition::Complete(Recording::new(outcome))).await;
            Ok::<(), &'static str>(())
        })
    };
    let received = deliver("sent").await.unwrap();
    assert!(
        matches!(&received, Received::Done(done) if done.body.as_deref() == Some(b"sent")),
        "{received:?}"
    );
    let received = deliver("sent again").await.unwrap();
    assert!(
        matches!(&received, Received::Duplicate(done) if done.body.as_deref() == Some(b"sent")),
        "{received:?}"
    );
}

/// Delivers a message that another attempt takes over and settles while its work runs.
async fn deliver_overtaken(settled: Transition) -> Received<&'static str> {
    let (clock, store) = memory();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let inbox = Inbox::new(engine, "mailer", InboxOptions::default());
    let work = async move |attempt: Attempt| {
        settle(&*store, attempt, Transition::Release).await;
        let other = take_over(&*store, attempt).await;
        settle(&*store, other, settled).await;
        Err("the connection broke")
    };
    inbox.receive("message 1", work).await.unwrap()
}

#[tokio::test]
async fn an_outcome_of_another_attempt_is_a_duplicate() {
    let settled = Transition::Complete(Recording::new("sent by the other"));
    let received = deliver_overtaken(settled).await;
    assert!(matches!(received, Received::Duplicate(_)), "{received:?}");
}

/// The number of tries is not known then.
#[tokio::test]
async fn a_release_by_another_attempt_is_not_a_failure_of_the_work() {
    let received = deliver_overtaken(Transition::Release).await;
    assert!(matches!(received, Received::InProgress), "{received:?}");
}

#[tokio::test]
async fn a_poisoned_message_is_tried_again_once_it_was_forgotten() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let options = InboxOptions { attempts_max: 1, ..InboxOptions::default() };
    let inbox = Inbox::new(engine, "mailer", options);
    let runs = Arc::new(AtomicU32::new(0));
    let deliver = || {
        let runs = Arc::clone(&runs);
        inbox.receive("message 1", async move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            Err("refused")
        })
    };
    let forget = || inbox.forget("message 1", "an operator", "its address was corrected");
    assert!(!forget().await.unwrap(), "there is nothing to forget yet");
    for run in 1..=2 {
        for delivery in 1..=3 {
            let received = deliver().await.unwrap();
            assert!(matches!(received, Received::Poisoned { .. }), "{delivery}: {received:?}");
        }
        assert_eq!(runs.load(Ordering::SeqCst), run);
        assert!(forget().await.unwrap());
        assert!(!forget().await.unwrap(), "it was forgotten already");
    }
}
