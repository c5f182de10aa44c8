//! Random steps, the same for the same seed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use onetake_core::clock::Timestamp;
use onetake_core::fingerprint::Fingerprint;
use onetake_core::origin::{Origin, TenantDigest};
use onetake_core::record::{AttemptId, Cause, Failure, OnUnknown, Recording, Terms};
use onetake_core::scope::RecordId;
use onetake_core::store::{Claim, Settlement, Transition};

use super::reference::Reference;

/// The number of records. It is small, so that steps often meet records of earlier steps.
const RECORDS: u64 = 6;
/// The maximum number of items in a batch.
const ITEMS_MAX: u64 = 5;
/// The number of claims of a record that may be sent again.
const CLAIMS_MAX: usize = 4;

/// One step.
#[derive(Debug)]
pub(super) enum Step {
    Claim(Vec<Claim>),
    Settle(Vec<Settlement>),
    Load(Vec<RecordId>),
    Abandoned,
    Unsettled,
    Sweep(usize),
    Find(RecordId),
    Advance(Duration),
    Reopen,
}

impl Step {
    /// Returns the number of steps that it counts for.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Claim(batch) => batch.len(),
            Self::Settle(batch) => batch.len(),
            Self::Load(ids) => ids.len(),
            _ => 1,
        }
    }
}

/// A generator of steps.
pub(super) struct Steps {
    random: u64,
    attempts: u64,
    /// The latest claims of each record.
    claims: BTreeMap<RecordId, Vec<Claim>>,
}

