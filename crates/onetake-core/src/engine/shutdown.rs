//! Shutdown of an engine: orderly, or because its store cannot be trusted any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::store::{StoreError, StoreErrorKind};

use super::{Engine, Inner};

/// The time that the store may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

impl Engine {
    /// Waits until the store must not be used any more. The process should end then.
    pub async fn fatal(&self) -> StoreError {
        let mut fatal = self.inner.fatal.subscribe();
        match fatal.wait_for(Option::is_some).await.map(|error| error.clone()) {
            Ok(Some(error)) => error,
            // The sender lives as long as this engine.
            _ => std::future::pending().await,
        }
    }

    /// Takes no new operations, waits for the running ones for at most `patience`, then stops,
    /// hands what could not be settled to the journal, if there is
    /// [one](super::EngineBuilder::journal), and closes the store. Says whether everything ended by
    /// itself.
    ///
    /// # Errors
    /// If the store could not be closed.
    pub async fn shutdown(&self, patience: Duration) -> Result<bool, StoreError> {
        let inner = &self.inner;
        inner.closing.store(true, Ordering::Release);
        inner.tracker.close();
        let drained = tokio::select! {
            biased;
            () = inner.tracker.wait() => true,
            () = inner.clock.sleep(patience) => false,
        };
        inner.stopped.cancel();
        inner.hand_over().await;
        let closed = tokio::select! {
            biased;
            closed = inner.store.close() => closed,
            () = inner.clock.sleep(CLOSE_TIMEOUT) => {
                let what = "the store did not close in time";
                Err(StoreError::new(StoreErrorKind::Unavailable, what))
            }
        };
        // Settlements that ended while the store was closing.
        inner.hand_over().await;
        closed.map(|()| drained)
    }

    /// Stops at once, because the store [must not be used any more](Engine::fatal). Unsaved
    /// settlements go to the journal, and the store is not used again.
    pub async fn abort(&self) {
        self.inner.closing.store(true, Ordering::Release);
        self.inner.stopped.cancel();
        self.inner.hand_over().await;
    }
}

impl Inner {
    /// Counts an error of the store, and remembers the first one after which the store must not be
    /// used.
    pub(crate) fn failed(&self, error: &StoreError) {
        self.metrics.store_errors.increment(1);
        if error.kind() == StoreErrorKind::Corrupt {
            self.fatal.send_if_modified(|fatal| {
                let first = fatal.is_none();
                fatal.get_or_insert_with(|| error.clone());
                first
            });
        }
    }
}
