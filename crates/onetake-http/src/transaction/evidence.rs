//! Evidence about an attempt's transaction, and the ruling that follows from it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use http::StatusCode;

use onetake_core::transaction::FinishWitness;

use crate::status::{Disposition, StatusRules};

/// The progress of one attempt's transaction, shared by its handler and the layer.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    is_taken: AtomicBool,
    is_begun: AtomicBool,
    has_failed_to_begin: AtomicBool,
    witnesses: Mutex<Witnesses>,
}

#[derive(Debug, Default)]
struct Witnesses {
    /// Witnesses of completions that the handler writes itself.
    by_handler: Vec<FinishWitness>,
    /// Witnesses of completions that an `AttemptTransaction` writes. It owns its transaction.
    by_guard: Vec<FinishWitness>,
}

#[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "only axum has an extractor for it"))]
impl Progress {
    /// Notes that the handler took `InTransaction`.
    pub(crate) fn take(&self) {
        self.is_taken.store(true, Ordering::Release);
    }

    /// Notes that the handler began a transaction through `InTransaction`.
    pub(crate) fn begin(&self) {
        self.is_begun.store(true, Ordering::Release);
    }

    /// Notes that the database did not begin a transaction for `InTransaction`.
    pub(crate) fn fail_to_begin(&self) {
        self.has_failed_to_begin.store(true, Ordering::Release);
    }

    /// Notes that the handler got a completion, which it must write itself.
    pub(crate) fn complete(&self, witness: FinishWitness) {
        self.lock().by_handler.push(witness);
    }

    /// Notes that an `AttemptTransaction` is about to write a completion.
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
        if self.has_failed_to_begin.load(Ordering::Acquire) {
            return Evidence::NotBegun;
        }
        Evidence::Unused
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Witnesses> {
        self.witnesses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names of transactional routes whose handlers do not take `InTransaction`.
#[derive(Debug, Default)]
pub(crate) struct MisconfiguredRoutes(Mutex<BTreeSet<String>>);

impl MisconfiguredRoutes {
    pub(crate) fn add(&self, route: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(route);
    }

    pub(crate) fn has(&self, route: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(route)
    }
}

/// The evidence about the transaction of an attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The handler never took `InTransaction`. Its effects are not known.
    NeverTaken,
    /// The handler took `InTransaction` and did not use it. It may have committed a transaction of
    /// its own, so its effects are not known either.
    Unused,
    /// The database did not begin the transaction. A handler that then fails had no effect.
    NotBegun,
    /// The handler began a transaction through `InTransaction`, and no completion was written. The
    /// transaction is rolled back, or cannot commit after the attempt is settled.
    RolledBack,
    /// The handler got a completion and did not write it. The effects may be committed without it.
    Unfinished,
    /// The completion was written in a transaction. The store shows whether that was committed.
    Finished,
}

impl Evidence {
    /// Returns true if an attempt without an outcome may still have had its effect.
    pub(crate) fn may_have_effect(self) -> bool {
        matches!(self, Self::NeverTaken | Self::Unused | Self::Unfinished)
    }
}

/// The ruling on an attempt of a transactional route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// The attempt is treated as on any other route.
    AsUsual(Disposition),
    /// The response is recorded and an error is logged, because the response is the only evidence
    /// of the effect.
    RecordUnproven,
    /// The store decides: the outcome is in the store, or the attempt had no effect.
    Look,
    /// The response says success, but the transaction was rolled back.
    NotCommitted,
    /// The effect may have been committed without an outcome. The key must not run again (S16).
    Unfinished,
}

/// Rules on an attempt by its response. `word` is the disposition that the service named itself, by
/// header or report. `by_status` is the disposition by the route's status rules.
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
    // By the built-in rules, these statuses say that the request was not handled.
    let is_unhandled = StatusRules::new().classify(status) == Release;
    match (evidence, by_status) {
        (Evidence::RolledBack, _) if is_success => Ruling::NotCommitted,
        (Evidence::Finished, Record) if is_success => Ruling::Look,
        // Only 2xx: a middleware can answer with another status without calling the handler.
        (
            Evidence::NeverTaken | Evidence::Unused | Evidence::NotBegun | Evidence::Unfinished,
            Record,
        ) if status.is_success() => Ruling::RecordUnproven,
        (Evidence::NeverTaken | Evidence::Unused, Release) if is_unhandled => {
            Ruling::AsUsual(Release)
        }
        (evidence, Release | Unknown) if evidence.may_have_effect() => Ruling::Unfinished,
        (_, disposition) => Ruling::AsUsual(disposition),
    }
}
