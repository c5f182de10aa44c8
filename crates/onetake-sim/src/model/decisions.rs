//! The decision functions under test.

use onetake_core::decide::{self, ClaimEffect, Moment, Reading, SettleEffect};
use onetake_core::{Claim, Fence, Fingerprint, Record, Settlement, Timestamp};

/// The functions by which the store of a model decides. By default they are those of
/// [`onetake_core::decide`]. Tests replace them with wrong ones, to check that the model finds the
/// errors. The nodes of a model are always in contact with their store.
#[derive(Clone, Copy, Debug)]
pub struct Decisions {
    /// Reads a record for a claim with a fingerprint.
    pub read: fn(Option<&Record>, &Fingerprint, Timestamp) -> Reading,
    /// Decides a claim.
    pub claim: fn(Option<&Record>, &Claim, Timestamp, Fence) -> ClaimEffect,
    /// Decides a settlement.
    pub settle: fn(Option<&Record>, &Settlement, Timestamp) -> SettleEffect,
    /// Returns true if a sweeper may delete a record.
    pub may_sweep: fn(&Record, Timestamp) -> bool,
}

impl Default for Decisions {
    fn default() -> Self {
        Self { read, claim, settle, may_sweep: decide::may_sweep }
    }
}

/// Reads a record, as a node that is in contact.
#[must_use]
pub fn read(found: Option<&Record>, fingerprint: &Fingerprint, now: Timestamp) -> Reading {
    decide::read(found, fingerprint, Moment::at(now))
}

/// Decides a claim of a node that is in contact.
#[must_use]
pub fn claim(found: Option<&Record>, claim: &Claim, now: Timestamp, floor: Fence) -> ClaimEffect {
    decide::claim(found, claim, Moment::at(now), floor)
}

/// Decides a settlement of a node that is in contact.
#[must_use]
pub fn settle(found: Option<&Record>, settlement: &Settlement, now: Timestamp) -> SettleEffect {
    decide::settle(found, settlement, Moment::at(now))
}
