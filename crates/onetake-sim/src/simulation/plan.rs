//! The plan of one simulation: everything that a seed decides in advance.
//!
//! A plan is data, so that a failing one can be shrunk: operations, clients and faults are left out
//! one by one as long as the simulation still fails.

use std::time::Duration;

use onetake_core::{OnUnknown, Terms};

use super::random::Random;
use super::theme::{self, Theme};
use super::timeline::{MILLISECOND, Micros, SECOND};

/// The kind of a route: its rule for unknown outcomes, and its answers to requests that take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// `on_unknown = "fail"`.
    Plain,
    /// `on_unknown = "retry"`.
    Retry,
    /// `on_unknown = "reconcile"`.
    Reconcile,
    /// The effect commits with the outcome (mode T).
    Rollback,
    /// 202 with a handle.
    Async,
    /// Runs without a record while the store is unreachable.
    FailOpen,
    /// A job: the engine without the HTTP layer, which may start long after its claim.
    Job,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 7] = [
        Self::Plain,
        Self::Retry,
        Self::Reconcile,
        Self::Rollback,
        Self::Async,
        Self::FailOpen,
        Self::Job,
    ];

    /// Returns the path of the route.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Plain => "/plain",
            Self::Retry => "/retry",
            Self::Reconcile => "/reconcile",
            Self::Rollback => "/rollback",
            Self::Async => "/async",
            Self::FailOpen => "/open",
            Self::Job => "/job",
        }
    }

    /// Returns the rule for unknown outcomes.
    #[must_use]
    pub const fn on_unknown(self) -> OnUnknown {
        match self {
            Self::Plain | Self::Async | Self::FailOpen | Self::Job => OnUnknown::Fail,
            Self::Retry => OnUnknown::Retry,
            Self::Reconcile => OnUnknown::Reconcile,
            Self::Rollback => OnUnknown::Rollback,
        }
    }
}

/// The answer to requests for a key that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// At once, with 409.
    Reject,
    /// After a wait.
    Wait(Duration),
}

/// The configuration of one node. Nodes may differ.
#[derive(Clone, Copy, Debug)]
pub struct NodePlan {
    /// The drift of its clock, in parts per million; positive if it is too fast.
    pub drift_ppm: i64,
    /// The initial difference of its wall clock, in microseconds.
    pub wall_offset: i64,
    /// The terms of all its routes, except for the rule for unknown outcomes.
    pub terms: Terms,
    /// The upstream timeout.
    pub run_max: Duration,
    /// The answer to retries while an attempt runs.
    pub waiting: WaitMode,
    /// The wait of asynchronous routes.
    pub async_wait: Duration,
    /// True if outcomes that could not be written at shutdown go to a journal.
    pub has_journal: bool,
    /// True if its fingerprints are sealed with the newer secret. All nodes recognise both.
    pub seals_with_newer: bool,
    /// Limits of the engine, which are sometimes small.
    pub limits: LimitsPlan,
    /// The pause between two searches of the reaper.
    pub reap_every: Duration,
    /// The pause between two searches of the sweeper.
    pub sweep_every: Duration,
}

impl NodePlan {
    /// Returns this node with the configuration of `other`, as far as clients can see it. Its clock
    /// and secrets stay its own.
    #[must_use]
    pub(super) fn like(&self, other: &Self) -> Self {
        let Self { drift_ppm, seals_with_newer, has_journal, limits, .. } = *self;
        Self { drift_ppm, seals_with_newer, has_journal, limits, ..*other }
    }
}

/// The limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct LimitsPlan {
    /// Operations that run at once.
    pub running_max: usize,
    /// Callers that wait at once.
    pub waiting_max: usize,
    /// Callers that wait for one key.
    pub waiting_per_key_max: usize,
    /// Items of one write.
    pub batch_items_max: usize,
    /// Writes at once.
    pub writers_max: usize,
    /// Bytes of the cache.
    pub cache_bytes_max: usize,
    /// Age of an entry of the cache.
    pub cache_age_max: Duration,
    /// The pause between two reads of keys of other nodes.
    pub poll_interval: Duration,
    /// The maximum duration of a claim.
    pub claim_patience: Duration,
    /// The time after which the caller of a settlement gets the answer that it is pending.
    pub settle_patience: Duration,
}

/// One operation: a key, its requests, and the clients that send them.
#[derive(Clone, Debug)]
pub struct OperationPlan {
    /// The number, which stays the same when others are left out.
    pub number: usize,
    /// The route.
    pub mode: Mode,
    /// The tenant.
    pub tenant: u8,
    /// The clients.
    pub clients: Vec<ClientPlan>,
}

