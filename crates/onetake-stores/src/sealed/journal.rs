//! A wrapper of any journal: recordings are sealed as they are in the store.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::engine::{Journal, JournalBatch};
use onetake_core::{Settlement, StoreError, Transition};

use super::Sealer;

/// A journal whose recordings are sealed.
#[derive(Debug)]
pub struct SealedJournal {
    inner: Arc<dyn Journal>,
    sealer: Sealer,
}

impl SealedJournal {
    /// Seals everything that goes into `inner`. `sealer` is that of the store that the journal is
    /// for.
    #[must_use]
    pub fn around(inner: Arc<dyn Journal>, sealer: Sealer) -> Self {
        Self { inner, sealer }
    }

    fn open(&self, settlement: Settlement) -> Result<Settlement, StoreError> {
        let Settlement { id, attempt, transition: Transition::Complete(recording) } = &settlement
        else {
            return Ok(settlement);
        };
        let recording = self.sealer.open(*id, *attempt, recording)?;
        Ok(Settlement { transition: Transition::Complete(recording), ..settlement })
    }
}

impl Journal for SealedJournal {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            // A settlement that cannot be sealed must not prevent the others from being kept.
            let seal = |settlement: Settlement| {
                let reference = settlement.id.reference();
                let sealed = self.sealer.seal_settlement(settlement);
                sealed
                    .inspect_err(|error| {
                        tracing::error!(%reference, %error, "an outcome cannot be encrypted for the journal: it is lost, and its key becomes unknown");
                    })
                    .ok()
            };
            let sealed = settlements.into_iter().filter_map(seal).collect();
            self.inner.keep(sealed).await
        }
        .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.inner.names()
    }

    fn read(&self, name: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>> {
        async move {
            let Some(mut kept) = self.inner.read(name.clone()).await? else { return Ok(None) };
            let all = kept.settlements.len();
            let open = |settlement: Settlement| {
                let reference = settlement.id.reference();
                let opened = self.open(settlement);
                opened
                    // The settlement stays in the journal, because the key may be configured again.
                    .inspect_err(|error| {
                        tracing::error!(%name, %reference, %error, "an outcome in the journal cannot be read: its key becomes unknown");
                    })
                    .ok()
            };
            kept.settlements = kept.settlements.into_iter().filter_map(open).collect();
            kept.is_whole &= kept.settlements.len() == all;
            Ok(Some(kept))
        }
        .boxed()
    }

    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.let_go(name)
    }
}
