//! The engine's limits, in numbers that are not taken from its code.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use onetake_core::store::{Answers, Claim, Claimed, Settled};
use onetake_core::{
    Answer, Begin, Engine, Failure, Limits, Memo, MemoryStore, Operation, Origin, Record, RecordId,
    Recording, Settlement, Store, TenantDigest, Verdict, WhileRunning, delegate_store,
};
use tokio::sync::Semaphore;

use super::{engine_on, memory, operation, settle_down};

/// A store that counts the items of its batches, and can hold claims back.
#[derive(Debug)]
struct Counting {
    memory: Arc<MemoryStore>,
    claims: Mutex<Vec<usize>>,
    settlements: Mutex<Vec<usize>>,
    loads: Mutex<Vec<usize>>,
    under_way: AtomicUsize,
    under_way_max: AtomicUsize,
    gate: Semaphore,
}

impl Counting {
    fn around(memory: &Arc<MemoryStore>) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            claims: Mutex::default(),
            settlements: Mutex::default(),
            loads: Mutex::default(),
            under_way: AtomicUsize::new(0),
            under_way_max: AtomicUsize::new(0),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
        })
    }
}

impl Store for Counting {
    delegate_store!(self => self.memory; name, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            self.claims.lock().unwrap().push(batch.len());
            let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            self.under_way_max.fetch_max(under_way, Ordering::SeqCst);
            drop(self.gate.acquire().await.unwrap());
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            self.memory.claim(batch).await
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.settlements.lock().unwrap().push(batch.len());
        self.memory.settle(batch)
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.loads.lock().unwrap().push(ids.len());
        self.memory.load(ids)
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Counting, self => self.memory);

/// Returns the number of keys that the engine answers from its cache.
async fn cached(engine: &Engine, store: &Counting, keys: &[Operation]) -> usize {
    store.loads.lock().unwrap().clear();
    for asked in keys {
        assert!(engine.look(asked.id).await.unwrap().is_some());
    }
    keys.len() - store.loads.lock().unwrap().len()
}

/// Runs 100 keys with a cache of 50,000 bytes, and returns how many of them are cached.
async fn cached_of_100(
    prepare: impl Fn(Operation) -> Operation,
    releases: usize,
    verdict: Verdict,
) -> usize {
    let (clock, memory) = memory();
    let store = Counting::around(&memory);
    let limits = Limits { cache_bytes_max: 50_000, ..Limits::default() };
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, limits);
    let keys: Vec<Operation> =
        (0..100).map(|number| prepare(operation(&format!("key {number}")))).collect();
    for asked in &keys {
        for _ in 0..releases {
            engine.run(asked.clone(), async |_| Verdict::Release).await.unwrap();
        }
        let verdict = verdict.clone();
        engine.run(asked.clone(), async move |_| verdict).await.unwrap();
    }
    cached(&engine, &store, &keys).await
}

/// All parts of a record count towards the cache's limit.
#[tokio::test]
async fn a_cache_of_50_000_bytes_holds_50_000_bytes() {
    let done = || Verdict::Complete(Recording::new("paid"));
    let count = cached_of_100(|it| it, 0, done()).await;
    assert!((50..=100).contains(&count), "small records: {count}");

    let body = Verdict::Complete(Recording::new(vec![0; 1_000]));
    let count = cached_of_100(|it| it, 0, body).await;
    assert!((25..=50).contains(&count), "1,000 bytes of body: {count}");

    let head = Recording { head: vec![0; 1_000].into(), body: None };
    let count = cached_of_100(|it| it, 0, Verdict::Complete(head)).await;
    assert!((25..=50).contains(&count), "1,000 bytes of head: {count}");

    let memo = |it: Operation| {
        let origin = Origin::default().with_memo(Memo::new(vec![1; 2_000]).unwrap());
        it.origin(origin)
    };
    let count = cached_of_100(memo, 0, done()).await;
    assert!((15..=25).contains(&count), "2,000 bytes of memo: {count}");

    // Only 200 bytes of the route are kept.
    let route = |it: Operation| it.origin(Origin::new(TenantDigest::default(), &"r".repeat(999)));
    let plain = cached_of_100(|it| it, 0, done()).await;
    let count = cached_of_100(route, 0, done()).await;
    assert!(
        count * 200 <= 50_000 && count * 5 <= plain * 4,
        "200 bytes of route: {count}, {plain}"
    );

    // Only 1,024 bytes of the history are kept.
    let count = cached_of_100(|it| it, 30, done()).await;
    assert!((25..=50).contains(&count), "1,000 bytes of history: {count}");

    // Only 512 bytes of each text are kept.
    let failure = Failure { code: "c".repeat(999), detail: "d".repeat(999) };
    let count = cached_of_100(|it| it, 0, Verdict::Fail(failure)).await;
    assert!((25..=48).contains(&count), "1,024 bytes of failure: {count}");
}