/// One client with its retries.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// The number within its operation, which stays the same when others are left out.
    pub number: usize,
    /// The time of its first request.
    pub starts_at: Micros,
    /// The payload: 0, or 1 for another one under the same key.
    pub payload: u8,
    /// The maximum number of tries.
    pub tries: u32,
    /// The pause before a retry.
    pub pause: Micros,
    /// The time for which it waits for a response.
    pub patience: Micros,
    /// The number of polls of its request after which the connection is cut, if at all.
    pub cut_after_polls: Option<u32>,
    /// True if it sends more requests after it got the outcome.
    pub insists: bool,
    /// The number of seconds that it prefers to wait (`Prefer: wait`) before a 202.
    pub wait_seconds: Option<u32>,
}

/// A planned fault, or action of an operator.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// The number, which stays the same when others are left out.
    pub number: usize,
    /// The time.
    pub at: Micros,
    /// The fault.
    pub fault: Fault,
}

/// A fault, or an action of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node crashes, a number of polls after the time, and starts again later.
    Crash {
        /// The node.
        node: usize,
        /// The number of polls.
        polls: u32,
        /// The time until it starts again.
        gone_for: Micros,
    },
    /// A node is suspended, a number of polls after the time.
    Suspend {
        /// The node.
        node: usize,
        /// The number of polls.
        polls: u32,
        /// The duration.
        length: Micros,
    },
    /// A node shuts down in an orderly way, and starts again later.
    Shutdown {
        /// The node.
        node: usize,
        /// The time for which it waits for running operations.
        patience: Micros,
        /// True if the store is unreachable meanwhile.
        is_cut_off: bool,
        /// The time until it starts again.
        gone_for: Micros,
    },
    /// The store is unreachable for a node.
    CutStore {
        /// The node.
        node: usize,
        /// The duration.
        length: Micros,
        /// True if calls hang instead of failing at once.
        hangs: bool,
    },
    /// The store's answers are lost more often.
    Noise {
        /// The duration.
        length: Micros,
        /// The number of affected calls in a thousand.
        per_mille: u64,
    },
    /// The store's clock is set back, or forward.
    StoreClock {
        /// The difference, in microseconds: less than zero if it is set back.
        by: i64,
    },
    /// A node's wall clock is changed.
    WallClock {
        /// The node.
        node: usize,
        /// The difference, in microseconds.
        by: i64,
    },
    /// A node's store reports that it cannot be trusted any more.
    Corrupt {
        /// The node.
        node: usize,
        /// The time until the node starts again afterwards.
        gone_for: Micros,
    },
    /// A node's journal cannot be written or read.
    JournalDown {
        /// The node.
        node: usize,
        /// The duration.
        length: Micros,
    },
    /// An operator settles an unknown key truthfully, or forgets a settled one.
    Operator {
        /// The node that gets the request.
        node: usize,
        /// The operation.
        operation: usize,
        /// True if a settled key is forgotten.
        forgets: bool,
    },
    /// A node reaps and sweeps at an unscheduled time.
    Housekeeping {
        /// The node.
        node: usize,
    },
}

impl Fault {
    /// True if it can happen only between a node and a store on another machine.
    const fn is_of_the_network(&self) -> bool {
        matches!(self, Self::CutStore { .. } | Self::Noise { .. })
    }
}

/// The misbehaviour of the upstream before faults end, each in a number of runs in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpstreamPlan {
    /// The upstream answers something else, is slow, or gets its request late.
    pub noise_per_mille: u64,
    /// The upstream works for up to the upstream timeout, and no longer.
    pub slow_per_mille: u64,
    /// The request arrives after the upstream timeout.
    pub late_per_mille: u64,
    /// The upstream says that it did nothing.
    pub refuses_per_mille: u64,
}

/// Everything that a seed decides in advance.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The nodes.
    pub nodes: Vec<NodePlan>,
    /// The operations.
    pub operations: Vec<OperationPlan>,
    /// The faults.
    pub faults: Vec<FaultPlan>,
    /// The number of calls in a thousand in which the store misbehaves even without a fault.
    pub noise_per_mille: u64,
    /// The misbehaviour of the upstream.
    pub upstream: UpstreamPlan,
    /// The longest delay of a message without a fault.
    pub delay_max: Micros,
    /// The end of all faults.
    pub faults_end: Micros,
    /// True if wall clocks agree and configurations are the same. Some promises need that.
    pub is_uniform: bool,
    /// True if one node owns the store alone, and opening the store makes running attempts unknown
    /// (as in the embedded store).
    pub is_exclusive: bool,
    /// True if routes of the mode `retry` are fail-open, too.
    pub retry_fails_open: bool,
    /// True if fail-open routes have a velocity limit, which no client reaches.
    pub fail_open_is_counted: bool,
    /// True if a write that the store answers with "unavailable" can be applied, now or later. The
    /// contract of a store rules that out. Only promises about keys that are free again rely on it.
    pub unavailable_may_be_applied: bool,
    /// The rare situation of this plan, if there is one.
    pub theme: Option<Theme>,
}

