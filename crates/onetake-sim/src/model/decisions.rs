//! The decision functions under test.

use onetake_core::decide::{self, ClaimEffect, Reading, SettleEffect};
use onetake_core::{Claim, Fence, Fingerprint, Record, Settlement, Timestamp};

/// The functions by which the store of a model decides. By default they are those of
/// [`onetake_core::decide`]; tests put wrong ones in their place, to see that the model finds them.
#[derive(Clone, Copy, Debug)]
pub struct Decisions {
    /// Reads a record for a claim with a fingerprint.
    pub read: fn(Option<&Record>, &Fingerprint, Timestamp) -> Reading,
    /// Decides a claim.
    pub claim: fn(Option<&Record>, &Claim, Timestamp, Fence) -> ClaimEffect,
    /// Decides a settlement.
    pub settle: fn(Option<&Record>, &Settlement, Timestamp) -> SettleEffect,
    /// Decides whether a sweeper may delete a record.
    pub may_sweep: fn(&Record, Timestamp) -> bool,
}

impl Default for Decisions {
    fn default() -> Self {
        Self {
            read: decide::read,
            claim: decide::claim,
            settle: decide::settle,
            may_sweep: decide::may_sweep,
        }
    }
}
