//! Themes: rare situations that half of the plans get on purpose.
//!
//! A completely random plan seldom has a fault in the few milliseconds in which it matters. A theme
//! adds one or several operations to a plan, and the faults around them. The rest of the plan stays
//! random. Plans without a theme do not depend on this module: a theme has its own random stream.

use std::time::Duration;

use onetake_core::clock::micros;

use super::plan::{ClientPlan, Fault, FaultPlan, Mode, NodePlan, OperationPlan, Plan};
use super::random::Random;
use super::timeline::{MILLISECOND, Micros, SECOND};

/// The number of plans in a thousand that have a theme.
const THEMED_PER_MILLE: u64 = 500;
/// The number of random operations that a plan with a theme keeps.
const OPERATIONS_MAX: usize = 3;
/// The number of random faults that a plan with a theme keeps.
const FAULTS_MAX: usize = 3;
/// The minimum time between the start of a theme's operation and the end of faults, so that its
/// faults happen.
const BEFORE_CALM: Micros = 8 * SECOND;
/// The time to live of records that must outlive the simulation's final checks.
const TTL: Duration = Duration::from_secs(240);

/// A situation that a plan gets on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Nodes with a journal shut down while an outcome is on its way and the store is unreachable.
    /// They start again before the store is reachable.
    ShutdownInOutage,
    /// An attempt outlives its lease and grace because its node is suspended or cannot reach the
    /// store. Its next renewal arrives after another node's reaper has seen the attempt and before
    /// it has settled it.
    ReaperBesideRenewal,
    /// A request arrives at the upstream after its attempt timed out, when reconcilers already know
    /// of it.
    LateArrival,
    /// An attempt whose outcome was promised to clients (202) ends with a response that releases
    /// it.
    PromiseBesideRelease,
    /// An operator forgets an outcome while clients still request it.
    ForgottenOutcome,
    /// A claim arrives at the store after its node gave up on it. No other client requests the key.
    LateClaim,
}

impl Theme {
    /// All themes.
    pub const ALL: [Self; 6] = [
        Self::ShutdownInOutage,
        Self::ReaperBesideRenewal,
        Self::LateArrival,
        Self::PromiseBesideRelease,
        Self::ForgottenOutcome,
        Self::LateClaim,
    ];
}

/// Adds a theme to a plan, if its seed selects one.
pub(super) fn apply(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, "theme");
    if !random.chance(THEMED_PER_MILLE) {
        return;
    }
    let theme = random.pick(&Theme::ALL, Theme::LateClaim);
    plan.theme = Some(theme);
    plan.operations.truncate(OPERATIONS_MAX);
    plan.faults.truncate(FAULTS_MAX);
    let mut staged = Staged { plan, random };
    match theme {
        Theme::ShutdownInOutage => staged.shutdown_in_outage(),
        Theme::ReaperBesideRenewal => staged.reaper_beside_renewal(),
        Theme::LateArrival => staged.late_arrival(),
        Theme::PromiseBesideRelease => staged.promise_beside_release(),
        Theme::ForgottenOutcome => staged.forgotten_outcome(),
        Theme::LateClaim => staged.late_claim(),
    }
}

/// A plan while its theme is added.
struct Staged<'a> {
    plan: &'a mut Plan,
    random: Random,
}

