//! The state machine, as pure functions.
//!
//! Every store applies these functions inside one atomic step, or restates them in its own
//! language. The conformance suite and the differential test compare such a store with these
//! functions. The functions read no clock.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::origin::{AttemptHistory, PastAttempt};
use crate::record::{Cause, Fence, OnUnknown, Record, State, Terms};
use crate::store::{Claim, Settlement, Transition};

/// The contact between a node and the store. It limits when that node may take a running record
/// from its owner.
///
/// An owner renews its lease while it runs. No owner could renew while the store was unreachable,
/// so every owner gets its whole grace again afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// The node knows nothing: no owner loses its record.
    Unknown,
    /// The time for which the node has been in contact with the store without a break. The store's
    /// clock decides when a lease ends.
    For(Duration),
    /// The time for which the node has seen the record unchanged, without a break. This is for
    /// stores without a clock of their own: the duration replaces the end of the lease.
    Unchanged(Duration),
}

impl Contact {
    /// The contact of a store that runs inside the owner's process, and so cannot be unreachable
    /// for it.
    pub const ALWAYS: Self = Self::For(Duration::MAX);
}

/// The time of a decision, and the contact of the node that requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The store's time.
    pub now: Timestamp,
    /// The contact of the requesting node with the store.
    pub contact: Contact,
}

impl Moment {
    /// Creates a moment with [`Contact::ALWAYS`].
    #[must_use]
    pub const fn at(now: Timestamp) -> Self {
        Self { now, contact: Contact::ALWAYS }
    }
}

/// True if the owner of a running record may lose it: its lease and grace are over, and the owner
/// could have renewed the lease.
#[must_use]
pub fn is_abandoned(record: &Record, at: Moment) -> bool {
    let State::Running { lease_until } = record.state else { return false };
    let Terms { lease, grace, .. } = record.terms;
    match at.contact {
        Contact::Unknown => false,
        Contact::For(lasting) => lease_until.plus(grace) <= at.now && grace <= lasting,
        Contact::Unchanged(lasting) => lease.saturating_add(grace) <= lasting,
    }
}

/// The meaning of a record for a request with a given fingerprint, at a given moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A new attempt may run.
    Free,
    /// Another payload was sent under this key (S9).
    Mismatch,
    /// An attempt holds the lease, or its grace is not over.
    InFlight,
    /// An attempt held the lease past its grace: the record must become unknown.
    Abandoned,
    /// The outcome of the last attempt is unknown, and the key does not run again.
    Unknown,
    /// The outcome, or the failure, is recorded.
    Settled,
}

/// Reads a record by the table of the state machine, row by row.
#[must_use]
pub fn read(found: Option<&Record>, fingerprint: &Fingerprint, at: Moment) -> Reading {
    let Some(record) = found.filter(|record| !record.is_expired(at.now)) else {
        return Reading::Free;
    };
    // This check is the first, so that it holds in every state (S9).
    if record.fingerprint != *fingerprint {
        return Reading::Mismatch;
    }
    let again = record.terms.on_unknown.runs_again();
    match &record.state {
        State::Running { .. } if !is_abandoned(record, at) => Reading::InFlight,
        State::Running { .. } if again => Reading::Free,
        State::Running { .. } => Reading::Abandoned,
        State::Unknown { .. } if again => Reading::Free,
        State::Unknown { .. } => Reading::Unknown,
        State::Released { .. } => Reading::Free,
        State::Completed { .. } | State::Failed { .. } => Reading::Settled,
    }
}

/// The effect of a claim on the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEffect {
    /// Write this running record; its attempt may run.
    Grant(Record),
    /// Write this unknown record; no attempt runs.
    BecomeUnknown(Record),
    /// Leave the record as it is.
    Keep,
}

/// Decides a claim. `floor` is the highest fence that the store still knows to have been granted
/// for this record. The fence of the record that was found counts in addition.
///
/// A claim is idempotent by its attempt. A claim that reaches the store twice, for example because
/// a driver repeated it, is granted once more while its attempt runs: with the same fence, and for a
/// whole lease from now. An attempt that has ended is not granted again. The engine itself does not
/// send a claim again if its answer was lost. It renews the attempt instead.
#[must_use]
pub fn claim(found: Option<&Record>, claim: &Claim, at: Moment, floor: Fence) -> ClaimEffect {
    let now = at.now;
    match (read(found, &claim.fingerprint, at), found) {
        (reading, Some(record))
            if record.attempt == claim.attempt
                && !record.is_expired(now)
                && reading != Reading::Mismatch =>
        {
            match record.state {
                State::Running { .. } => ClaimEffect::Grant(renewed(record, now)),
                _ => ClaimEffect::Keep,
            }
        }
        (Reading::Free, found) => ClaimEffect::Grant(granted(found, claim, now, floor)),
        (Reading::Abandoned, Some(record)) => {
            ClaimEffect::BecomeUnknown(record.with_state(record.lost(now, &Cause::LeaseEnded)))
        }
        _ => ClaimEffect::Keep,
    }
}