impl Steps {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: seed, attempts: 0, claims: BTreeMap::new() }
    }

    pub(super) fn next(&mut self, reference: &Reference) -> Step {
        match self.below(1_000) {
            0..280 => {
                let count = 1 + self.below(ITEMS_MAX);
                Step::Claim((0..count).map(|_| self.claim(reference)).collect())
            }
            280..660 => {
                let count = 1 + self.below(ITEMS_MAX);
                Step::Settle((0..count).map(|_| self.settlement(reference)).collect())
            }
            660..720 => {
                let count = 1 + self.below(ITEMS_MAX);
                Step::Load((0..count).map(|_| self.id()).collect())
            }
            720..760 => Step::Abandoned,
            760..800 => Step::Unsettled,
            800..820 => Step::Sweep(1 + self.index(10)),
            820..840 => Step::Find(self.id()),
            840..850 => Step::Reopen,
            _ => Step::Advance(self.advance(reference)),
        }
    }

    fn claim(&mut self, reference: &Reference) -> Claim {
        let id = self.id();
        let known = self.claims.get(&id).map_or(0, Vec::len);
        if known > 0 && self.below(100) < 30 {
            let chosen = self.index(known);
            let sent = self.claims.get(&id).and_then(|claims| claims.get(chosen)).cloned();
            if let Some(claim) = sent {
                let other = self.below(100) < 10;
                let fingerprint = if other { self.payload() } else { claim.fingerprint };
                return Claim { fingerprint, ..claim };
            }
        }
        // Most callers send the payload that was sent before under this key.
        let found = reference.record(id).filter(|_| self.random & 7 > 0);
        let fingerprint = found.map(|record| record.fingerprint);
        let claim = Claim {
            id,
            attempt: self.attempt(),
            fingerprint: fingerprint.unwrap_or_else(|| self.payload()),
            terms: self.terms(),
            origin: self.origin(),
        };
        let claims = self.claims.entry(id).or_default();
        claims.push(claim.clone());
        if claims.len() > CLAIMS_MAX {
            claims.remove(0);
        }
        claim
    }

    fn settlement(&mut self, reference: &Reference) -> Settlement {
        let id = self.id();
        let current = reference.record(id).map(|record| record.attempt);
        let known = self.claims.get(&id).map_or(0, Vec::len);
        let attempt = match self.below(100) {
            0..80 => current,
            80..95 if known > 0 => {
                let chosen = self.index(known);
                let claims = self.claims.get(&id);
                claims.and_then(|claims| claims.get(chosen)).map(|claim| claim.attempt)
            }
            _ => None,
        };
        let attempt = attempt.unwrap_or_else(|| self.attempt());
        Settlement { id, attempt, transition: self.transition() }
    }

    fn transition(&mut self) -> Transition {
        match self.below(100) {
            0..18 => Transition::Renew,
            18..28 => Transition::Complete(self.recording()),
            28..36 => Transition::Fail(self.failure()),
            36..46 => Transition::Release,
            46..60 => Transition::Unknown(self.cause()),
            60..78 => Transition::ExpireLease,
            78..90 => Transition::PostponeReconcile(Duration::from_millis(500 * self.below(10))),
            _ => Transition::Forget,
        }
    }

    fn recording(&mut self) -> Recording {
        let body = match self.below(4) {
            0 => None,
            1 => Some(Bytes::new()),
            2 => Some(Bytes::from_static(b"paid")),
            _ => Some(Bytes::from_static(b"\0\xff declined")),
        };
        let head = if self.below(2) == 0 { Bytes::new() } else { Bytes::from_static(b"200") };
        Recording { head, body }
    }

    fn failure(&mut self) -> Failure {
        let detail = if self.below(4) == 0 { "ä".repeat(700) } else { "declined".to_owned() };
        let code = if self.below(2) == 0 { "card" } else { "limit" };
        Failure { code: code.to_owned(), detail }
    }

    fn cause(&mut self) -> Cause {
        match self.below(6) {
            0 => Cause::LeaseEnded,
            1 => Cause::Restarted,
            2 => Cause::Interrupted,
            3 => Cause::TimedOut,
            4 => Cause::Reported("x".repeat(600)),
            _ => Cause::Status(500),
        }
    }

    fn terms(&mut self) -> Terms {
        let on_unknown = match self.below(4) {
            0 => OnUnknown::Fail,
            1 => OnUnknown::Reconcile,
            2 => OnUnknown::Retry,
            _ => OnUnknown::Rollback,
        };
        Terms {
            ttl: self.seconds(&[4, 4, 60, 7_200]),
            lease: self.seconds(&[1, 5]),
            grace: self.seconds(&[0, 2, 7]),
            on_unknown,
        }
    }

    fn origin(&mut self) -> Origin {
        match self.below(3) {
            0 => Origin::default(),
            _ => Origin::new(TenantDigest::of(&[1; 32], b"acme"), "POST /pay"),
        }
    }

    /// Returns the time until something ends, or a microsecond before or after that; sometimes a
    /// random time.
    fn advance(&mut self, reference: &Reference) -> Duration {
        let mut ends = reference.ends();
        ends.sort_unstable();
        // Near ends are chosen more often. Otherwise most records would be expired most of the
        // time.
        let near = self.index(3).min(self.index(3));
        let chosen = if self.below(4) == 0 { self.index(ends.len().max(1)) } else { near };
        let end = ends.get(chosen).map(|end| until(reference.now(), *end));
        match (self.below(10), end) {
            (0..3, Some(end)) => end.saturating_sub(Duration::from_micros(1)),
            (3..6, Some(end)) => end,
            (6..8, Some(end)) => end + Duration::from_micros(1),
            _ => Duration::from_micros(self.below(2_000_000)),
        }
    }

    fn seconds(&mut self, choices: &[u64]) -> Duration {
        let chosen = self.index(choices.len());
        Duration::from_secs(choices.get(chosen).copied().unwrap_or(1))
    }

    fn payload(&mut self) -> Fingerprint {
        Fingerprint::of(if self.below(2) == 0 { b"pay 10" } else { b"pay 20" })
    }

    fn attempt(&mut self) -> AttemptId {
        self.attempts += 1;
        AttemptId::from_bytes((u128::from(self.attempts) << 96 | 1).to_be_bytes())
    }

    fn id(&mut self) -> RecordId {
        // Spreads ids over the shards of stores that have some.
        let number = self.below(RECORDS);
        RecordId::from_bytes((u128::from(number) << 121 | u128::from(number)).to_be_bytes())
    }

    fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap_or_default()
    }

    /// Returns a number below `end`, by SplitMix64.
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

fn until(now: Timestamp, end: Timestamp) -> Duration {
    Duration::from_micros(end.as_micros().saturating_sub(now.as_micros()))
}