impl Staged<'_> {
    fn shutdown_in_outage(&mut self) {
        self.share_the_store();
        // Without these faults, a process that shuts down loses nothing.
        self.leave_out(|fault| {
            matches!(fault, Fault::JournalDown { .. } | Fault::Corrupt { .. } | Fault::Crash { .. })
        });
        self.each_node(|node| (node.has_journal, node.terms.ttl) = (true, TTL));
        (self.plan.upstream.slow_per_mille, self.plan.upstream.noise_per_mille) = (900, 0);
        let begins = self.begins();
        for _ in 0..self.random.between(1, 3) {
            let mode = self.pick(&[Mode::Plain, Mode::Async, Mode::FailOpen, Mode::Job]);
            self.add_operation(mode, begins, 1);
        }
        for node in 0..self.plan.nodes.len() {
            let patience = self.random.between(500 * MILLISECOND, 4 * SECOND);
            let gone_for = self.random.between(50 * MILLISECOND, 3 * SECOND);
            let after = self.random.between(50 * MILLISECOND, SECOND);
            let fault = Fault::Shutdown { node, patience, is_cut_off: true, gone_for };
            self.add_fault(begins + after, fault);
        }
    }

    fn reaper_beside_renewal(&mut self) {
        self.share_the_store();
        if let [only] = *self.plan.nodes.as_slice() {
            self.plan.nodes.push(only);
        }
        let lease = Duration::from_millis(self.random.between(1_000, 1_500));
        let grace = lease / 2;
        self.each_node(|node| {
            (node.terms.lease, node.terms.grace) = (lease, grace);
            node.run_max = Duration::from_secs(6);
            node.reap_every = Duration::from_millis(300);
        });
        self.plan.delay_max = self.pick(&[100, 200, 200]) * MILLISECOND;
        (self.plan.upstream.slow_per_mille, self.plan.upstream.noise_per_mille) = (900, 0);
        let begins = self.begins();
        for _ in 0..3 {
            let mode = self.pick(&Mode::ALL);
            self.add_operation(mode, begins, 1);
        }
        // Renewals are a third of the lease apart, so the last lease ends within that time.
        let (lease, grace) = (micros(lease), micros(grace));
        let length = self.random.between(lease * 2 / 3 + grace, lease + grace + 400 * MILLISECOND);
        let fault = if self.random.chance(500) {
            Fault::Suspend { node: 0, polls: 0, length }
        } else {
            Fault::CutStore { node: 0, length, hangs: false }
        };
        let after = self.random.between(400 * MILLISECOND, 2 * SECOND);
        self.add_fault(begins + after, fault);
    }

    fn late_arrival(&mut self) {
        self.each_node(|node| {
            node.terms.ttl = TTL;
            // This leaves time between the timeout and the last moment at which a request can
            // arrive.
            node.terms.grace = node.terms.grace.max(Duration::from_secs(3));
            node.run_max = node.run_max.min(Duration::from_secs(2));
        });
        self.plan.upstream.late_per_mille = 500;
        for _ in 0..2 {
            let begins = self.begins();
            self.add_operation(Mode::Reconcile, begins, 2);
        }
    }

    fn promise_beside_release(&mut self) {
        self.make_uniform();
        self.plan.upstream.slow_per_mille = 700;
        self.plan.upstream.refuses_per_mille = 500;
        for _ in 0..3 {
            let begins = self.begins();
            let clients = self.pick(&[1, 2, 3]);
            self.add_operation(Mode::Async, begins, clients);
        }
        for client in self.plan.operations.iter_mut().rev().take(3).flat_map(|it| &mut it.clients) {
            client.wait_seconds = self.random.chance(800).then_some(0);
        }
    }

    fn forgotten_outcome(&mut self) {
        let age = Duration::from_millis(self.random.between(2_000, 5_000));
        self.each_node(|node| {
            node.limits.cache_bytes_max = 1 << 20;
            node.limits.cache_age_max = age;
        });
        // There are few other records, because the operator picks one at random.
        self.plan.operations.clear();
        let mode = self.pick(&Mode::ALL);
        let begins = self.begins();
        self.add_operation(mode, begins, 3);
        for client in self.plan.operations.iter_mut().flat_map(|it| &mut it.clients) {
            (client.tries, client.insists) = (8, true);
            client.pause = self.random.between(100 * MILLISECOND, SECOND);
        }
        for _ in 0..2 {
            let node = self.random.index(self.plan.nodes.len());
            let after = self.random.between(500 * MILLISECOND, 3 * SECOND);
            self.add_fault(begins + after, Fault::Operator { node, operation: 0, forgets: true });
        }
    }

    fn late_claim(&mut self) {
        self.share_the_store();
        self.leave_out(|fault| {
            matches!(fault, Fault::Crash { .. } | Fault::Corrupt { .. } | Fault::Shutdown { .. })
        });
        self.each_node(|node| node.terms.ttl = TTL);
        let begins = self.begins();
        for _ in 0..3 {
            let mode = self.pick(&[Mode::Plain, Mode::Async, Mode::Job]);
            self.add_operation(mode, begins, 1);
            if let Some(client) =
                self.plan.operations.last_mut().and_then(|it| it.clients.first_mut())
            {
                client.tries = 1;
            }
        }
        for node in 0..self.plan.nodes.len() {
            let length = self.random.between(200 * MILLISECOND, 3 * SECOND);
            self.add_fault(begins, Fault::CutStore { node, length, hangs: true });
        }
    }

    /// Lets several nodes reach the store, over a network.
    fn share_the_store(&mut self) {
        self.plan.is_exclusive = false;
    }

    /// Makes all configurations the same, and all clocks agree.
    fn make_uniform(&mut self) {
        self.leave_out(|fault| matches!(fault, Fault::WallClock { .. } | Fault::StoreClock { .. }));
        self.plan.is_uniform = true;
        if let Some(first) = self.plan.nodes.first().copied() {
            self.each_node(|node| {
                let first = NodePlan { wall_offset: 0, ..first };
                *node = node.like(&first);
            });
        }
    }

    fn each_node(&mut self, change: impl FnMut(&mut NodePlan)) {
        self.plan.nodes.iter_mut().for_each(change);
    }

    fn leave_out(&mut self, is_unwanted: impl Fn(&Fault) -> bool) {
        self.plan.faults.retain(|planned| !is_unwanted(&planned.fault));
    }

    fn pick<T: Copy, const N: usize>(&mut self, items: &[T; N]) -> T {
        const { assert!(N > 0, "there is something to pick") };
        self.random.pick(items, items[0])
    }

    fn begins(&mut self) -> Micros {
        self.random.below(self.plan.faults_end.saturating_sub(BEFORE_CALM))
    }

    /// Adds an operation whose clients wait patiently and retry.
    fn add_operation(&mut self, mode: Mode, begins: Micros, clients: usize) {
        let number = self.plan.operations.last().map_or(0, |it| it.number + 1);
        let random = &mut self.random;
        let clients = (0..clients)
            .map(|number| ClientPlan {
                number,
                starts_at: begins + random.below(300 * MILLISECOND),
                payload: 0,
                tries: 4,
                pause: random.between(50 * MILLISECOND, 3 * SECOND),
                patience: random.between(8 * SECOND, 20 * SECOND),
                cut_after_polls: None,
                insists: false,
                wait_seconds: None,
            })
            .collect();
        self.plan.operations.push(OperationPlan { number, mode, tenant: 0, clients });
    }

    fn add_fault(&mut self, at: Micros, fault: Fault) {
        let number = self.plan.faults.last().map_or(0, |it| it.number + 1);
        self.plan.faults.push(FaultPlan { number, at, fault });
    }
}
