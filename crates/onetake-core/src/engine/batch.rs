//! Batching of writes: items that arrive during a write are written together.
//!
//! There is no timer. An idle lane writes at once, and a busy lane writes everything that arrived
//! in the meantime. A lane with several writers starts another write as soon as at least as many
//! items wait as are being written: many small writes would cost a busy store more than they gain.
//! A write that takes long no longer counts there, so that other items do not wait for it. Batches
//! are sorted by record id, so that nodes never deadlock each other.
//!
//! A store that gathers writes by itself gets several lanes, one for each thread that runs
//! operations ([`Lanes`]). Such a lane writes at once, however many writes are under way. Its items
//! and their answers never cross to another thread, except with the whole batch.
//!
//! An operation's own task writes its batch itself if no other writer is about to
//! ([`Lane::write`]). Items that arrived by the end of that write go to a task of the lane, so that
//! no operation works long for others.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::scope::RecordId;
use crate::store::{Answers, Claim, Settlement, StoreError, StoreErrorKind};

use super::tasks::{Detached, Receiver, Tasks};

/// An item of a batch.
pub(crate) trait Item: Send + 'static {
    fn id(&self) -> RecordId;
}

impl Item for Claim {
    fn id(&self) -> RecordId {
        self.id
    }
}

impl Item for Settlement {
    fn id(&self) -> RecordId {
        self.id
    }
}

/// The duration after which a write no longer counts in the decision about another write.
const SLOW_WRITE: Duration = Duration::from_millis(10);
/// The maximum number of times that a writer yields before it takes a batch.
const YIELDS_MAX: usize = 16;
/// The number of yields without a new item after which the writer takes its batch. During the first
/// of them, other tasks may be at work on another thread.
const QUIET_YIELDS: usize = 2;

type WriteFn<T, R> = Box<dyn Fn(Vec<T>) -> BoxFuture<'static, Answers<R>> + Send + Sync>;
type Reply<R> = oneshot::Sender<Result<R, StoreError>>;

/// The lanes of one kind of write to one store: one for all threads, or one for each.
pub(crate) struct Lanes<T, R> {
    lanes: Vec<Lane<T, R>>,
}

/// The number of threads that have used lanes so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of this thread, from zero.
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

impl<T: Item, R: Send + 'static> Lanes<T, R> {
    /// Creates this number of lanes, at least one.
    pub(crate) fn new(count: usize, lane: impl Fn() -> Lane<T, R>) -> Self {
        Self { lanes: (0..count.max(1)).map(|_| lane()).collect() }
    }

    /// Returns the lane of this thread.
    fn here(&self) -> Option<&Lane<T, R>> {
        let count = self.lanes.len();
        // A thread that ends has no number any more.
        let number = if count > 1 { THREAD.try_with(|number| *number).unwrap_or(0) } else { 0 };
        self.lanes.get(number % count)
    }

    /// Queues an item in the lane of this thread: see [`Lane::submit`].
    pub(crate) fn submit(
        &self,
        item: T,
    ) -> impl Future<Output = Result<R, StoreError>> + Send + use<T, R> {
        let answer = self.here().map(|lane| lane.submit(item));
        async move {
            match answer {
                Some(answer) => answer.await,
                None => Err(lost()),
            }
        }
    }

    /// Returns the number of items that wait in all lanes, and of their writers.
    pub(crate) fn queued(&self) -> usize {
        let of_one = |lane: &Lane<T, R>| {
            let queue = lane.shared.lock();
            queue.waiting.len() + queue.writers
        };
        self.lanes.iter().map(of_one).sum()
    }

    /// Writes an item through the lane of this thread: see [`Lane::write`].
    pub(crate) async fn write(&self, item: T) -> Result<R, StoreError> {
        match self.here() {
            Some(lane) => lane.write(item).await,
            None => Err(lost()),
        }
    }
}

impl<T, R> fmt::Debug for Lanes<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("count", &self.lanes.len()).finish_non_exhaustive()
    }
}

/// A queue of writes.
pub(crate) struct Lane<T, R> {
    shared: Arc<BatchState<T, R>>,
}

struct BatchState<T, R> {
    write: WriteFn<T, R>,
    items_max: usize,
    writers_max: usize,
    tasks: Tasks,
    clock: Arc<dyn Clock>,
    queue: Mutex<BatchQueue<T, R>>,
}

