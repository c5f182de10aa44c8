//! Sweeps that run in steps, so that traffic never waits for all of one.

use tokio::sync::oneshot;

use onetake_core::store::Swept;
use onetake_core::{StoreError, Timestamp};

use super::committer::{Reply, answer};
use super::tables::{Group, Tables};
use super::working_set::WorkingSet;

/// The number of records that a sweep checks between two groups of traffic.
const SWEEP_STEP: usize = 64;

/// A sweep in progress.
pub(super) struct Sweeping {
    left: usize,
    swept: Swept,
    to: oneshot::Sender<Result<Swept, StoreError>>,
}

/// The result of a step.
pub(super) enum CommitStep {
    GoesOn(Sweeping),
    Over(Reply),
}

impl Sweeping {
    /// Begins a sweep of at most `limit` records.
    pub(super) fn new(limit: usize, to: oneshot::Sender<Result<Swept, StoreError>>) -> Self {
        Self { left: limit, swept: Swept::default(), to }
    }

    /// Ends the sweep with the error of a write.
    pub(super) fn refuse(self, error: &StoreError) {
        let _gone = self.to.send(Err(error.clone()));
    }

    /// Deletes a few records that the expiry index lists as due, if the records themselves are due
    /// too (S13).
    pub(super) fn step(
        mut self,
        memory: &mut WorkingSet,
        tables: &Tables,
        group: &mut Group<'_>,
        now: Timestamp,
        removed: &mut usize,
    ) -> CommitStep {
        let asked = self.left.min(SWEEP_STEP);
        let due = tables.expiry.until(now).and_then(|due| {
            let due: Vec<_> = due.take(asked).collect();
            group.remove_old_notes(now, SWEEP_STEP)?;
            memory.sweep(tables, group, now, &due, &mut self.swept)?;
            Ok(due.len())
        });
        self.after_step(due, removed)
    }

    /// Goes on, or ends the sweep. A sweep that fails returns what it has removed until then. The next
    /// one returns the error.
    fn after_step(mut self, seen: Result<usize, StoreError>, removed: &mut usize) -> CommitStep {
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) if self.swept.removed == 0 => {
                return CommitStep::Over(answer(Err(error), self.to));
            }
            Err(error) => {
                tracing::warn!(%error, "a sweep of expired keys could not finish");
                0
            }
        };
        self.left -= seen;
        // A step may see fewer entries than it asked for: it ends at a damaged block.
        if seen > 0 && self.left > 0 {
            return CommitStep::GoesOn(self);
        }
        *removed += self.swept.removed;
        self.swept.more = seen > 0;
        CommitStep::Over(answer(Ok(self.swept), self.to))
    }
}

#[cfg(test)]
mod tests {
    use onetake_core::StoreErrorKind;

    use super::*;

    /// The number decides when the space of removed records is given back.
    #[test]
    fn a_sweep_that_fails_in_a_later_step_counts_what_it_removed() {
        let error = || StoreError::new(StoreErrorKind::Unavailable, "too many open files");
        let end = |swept: Swept, removed: &mut usize| {
            let (to, mut answered) = oneshot::channel();
            let sweeping = Sweeping { left: 100, swept, to };
            match sweeping.after_step(Err(error()), removed) {
                CommitStep::Over(reply) => reply(None),
                CommitStep::GoesOn(_) => panic!("it has failed"),
            }
            answered.try_recv().unwrap()
        };
        let mut removed = 5;
        end(Swept::default(), &mut removed).unwrap_err();
        let swept = Swept { removed: 64, unknown: 1, more: false };
        assert_eq!(end(swept, &mut removed).unwrap(), swept);
        assert_eq!(removed, 5 + 64);
    }
}
