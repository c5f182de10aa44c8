//! The common parts of the cases: shorthand for claims and settlements.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onetake_core::clock::Clock;
use onetake_core::fingerprint::Fingerprint;
use onetake_core::origin::{Origin, TenantDigest};
use onetake_core::record::{
    AttemptId, Cause, Failure, Fence, OnUnknown, Record, Recording, State, Terms,
};
use onetake_core::scope::RecordId;
use onetake_core::store::{Claim, Claimed, Settled, Settlement, Store, Transition};

use super::quiet::Quiet;
use super::{Capabilities, Subject};

/// One store under test.
pub struct Bench {
    subject: Box<dyn Subject>,
    pub(super) store: Arc<dyn Store>,
    quiet: Arc<Quiet>,
    pub(super) can: Capabilities,
    attempts: AtomicU64,
}

/// A simulated time that is longer than any test.
pub(super) const ENDLESS: Duration = Duration::from_secs(1 << 30);

/// The maximum real time to wait for anything.
pub(super) const REAL_TIME_MAX: Duration = Duration::from_secs(60);

/// The time that a server may take for an answer before simulated time passes nevertheless, in
/// milliseconds.
const QUIET_TRIES: usize = 5_000;

/// Gives a store's own threads and servers some real time, so that the simulated clock does not run
/// ahead of them.
#[expect(clippy::disallowed_methods, reason = "a store's threads live in real time")]
pub(super) async fn breathe() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// The result of a claim: granted, or the record that was found.
#[derive(Debug)]
pub(super) enum Got {
    Granted(Fence),
    Found(Arc<Record>),
}

impl Bench {
    /// Creates a bench around a fresh subject.
    pub(super) fn new(subject: impl Subject, can: Capabilities) -> Self {
        let quiet = Quiet::around(subject.store());
        let store = Arc::clone(&quiet) as Arc<dyn Store>;
        Self { subject: Box::new(subject), store, quiet, can, attempts: AtomicU64::new(1) }
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.subject.clock()
    }

    /// The store that an engine gets in place of `store`.
    pub(super) fn for_engine(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        self.subject.for_engine(store)
    }

    /// Lets a tenth of a tick pass, once no call is inside the store.
    pub(super) async fn step(&self) {
        for _ in 0..QUIET_TRIES {
            breathe().await;
            if self.quiet.is_quiet() {
                break;
            }
        }
        self.subject.advance(self.can.tick / 10).await;
    }

    /// Advances time by `ticks` ticks.
    pub(super) async fn pass(&self, ticks: u32) {
        self.subject.advance(self.can.tick * ticks).await;
    }

    /// Advances time by a little more than `ticks` ticks, so that periods that end then are over.
    pub(super) async fn pass_just_over(&self, ticks: u32) {
        self.subject.advance(self.can.tick * ticks + Duration::from_millis(2)).await;
    }

    /// Closes the store and opens it again on its data; `None` if it keeps no data.
    pub(super) async fn reopen(&self) -> Option<Arc<dyn Store>> {
        self.store.close().await.expect("the store closes");
        self.subject.reopen().await
    }

    /// Returns terms with a lease of 2, a grace of 2 and a ttl of 20 ticks.
    pub(super) fn terms(&self, on_unknown: OnUnknown) -> Terms {
        let tick = self.can.tick;
        Terms { ttl: tick * 20, lease: tick * 2, grace: tick * 2, on_unknown }
    }

    pub(super) fn attempt(&self) -> AttemptId {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        AttemptId::from_bytes(u128::from(number).to_be_bytes())
    }

    pub(super) fn claim_of(&self, key: &str, payload: &str) -> Claim {
        Claim {
            id: id(key),
            attempt: self.attempt(),
            fingerprint: Fingerprint::of(payload.as_bytes()),
            terms: self.terms(OnUnknown::Fail),
            origin: Origin::new(TenantDigest::of(&[1; 32], b"acme"), "POST /pay"),
        }
    }

    pub(super) async fn claim(&self, claim: &Claim) -> Got {
        let mut answers = self.store.claim(vec![claim.clone()]).await;
        assert_eq!(answers.len(), 1, "one answer for one claim");
        got(answers.pop().unwrap().expect("the store answers"))
    }

    /// Claims, and asserts that the claim is granted.
    pub(super) async fn granted(&self, claim: &Claim) -> Fence {
        match self.claim(claim).await {
            Got::Granted(fence) => fence,
            Got::Found(record) => panic!("not granted, found {}", record.state.name()),
        }
    }

    /// Claims, and asserts that a record is found.
    pub(super) async fn found(&self, claim: &Claim) -> Arc<Record> {
        match self.claim(claim).await {
            Got::Found(record) => record,
            Got::Granted(_) => panic!("granted, although there is a record"),
        }
    }

    pub(super) async fn settle(&self, claim: &Claim, transition: Transition) -> Settled {
        let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
        let mut answers = self.store.settle(vec![settlement]).await;
        assert_eq!(answers.len(), 1, "one answer for one settlement");
        answers.pop().unwrap().expect("the store answers")
    }

    /// Settles, and asserts that it is done.
    pub(super) async fn done(&self, claim: &Claim, transition: Transition) -> Arc<Record> {
        match self.settle(claim, transition).await {
            Settled::Done { record, .. } => record,
            Settled::Stale { .. } => panic!("stale, although the attempt owns the record"),
        }
    }

    pub(super) async fn load(&self, key: &str) -> Option<Arc<Record>> {
        self.store.load(vec![id(key)]).await.pop().unwrap().expect("the store answers")
    }

    pub(super) async fn sweep(&self, limit: usize) -> onetake_core::store::Swept {
        self.store.sweep(limit).await.expect("the store answers")
    }
}

pub(super) fn got(answer: Claimed) -> Got {
    match answer {
        Claimed::Granted { fence } => Got::Granted(fence),
        Claimed::Found { record, .. } => Got::Found(record),
    }
}

pub(super) fn id(key: &str) -> RecordId {
    let scope = onetake_core::scope::Scope::new("conformance");
    RecordId::derive(&scope, &onetake_core::key::Key::new(key).unwrap())
}

pub(super) fn outcome(text: &str) -> Transition {
    Transition::Complete(Recording::new(text.to_owned()))
}

pub(super) fn failure() -> Transition {
    Transition::Fail(Failure { code: "declined".into(), detail: "the card was declined".into() })
}

pub(super) fn unknown() -> Transition {
    Transition::Unknown(Cause::Status(500))
}

/// Returns one of each transition that an attempt or the reaper uses.
pub(super) fn every_transition() -> Vec<Transition> {
    vec![
        Transition::Renew,
        outcome("other"),
        failure(),
        Transition::Release,
        unknown(),
        Transition::ExpireLease,
    ]
}

pub(super) fn body(record: &Record) -> &[u8] {
    match &record.state {
        State::Completed { recording, .. } => recording.body.as_deref().expect("the body is kept"),
        other => panic!("not completed: {}", other.name()),
    }
}

pub(super) fn is(record: &Record, state: &str) {
    assert_eq!(record.state.name(), state);
}