impl Plan {
    /// Creates the plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, "plan");
        let faults_end = random.between(10, 40) * SECOND;
        let is_uniform = random.chance(500);
        let is_exclusive = random.chance(150);
        let count = if is_exclusive { 1 } else { random.pick(&[1, 2, 2, 3, 3], 2) };
        let first = node(&mut random, is_uniform);
        let nodes: Vec<NodePlan> = (0..count)
            .map(|number| {
                let mut other = if number == 0 { first } else { node(&mut random, is_uniform) };
                if is_uniform {
                    // Everything that clients can see is the same on all nodes. Each node has its
                    // own clock and secrets.
                    other = other.like(&first);
                }
                other
            })
            .collect();
        let calm = random.chance(150);
        // A store inside its process has no network that could fail.
        let is_quiet = calm || is_exclusive;
        let noise_per_mille = if is_quiet { 0 } else { random.pick(&[0, 5, 20, 60], 0) };
        let noise = random.pick(&[0, 100, 300, 600], 100);
        let upstream = UpstreamPlan { noise_per_mille: noise, ..UpstreamPlan::default() };
        let delay_max = random.pick(&[2, 10, 50, 200], 10) * MILLISECOND;
        let ttl = onetake_core::clock::micros(first.terms.ttl);
        let operations = (0..random.between(1, 9) as usize)
            .map(|number| operation(&mut random, number, faults_end, ttl))
            .collect::<Vec<_>>();
        let faults_max = if calm { 0 } else { random.pick(&[1, 3, 6, 12], 3) };
        let faults = (0..random.between(0, faults_max) as usize)
            .map(|number| fault(&mut random, number, &nodes, &operations, faults_end))
            .filter(|planned| !is_exclusive || !planned.fault.is_of_the_network())
            .collect();
        let mut routes = Random::new(seed, "routes");
        let mut plan = Self {
            seed,
            nodes,
            operations,
            faults,
            noise_per_mille,
            upstream,
            delay_max,
            faults_end,
            is_uniform,
            is_exclusive,
            retry_fails_open: routes.chance(300),
            fail_open_is_counted: routes.chance(500),
            unavailable_may_be_applied: routes.chance(150),
            theme: None,
        };
        theme::apply(&mut plan);
        plan.bound_steps_forward();
        plan
    }

    /// Returns true if the route runs operations without a record while the store is unreachable.
    #[must_use]
    pub fn fails_open(&self, mode: Mode) -> bool {
        mode == Mode::FailOpen || (mode == Mode::Retry && self.retry_fails_open)
    }

    /// Sets the store's clock forward once at most, by a quarter of the shortest grace. The grace is
    /// what covers such a step: with a longer one, a lease can end while its owner relies on it.
    fn bound_steps_forward(&mut self) {
        let graces = self.nodes.iter().map(|node| onetake_core::clock::micros(node.terms.grace));
        let max = (graces.min().unwrap_or(0) / 4).cast_signed();
        let mut is_first = true;
        for planned in &mut self.faults {
            if let Fault::StoreClock { by } = &mut planned.fault
                && *by > 0
            {
                *by = if is_first { max.min(*by) } else { -*by };
                is_first = false;
            }
        }
    }

    /// Returns the longest lease and grace of any node.
    #[must_use]
    pub fn lease_and_grace(&self) -> Micros {
        let each = self.nodes.iter().map(|node| node.terms.lease + node.terms.grace);
        each.max().map_or(0, onetake_core::clock::micros)
    }
}

fn millis(random: &mut Random, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.between(from, to))
}

fn node(random: &mut Random, is_uniform: bool) -> NodePlan {
    let lease = millis(random, 1_000, 4_000);
    let grace = lease * u32::try_from(random.between(5, 15)).unwrap_or(10) / 10;
    let ttl = if random.chance(300) {
        millis(random, 8_000, 30_000)
    } else {
        millis(random, 120_000, 240_000)
    };
    let drift = 10_000_u64;
    let offset = if is_uniform { 0 } else { 3 * SECOND };
    NodePlan {
        drift_ppm: random.between(0, 2 * drift).cast_signed() - drift.cast_signed(),
        wall_offset: random.between(0, 2 * offset).cast_signed() - offset.cast_signed(),
        terms: Terms { ttl, lease, grace, on_unknown: OnUnknown::Fail },
        run_max: millis(random, 500, 6_000),
        waiting: if random.chance(400) {
            WaitMode::Reject
        } else {
            WaitMode::Wait(millis(random, 100, 8_000))
        },
        async_wait: millis(random, 50, 2_000),
        has_journal: random.chance(500),
        seals_with_newer: random.chance(500),
        limits: limits(random),
        reap_every: millis(random, 300, 3_000),
        sweep_every: millis(random, 1_000, 9_000),
    }
}

