//! What is known of an attempt's transaction, and what may be concluded from it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use http::StatusCode;

use onetake_core::transaction::FinishWitness;

use crate::status::{Disposition, StatusRules};

/// How far the transaction of one attempt has come: shared by its handler and the layer.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    is_taken: AtomicBool,
    is_begun: AtomicBool,
    witnesses: Mutex<Witnesses>,
}

#[derive(Debug, Default)]
struct Witnesses {
    /// Of completions that the handler writes itself.
    by_handler: Vec<FinishWitness>,
    /// Of completions that a guard writes, which owns its transaction.
    by_guard: Vec<FinishWitness>,
}

#[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "only axum has an extractor for it"))]
impl Progress {
    /// The handler took `InTransaction`.
    pub(crate) fn take(&self) {
        self.is_taken.store(true, Ordering::Release);
    }

    /// The handler began a transaction through it.
    pub(crate) fn begin(&self) {
        self.is_begun.store(true, Ordering::Release);
    }

    /// The handler was given a completion, which it has to write itself.
    pub(crate) fn complete(&self, witness: FinishWitness) {
        self.lock().by_handler.push(witness);
    }

    /// A guard is about to write a completion.
    pub(crate) fn complete_by_guard(&self, witness: FinishWitness) {
        self.lock().by_guard.push(witness);
    }

    pub(crate) fn evidence(&self) -> Evidence {
        let Witnesses { by_handler, by_guard } = &*self.lock();
        if !self.is_taken.load(Ordering::Acquire) {
            return Evidence::NeverTaken;
        }
        if by_handler.iter().any(|witness| !witness.is_executed()) {
            return Evidence::Unfinished;
        }
        if by_handler.iter().chain(by_guard).any(FinishWitness::is_executed) {
            return Evidence::Finished;
        }
        if self.is_begun.load(Ordering::Acquire) {
            return Evidence::RolledBack;
        }
        Evidence::Unused
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Witnesses> {
        self.witnesses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Transactional routes whose handler does not take `InTransaction`, by name.
#[derive(Debug, Default)]
pub(crate) struct Misfits(Mutex<BTreeSet<String>>);

impl Misfits {
    pub(crate) fn add(&self, route: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(route);
    }

    pub(crate) fn has(&self, route: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(route)
    }
}

/// What is known of the transaction of an attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The handler never took `InTransaction`: nothing is known.
    NeverTaken,
    /// The handler took `InTransaction`, and used it for nothing.
    Unused,
    /// A transaction was begun through it, and never finished: it is rolled back, or cannot commit any more once the
    /// attempt is settled.
    RolledBack,
    /// The handler made a completion and did not write it: its effects may be there without it.
    Unfinished,
    /// The completion was written in a transaction: the store knows whether that was committed.
    Finished,
}

impl Evidence {
    /// Whether an attempt without an outcome may have had its effect all the same.
    pub(crate) fn may_have_effect(self) -> bool {
        matches!(self, Self::NeverTaken | Self::Unfinished)
    }
}

/// What becomes of an attempt on a transactional route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// It is treated as on any other route.
    AsUsual(Disposition),
    /// The response is recorded, and the log has an error: nothing but the response tells what happened.
    RecordUnproven,
    /// The outcome is in the store, or the attempt had no effect.
    Look,
    /// The response claims success, but the transaction was rolled back.
    NotCommitted,
    /// The effect may be there without an outcome: the key must not run again (S16).
    Unfinished,
}

/// Decides what becomes of an attempt by its response. `word` is what the service said about its attempt beside the
/// status, `by_status` what the route's rules make of the status.
pub(crate) fn rule(
    evidence: Evidence,
    status: StatusCode,
    word: Option<Disposition>,
    by_status: Disposition,
) -> Ruling {
    use Disposition::{Record, Release, Unknown};
    match word {
        Some(Unknown) if evidence.may_have_effect() => return Ruling::Unfinished,
        Some(word) => return Ruling::AsUsual(word),
        None => {}
    }
    let is_success = status.is_success() || status.is_redirection();
    // Released on any route: these say that the request was not handled.
    let is_unhandled = StatusRules::new().classify(status) == Release;
    match (evidence, by_status) {
        (Evidence::RolledBack, _) if is_success => Ruling::NotCommitted,
        (Evidence::Finished, Record) if is_success => Ruling::Look,
        // A middleware answers with other statuses without calling the handler.
        (Evidence::NeverTaken | Evidence::Unused | Evidence::Unfinished, Record)
            if status.is_success() =>
        {
            Ruling::RecordUnproven
        }
        (Evidence::NeverTaken, Release) if is_unhandled => Ruling::AsUsual(Release),
        (Evidence::NeverTaken | Evidence::Unfinished, Release | Unknown) => Ruling::Unfinished,
        (_, disposition) => Ruling::AsUsual(disposition),
    }
}
