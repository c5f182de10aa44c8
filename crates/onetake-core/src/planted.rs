//! Deliberate bugs that tests switch on, to check that the suites catch them.
//!
//! Without the feature `planted-bugs`, which only tests turn on, every switch is a constant
//! `false` and the compiler removes it.

/// One deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Settlements are applied without comparing the attempt (breaks S3).
    SettleWithoutAttemptCheck = 1,
    /// The outcome is shown before its completion is durable (breaks S6).
    AnswerBeforeCommit = 2,
    /// The sweep deletes what its index names without looking at the record again (breaks S13).
    SweepWithoutRecheck = 3,
    /// The tenant is not part of the record's id (breaks S8).
    TenantLeftOut = 4,
    /// The fingerprint is part of the record's id (breaks S9).
    FingerprintInId = 5,
    /// A new attempt gets the fence of the one before (breaks S2).
    FenceNotRaised = 6,
}

impl Bug {
    /// All bugs that can be switched on.
    pub const ALL: [Self; 6] = [
        Self::SettleWithoutAttemptCheck,
        Self::AnswerBeforeCommit,
        Self::SweepWithoutRecheck,
        Self::TenantLeftOut,
        Self::FingerprintInId,
        Self::FenceNotRaised,
    ];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::Bug;
    use std::sync::atomic::{AtomicU8, Ordering};

    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// Switches `bug` on for this whole process, or all bugs off.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(0, |b| b as u8), Ordering::SeqCst);
    }

    /// True if `bug` is switched on.
    #[must_use]
    pub fn planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::SeqCst) == bug as u8
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::{plant, planted};

/// True if `bug` is switched on: never in this build.
#[cfg(not(feature = "planted-bugs"))]
#[must_use]
pub const fn planted(_: Bug) -> bool {
    false
}
