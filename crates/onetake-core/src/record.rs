//! The record that a store keeps for one key.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::clock::{Rng, Timestamp};
use crate::fingerprint::Fingerprint;
use crate::origin::{AttemptHistory, Origin};
use crate::scope::RecordId;

/// The minimum time for which a settled record is kept after it was settled, or its ttl if that is
/// shorter. Retries of a long operation still find its outcome.
pub const KEPT_AFTER_SETTLING: Duration = Duration::from_secs(3600);

/// The longest text kept for a cause or a failure, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;

/// The name of one attempt: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId([u8; AttemptId::BYTES]);

impl AttemptId {
    /// The number of bytes of an attempt id.
    pub const BYTES: usize = 16;

    /// Creates a fresh id.
    #[must_use]
    pub fn random(rng: &dyn Rng) -> Self {
        let mut bytes = [0; Self::BYTES];
        rng.fill(&mut bytes);
        Self(bytes)
    }

    /// Creates an attempt id from stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttemptId(")?;
        for byte in self.0.iter().take(4) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("…)")
    }
}

/// A number that strictly increases per record, also after the record expired (S2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// Creates a fence from a stored number.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the next fence: above `self`, and not below the store's time in microseconds.
    #[must_use]
    pub fn next(self, now: Timestamp) -> Self {
        Self(self.0.saturating_add(1).max(now.as_micros()))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The rule for a key whose last attempt has an unknown outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnUnknown {
    /// Report it to the caller, and never run the key again.
    #[default]
    Fail,
    /// Ask a reconciler for the outcome. Until then, the key does not run.
    Reconcile,
    /// Run it again: only for operations that deduplicate downstream or are harmless.
    Retry,
    /// Run it again, and never make it unknown. This is only for operations whose every effect
    /// commits together with the completion of their attempt, or not at all (mode T). The effects
    /// of an attempt that lost its key are rolled back with its stale completion.
    Rollback,
}

impl OnUnknown {
    /// True if the key may run again after an attempt that lost its lease or whose outcome is
    /// unknown.
    #[must_use]
    pub const fn runs_again(self) -> bool {
        matches!(self, Self::Retry | Self::Rollback)
    }
}

/// The terms under which a key was claimed. They are stored in the record, so that a deployment
/// does not change them for a record that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The time for which the outcome is kept.
    pub ttl: Duration,
    /// The time for which an attempt may run before it must renew its lease.
    pub lease: Duration,
    /// The time after the end of a lease during which its owner still keeps the key.
    pub grace: Duration,
    /// The rule for an unknown outcome.
    pub on_unknown: OnUnknown,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(24 * 3600),
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            on_unknown: OnUnknown::Fail,
        }
    }
}

/// The stored outcome. The engine does not read it: the code that records an outcome defines the
/// contents of `head` and `body` (the HTTP layer keeps status and headers in the head).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recording {
    /// The small part, which is always kept.
    pub head: Bytes,
    /// The large part; `None` if it was not kept. The outcome is then known but not replayable.
    pub body: Option<Bytes>,
}

impl Recording {
    /// Creates a recording with a body and an empty head, for operations that are not HTTP.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { head: Bytes::new(), body: Some(body.into()) }
    }

    /// Returns the size of head and body, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, Bytes::len)
    }
}

/// A recorded failure. It is final, and is replayed like any outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// A code for programs.
    pub code: String,
    /// A sentence for people. It must contain nothing secret.
    pub detail: String,
}

impl Failure {
    /// Cuts the texts to the length that a record may hold.
    #[must_use]
    pub fn clipped(&self) -> Self {
        Self { code: clip(self.code.clone()), detail: clip(self.detail.clone()) }
    }
}

/// The reason why an outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The lease and its grace ended without a renewal or an outcome from the owner.
    LeaseEnded,
    /// The process that ran the attempt ended before the attempt was settled.
    Restarted,
    /// The operation was dropped or panicked after it had started.
    Interrupted,
    /// The operation took longer than it was allowed to.
    TimedOut,
    /// A reason that the operation gave, in its own words.
    Reported(String),
    /// The service answered with this HTTP status, from which the outcome of the operation is not
    /// known.
    Status(u16),
}

impl Cause {
    /// Cuts the text to the length that a record may hold.
    #[must_use]
    pub fn clipped(&self) -> Self {
        match self {
            Self::Reported(what) => Self::Reported(clip(what.clone())),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseEnded => f.write_str("its lease ended without a report"),
            Self::Restarted => f.write_str("its process ended before the outcome was saved"),
            Self::Interrupted => f.write_str("it was interrupted while it ran"),
            Self::TimedOut => f.write_str("it exceeded its time limit"),
            Self::Reported(what) => f.write_str(what),
            Self::Status(status) => write!(f, "the upstream answered {status}"),
        }
    }
}

