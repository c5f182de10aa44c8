//! A node's disk, which keeps the outcome journal across crashes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::engine::{Journal, JournalBatch};
use onetake_core::store::{Settlement, StoreError, StoreErrorKind};

use super::timeline::{MILLISECOND, Micros};
use super::world::World;

/// The contents of a disk.
#[derive(Debug, Default)]
pub struct Disk {
    files: Mutex<BTreeMap<String, JournalBatch>>,
    written: AtomicU64,
    down_until: AtomicU64,
}

impl Disk {
    /// Makes the disk fail until this time.
    pub fn fail_until(&self, until: Micros) {
        self.down_until.store(until, Ordering::Relaxed);
    }

    /// Returns the number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, JournalBatch>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The journal of one node, on its disk.
#[derive(Debug)]
pub struct SimulatedJournal {
    world: Arc<World>,
    node: usize,
}

impl SimulatedJournal {
    /// Creates the journal on a node's disk.
    #[must_use]
    pub fn new(world: &Arc<World>, node: usize) -> Self {
        Self { world: Arc::clone(world), node }
    }

    /// Waits as long as a disk takes, and may fail.
    async fn disk(&self) -> Result<&Disk, StoreError> {
        let delay = self.world.decide("disk", |random| random.below(3 * MILLISECOND));
        self.world.timeline.sleep(delay, self.node + 1).await;
        let disk = self.world.disks.get(self.node);
        let disk = disk.filter(|disk| {
            disk.down_until.load(Ordering::Relaxed) <= self.world.now() || self.world.is_calm()
        });
        disk.ok_or_else(|| StoreError::new(StoreErrorKind::Unavailable, "the disk is full"))
    }
}

impl Journal for SimulatedJournal {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let disk = self.disk().await?;
            let number = disk.written.fetch_add(1, Ordering::Relaxed);
            disk.lock()
                .insert(format!("{number:06}"), JournalBatch { settlements, is_whole: true });
            // A crash may come after the file exists, and before the process knows it.
            let _done = self.disk().await;
            Ok(())
        }
        .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        async move { Ok(self.disk().await?.lock().keys().cloned().collect()) }.boxed()
    }

    fn read(&self, name: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>> {
        async move { Ok(self.disk().await?.lock().get(&name).cloned()) }.boxed()
    }

    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.disk().await?.lock().remove(&name);
            Ok(())
        }
        .boxed()
    }
}