struct BatchQueue<T, R> {
    waiting: VecDeque<(T, Reply<R>)>,
    /// Tasks that write, or are about to.
    writers: usize,
    /// The number of writers that have a batch under way. `under_way` counts the items of these
    /// batches.
    writing: usize,
    under_way: usize,
}

impl<T, R> BatchQueue<T, R> {
    /// True if the waiting items are worth a write of their own, beside those that are under way.
    fn is_worth_a_write(&self, is_eager: bool) -> bool {
        !self.waiting.is_empty() && (is_eager || self.waiting.len() >= self.under_way)
    }
}

impl<T: Item, R: Send + 'static> Lane<T, R> {
    pub(crate) fn new(
        tasks: impl Into<Tasks>,
        items_max: usize,
        writers_max: usize,
        clock: Arc<dyn Clock>,
        write: impl Fn(Vec<T>) -> BoxFuture<'static, Answers<R>> + Send + Sync + 'static,
    ) -> Self {
        let queue = Mutex::new(BatchQueue {
            waiting: VecDeque::new(),
            writers: 0,
            writing: 0,
            under_way: 0,
        });
        let (items_max, writers_max) = (items_max.max(1), writers_max.max(1));
        let (write, tasks) = (Box::new(write), tasks.into());
        let shared = BatchState { write, items_max, writers_max, tasks, clock, queue };
        Self { shared: Arc::new(shared) }
    }

    /// Queues an item. It is written even if no task waits for the answer.
    pub(crate) fn submit(
        &self,
        item: T,
    ) -> impl Future<Output = Result<R, StoreError>> + Send + use<T, R> {
        let answer = self.queue(item);
        WriteTurn::start_if_needed(&self.shared);
        async move { answer.await.unwrap_or_else(|_| Err(lost())) }
    }

    /// Queues an item, and writes its batch in the caller's own task if no other writer is about
    /// to.
    ///
    /// Use it only in tasks that wait for nothing else: while this future is not polled, later
    /// items are not written. If it is dropped, the write continues in a task of the lane.
    pub(crate) async fn write(&self, item: T) -> Result<R, StoreError> {
        let answer = self.queue(item);
        if let Some(writer) = WriteTurn::if_needed(&self.shared) {
            // A store that panics loses the answers of its batch. It does not end the calling task.
            Detached::new(&self.shared.tasks, Box::pin(writer.lead())).await;
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    fn queue(&self, item: T) -> Receiver<Result<R, StoreError>> {
        let (reply, answer) = self.shared.tasks.channel();
        self.shared.lock().waiting.push_back((item, reply));
        answer
    }
}

fn lost() -> StoreError {
    StoreError::new(StoreErrorKind::Indeterminate, "the store returned no result")
}

impl<T, R> BatchState<T, R> {
    /// True if a batch never waits for those that are under way.
    fn is_eager(&self) -> bool {
        self.writers_max == usize::MAX
    }

    fn lock(&self) -> MutexGuard<'_, BatchQueue<T, R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to write. A writer gives it up when no items are left. If the store panicked, a new
/// writer gets it, so that one bad batch does not close the lane.
struct WriteTurn<T: Item, R: Send + 'static> {
    shared: Arc<BatchState<T, R>>,
    /// True if the writer was polled, so the runtime is alive.
    started: bool,
    /// True if a batch is under way. `batch` is the number of its items that count.
    writing: bool,
    batch: usize,
    /// True if the writer gave up its right itself.
    done: bool,
}

impl<T: Item, R: Send + 'static> WriteTurn<T, R> {
    fn new(shared: &Arc<BatchState<T, R>>) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, started: false, writing: false, batch: 0, done: false }
    }

    fn start(shared: &Arc<BatchState<T, R>>) {
        shared.tasks.spawn(Self::new(shared).drain());
    }

    /// Writes until no items are left.
    async fn drain(mut self) {
        while self.write_next().await {}
    }

    /// Writes one batch. Items that arrived meanwhile go to a task of the lane.
    async fn lead(mut self) {
        if self.write_next().await && !self.give_up_if_idle() {
            let shared = Arc::clone(&self.shared);
            shared.tasks.spawn_near(self.drain());
        }
    }

    /// Writes the next batch. Returns false if there is none for this writer.
    async fn write_next(&mut self) -> bool {
        self.started = true;
        self.gather().await;
        let Some(batch) = self.next() else { return false };
        let (items, replies): (Vec<T>, Vec<Reply<R>>) = batch.into_iter().unzip();
        let shared = Arc::clone(&self.shared);
        let mut writing = (shared.write)(items);
        // No other writer waits for this one, so its duration does not matter.
        let is_independent = shared.writers_max <= 1 || shared.is_eager();
        let answers = if is_independent {
            writing.await
        } else {
            tokio::select! {
                biased;
                answers = &mut writing => answers,
                () = shared.clock.sleep(SLOW_WRITE) => {
                    self.stop_counting();
                    Self::start_if_needed(&shared);
                    writing.await
                }
            }
        };
        self.written();
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _receiver_dropped = reply.send(answer);
        }
        true
    }

    /// Lets tasks that were woken by the last answers add their items to this batch. There is no
    /// timer: the writer yields to ready tasks as long as new items arrive.
    async fn gather(&self) {
        if self.shared.is_eager() {
            // The tasks that are ready on this thread. A later item is not late for the store.
            return tokio::task::yield_now().await;
        }
        let (mut waiting, mut quiet) = (0, 0);
        for _ in 0..YIELDS_MAX {
            tokio::task::yield_now().await;
            let now = self.shared.lock().waiting.len();
            quiet = if now > waiting { 0 } else { quiet + 1 };
            if quiet == QUIET_YIELDS {
                return;
            }
            waiting = now;
        }
    }

    /// Ends this writer if no items wait, or another writer will take them.
    fn give_up_if_idle(&mut self) -> bool {
        let mut queue = self.shared.lock();
        let is_eager = self.shared.is_eager();
        // Another writer of an eager lane may be about to take the items.
        let is_another_about_to = is_eager && queue.writers - 1 > queue.writing;
        // This happens under the same lock as the check. Otherwise an item could be queued in
        // between and wait for ever.
        self.done = is_another_about_to || !queue.is_worth_a_write(is_eager);
        queue.writers -= usize::from(self.done);
        self.done
    }

    fn next(&mut self) -> Option<Vec<(T, Reply<R>)>> {
        let mut queue = self.shared.lock();
        if !queue.is_worth_a_write(self.shared.is_eager()) {
            queue.writers -= 1;
            self.done = true;
            return None;
        }
        let count = queue.waiting.len().min(self.shared.items_max);
        let mut batch: Vec<_> = queue.waiting.drain(..count).collect();
        queue.writing += 1;
        queue.under_way += count;
        drop(queue);
        (self.writing, self.batch) = (true, count);
        batch.sort_by_key(|(item, _)| item.id());
        Some(batch)
    }
}