/// The state of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An attempt holds the lease.
    Running {
        /// The end of the lease, before grace.
        lease_until: Timestamp,
    },
    /// The outcome is recorded.
    Completed {
        /// The time of the change to this state.
        at: Timestamp,
        /// The outcome.
        recording: Recording,
    },
    /// A failure is recorded.
    Failed {
        /// The time of the change to this state.
        at: Timestamp,
        /// The failure.
        failure: Failure,
    },
    /// The attempt is known to have had no effect: another attempt may run.
    Released {
        /// The time of the change to this state.
        at: Timestamp,
    },
    /// The attempt started, and its outcome is not known.
    Unknown {
        /// The time of the change to this state.
        at: Timestamp,
        /// The reason.
        cause: Cause,
        /// The time from which a reconciliation is due. It is used only with
        /// `OnUnknown::Reconcile`.
        ask_at: Timestamp,
    },
}

impl State {
    /// Returns the state's name, as users see it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Running { .. } => "running",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Released { .. } => "released",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// The record of one key in one scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The id under which the record is kept.
    pub id: RecordId,
    /// The latest attempt.
    pub attempt: AttemptId,
    /// The latest attempt's fence.
    pub fence: Fence,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The terms of the latest claim.
    pub terms: Terms,
    /// The origin of the latest claim: tenant digest, route and memo.
    pub origin: Origin,
    /// The time of the first claim since the key was new or last expired.
    pub created_at: Timestamp,
    /// The time of the latest attempt's claim.
    pub claimed_at: Timestamp,
    /// The attempts before the latest.
    pub history: AttemptHistory,
    /// The state.
    pub state: State,
}

impl Record {
    /// Returns the time at which the record expires; `None` while it is running.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        let Terms { ttl, .. } = self.terms;
        match self.state {
            State::Running { .. } => None,
            State::Completed { at, .. } | State::Failed { at, .. } | State::Released { at } => {
                Some(self.created_at.plus(ttl).max(at.plus(ttl.min(KEPT_AFTER_SETTLING))))
            }
            State::Unknown { at, .. } => Some(at.plus(ttl)),
        }
    }

    /// True if the record counts as absent.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// Returns the end of lease and grace of a running record. From then on another attempt may
    /// take the key.
    #[must_use]
    pub fn abandoned_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Running { lease_until } => Some(lease_until.plus(self.terms.grace)),
            _ => None,
        }
    }

    /// Returns the time from which a reconciliation is due, if the record is to be reconciled.
    #[must_use]
    pub fn ask_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Unknown { ask_at, .. } if self.terms.on_unknown == OnUnknown::Reconcile => {
                Some(ask_at)
            }
            _ => None,
        }
    }

    /// Returns the state of a record whose attempt lost its lease or reported an unknown outcome.
    #[must_use]
    pub fn lost(&self, now: Timestamp, cause: &Cause) -> State {
        if self.terms.on_unknown == OnUnknown::Rollback {
            return State::Released { at: now };
        }
        State::Unknown { at: now, cause: cause.clipped(), ask_at: now }
    }

    /// The same record in another state.
    #[must_use]
    pub fn with_state(&self, state: State) -> Self {
        Self { state, ..self.clone() }
    }
}

/// Cuts a text to [`TEXT_BYTES_MAX`], at a character boundary.
#[must_use]
pub fn clip(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let mut end = TEXT_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn record(ttl: u64, state: State) -> Record {
        Record {
            id: RecordId::from_bytes([1; 16]),
            attempt: AttemptId::from_bytes([2; 16]),
            fence: Fence::new(7),
            fingerprint: Fingerprint::of(b"x"),
            terms: Terms { ttl: Duration::from_secs(ttl), ..Terms::default() },
            origin: Origin::default(),
            created_at: at(1_000),
            claimed_at: at(1_000),
            history: AttemptHistory::default(),
            state,
        }
    }

    #[test]
    fn expiry_follows_the_design() {
        let running = record(10, State::Running { lease_until: at(1_030) });
        assert_eq!(running.expires_at(), None);
        assert_eq!(running.abandoned_at(), Some(at(1_060)));

        let day = 86_400;
        let prompt = record(day, State::Released { at: at(1_001) });
        assert_eq!(prompt.expires_at(), Some(at(1_000 + day)));
        let late = record(day, State::Released { at: at(1_000 + day) });
        assert_eq!(late.expires_at(), Some(at(1_000 + day + 3_600)));
        let short = record(10, State::Released { at: at(1_009) });
        assert_eq!(short.expires_at(), Some(at(1_019)));
        let unknown = record(
            day,
            State::Unknown { at: at(5_000), cause: Cause::TimedOut, ask_at: at(5_000) },
        );
        assert_eq!(unknown.expires_at(), Some(at(5_000 + day)));
        assert!(!short.is_expired(at(1_018)));
        assert!(short.is_expired(at(1_019)));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let cut = clip("ä".repeat(400));
        assert_eq!(cut.len(), TEXT_BYTES_MAX);
        assert_eq!(clip("short".into()), "short");
    }
}
