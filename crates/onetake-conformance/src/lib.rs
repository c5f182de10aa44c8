//! The conformance suite: every store, and every decorator of a store, passes it.
//!
//! A store of your own uses it as a development dependency, as the stores of onetake do:
//!
//! ```no_run
//! use onetake_conformance::{Capabilities, Simulated, run, run_engine};
//! use onetake_core::MemoryStore;
//!
//! # async fn suite() {
//! let subject = || async { Simulated::new(|clock| (MemoryStore::with_clock(clock), Box::new(()))) };
//! run(subject, Capabilities::default()).await.assert_passed();
//! run_engine(subject, Capabilities::default()).await.assert_passed();
//! # }
//! ```
//!
//! [`run`] checks the store's contract, [`run_engine`] the engine on top of it. The suite has the
//! list of cases: a store only brings a factory of [`Subject`]s and its [`Capabilities`], and gets
//! a [`ConformanceReport`].
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a suite says what is wrong by panicking, and catches that itself"
)]

mod bench;
mod buggy;
mod claims;
pub mod differential;
mod engine;
mod expiry;
mod faults;
mod faulty;
mod gate;
mod lost;
pub mod many;
mod operators;
mod outbox;
mod outbox_held;
mod outbox_model;
mod pages;
mod quiet;
mod races;
mod report;
mod secrets;
mod settles;
mod simulated;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
#[doc(hidden)]
pub use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};

use onetake_core::clock::Clock;
use onetake_core::store::Store;

pub use bench::Bench;
pub use buggy::{BuggyStore, StoreBug};
pub use faulty::{Faulty, StoreFault};
pub use outbox::{OutboxSubject, run_outbox};
pub use report::ConformanceReport;
pub use simulated::{Shifted, Simulated};

/// A fresh, empty store under test, with control over its clock.
pub trait Subject: Send + Sync + 'static {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// The clock of an engine that runs on this store.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Advances the store's time and that clock.
    fn advance(&self, by: Duration) -> BoxFuture<'_, ()>;

    /// The store that an engine gets in place of `store`, which may be the store of the subject
    /// behind gates and faults of the suite. A decorator that has to be outside of them goes here.
    fn for_engine(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        store
    }

    /// Opens a closed store again, with the data that it kept. `None` if the store keeps no data.
    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        std::future::ready(None).boxed()
    }
}

/// The properties in which stores may differ.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// The unit of time in which leases and expiries are tested. The store's clock must be able to
    /// tell two moments apart that differ by it. It should be short if time really has to pass.
    pub tick: Duration,
    /// The size of the largest body that the store keeps, in bytes. A larger one is kept as "not
    /// replayable".
    pub body_bytes_max: usize,
    /// True if expired records remain until a sweep deletes them. If the server deletes them by
    /// itself, a sweep finds nothing to do.
    pub sweeps: bool,
    /// True if a key can be forgotten at any time. A filter that is unreachable refuses.
    pub forgets: bool,
    /// Tasks in the races.
    pub tasks: usize,
    /// Rounds in the races.
    pub rounds: usize,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            tick: Duration::from_secs(10),
            body_bytes_max: 1 << 20,
            sweeps: true,
            forgets: true,
            tasks: 32,
            rounds: 20,
        }
    }
}

type Case = fn(Arc<Bench>) -> BoxFuture<'static, ()>;

/// Lists the functions of a module as cases, under their own names.
macro_rules! cases {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        &[$($((concat!(stringify!($module), "::", stringify!($name)), {
            fn boxed(bench: Arc<Bench>) -> BoxFuture<'static, ()> {
                Box::pin(async move { $module::$name(&bench).await })
            }
            boxed as Case
        })),+),+]
    };
}