#[tokio::test]
async fn no_write_or_read_has_more_items_than_it_may() {
    let (clock, memory) = memory();
    let store = Counting::around(&memory);
    let limits = Limits { batch_items_max: 3, cache_bytes_max: 0, ..Limits::default() };
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, limits);
    let keys: Vec<Operation> = (0..10).map(|number| operation(&format!("key {number}"))).collect();
    let leases: Vec<_> = join_all(keys.iter().map(|asked| engine.begin(asked)))
        .await
        .into_iter()
        .map(|begun| match begun.unwrap() {
            Begin::Run(lease) => lease,
            Begin::Answer(answer) => panic!("{answer:?}"),
        })
        .collect();
    assert_eq!(*store.claims.lock().unwrap(), [3, 3, 3, 1]);
    // Callers of another node wait for all ten keys, which are read three at a time.
    let other = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, limits);
    let waiting = keys.into_iter().map(|asked| {
        let other = other.clone();
        let asked = asked.in_flight(WhileRunning::Wait(Duration::from_secs(10)));
        tokio::spawn(async move { other.begin(&asked).await })
    });
    let waiting: Vec<_> = waiting.collect();
    settle_down().await;
    clock.advance(Duration::from_millis(25));
    settle_down().await;
    assert_eq!(*store.loads.lock().unwrap(), [3, 3, 3, 1]);
    store.settlements.lock().unwrap().clear();
    join_all(leases.into_iter().map(|lease| lease.complete(Recording::new("paid")))).await;
    assert_eq!(*store.settlements.lock().unwrap(), [3, 3, 3, 1]);
    clock.advance(Duration::from_millis(25));
    for told in join_all(waiting).await {
        let told = told.unwrap().unwrap();
        assert!(matches!(told, Begin::Answer(Answer::Replay(_))), "{told:?}");
    }
}

#[tokio::test]
async fn no_more_writes_are_under_way_than_may_be() {
    // The limit does not apply to several lanes.
    for (writers_max, lanes, expected) in [(1, 1, 1), (3, 1, 3), (1, 2, 9)] {
        let (clock, memory) = memory();
        let store = Counting::around(&memory);
        let limits = Limits { batch_items_max: 1, writers_max, lanes, ..Limits::default() };
        let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, limits);
        store.gate.forget_permits(Semaphore::MAX_PERMITS);
        let mut claiming = Vec::new();
        for number in 0..9 {
            let (engine, asked) = (engine.clone(), operation(&format!("key {number}")));
            claiming.push(tokio::spawn(async move { engine.begin(&asked).await }));
            settle_down().await;
        }
        for _ in 0..10 {
            settle_down().await;
            clock.advance(Duration::from_millis(10));
        }
        store.gate.add_permits(1_000);
        for claimed in join_all(claiming).await {
            claimed.unwrap().unwrap();
        }
        assert_eq!(store.under_way_max.load(Ordering::SeqCst), expected, "{limits:?}");
    }
}

/// Starts callers that wait for a key, and returns how many get the answer at once that it runs.
async fn told_at_once(engine: &Engine, key: &str, callers: usize) -> usize {
    let wait = WhileRunning::Wait(Duration::from_secs(10));
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, asked) = (engine.clone(), operation(key).in_flight(wait));
            tokio::spawn(async move { engine.begin(&asked).await })
        })
        .collect();
    for _ in 0..10 {
        settle_down().await;
    }
    let mut told = 0;
    for caller in callers {
        if caller.is_finished() {
            let answer = caller.await.unwrap().unwrap();
            assert!(matches!(answer, Begin::Answer(Answer::InFlight)), "{answer:?}");
            told += 1;
        }
    }
    told
}

#[tokio::test]
async fn no_more_callers_wait_than_may() {
    let (clock, memory) = memory();
    let at = |limits| engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, limits);
    let owner = at(Limits::default());
    let mut leases = Vec::new();
    for key in ["a", "b"] {
        let Begin::Run(lease) = owner.begin(&operation(key)).await.unwrap() else { panic!() };
        leases.push(lease);
    }
    // Keys of another node: the limit is for all callers together.
    let other = at(Limits { waiting_max: 4, ..Limits::default() });
    assert_eq!(told_at_once(&other, "a", 3).await, 0);
    assert_eq!(told_at_once(&other, "b", 3).await, 2);
    // Keys of this engine: the limit is for the callers of one key.
    let own = at(Limits { waiting_per_key_max: 4, ..Limits::default() });
    let mine = ["c", "d"].map(operation);
    for asked in &mine {
        let Begin::Run(lease) = own.begin(asked).await.unwrap() else { panic!() };
        leases.push(lease);
    }
    assert_eq!(told_at_once(&own, "c", 6).await, 2);
    assert_eq!(told_at_once(&own, "d", 6).await, 2, "one key does not crowd out another");
    // Keys of this engine: the limit for all callers together.
    let few = at(Limits { waiting_max: 4, ..Limits::default() });
    let Begin::Run(lease) = few.begin(&operation("e")).await.unwrap() else { panic!() };
    leases.push(lease);
    assert_eq!(told_at_once(&few, "e", 6).await, 2);
    drop(leases);
}

/// The sizes to which a record cuts its texts, in bytes.
#[tokio::test]
async fn texts_and_histories_are_cut() {
    let (clock, memory) = memory();
    let engine = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    assert!(Memo::new(vec![0; 2_048]).is_some() && Memo::new(vec![0; 2_049]).is_none());
    let origin = Origin::new(TenantDigest::default(), &"r".repeat(999));
    let asked = operation("a").origin(origin);
    for _ in 0..40 {
        engine.run(asked.clone(), async |_| Verdict::Release).await.unwrap();
    }
    let failure = Failure { code: "c".repeat(999), detail: "ä".repeat(999) };
    engine.run(asked.clone(), async move |_| Verdict::Fail(failure)).await.unwrap();
    let record = memory.load(vec![asked.id]).await.remove(0).unwrap().unwrap();
    let onetake_core::State::Failed { failure, .. } = &record.state else { panic!("{record:?}") };
    assert_eq!((failure.code.len(), failure.detail.len()), (512, 512));
    assert_eq!(record.origin.route.len(), 200);
    assert_eq!(record.history.as_text().len(), 1_024);
    assert!(record.history.attempts().count() >= 15);
}