impl<T: Item, R: Send + 'static> WriteTurn<T, R> {
    /// Starts another writer, if one is needed.
    fn start_if_needed(shared: &Arc<BatchState<T, R>>) {
        if let Some(writer) = Self::if_needed(shared) {
            shared.tasks.spawn(writer.drain());
        }
    }

    /// Returns another writer if the waiting items are worth one and the limit allows it.
    fn if_needed(shared: &Arc<BatchState<T, R>>) -> Option<Self> {
        let mut queue = shared.lock();
        // A writer that is about to write takes the waiting items along.
        let start = queue.writers == queue.writing
            && queue.writers < shared.writers_max
            && queue.is_worth_a_write(shared.is_eager());
        queue.writers += usize::from(start);
        drop(queue);
        start.then(|| Self::new(shared))
    }

    /// Removes a slow batch from the count, so that other items do not wait for it.
    fn stop_counting(&mut self) {
        self.shared.lock().under_way -= std::mem::take(&mut self.batch);
    }

    /// Records that the batch is no longer under way.
    fn written(&mut self) {
        if std::mem::take(&mut self.writing) {
            let mut queue = self.shared.lock();
            queue.writing -= 1;
            queue.under_way -= std::mem::take(&mut self.batch);
        }
    }
}

impl<T: Item, R: Send + 'static> Drop for WriteTurn<T, R> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.written();
        if self.started && std::thread::panicking() {
            Self::start(&self.shared);
            return;
        }
        // The runtime is shutting down and drops its tasks. No writer will follow, and the waiting
        // tasks get the error that the answer is lost.
        let mut queue = self.shared.lock();
        queue.writers -= 1;
        let lost = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(lost);
    }
}