const STORE_CASES: &[(&str, Case)] = cases! {
    claims: absent_is_granted, a_second_claim_finds_the_first, another_payload_is_refused_in_any_state,
        a_released_key_runs_again, a_completed_key_is_replayed, a_failed_key_is_replayed,
        an_unknown_key_is_answered_as_its_terms_say, an_ended_lease_is_respected_during_grace,
        the_same_key_many_times_in_one_batch, items_of_a_batch_are_independent,
        an_empty_batch_is_nothing, large_and_odd_recordings_are_kept_exactly,
        terms_travel_with_the_record, a_claim_that_is_sent_again_is_its_own;
    settles: a_stale_attempt_changes_nothing, the_late_owner_is_believed,
        an_unknown_record_is_completed_by_its_own_attempt, a_settlement_sent_twice_is_done_once, long_texts_are_cut_the_same_way_every_time,
        a_settled_record_never_changes, renewing_moves_the_end_of_the_lease,
        renewing_does_not_revive_the_unknown, settling_the_absent_is_stale,
        the_abandoned_are_found_in_order, the_reaper_looks_again;
    lost: the_unsettled_are_found_in_order, an_abandoned_one_is_asked_for, one_of_many_asks,
        only_the_reconciled_are_asked_for, the_unsettled_expire, what_rolls_back_is_never_unknown;
    expiry: a_key_is_reusable_only_after_it_expires, running_never_expires,
        the_unknown_expires_a_full_ttl_later, a_late_outcome_is_kept_for_a_while,
        a_sweep_takes_what_expired_and_nothing_else, a_sweep_looks_again,
        a_sweep_is_bounded, fences_rise_across_expiry_and_sweep;
    pages: every_record_is_on_a_page, what_is_there_all_the_while_is_on_a_page,
        a_cursor_of_nobody_is_refused_or_leads_nowhere;
    operators: who_asked_and_every_attempt_are_kept, a_long_history_keeps_its_end,
        a_reference_leads_to_its_record, the_forgotten_is_gone_at_once,
        a_stale_or_running_attempt_is_not_forgotten, notes_are_told_the_newest_first,
        a_note_is_written_over_by_its_end, notes_outlive_their_records_and_end_in_time;
    secrets: the_first_is_kept, many_at_once_are_told_the_same;
    races: one_of_many_claims_wins, claims_and_settlements_of_many_tasks,
        a_sweep_beside_traffic_loses_nothing, takeovers_have_rising_fences;
};

const ENGINE_CASES: &[(&str, Case)] = cases! {
    engine: many_callers_one_run, nothing_is_shown_before_it_is_durable,
        nothing_runs_before_its_claim_is_durable, a_store_that_hangs_is_not_waited_for,
        another_payload_is_refused_while_it_runs,
        waiters_get_the_outcome, a_waiter_gives_up_at_its_deadline,
        a_caller_that_goes_away_changes_nothing, a_panic_is_unknown, too_long_is_unknown,
        a_dropped_lease_is_released_or_unknown, a_waiter_takes_over_what_never_started, a_long_operation_keeps_its_lease,
        a_node_waits_for_another;
    faults: a_store_that_is_down_runs_nothing, a_claim_whose_answer_got_lost_is_its_own,
        a_claim_that_nobody_can_tell_of_is_let_go, an_outcome_waits_for_the_store_to_come_back,
        a_settlement_whose_answer_got_lost_is_done, too_many_at_once_are_refused,
        too_many_waiters_are_told_that_it_runs;
};

/// Checks a store's contract. `factory` makes a fresh, empty subject for each case.
pub async fn run<F, S>(factory: impl Fn() -> F, capabilities: Capabilities) -> ConformanceReport
where
    F: Future<Output = S>,
    S: Subject,
{
    run_cases(STORE_CASES, factory, capabilities).await
}

/// Checks the engine on top of a store, on one thread. Time is simulated, and passes only while no
/// task has anything to do. On several threads, time could pass although a thread that the machine
/// delays still has work.
///
/// # Panics
/// If no runtime can be created.
pub async fn run_engine<F, S>(
    factory: impl Fn() -> F,
    capabilities: Capabilities,
) -> ConformanceReport
where
    F: Future<Output = S>,
    S: Subject,
{
    let cases = run_cases(ENGINE_CASES, factory, capabilities);
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return cases.await;
    }
    tokio::task::block_in_place(|| {
        let one_thread = Builder::new_current_thread().enable_all().build().unwrap();
        one_thread.block_on(cases)
    })
}

async fn run_cases<F, S>(
    cases: &[(&'static str, Case)],
    factory: impl Fn() -> F,
    capabilities: Capabilities,
) -> ConformanceReport
where
    F: Future<Output = S>,
    S: Subject,
{
    let mut report = ConformanceReport::default();
    for (name, case) in cases {
        let bench = Arc::new(Bench::new(factory().await, capabilities));
        report.add(name, case(bench)).await;
    }
    report
}