/// Returns the record with a whole lease from now.
fn renewed(record: &Record, now: Timestamp) -> Record {
    record.with_state(State::Running { lease_until: now.plus(record.terms.lease) })
}

fn granted(found: Option<&Record>, claim: &Claim, now: Timestamp, floor: Fence) -> Record {
    let previous = found.map_or(floor, |record| record.fence.max(floor));
    // A key that runs again within its life keeps the time it was first claimed, and its attempts.
    let earlier = found.filter(|record| !record.is_expired(now));
    let created_at = earlier.map_or(now, |record| record.created_at);
    let history =
        earlier.map_or_else(AttemptHistory::default, |record| history_with_latest(record, now));
    Record {
        id: claim.id,
        attempt: claim.attempt,
        fence: previous.next(now),
        fingerprint: claim.fingerprint,
        terms: claim.terms,
        origin: claim.origin.clone(),
        created_at,
        claimed_at: now,
        history,
        state: State::Running { lease_until: now.plus(claim.terms.lease) },
    }
}

/// Returns the history of a record whose latest attempt is followed by another one now.
fn history_with_latest(record: &Record, now: Timestamp) -> AttemptHistory {
    let ended_at = match record.state {
        State::Running { .. } => now,
        State::Completed { at, .. }
        | State::Failed { at, .. }
        | State::Released { at }
        | State::Unknown { at, .. } => at,
    };
    let (fence, claimed_at, stood) = (record.fence, record.claimed_at, record.state.name());
    record.history.with(&PastAttempt { fence, claimed_at, ended_at, stood })
}

/// The effect of a settlement on the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one, and short-lived")]
pub enum SettleEffect {
    /// Write this record.
    Write(Record),
    /// The same settlement was applied before: nothing to write, and it counts as done.
    Already,
    /// The attempt does not own the record any more, or the record is final: nothing changes (S3).
    Stale,
}

/// Decides a settlement. The condition is the attempt, not a live lease: an owner that returns late
/// with its outcome is accepted as long as no other attempt was granted the key.
#[must_use]
pub fn settle(found: Option<&Record>, settlement: &Settlement, at: Moment) -> SettleEffect {
    let now = at.now;
    // An expired record counts as absent, whether or not it was swept: the answer must not depend
    // on the time of a sweep.
    let Some(record) = found.filter(|record| !record.is_expired(now)) else {
        return SettleEffect::Stale;
    };
    if record.attempt != settlement.attempt {
        return SettleEffect::Stale;
    }
    if settlement.transition == Transition::Forget {
        return match record.state {
            State::Running { .. } => SettleEffect::Stale,
            _ => SettleEffect::Write(forgotten(record, now)),
        };
    }
    let open = matches!(record.state, State::Running { .. } | State::Unknown { .. });
    let state = match (&record.state, &settlement.transition) {
        (State::Running { .. }, Transition::Renew) => {
            return SettleEffect::Write(renewed(record, now));
        }
        // The reaper read the record some time ago: it becomes unknown only if it is still
        // abandoned now (S13).
        (State::Running { .. }, Transition::ExpireLease) => {
            if !is_abandoned(record, at) {
                return SettleEffect::Stale;
            }
            record.lost(now, &Cause::LeaseEnded)
        }
        (State::Running { .. }, Transition::Unknown(cause)) => record.lost(now, cause),
        (State::Unknown { .. }, Transition::Unknown(_)) => return SettleEffect::Already,
        (State::Released { .. }, Transition::Unknown(_))
            if record.terms.on_unknown == OnUnknown::Rollback =>
        {
            return SettleEffect::Already;
        }
        // If several nodes try to reconcile at once, only one of them succeeds.
        (State::Unknown { at, cause, .. }, Transition::PostponeReconcile(hold)) => {
            if record.ask_at().is_none_or(|ask_at| ask_at > now) {
                return SettleEffect::Stale;
            }
            State::Unknown { at: *at, cause: cause.clone(), ask_at: now.plus(*hold) }
        }
        (_, Transition::Complete(recording)) if open => {
            State::Completed { at: now, recording: recording.clone() }
        }
        (_, Transition::Fail(failure)) if open => {
            State::Failed { at: now, failure: failure.clipped() }
        }
        (_, Transition::Release) if open => State::Released { at: now },
        // A settlement whose first answer was lost is sent again. It succeeds if it has the same
        // content. An operator or a reconciler may have settled this attempt differently in
        // between.
        (State::Completed { recording, .. }, Transition::Complete(said)) if recording == said => {
            return SettleEffect::Already;
        }
        (State::Failed { failure, .. }, Transition::Fail(said)) if *failure == said.clipped() => {
            return SettleEffect::Already;
        }
        (State::Released { .. }, Transition::Release) => return SettleEffect::Already,
        _ => return SettleEffect::Stale,
    };
    SettleEffect::Write(record.with_state(state))
}

