//! Audit entries for attempts that were claimed and never tried.
//!
//! The history of a record shows that an attempt was released, but not why. Code that counts tries
//! ([`Inbox`]) must leave out attempts that could not begin, for example because a database was
//! unreachable. Each such attempt has an entry in the audit log. The time of the entry is the
//! attempt's fence instead of the time of writing, so that entries can be matched with attempts.
//!
//! [`Inbox`]: crate::Inbox

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::audit::{AuditAction, AuditEntry, AuditPosition, AuditResult};
use crate::clock::Timestamp;
use crate::record::Fence;
use crate::scope::RecordId;
use crate::store::StoreError;

use super::housekeeping::pause_unless_stopped;
use super::operation::Attempt;
use super::{Engine, Inner};

/// The pause before an entry that the store did not accept is written again; it doubles up to
/// [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause before an entry is written again.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The maximum number of entries read for one record: several for each attempt of its history.
const ENTRIES_MAX: usize = 100;
/// The state before, which tells these entries from those of operators: operators release unknown
/// records.
const STATE_BEFORE: &str = "running";

impl Engine {
    /// Writes that an attempt is released without having been tried. The write is retried until the
    /// store accepts it or the engine stops, even if the caller is dropped.
    pub(crate) fn note_untried(&self, attempt: Attempt, by: &str, reason: &str) -> JoinHandle<()> {
        note_untried(&self.inner, attempt, by, reason)
    }

    /// Returns the fences of a record's attempts that were never tried.
    pub(crate) async fn untried(&self, id: RecordId) -> Result<Vec<Fence>, StoreError> {
        let entries = self.audit_entries(Some(id), None, ENTRIES_MAX).await?.entries;
        let untried = entries
            .iter()
            .filter(|entry| entry.action == AuditAction::Release && entry.before == STATE_BEFORE)
            .map(|entry| Fence::new(entry.place.at().as_micros()));
        Ok(untried.collect())
    }
}

/// See [`Engine::note_untried`].
pub(super) fn note_untried(
    engine: &Arc<Inner>,
    attempt: Attempt,
    by: &str,
    reason: &str,
) -> JoinHandle<()> {
    let entry = AuditEntry {
        place: AuditPosition::new(Timestamp::from_micros(attempt.fence.get()), &*engine.rng),
        id: attempt.id,
        attempt: attempt.attempt,
        action: AuditAction::Release,
        ended: AuditResult::Done,
        before: STATE_BEFORE.to_owned(),
        by: by.to_owned(),
        reason: reason.to_owned(),
    };
    let own = Arc::clone(engine);
    let writing = async move {
        let mut pause = PAUSE_MIN;
        while own.within_timeout(own.store.audit(entry.clone())).await.is_err()
            && pause_unless_stopped(&own, pause).await
        {
            pause = (pause * 2).min(PAUSE_MAX);
        }
    };
    engine.tasks.spawn_tracked(&engine.tracker, writing)
}
