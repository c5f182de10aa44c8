//! The journal: settlements that the store did not accept before the process ended.
//!
//! The engine retries a settlement as long as the process lives. If the process must end while the
//! store is unreachable, its settlements go to a [`Journal`], and the next start settles them. Each
//! is fenced like any settlement: if the attempt was settled otherwise meanwhile, that outcome
//! stays, and the difference is logged.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::record::{Record, State};
use crate::store::{Settled, Settlement, StoreError, StoreErrorKind, Transition};

use super::housekeeping::pause_unless_stopped;
use super::{Inner, lost_claim};

/// The time for which shutdown waits for settlements under way to notice that the engine stopped.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before journal entries are tried again; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The pause between two checks for entries that another process has left.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Settlements that were kept together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalBatch {
    /// The settlements that can be read.
    pub settlements: Vec<Settlement>,
    /// True if all settlements could be read. The others are logged, and stay in the journal.
    pub is_whole: bool,
}

/// A place on this machine for settlements that the store did not accept.
pub trait Journal: fmt::Debug + Send + Sync + 'static {
    /// Stores settlements durably.
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns the names of all entries.
    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>>;

    /// Reads the entry of this name; `None` if it was removed.
    fn read(&self, name: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>>;

    /// Removes an entry whose settlements are done.
    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>>;
}

impl Inner {
    /// Remembers a settlement that the store did not accept before the engine stopped.
    pub(super) fn could_not_settle(&self, settlement: Settlement) {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).push(settlement);
    }

    /// Waits until the settlements under way have stopped, and hands them to the journal.
    pub(super) async fn hand_over(&self) {
        // If `shutdown` is called twice, neither call may end the process while the other one
        // writes.
        let _alone = self.handing_over.lock().await;
        self.settling.close();
        tokio::select! {
            biased;
            () = self.settling.wait() => {}
            () = self.clock.sleep(HAND_OVER_TIMEOUT) => {}
        }
        let unwritten =
            std::mem::take(&mut *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner));
        if unwritten.is_empty() {
            return;
        }
        let count = unwritten.len();
        let Some(journal) = &self.journal else {
            tracing::error!(
                count,
                "outcomes could not be saved, and there is no journal: they are lost, and their keys become unknown"
            );
            return;
        };
        match journal.keep(unwritten).await {
            Ok(()) => tracing::warn!(
                count,
                "outcomes could not be saved to the store; the journal keeps them for the next start"
            ),
            Err(error) => tracing::error!(
                count, %error,
                "outcomes could be saved neither to the store nor to the journal: they are lost, and their keys become unknown"
            ),
        }
    }
}

/// Settles all entries, now and later: another process with the same folder may end and leave
/// entries there.
pub(super) async fn settle_entries(engine: Arc<Inner>, journal: Arc<dyn Journal>) {
    let mut pause = PAUSE_MIN;
    // Entries that this process cannot settle. Trying them again would not help.
    let mut left = HashSet::new();
    loop {
        match finish(&engine, &*journal, &mut left).await {
            Ok(()) => pause = CHECK_INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "outcomes in the journal could not be settled yet; this is tried again");
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        if !pause_unless_stopped(&engine, pause).await {
            return;
        }
    }
}

async fn finish(
    engine: &Arc<Inner>,
    journal: &dyn Journal,
    left: &mut HashSet<String>,
) -> Result<(), StoreError> {
    let mut unsettled = None;
    for name in journal.names().await? {
        if left.contains(&name) {
            continue;
        }
        // An entry that cannot be read now must not delay the others.
        let kept = match journal.read(name.clone()).await {
            Ok(Some(kept)) => kept,
            Ok(None) => continue,
            Err(error) => {
                unsettled.get_or_insert(error);
                continue;
            }
        };
        let count = kept.settlements.len();
        let submitted =
            kept.settlements.iter().map(|settlement| engine.settles.submit(settlement.clone()));
        let answers = futures_util::future::join_all(submitted).await;
        let (mut is_refused, mut is_late) = (!kept.is_whole, false);
        for (settlement, answer) in kept.settlements.iter().zip(answers) {
            match answer {
                Ok(Settled::Done { .. }) => {}
                Ok(Settled::Stale { current }) => {
                    // A claim whose answer was lost may reach the store even now, after its process
                    // ended.
                    let has_landed =
                        current.as_ref().is_some_and(|it| it.attempt == settlement.attempt);
                    if settlement.transition == Transition::Release && !has_landed {
                        lost_claim::release(engine, settlement.id, settlement.attempt);
                    }
                    report(settlement, current.as_deref());
                }
                Err(error) if error.kind() == StoreErrorKind::Invalid => {
                    tracing::error!(
                        reference = %settlement.id.reference(), %error,
                        "the store refused an outcome from the journal"
                    );
                    is_refused = true;
                }
                Err(error) => {
                    unsettled.get_or_insert(error);
                    is_late = true;
                }
            }
        }
        match (is_late, is_refused) {
            (true, _) => {}
            (false, true) => drop(left.insert(name)), // The next start tries it again.
            (false, false) => match journal.let_go(name).await {
                Ok(()) => tracing::info!(count, "outcomes from the journal were settled"),
                Err(error) => drop(unsettled.get_or_insert(error)),
            },
        }
    }
    unsettled.map_or(Ok(()), Err)
}

/// Reports a settlement from the journal that changed nothing.
fn report(settlement: &Settlement, current: Option<&Record>) {
    if settlement.transition == Transition::Release {
        // The attempt had no effect, so nothing is lost.
        tracing::debug!(reference = %settlement.id.reference(), "a release from the journal found nothing to release");
        return;
    }
    let stands = current.map_or("forgotten", |record| record.state.name());
    let reference = settlement.id.reference();
    // The outcome was recorded before. Only its stored bytes differ: they may be sealed with
    // another key.
    let is_ours = match (&settlement.transition, current.map(|record| &record.state)) {
        (Transition::Complete(ours), Some(State::Completed { recording, .. })) => ours == recording,
        _ => false,
    };
    if is_ours {
        tracing::info!(%reference, "an outcome from the journal was already recorded");
        return;
    }
    tracing::error!(
        %reference, stands,
        "an outcome from the journal was not recorded: the key has another outcome, or was forgotten"
    );
}