impl<T, R> fmt::Debug for Lane<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::record::AttemptId;
    use crate::store::Transition;
    use futures_util::FutureExt;
    use tokio::runtime::Handle;
    use tokio::sync::Semaphore;

    fn renew(id: u8) -> Settlement {
        let id = RecordId::from_bytes([id; 16]);
        Settlement { id, attempt: AttemptId::from_bytes([0; 16]), transition: Transition::Renew }
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(ManualClock::new(crate::clock::Timestamp::default()))
    }

    /// A program that panics drops its runtime, and with it a writer that never ran. The writer
    /// must not be started again in a loop.
    #[test]
    fn a_writer_that_never_ran_ends_with_its_runtime() {
        let panicking = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let lane = runtime.block_on(async {
                let (lane, _gate, _seen) = gated(10);
                assert!(lane.submit(renew(1)).now_or_never().is_none());
                lane
            });
            let _dropped_last = lane;
            let _dropped_first = runtime;
            std::panic::resume_unwind(Box::new("the program panics"));
        });
        assert!(panicking.join().is_err());
    }

    type Batches = Arc<Mutex<Vec<Vec<u8>>>>;

    /// Returns a lane whose writes wait for a permit, and the batches that it wrote.
    fn gated(items_max: usize) -> (Lane<Settlement, u8>, Arc<Semaphore>, Batches) {
        gated_with(items_max, 1)
    }

    fn gated_with(
        items_max: usize,
        writers_max: usize,
    ) -> (Lane<Settlement, u8>, Arc<Semaphore>, Batches) {
        let gate = Arc::new(Semaphore::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (gate_, seen_) = (Arc::clone(&gate), Arc::clone(&seen));
        let lane = Lane::new(
            Handle::current(),
            items_max,
            writers_max,
            clock(),
            move |batch: Vec<Settlement>| {
                let (gate, seen) = (Arc::clone(&gate_), Arc::clone(&seen_));
                async move {
                    gate.acquire().await.unwrap().forget();
                    let ids: Vec<u8> = batch.iter().map(|item| item.id.as_bytes()[0]).collect();
                    seen.lock().unwrap().push(ids.clone());
                    ids.into_iter().map(Ok).collect()
                }
                .boxed()
            },
        );
        (lane, gate, seen)
    }

    #[tokio::test]
    async fn what_comes_during_a_write_goes_together_sorted() {
        let (lane, gate, seen) = gated(3);
        let first = lane.submit(renew(9));
        // The writer yields to ready tasks, then takes the first item alone and waits at the gate.
        while !lane.shared.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let rest: Vec<_> = [5, 1, 4, 2].map(|id| lane.submit(renew(id))).into();
        gate.add_permits(3);
        assert_eq!(first.await.unwrap(), 9);
        let answers: Vec<u8> =
            futures_util::future::join_all(rest).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, [5, 1, 4, 2], "each sender gets its own answer");
        assert_eq!(*seen.lock().unwrap(), [vec![9], vec![1, 4, 5], vec![2]]);
    }

    #[tokio::test]
    async fn an_eager_lane_writes_beside_the_writes_that_are_under_way() {
        let (lane, gate, seen) = gated_with(3, usize::MAX);
        let first: Vec<_> = [9, 8, 7].map(|id| lane.submit(renew(id))).into();
        while !lane.shared.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        // One item is less than the three that are under way.
        let second = lane.submit(renew(1));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(lane.shared.lock().waiting.is_empty(), "it does not wait for the first answers");
        gate.add_permits(2);
        assert_eq!(second.await.unwrap(), 1);
        futures_util::future::join_all(first).await;
        assert_eq!(*seen.lock().unwrap(), [vec![7, 8, 9], vec![1]]);
    }

    #[tokio::test]
    async fn an_eager_lane_leaves_no_item_behind_a_full_batch() {
        let (lane, gate, seen) = gated_with(1, usize::MAX);
        gate.add_permits(2);
        let mut first = Box::pin(lane.write(renew(1)));
        assert!(futures_util::poll!(&mut first).is_pending(), "it gathers items");
        // This item starts no writer, because the first one is about to write.
        let second = lane.submit(renew(2));
        assert_eq!(lane.shared.lock().writers, 1);
        assert_eq!(first.await.unwrap(), 1);
        assert_eq!(second.await.unwrap(), 2);
        assert_eq!(*seen.lock().unwrap(), [vec![1], vec![2]]);
    }

    #[tokio::test]
    async fn an_eager_lane_starts_no_second_task_for_the_same_items() {
        let (lane, gate, _) = gated_with(8, usize::MAX);
        let mut first = Box::pin(lane.write(renew(1)));
        while lane.shared.lock().writing == 0 {
            assert!(futures_util::poll!(&mut first).is_pending());
        }
        // This item gets a writer of its own, which does not run yet: this test does not yield.
        let second = lane.submit(renew(2));
        gate.add_permits(2);
        assert!(futures_util::poll!(&mut first).is_ready());
        assert_eq!(lane.shared.tasks.traffic().tasks, 1);
        assert_eq!(second.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn each_thread_gathers_its_own_items() {
        let (_, gate, seen) = gated(1);
        let runtime = Handle::current();
        let lane = || {
            let (gate, seen) = (Arc::clone(&gate), Arc::clone(&seen));
            Lane::new(runtime.clone(), 10, usize::MAX, clock(), move |batch: Vec<Settlement>| {
                let (gate, seen) = (Arc::clone(&gate), Arc::clone(&seen));
                async move {
                    gate.acquire().await.unwrap().forget();
                    let ids: Vec<u8> = batch.iter().map(|item| item.id.as_bytes()[0]).collect();
                    seen.lock().unwrap().push(ids.clone());
                    ids.into_iter().map(Ok).collect::<Answers<u8>>()
                }
                .boxed()
            })
        };
        let lanes = Arc::new(Lanes::new(64, lane));
        let submit = |ids: [u8; 2]| {
            let (lanes, runtime) = (Arc::clone(&lanes), runtime.clone());
            std::thread::spawn(move || {
                let _inside = runtime.enter();
                ids.map(|id| lanes.submit(renew(id)))
            })
        };
        let answers = [submit([1, 2]), submit([3, 4])].map(|thread| thread.join().unwrap());
        gate.add_permits(2);
        let answers = futures_util::future::join_all(answers.into_iter().flatten()).await;
        assert!(answers.iter().all(Result::is_ok));
        let mut seen = seen.lock().unwrap().clone();
        seen.sort();
        assert_eq!(seen, [vec![1, 2], vec![3, 4]]);
    }

    #[tokio::test]
    async fn those_who_come_one_after_the_other_go_together() {
        let (lane, gate, seen) = gated(8);
        let lane = Arc::new(lane);
        let tasks: Vec<_> = (0..6_u8)
            .map(|id| {
                let lane = Arc::clone(&lane);
                tokio::spawn(async move {
                    // One more item arrives with each yield.
                    for _ in 0..id {
                        tokio::task::yield_now().await;
                    }
                    lane.submit(renew(id)).await.unwrap()
                })
            })
            .collect();
        gate.add_permits(6);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), [vec![0, 1, 2, 3, 4, 5]]);
    }

    #[tokio::test]
    async fn another_write_starts_once_as_much_waits_as_is_under_way() {
        let (lane, gate, seen) = gated_with(8, 2);
        let first: Vec<_> = [1, 2, 3].map(|id| lane.submit(renew(id))).into();
        while !lane.shared.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let second: Vec<_> = [4, 5].map(|id| lane.submit(renew(id))).into();
        assert_eq!(lane.shared.lock().writers, 1, "two are not worth a write beside three");
        let third = lane.submit(renew(6));
        assert_eq!(lane.shared.lock().writers, 2);
        while !lane.shared.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        // Both writers are busy: this item goes with the first one that finishes.
        let last = lane.submit(renew(7));
        gate.add_permits(3);
        for answer in first.into_iter().chain(second).chain([third, last]) {
            answer.await.unwrap();
        }
        let mut batches = seen.lock().unwrap().clone();
        batches.sort();
        assert_eq!(batches, [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
        while lane.shared.lock().writers > 0 {
            tokio::task::yield_now().await;
        }
        let queue = lane.shared.lock();
        assert_eq!((queue.writing, queue.under_way), (0, 0));
    }

    #[tokio::test]
    async fn nobody_waits_behind_a_write_that_takes_long() {
        let clock = ManualClock::new(crate::clock::Timestamp::default());
        let (gate, seen) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (gate_, seen_) = (Arc::clone(&gate), Arc::clone(&seen));
        let lane_clock = Arc::new(clock.clone());
        let lane = Lane::new(Handle::current(), 8, 2, lane_clock, move |batch: Vec<Settlement>| {
            let (gate, seen) = (Arc::clone(&gate_), Arc::clone(&seen_));
            async move {
                // The first write is held up, by a lock or by the network.
                if batch.len() == 3 {
                    gate.acquire().await.unwrap().forget();
                }
                seen.lock().unwrap().push(batch.len());
                batch.iter().map(|_| Ok(1_u8)).collect()
            }
            .boxed()
        });
        let slow: Vec<_> = [1, 2, 3].map(|id| lane.submit(renew(id))).into();
        while !lane.shared.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let mut later = Box::pin(lane.submit(renew(4)));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(futures_util::poll!(&mut later).is_pending(), "one is not worth a write yet");
        clock.advance(SLOW_WRITE);
        assert_eq!(later.await.unwrap(), 1);
        assert_eq!(lane.submit(renew(5)).await.unwrap(), 1, "nor do those behind it wait");
        gate.add_permits(1);
        for answer in slow {
            answer.await.unwrap();
        }
        assert_eq!(*seen.lock().unwrap(), [1, 1, 3]);
        while lane.shared.lock().writers > 0 {
            tokio::task::yield_now().await;
        }
        let queue = lane.shared.lock();
        assert_eq!((queue.writing, queue.under_way), (0, 0));
    }

    #[test]
    fn a_runtime_that_shuts_down_in_the_middle_of_a_write_loses_the_answers() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (lane, answers) = runtime.block_on(async {
            let (lane, _gate, _) = gated(1);
            let answers: Vec<_> = (0..3).map(|id| lane.submit(renew(id))).collect();
            tokio::task::yield_now().await;
            (lane, answers)
        });
        drop(runtime);
        for answer in answers {
            let error = futures_util::FutureExt::now_or_never(answer).unwrap().unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Indeterminate);
        }
        let late = lane.submit(renew(9)).now_or_never().unwrap();
        assert_eq!(late.unwrap_err().kind(), StoreErrorKind::Indeterminate);
    }

    #[tokio::test]
    async fn a_store_that_panics_does_not_close_the_lane() {
        let calls = Arc::new(AtomicUsize::new(0));
        let calls_ = Arc::clone(&calls);
        let lane = Lane::new(Handle::current(), 8, 1, clock(), move |batch: Vec<Settlement>| {
            let call = calls_.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(call > 0, "the first write panics");
                batch.iter().map(|_| Ok(1_u8)).collect()
            }
            .boxed()
        });
        let error = lane.submit(renew(1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Indeterminate);
        assert_eq!(lane.submit(renew(2)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn an_idle_lane_is_written_by_whoever_comes() {
        let (lane, gate, seen) = gated(8);
        gate.add_permits(1);
        assert_eq!(lane.write(renew(1)).await.unwrap(), 1);
        assert_eq!(*seen.lock().unwrap(), [vec![1]]);
        let traffic = lane.shared.tasks.traffic();
        assert_eq!((traffic.tasks, traffic.hops), (0, 0));
        let queue = lane.shared.lock();
        assert_eq!((queue.writers, queue.writing, queue.under_way), (0, 0, 0));
    }

    #[tokio::test]
    async fn what_comes_during_such_a_write_is_for_a_task_of_the_lane() {
        let (lane, gate, seen) = gated(8);
        let mut first = Box::pin(lane.write(renew(1)));
        while !lane.shared.lock().waiting.is_empty() || lane.shared.lock().writers == 0 {
            assert!(futures_util::poll!(&mut first).is_pending());
        }
        let rest = lane.submit(renew(2));
        gate.add_permits(2);
        assert_eq!(first.await.unwrap(), 1);
        assert_eq!(lane.shared.tasks.traffic().tasks, 1, "one task for all that is left");
        assert_eq!(rest.await.unwrap(), 2);
        assert_eq!(*seen.lock().unwrap(), [vec![1], vec![2]]);
    }

    #[tokio::test]
    async fn a_write_whose_owner_goes_away_is_finished() {
        let (lane, gate, seen) = gated(8);
        let mut first = Box::pin(lane.write(renew(1)));
        while lane.shared.lock().writing == 0 {
            assert!(futures_util::poll!(&mut first).is_pending());
        }
        let other = lane.submit(renew(2));
        drop(first);
        gate.add_permits(2);
        assert_eq!(other.await.unwrap(), 2, "nobody is stuck behind it");
        assert_eq!(*seen.lock().unwrap(), [vec![1], vec![2]]);
    }

    #[tokio::test]
    async fn a_store_that_panics_does_not_panic_whoever_writes() {
        let calls = Arc::new(AtomicUsize::new(0));
        let calls_ = Arc::clone(&calls);
        let lane = Lane::new(Handle::current(), 8, 1, clock(), move |batch: Vec<Settlement>| {
            let call = calls_.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(call > 0, "the first write panics");
                batch.iter().map(|_| Ok(1_u8)).collect()
            }
            .boxed()
        });
        let error = lane.write(renew(1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Indeterminate);
        assert_eq!(lane.write(renew(2)).await.unwrap(), 1);
    }
}
