//! What a store keeps for one key.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::clock::{Rng, Timestamp};
use crate::fingerprint::Fingerprint;
use crate::origin::{History, Origin};
use crate::scope::RecordId;

/// A settled record is kept at least this long after it was settled (or its ttl, if that is
/// shorter), so that the retries of a long operation still find its outcome.
pub const KEPT_AFTER_SETTLING: Duration = Duration::from_secs(3600);

/// The longest text kept for a cause or a failure, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;

/// Names one attempt: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId([u8; AttemptId::BYTES]);

impl AttemptId {
    /// How many bytes an attempt id has.
    pub const BYTES: usize = 16;

    /// A fresh one.
    #[must_use]
    pub fn random(rng: &dyn Rng) -> Self {
        let mut bytes = [0; Self::BYTES];
        rng.fill(&mut bytes);
        Self(bytes)
    }

    /// An attempt id as a store kept it.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes to keep.
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
    /// A fence as a store kept it.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next fence: above `self`, and not below the store's microseconds.
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

/// What to do with a key whose last attempt has an unknown outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnUnknown {
    /// Tell the caller, and never run it again.
    #[default]
    Fail,
    /// Ask a reconciler what became of it; meanwhile nobody runs it.
    Reconcile,
    /// Run it again: only for operations that deduplicate downstream or are harmless.
    Retry,
    /// Run it again, and never call it unknown: only for operations whose every effect commits together with
    /// the completion of their attempt, or not at all (mode T). Whatever an attempt that is passed over did
    /// is rolled back with its stale completion.
    Rollback,
}

impl OnUnknown {
    /// Whether a key may run again whose last attempt was passed over.
    #[must_use]
    pub const fn runs_again(self) -> bool {
        matches!(self, Self::Retry | Self::Rollback)
    }
}

/// The terms that a key was claimed under. They travel with the record, so that a deployment in
/// the middle changes nothing for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How long the outcome is kept.
    pub ttl: Duration,
    /// For how long an attempt may run before it must renew.
    pub lease: Duration,
    /// For how long an ended lease is still respected.
    pub grace: Duration,
    /// What to do if the outcome is unknown.
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

/// The stored outcome. The engine does not look into it: `head` and `body` belong to whoever
/// recorded them (the HTTP layer keeps status and headers in the head).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recording {
    /// The small part, which is always kept.
    pub head: Bytes,
    /// The large part; `None` if it was not kept, which makes the outcome known but not
    /// replayable.
    pub body: Option<Bytes>,
}

impl Recording {
    /// A recording of one piece of bytes: for operations that are not HTTP.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { head: Bytes::new(), body: Some(body.into()) }
    }

    /// How many bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, Bytes::len)
    }
}

/// A recorded failure: final, and replayed like any outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// A word for machines.
    pub code: String,
    /// A sentence for people. It must hold nothing secret.
    pub detail: String,
}

impl Failure {
    /// The same with texts of the length that a record may hold.
    #[must_use]
    pub fn clipped(&self) -> Self {
        Self { code: clip(self.code.clone()), detail: clip(self.detail.clone()) }
    }
}

/// Why an outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The lease and its grace ended without a word from its owner.
    LeaseEnded,
    /// The process that ran it ended before it was settled.
    Restarted,
    /// The operation was dropped, or it panicked, after it had started.
    Interrupted,
    /// The operation took longer than it was allowed to.
    TimedOut,
    /// What the operation said of itself, in its own words.
    Reported(String),
    /// The service answered with this HTTP status, which does not tell what became of the operation.
    Status(u16),
}

/// How [`Cause::Status`] is told; the status follows.
const ANSWERED: &str = "the upstream answered ";

impl Cause {
    /// A cause that was kept as text. Statuses were kept so before they had a form of their own.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        let status = text.strip_prefix(ANSWERED).and_then(|status| status.parse().ok());
        status.map_or(Self::Reported(text), Self::Status)
    }

    /// The same with a text of the length that a record may hold.
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
            Self::LeaseEnded => f.write_str("its lease ended without a word from its owner"),
            Self::Restarted => f.write_str("the process that ran it ended in the middle"),
            Self::Interrupted => f.write_str("it was interrupted in the middle"),
            Self::TimedOut => f.write_str("it took longer than it was allowed to"),
            Self::Reported(what) => f.write_str(what),
            Self::Status(status) => write!(f, "{ANSWERED}{status}"),
        }
    }
}

/// Where a record stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An attempt holds the lease until then.
    Running {
        /// The end of the lease, before grace.
        lease_until: Timestamp,
    },
    /// The outcome is recorded.
    Completed {
        /// Since when.
        at: Timestamp,
        /// The outcome.
        recording: Recording,
    },
    /// A failure is recorded.
    Failed {
        /// Since when.
        at: Timestamp,
        /// The failure.
        failure: Failure,
    },
    /// The attempt is known to have had no effect: another may run.
    Released {
        /// Since when.
        at: Timestamp,
    },
    /// The attempt started, and nobody knows how it ended.
    Unknown {
        /// Since when.
        at: Timestamp,
        /// Why.
        cause: Cause,
        /// From when on somebody should ask what became of it: meant for `OnUnknown::Reconcile` alone.
        ask_at: Timestamp,
    },
}

impl State {
    /// The state's name, as users see it.
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

/// What the store keeps for (scope, key).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Where it is kept.
    pub id: RecordId,
    /// The latest attempt.
    pub attempt: AttemptId,
    /// The latest attempt's fence.
    pub fence: Fence,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// What it was claimed under.
    pub terms: Terms,
    /// Who asked for it, and where.
    pub origin: Origin,
    /// When the key was first claimed in this life of it.
    pub created_at: Timestamp,
    /// When the latest attempt claimed it.
    pub claimed_at: Timestamp,
    /// The attempts before the latest.
    pub history: History,
    /// Where it stands.
    pub state: State,
}

impl Record {
    /// When it may be forgotten; a running record, never.
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

    /// Whether it counts as absent.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// From when on a running record may be taken from its owner: the end of lease and grace.
    #[must_use]
    pub fn abandoned_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Running { lease_until } => Some(lease_until.plus(self.terms.grace)),
            _ => None,
        }
    }

    /// From when on somebody should ask what became of it.
    #[must_use]
    pub fn ask_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Unknown { ask_at, .. } if self.terms.on_unknown == OnUnknown::Reconcile => {
                Some(ask_at)
            }
            _ => None,
        }
    }

    /// Where the record stands once its attempt is passed over, or says that it knows nothing.
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

/// Cuts a text to what a record may hold, at a character's border.
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
            history: History::default(),
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
    fn a_status_that_was_kept_as_text_is_read() {
        let status = Cause::Status(502);
        assert_eq!(status.to_string(), "the upstream answered 502");
        assert_eq!(Cause::from_text(status.to_string()), status);
        for text in ["the upstream answered", "the upstream answered in time", "it hung"] {
            assert_eq!(Cause::from_text(text.to_owned()), Cause::Reported(text.to_owned()));
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let cut = clip("ä".repeat(400));
        assert_eq!(cut.len(), TEXT_BYTES_MAX);
        assert_eq!(clip("short".into()), "short");
    }
}