/// Returns the record without its outcome, expired from now on. The sweep deletes it later, so that
/// new fences rise above its fence as they do for any other expired record.
fn forgotten(record: &Record, now: Timestamp) -> Record {
    let terms = Terms { ttl: Duration::ZERO, ..record.terms };
    // This also holds if the clock was set back since the claim.
    let created_at = record.created_at.min(now);
    Record { terms, created_at, state: State::Released { at: now }, ..record.clone() }
}

/// True if a sweep may delete the record that it finds now, whatever its index said before (S13).
#[must_use]
pub fn may_sweep(found: &Record, now: Timestamp) -> bool {
    found.is_expired(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::any_record;
    use crate::record::{AttemptId, Failure, Recording};
    use proptest::prelude::*;

    fn claim_of(record: &Record) -> Claim {
        Claim {
            id: record.id,
            attempt: AttemptId::from_bytes([9; 16]),
            fingerprint: record.fingerprint,
            terms: record.terms,
            origin: record.origin.clone(),
        }
    }

    fn any_time() -> impl Strategy<Value = Timestamp> {
        any::<u32>().prop_map(|s| Timestamp::from_micros(u64::from(s) * 1_000_000))
    }

    fn any_transition() -> impl Strategy<Value = Transition> {
        prop_oneof![
            Just(Transition::Renew),
            Just(Transition::ExpireLease),
            Just(Transition::Release),
            Just(Transition::Unknown(Cause::TimedOut)),
            Just(Transition::Complete(Recording::new("new"))),
            Just(Transition::Fail(Failure { code: "c".into(), detail: "d".into() })),
            Just(Transition::Forget),
            Just(Transition::PostponeReconcile(Duration::from_secs(7))),
        ]
    }

    proptest! {
        #[test]
        fn another_payload_never_runs_and_never_replays(record in any_record(), now in any_time()) {
            let other = Fingerprint::of(b"something else");
            let reading = read(Some(&record), &other, Moment::at(now));
            if record.is_expired(now) {
                prop_assert_eq!(reading, Reading::Free);
            } else {
                prop_assert_eq!(reading, Reading::Mismatch);
                let claim_other = Claim { fingerprint: other, ..claim_of(&record) };
                prop_assert_eq!(claim(Some(&record), &claim_other, Moment::at(now), Fence::default()), ClaimEffect::Keep);
            }
        }

        #[test]
        fn a_grant_has_a_higher_fence_and_a_lease(record in any_record(), now in any_time(), floor in 0..u64::MAX / 2) {
            let record = Record { fence: Fence::new(record.fence.get() / 2), ..record };
            if let ClaimEffect::Grant(granted) = claim(Some(&record), &claim_of(&record), Moment::at(now), Fence::new(floor)) {
                prop_assert!(granted.fence > record.fence);
                prop_assert!(granted.fence.get() > floor);
                prop_assert!(granted.fence.get() >= now.as_micros());
                let running = matches!(granted.state, State::Running { .. });
                prop_assert!(running);
            }
        }

        #[test]
        fn a_running_record_runs_again_only_past_lease_and_grace(record in any_record(), now in any_time()) {
            let Some(end) = record.abandoned_at() else { return Ok(()) };
            let effect = claim(Some(&record), &claim_of(&record), Moment::at(now), Fence::default());
            if now < end {
                prop_assert_eq!(effect, ClaimEffect::Keep);
            } else {
                let granted = matches!(effect, ClaimEffect::Grant(_));
                prop_assert_eq!(granted, record.terms.on_unknown.runs_again());
            }
        }

        #[test]
        fn a_stale_attempt_changes_nothing(record in any_record(), transition in any_transition(), now in any_time()) {
            let stranger = Settlement { id: record.id, attempt: AttemptId::from_bytes([8; 16]), transition };
            prop_assume!(record.attempt != stranger.attempt);
            prop_assert_eq!(settle(Some(&record), &stranger, Moment::at(now)), SettleEffect::Stale);
            prop_assert_eq!(settle(None, &stranger, Moment::at(now)), SettleEffect::Stale);
        }

        #[test]
        fn a_final_record_never_changes(record in any_record(), transition in any_transition(), now in any_time()) {
            let own = Settlement { id: record.id, attempt: record.attempt, transition };
            let effect = settle(Some(&record), &own, Moment::at(now));
            if own.transition == Transition::Forget {
                // The record is expired at once, or nothing happens.
                match effect {
                    SettleEffect::Write(gone) => {
                        prop_assert!(gone.is_expired(now) && record.abandoned_at().is_none());
                        prop_assert_eq!(&gone.state, &State::Released { at: now });
                        prop_assert_eq!(gone.fence, record.fence);
                    }
                    effect => {
                        let runs = matches!(record.state, State::Running { .. });
                        prop_assert!(runs || record.is_expired(now));
                        prop_assert_eq!(effect, SettleEffect::Stale);
                    }
                }
                return Ok(());
            }
            match record.state {
                State::Completed { .. } | State::Failed { .. } | State::Released { .. } => {
                    let unchanged = matches!(effect, SettleEffect::Already | SettleEffect::Stale);
                    prop_assert!(unchanged);
                }
                State::Unknown { .. } => {
                    // A settlement never makes an unknown record run again.
                    let runs = matches!(effect, SettleEffect::Write(Record { state: State::Running { .. }, .. }));
                    prop_assert!(!runs);
                }
                State::Running { .. } => {}
            }
        }
    }

    #[test]
    fn another_outcome_than_the_recorded_one_is_stale() {
        let now = Timestamp::from_micros(1_000_000_000);
        let said = |text: &'static str| Transition::Complete(Recording::new(text));
        let record = Record {
            id: crate::RecordId::from_bytes([0; 16]),
            attempt: AttemptId::from_bytes([1; 16]),
            fence: Fence::new(1),
            fingerprint: Fingerprint::of(b""),
            terms: crate::Terms::default(),
            origin: crate::Origin::default(),
            created_at: now,
            claimed_at: now,
            history: AttemptHistory::default(),
            state: State::Completed { at: now, recording: Recording::new("by an operator") },
        };
        let own = |transition| Settlement { id: record.id, attempt: record.attempt, transition };
        assert_eq!(
            settle(Some(&record), &own(said("by an operator")), Moment::at(now)),
            SettleEffect::Already
        );
        assert_eq!(
            settle(Some(&record), &own(said("by its owner")), Moment::at(now)),
            SettleEffect::Stale
        );
    }

    #[test]
    fn the_reaper_respects_a_renewed_lease() {
        let now = Timestamp::from_micros(1_000_000_000);
        let record = Record {
            id: crate::RecordId::from_bytes([0; 16]),
            attempt: AttemptId::from_bytes([1; 16]),
            fence: Fence::new(1),
            fingerprint: Fingerprint::of(b""),
            terms: crate::Terms::default(),
            origin: crate::Origin::default(),
            created_at: now,
            claimed_at: now,
            history: AttemptHistory::default(),
            state: State::Running { lease_until: now.plus(Duration::from_secs(30)) },
        };
        let abandon = Settlement {
            id: record.id,
            attempt: record.attempt,
            transition: Transition::ExpireLease,
        };
        let just_before = now.plus(Duration::from_secs(60) - Duration::from_micros(1));
        assert_eq!(settle(Some(&record), &abandon, Moment::at(just_before)), SettleEffect::Stale);
        let after = now.plus(Duration::from_secs(60));
        assert!(matches!(
            settle(Some(&record), &abandon, Moment::at(after)),
            SettleEffect::Write(_)
        ));
    }

    /// Returns a record that is 5 s old, in the given state.
    fn record(on_unknown: OnUnknown, state: State) -> Record {
        Record {
            id: crate::RecordId::from_bytes([0; 16]),
            attempt: AttemptId::from_bytes([1; 16]),
            fence: Fence::new(1),
            fingerprint: Fingerprint::of(b""),
            terms: Terms { on_unknown, ..Terms::default() },
            origin: crate::Origin::default(),
            created_at: THEN,
            claimed_at: THEN,
            history: AttemptHistory::default(),
            state,
        }
    }

    const THEN: Timestamp = Timestamp::from_micros(1_000_000_000);
    const NOW: Timestamp = Timestamp::from_micros(1_005_000_000);
    const EVERY_WAY: [OnUnknown; 4] =
        [OnUnknown::Fail, OnUnknown::Retry, OnUnknown::Reconcile, OnUnknown::Rollback];

    fn failure(code: &str) -> Failure {
        Failure { code: code.into(), detail: "detail".into() }
    }

    /// Returns every transition but [`Transition::Forget`], which has a test of its own.
    fn every_transition() -> [Transition; 7] {
        [
            Transition::Renew,
            Transition::ExpireLease,
            Transition::Release,
            Transition::Unknown(Cause::TimedOut),
            Transition::Complete(Recording::new("new")),
            Transition::Fail(failure("new")),
            Transition::PostponeReconcile(Duration::from_secs(7)),
        ]
    }

    /// Returns the expected effect of the owner's settlement.
    fn expected(record: &Record, transition: &Transition) -> SettleEffect {
        let (stale, already) = (SettleEffect::Stale, SettleEffect::Already);
        let write = |state| SettleEffect::Write(record.with_state(state));
        let rolls_back = record.terms.on_unknown == OnUnknown::Rollback;
        match (record.state.name(), transition) {
            ("running", Transition::Renew) => {
                write(State::Running { lease_until: NOW.plus(record.terms.lease) })
            }
            ("running", Transition::Unknown(_)) if rolls_back => write(State::Released { at: NOW }),
            ("running", Transition::Unknown(cause)) => {
                write(State::Unknown { at: NOW, cause: cause.clone(), ask_at: NOW })
            }
            ("unknown", Transition::Unknown(_)) => already,
            ("unknown", Transition::PostponeReconcile(hold))
                if record.terms.on_unknown == OnUnknown::Reconcile =>
            {
                write(State::Unknown { at: THEN, cause: Cause::TimedOut, ask_at: NOW.plus(*hold) })
            }
            ("running" | "unknown", Transition::Complete(recording)) => {
                write(State::Completed { at: NOW, recording: recording.clone() })
            }
            ("running" | "unknown", Transition::Fail(failure)) => {
                write(State::Failed { at: NOW, failure: failure.clone() })
            }
            ("running" | "unknown", Transition::Release) => write(State::Released { at: NOW }),
            ("released", Transition::Release) => already,
            ("released", Transition::Unknown(_)) if rolls_back => already,
            _ => stale,
        }
    }

    #[test]
    fn every_verb_in_every_state() {
        let states = [
            State::Running { lease_until: NOW.plus(Duration::from_secs(1)) },
            State::Unknown { at: THEN, cause: Cause::TimedOut, ask_at: THEN },
            State::Released { at: THEN },
            State::Completed { at: THEN, recording: Recording::new("old") },
            State::Failed { at: THEN, failure: failure("old") },
        ];
        for (state, on_unknown) in
            states.iter().flat_map(|state| EVERY_WAY.map(|on_unknown| (state, on_unknown)))
        {
            let record = record(on_unknown, state.clone());
            for transition in every_transition() {
                let own = Settlement { id: record.id, attempt: record.attempt, transition };
                let expected = expected(&record, &own.transition);
                assert_eq!(
                    settle(Some(&record), &own, Moment::at(NOW)),
                    expected,
                    "{record:?} {own:?}"
                );
            }
        }
    }

    #[test]
    fn a_settlement_that_says_the_same_again_is_done() {
        let outcomes = [
            (
                State::Completed { at: THEN, recording: Recording::new("old") },
                Transition::Complete(Recording::new("old")),
            ),
            (State::Failed { at: THEN, failure: failure("old") }, Transition::Fail(failure("old"))),
        ];
        for (state, transition) in outcomes {
            let record = record(OnUnknown::Fail, state);
            let own = Settlement { id: record.id, attempt: record.attempt, transition };
            assert_eq!(settle(Some(&record), &own, Moment::at(NOW)), SettleEffect::Already);
        }
    }

    #[test]
    fn an_ask_is_taken_when_it_is_due() {
        let micro = Duration::from_micros(1);
        for (ask_at, is_due) in [(NOW, true), (NOW.plus(micro), false)] {
            let state = State::Unknown { at: THEN, cause: Cause::TimedOut, ask_at };
            let record = record(OnUnknown::Reconcile, state);
            let transition = Transition::PostponeReconcile(Duration::from_secs(7));
            let own = Settlement { id: record.id, attempt: record.attempt, transition };
            let is_taken = settle(Some(&record), &own, Moment::at(NOW)) != SettleEffect::Stale;
            assert_eq!(is_taken, is_due);
        }
    }

    #[test]
    fn a_forgotten_record_is_expired_whatever_the_clock_says() {
        let completed = State::Completed { at: THEN, recording: Recording::new("old") };
        for now in [NOW, Timestamp::from_micros(7)] {
            let record = record(OnUnknown::Fail, completed.clone());
            let own = Settlement {
                id: record.id,
                attempt: record.attempt,
                transition: Transition::Forget,
            };
            let gone = Record {
                terms: Terms { ttl: Duration::ZERO, ..record.terms },
                created_at: THEN.min(now),
                state: State::Released { at: now },
                ..record.clone()
            };
            assert!(gone.is_expired(now));
            assert_eq!(settle(Some(&record), &own, Moment::at(now)), SettleEffect::Write(gone));
        }
    }

    #[test]
    fn an_owner_gets_its_grace_anew_after_an_outage() {
        // The lease ended 4 s ago, and its grace of 3 s ended 1 s ago.
        let until = Timestamp::from_micros(1_001_000_000);
        for on_unknown in EVERY_WAY {
            let mut record = record(on_unknown, State::Running { lease_until: until });
            record.terms.grace = Duration::from_secs(3);
            let lost = if on_unknown.runs_again() { Reading::Free } else { Reading::Abandoned };
            let micro = Duration::from_micros(1);
            let whole = Duration::from_secs(3);
            for (contact, reading) in [
                (Contact::ALWAYS, lost),
                (Contact::For(whole), lost),
                (Contact::For(whole - micro), Reading::InFlight),
                (Contact::Unknown, Reading::InFlight),
                (Contact::Unchanged(record.terms.lease + whole), lost),
                (Contact::Unchanged(record.terms.lease + whole - micro), Reading::InFlight),
            ] {
                let at = Moment { now: NOW, contact };
                assert_eq!(read(Some(&record), &record.fingerprint, at), reading, "{contact:?}");
                let transition = Transition::ExpireLease;
                let abandon = Settlement { id: record.id, attempt: record.attempt, transition };
                let is_stale = settle(Some(&record), &abandon, at) == SettleEffect::Stale;
                assert_eq!(is_stale, reading == Reading::InFlight, "{contact:?}");
            }
            // Even with enough contact, the record stays in flight until grace has ended by the
            // store's clock.
            let early = Timestamp::from_micros(1_003_999_999);
            let at = Moment { now: early, contact: Contact::For(whole) };
            assert_eq!(read(Some(&record), &record.fingerprint, at), Reading::InFlight);
        }
    }

    #[test]
    fn a_claim_that_is_sent_again_is_granted_for_as_long_as_its_attempt_runs() {
        let again = |record: &Record| Claim { attempt: record.attempt, ..claim_of(record) };
        let decide = |record: &Record| {
            claim(Some(record), &again(record), Moment::at(NOW), Fence::new(u64::MAX / 2))
        };
        for on_unknown in EVERY_WAY {
            // Its lease may be over, as long as no other attempt was granted the key.
            for lease_until in [NOW.plus(Duration::from_secs(1)), Timestamp::from_micros(1)] {
                let record = record(on_unknown, State::Running { lease_until });
                let lease_until = NOW.plus(record.terms.lease);
                let renewed = record.with_state(State::Running { lease_until });
                assert_eq!(decide(&record), ClaimEffect::Grant(renewed));
                let other =
                    Claim { fingerprint: Fingerprint::of(b"something else"), ..again(&record) };
                let effect = claim(Some(&record), &other, Moment::at(NOW), Fence::default());
                assert_eq!(effect, ClaimEffect::Keep);
            }
            for state in [
                State::Unknown { at: THEN, cause: Cause::TimedOut, ask_at: THEN },
                State::Released { at: THEN },
                State::Completed { at: THEN, recording: Recording::new("old") },
                State::Failed { at: THEN, failure: failure("old") },
            ] {
                assert_eq!(decide(&record(on_unknown, state)), ClaimEffect::Keep);
            }
        }
    }
}