fn limits(random: &mut Random) -> LimitsPlan {
    LimitsPlan {
        running_max: random.pick(&[1, 2, 4, 100, 100, 100], 100),
        waiting_max: random.pick(&[1, 2, 100, 100, 100], 100),
        waiting_per_key_max: random.pick(&[1, 2, 100, 100, 100], 100),
        batch_items_max: random.pick(&[1, 2, 8, 64], 8),
        writers_max: random.pick(&[1, 1, 2, 3], 1),
        cache_bytes_max: random.pick(&[0, 3_000, 1 << 20], 1 << 20),
        cache_age_max: millis(random, 500, 5_000),
        poll_interval: millis(random, 40, 400),
        claim_patience: millis(random, 400, 3_000),
        settle_patience: millis(random, 300, 3_000),
    }
}

fn operation(random: &mut Random, number: usize, faults_end: Micros, ttl: Micros) -> OperationPlan {
    let mode = random.pick(&Mode::ALL, Mode::Plain);
    let begins = random.below(faults_end);
    let mut clients = (0..random.pick(&[1, 2, 2, 3, 5], 2))
        .map(|number| {
            let apart = random.pick(&[20 * MILLISECOND, 500 * MILLISECOND, 10 * SECOND], SECOND);
            let patience_max = random.pick(&[10, 10, 40], 10) * SECOND;
            ClientPlan {
                number,
                starts_at: begins + random.below(apart),
                payload: u8::from(number > 0 && random.chance(150)),
                tries: u32::try_from(random.between(1, 6)).unwrap_or(1),
                pause: random.between(20 * MILLISECOND, 4 * SECOND),
                patience: random.between(100 * MILLISECOND, patience_max),
                cut_after_polls: random
                    .chance(200)
                    .then(|| u32::try_from(random.below(12)).unwrap_or(0)),
                insists: random.chance(100),
                wait_seconds: None,
            }
        })
        .collect::<Vec<_>>();
    if random.chance(250) {
        // A client sends requests repeatedly while the outcome is about to expire.
        let starts_at = (begins + ttl).saturating_sub(random.between(2, 4) * SECOND);
        let pause = random.between(200 * MILLISECOND, SECOND);
        clients.push(ClientPlan {
            number: clients.len(),
            starts_at,
            payload: 0,
            tries: 12,
            pause,
            patience: 2 * SECOND,
            cut_after_polls: None,
            insists: true,
            wait_seconds: None,
        });
    }
    OperationPlan { number, mode, tenant: u8::from(random.chance(300)), clients }
}

fn fault(
    random: &mut Random,
    number: usize,
    nodes: &[NodePlan],
    operations: &[OperationPlan],
    faults_end: Micros,
) -> FaultPlan {
    // Half of the faults happen while a client sends requests.
    let asked = operations.get(random.index(operations.len())).and_then(|it| it.clients.first());
    let begins = asked.filter(|_| random.chance(500)).map(|client| client.starts_at);
    let near = random.below(SECOND);
    let at = begins.map_or_else(|| random.below(faults_end), |begins| begins + near);
    let node = random.index(nodes.len());
    let lease = nodes
        .get(node)
        .map_or(SECOND, |node| onetake_core::clock::micros(node.terms.lease + node.terms.grace));
    let polls = u32::try_from(random.below(40)).unwrap_or(0);
    let length = random.between(50 * MILLISECOND, 3 * lease);
    let fault = match random.below(24) {
        0..=3 => Fault::Crash { node, polls, gone_for: length },
        4..=6 => Fault::Suspend { node, polls, length },
        7..=9 => {
            let (patience, is_cut_off) = (random.below(5 * SECOND), random.chance(600));
            Fault::Shutdown { node, patience, is_cut_off, gone_for: length }
        }
        10..=11 => Fault::CutStore { node, length, hangs: random.chance(500) },
        12..=13 => Fault::Noise { length, per_mille: random.between(100, 700) },
        14 => {
            let by = random.between(MILLISECOND, lease / 4).cast_signed();
            Fault::StoreClock { by: if by % 2 == 0 { by } else { -by } }
        }
        15 => {
            let by = random.between(0, 4 * SECOND).cast_signed() - (2 * SECOND).cast_signed();
            Fault::WallClock { node, by }
        }
        16 => Fault::Corrupt { node, gone_for: length },
        17 => Fault::JournalDown { node, length },
        18..=21 => {
            let (operation, forgets) = (random.index(operations.len()), random.chance(400));
            Fault::Operator { node, operation, forgets }
        }
        _ => Fault::Housekeeping { node },
    };
    FaultPlan { number, at, fault }
}
