//! Waiting for a key that runs on another node.
//!
//! One batched read serves all waiters of this process, once per `poll_interval` (25 ms by
//! default), and only while there are waiters. No waiter holds a connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::record::{Record, State};
use crate::scope::RecordId;
use crate::store::Store;

use super::latest::{Latest, Reader};
use super::tasks::Tasks;

/// `None` while the other node's attempt still runs; then the record, or `Some(None)` if there is
/// none.
pub(crate) type RemoteState = Option<Option<Arc<Record>>>;

#[derive(Debug)]
pub(crate) struct Remote {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    interval: Duration,
    batch_max: usize,
    tasks: Tasks,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// A sorted map, so that a simulation can be repeated exactly.
    watched: BTreeMap<RecordId, Latest<RemoteState>>,
    polling: bool,
}

impl Remote {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        interval: Duration,
        batch_max: usize,
        tasks: Tasks,
    ) -> Arc<Self> {
        Arc::new(Self { store, clock, interval, batch_max, tasks, inner: Mutex::default() })
    }

    /// Returns a reader that changes when the record stops running.
    pub(crate) fn watch(self: &Arc<Self>, id: RecordId) -> Reader<RemoteState> {
        let mut inner = self.lock();
        let sender = inner.watched.entry(id).or_insert_with(|| Latest::new(None));
        let receiver = sender.reader();
        if !std::mem::replace(&mut inner.polling, true) {
            self.tasks.spawn(Polling { remote: Arc::clone(self) }.run());
        }
        receiver
    }

    /// Reads all watched records. Returns false if there are no waiters left.
    async fn look(&self) -> bool {
        let ids = {
            let mut inner = self.lock();
            inner.watched.retain(|_, sender| sender.readers() > 0);
            if inner.watched.is_empty() {
                inner.polling = false;
                return false;
            }
            inner.watched.keys().copied().collect::<Vec<_>>()
        };
        for chunk in ids.chunks(self.batch_max) {
            // If the store does not answer, the next round asks again. The waiters have their own
            // deadlines.
            let answers = self.store.load(chunk.to_vec()).await;
            for (id, answer) in chunk.iter().zip(answers) {
                self.tell(*id, answer.ok());
            }
        }
        true
    }

    fn tell(&self, id: RecordId, answer: RemoteState) {
        let Some(found) = answer else { return };
        let runs = found.as_ref().is_some_and(|r| matches!(r.state, State::Running { .. }));
        if !runs && let Some(sender) = self.lock().watched.remove(&id) {
            let backlog = sender.set(Some(found));
            drop(sender);
            if let Some(backlog) = backlog {
                self.tasks.spawn(backlog.pace(Arc::clone(&self.clock)));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one polling task. If the store panics and ends it, the next waiter starts another one.
struct Polling {
    remote: Arc<Remote>,
}

impl Polling {
    async fn run(self) {
        loop {
            self.remote.clock.sleep(self.remote.interval).await;
            if !self.remote.look().await {
                return;
            }
        }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.remote.lock().polling = false;
        }
    }
}
