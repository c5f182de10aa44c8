//! Around any journal: what waits there is sealed as it will be in the store.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::engine::{Journal, Kept};
use onetake_core::{Settlement, StoreError, StoreErrorKind, Verb};

use super::seal::{self, EncryptionKey, Of};
use super::seal_settlement;

/// A journal whose recordings are sealed.
#[derive(Debug)]
pub struct SealedJournal {
    inner: Arc<dyn Journal>,
    keys: Vec<EncryptionKey>,
}

impl SealedJournal {
    /// Seals what goes into `inner`, with the keys of the store that it is for.
    #[must_use]
    pub fn around(inner: Arc<dyn Journal>, keys: Vec<EncryptionKey>) -> Self {
        Self { inner, keys }
    }

    fn open(&self, settlement: Settlement) -> Result<Settlement, StoreError> {
        let Settlement { id, attempt, verb: Verb::Complete(recording) } = &settlement else {
            return Ok(settlement);
        };
        let opened = seal::open(recording, Of { id: *id, attempt: *attempt }, &self.keys);
        let recording =
            opened.map_err(|error| StoreError::new(StoreErrorKind::Invalid, error.to_string()))?;
        Ok(Settlement { verb: Verb::Complete(recording), ..settlement })
    }
}

impl Journal for SealedJournal {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let seal = |settlement| seal_settlement(settlement, self.keys.first());
            let sealed = settlements.into_iter().map(seal).collect::<Result<_, _>>()?;
            self.inner.keep(sealed).await
        }
        .boxed()
    }

    fn kept(&self) -> BoxFuture<'_, Result<Vec<Kept>, StoreError>> {
        async move {
            let mut all = Vec::new();
            for Kept { name, settlements } in self.inner.kept().await? {
                let open = |settlement| self.open(settlement);
                match settlements.into_iter().map(open).collect() {
                    Ok(settlements) => all.push(Kept { name, settlements }),
                    // It stays where it is: the key may come back.
                    Err(error) => tracing::error!(
                        %name, %error, "outcomes in the journal cannot be read: they are unknown"
                    ),
                }
            }
            Ok(all)
        }
        .boxed()
    }

    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.let_go(name)
    }
}
