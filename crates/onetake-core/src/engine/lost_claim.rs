//! Release of claims whose answer was lost.
//!
//! A claim can reach the store long after the engine gave up on it: a connection stalls, a proxy
//! delays the request, a server process is stopped for a while. The store grants such a claim a
//! whole lease when it arrives, although no attempt runs. Without a release, the key would become
//! unknown after lease and grace, and stay unknown for its ttl.
//!
//! So the engine sends releases until one finds the claim. A release is fenced by the attempt,
//! which never ran: it changes nothing before the claim arrives, and frees the key afterwards, even
//! if the reaper has made the attempt unknown by then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::record::AttemptId;
use crate::scope::RecordId;
use crate::store::{Settled, Settlement, Transition};

use super::Inner;
use super::operation::Attempt;
use super::untried::note_untried;

/// The pause before the second release; each pause is twice the one before, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause between two releases.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest pause while the store does not answer, so that the key is free soon after it answers
/// again.
const OUTAGE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The lost claims that are being released, in the order in which they were lost.
#[derive(Debug, Default)]
pub(super) struct LostClaims(Mutex<Numbered>);

#[derive(Debug, Default)]
struct Numbered {
    next: u64,
    given_up: BTreeMap<u64, CancellationToken>,
}

impl LostClaims {
    /// Adds a claim and returns its number. If there are more than `max`, gives up on the oldest,
    /// which is the least likely to arrive.
    fn add(&self, max: usize) -> (u64, CancellationToken) {
        let mut claims = self.lock();
        let (number, given_up) = (claims.next, CancellationToken::new());
        claims.next += 1;
        claims.given_up.insert(number, given_up.clone());
        if claims.given_up.len() > max
            && let Some((_, oldest)) = claims.given_up.pop_first()
        {
            oldest.cancel();
        }
        (number, given_up)
    }

    fn remove(&self, number: u64) {
        self.lock().given_up.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, Numbered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases a claim in the background, whenever it reaches the store. At shutdown the release goes
/// to the journal.
///
/// Gives up after [`Limits::lost_claim_patience`](super::Limits::lost_claim_patience), or if there
/// are [`Limits::lost_claims_max`](super::Limits::lost_claims_max) newer ones.
pub(super) fn release(engine: &Arc<Inner>, id: RecordId, attempt: AttemptId) {
    let (number, given_up) = engine.lost_claims.add(engine.limits.lost_claims_max);
    let own = Arc::clone(engine);
    let releasing = async move {
        own.metrics.lost_claims.increment(1);
        let release = Settlement { id, attempt, transition: Transition::Release };
        tokio::select! {
            biased;
            () = own.stopped.cancelled() => own.could_not_settle(release.clone()),
            () = given_up.cancelled() => {
                tracing::warn!(reference = %id.reference(), "too many claims without a response from the store: the oldest one is no longer tracked, and its key may become unknown");
            }
            () = until_settled(&own, &release) => {}
        }
        own.lost_claims.remove(number);
        own.metrics.lost_claims.decrement(1);
    };
    engine.tasks.spawn_tracked(&engine.settling, releasing);
}

/// Sends the release until it finds the claim, or the claim can no longer arrive.
async fn until_settled(engine: &Arc<Inner>, release: &Settlement) {
    let patience = engine.limits.lost_claim_patience;
    let mut until = engine.clock.monotonic().saturating_add(patience);
    let mut pause = PAUSE_MIN;
    loop {
        match engine.settles.submit(release.clone()).await {
            Ok(Settled::Done { record, .. }) => {
                // The inbox and jobs count the tries of such a key by its attempts.
                if record.terms.on_unknown.runs_again() {
                    note_untried(
                        engine,
                        Attempt::of(&record),
                        "engine",
                        "the store's response to the claim was lost",
                    );
                }
                return;
            }
            // The claim arrived, and was settled by another caller, such as an operator.
            Ok(Settled::Stale { current: Some(record) }) if record.attempt == release.attempt => {
                return;
            }
            Ok(Settled::Stale { .. }) if engine.clock.monotonic() >= until => return,
            Ok(Settled::Stale { .. }) => {}
            // The cause of the error may also delay the claim, so the time counts from the last
            // error.
            Err(_) => {
                until = engine.clock.monotonic().saturating_add(patience);
                pause = pause.min(OUTAGE_PAUSE_MAX);
            }
        }
        engine.clock.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
