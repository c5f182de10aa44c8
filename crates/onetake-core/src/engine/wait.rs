//! Callers that wait for another caller's attempt: their answers and their time limits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;

use crate::clock::Timestamp;
use crate::decide::{self, Contact, Moment, Reading};
use crate::fingerprint::Fingerprint;
use crate::record::{Record, State};
use crate::scope::RecordId;

use super::Inner;
use super::flight::{Landing, Phase};
use super::latest::Reader;
use super::operation::{Answer, EngineError, WhileRunning};
use super::remote::RemoteState;

/// The next step after reading a record.
pub(super) enum WaitStep {
    Answer(Answer),
    /// The record has this other fingerprint.
    Other(Fingerprint),
    Again,
    RunsElsewhere,
}

/// Returns the next step for a caller with this fingerprint and the record that was found.
pub(super) fn interpret(record: &Arc<Record>, asked: &Fingerprint, now: Timestamp) -> WaitStep {
    // The store decides about leases. It left this one to its owner, whose grace may count from the
    // end of an outage.
    let at = Moment { now, contact: Contact::Unknown };
    match decide::read(Some(record), asked, at) {
        Reading::Mismatch => WaitStep::Other(record.fingerprint),
        Reading::InFlight => WaitStep::RunsElsewhere,
        Reading::Unknown | Reading::Settled => {
            Answer::of(record).map_or(WaitStep::Again, WaitStep::Answer)
        }
        Reading::Free | Reading::Abandoned => WaitStep::Again,
    }
}

pub(super) fn settled(record: &Arc<Record>) -> Option<Answer> {
    Answer::of(record).filter(|answer| matches!(answer, Answer::Replay(_) | Answer::Failed(_)))
}

/// The remaining wait of a caller, and its permit among the waiters.
pub(super) struct Patience<'a> {
    engine: &'a Inner,
    until: Option<Duration>,
    place: Option<SemaphorePermit<'a>>,
}

impl<'a> Patience<'a> {
    pub(super) fn new(engine: &'a Inner, in_flight: WhileRunning) -> Self {
        let until = match in_flight {
            WhileRunning::Reject => None,
            WhileRunning::Wait(budget) => Some(engine.clock.monotonic().saturating_add(budget)),
        };
        Self { engine, until, place: None }
    }

    /// Returns the remaining time, or the answer to give instead of waiting.
    fn left(&mut self) -> Result<Duration, Answer> {
        let until = self.until.ok_or(Answer::InFlight)?;
        if self.place.is_none() {
            // Waiters above the limit get the answer that an attempt runs (S19).
            self.place = Some(self.engine.waiting.try_acquire().map_err(|_| Answer::InFlight)?);
            self.engine.metrics.waiting.increment(1);
        }
        let left = until.saturating_sub(self.engine.clock.monotonic());
        if left.is_zero() { Err(Answer::WaitTimeout) } else { Ok(left) }
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.engine.metrics.waiting.decrement(1);
        }
    }
}

/// Follows a flight of this process. Sets `is_taken` if an attempt of this process has the key.
pub(super) async fn join(
    asked: &Fingerprint,
    mut phase: Reader<Phase>,
    patience: &mut Patience<'_>,
    is_taken: &mut bool,
) -> Result<WaitStep, EngineError> {
    let mut waited = false;
    loop {
        let current = phase.get();
        match current {
            // It is not known yet whether this is a retry.
            Phase::Claiming => {
                let engine = patience.engine;
                tokio::select! {
                    biased;
                    changed = phase.changed() => if changed.is_err() { return Ok(WaitStep::Again) },
                    () = engine.clock.sleep(engine.limits.claim_patience) => {
                        return Err(EngineError::no_answer());
                    }
                }
            }
            Phase::Running(fingerprint) => {
                if fingerprint != *asked {
                    return Ok(WaitStep::Other(fingerprint));
                }
                let left = match patience.left() {
                    Ok(left) => left,
                    Err(answer) => return Ok(WaitStep::Answer(answer)),
                };
                (waited, *is_taken) = (true, true);
                tokio::select! {
                    biased;
                    changed = phase.changed() => if changed.is_err() { return Ok(WaitStep::Again) },
                    () = patience.engine.clock.sleep(left) => {
                        return Ok(WaitStep::Answer(Answer::WaitTimeout));
                    }
                }
            }
            Phase::Landed(Landing::Record(record, now)) => {
                // Many waiters must not become many claims at once.
                if waited && matches!(record.state, State::Released { .. }) {
                    return Ok(WaitStep::Answer(Answer::InFlight));
                }
                return Ok(interpret(&record, asked, now));
            }
            Phase::Landed(Landing::Failed(error)) => return Err(error),
            Phase::Landed(Landing::Nothing) => return Ok(WaitStep::Again),
        }
    }
}

/// The end of a wait for an attempt of another node.
pub(super) enum OtherNode {
    Answer(Answer),
    /// The caller should ask the store again. `is_free` is true if the key has no record any more.
    Again {
        is_free: bool,
    },
}

/// Waits for an attempt of another node.
pub(super) async fn wait_for_other_node(
    engine: &Inner,
    id: RecordId,
    asked: &Fingerprint,
    patience: &mut Patience<'_>,
) -> OtherNode {
    let left = match patience.left() {
        Ok(left) => left,
        Err(answer) => return OtherNode::Answer(answer),
    };
    let mut seen = engine.remote.watch(id);
    let found = tokio::select! {
        biased;
        found = stopped(&mut seen) => found,
        () = engine.clock.sleep(left) => return OtherNode::Answer(Answer::WaitTimeout),
    };
    let record = match found {
        Some(Some(record)) => record,
        Some(None) => return OtherNode::Again { is_free: true },
        None => return OtherNode::Again { is_free: false },
    };
    if record.fingerprint != *asked {
        return OtherNode::Again { is_free: false };
    }
    match record.state {
        State::Released { .. } => OtherNode::Answer(Answer::InFlight),
        _ => settled(&record).map_or(OtherNode::Again { is_free: false }, OtherNode::Answer),
    }
}

/// Returns what is in the store once the record no longer runs: the record, or `Some(None)` if there
/// is none. Returns `None` if the polling has ended.
async fn stopped(seen: &mut Reader<RemoteState>) -> Option<Option<Arc<Record>>> {
    loop {
        if let Some(found) = seen.get() {
            return Some(found);
        }
        seen.changed().await.ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttemptId, Key, Operation, Scope};

    #[test]
    fn what_the_store_leaves_to_its_owner_is_in_flight() {
        let scope = Scope::new("left");
        let operation = Operation::new(&scope, &Key::new("a").unwrap(), Fingerprint::of(b"pay"));
        let record = Arc::new(Record {
            id: operation.id,
            attempt: AttemptId::from_bytes([1; 16]),
            fence: crate::Fence::new(1),
            fingerprint: operation.fingerprint,
            terms: operation.terms,
            origin: crate::Origin::default(),
            created_at: Timestamp::default(),
            claimed_at: Timestamp::default(),
            history: crate::origin::AttemptHistory::default(),
            state: State::Running { lease_until: Timestamp::default() },
        });
        let long_after = Timestamp::from_micros(u64::MAX);
        assert!(matches!(
            interpret(&record, &operation.fingerprint, long_after),
            WaitStep::RunsElsewhere
        ));
    }
}
