//! Removal of the payload of an attempt that never started.
//!
//! A released record keeps its fingerprint, so that another payload under its key is refused (S9).
//! If its only attempt never started, no payload was ever tried under the key: a client may have
//! broken off its upload, and its retry with the whole payload would be refused. So the record is
//! forgotten after its release.
//!
//! These are two settlements of one attempt. If the process ends between them, or the store refuses
//! the second one, the record stays released. That is the careful side: no other payload runs.

use crate::record::{Record, State};
use crate::store::{Settled, Settlement, Transition};

use super::Inner;

/// Forgets a record that was released and that had no earlier attempt. An earlier attempt may have
/// run, so its payload stays the one of the key. Returns true if the record was forgotten.
pub(super) async fn forget(engine: &Inner, released: &Record) -> bool {
    let is_released = matches!(released.state, State::Released { .. });
    if !is_released || !released.history.as_text().is_empty() {
        return false;
    }
    let Record { id, attempt, .. } = *released;
    let settlement = Settlement { id, attempt, transition: Transition::Forget };
    let answer = tokio::select! {
        biased;
        answer = engine.settles.submit(settlement) => answer,
        () = engine.stopped.cancelled() => return false,
    };
    if let Err(error) = &answer {
        engine.failed(error);
        tracing::debug!(
            reference = %id.reference(), %error,
            "the payload of an attempt that never started could not be removed: another payload under its key is refused"
        );
    }
    matches!(answer, Ok(Settled::Done { .. }))
}
