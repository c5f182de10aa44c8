//! A node: one process with a real engine and a real HTTP layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::request::Parts;
use onetake_core::engine::{Engine, Housekeeping, Limits, ReconcileOptions};
use onetake_core::{Clock, FingerprintKey, OnRetry, Terms};
use onetake_http::{
    HttpLimits, InFlight, MemoField, OnStoreDown, Onetake, OnetakeLayer, Policy, Secrets, Tenant,
};
use tower_layer::Layer;

use super::executor::Executor;
use super::gauges::EngineGauges;
use super::journal::SimulatedJournal;
use super::node_store::NodeStore;
use super::plan::{Mode, NodePlan, WaitMode};
use super::random::{Random, SeededRng};
use super::reconciler::Desk;
use super::timeline::{MILLISECOND, Micros, SimulatedClock};
use super::upstream::{ARRIVED_AT, Proxy, TENANT};
use super::world::World;

/// The service of a node: the layer around the proxy.
pub type Front = Onetake<Proxy>;

/// A fault that happens after a number of polls.
#[derive(Clone, Copy, Debug)]
pub enum Armed {
    /// The process ends.
    Crash {
        /// The number of polls that are left.
        polls: u32,
        /// The time until the process starts again.
        gone_for: Micros,
    },
    /// The process is suspended.
    Suspend {
        /// The number of polls that are left.
        polls: u32,
        /// The duration.
        length: Micros,
    },
}

/// One node, running or gone.
#[derive(Debug)]
pub struct Node {
    /// Its number.
    pub index: usize,
    /// Its configuration.
    pub plan: NodePlan,
    /// Its clock, which survives the process.
    pub clock: Arc<SimulatedClock>,
    /// The running process.
    pub process: Option<Process>,
    /// The end of its suspension.
    pub suspended_until: Micros,
    /// A fault that is about to happen.
    pub armed: Option<Armed>,
    incarnation: u64,
}

/// A running process.
#[derive(Debug)]
pub struct Process {
    /// Its tasks.
    pub executor: Executor,
    /// Its engine.
    pub engine: Engine,
    /// The gauges of its engine.
    pub gauges: EngineGauges,
    /// Its service.
    pub front: Front,
    /// The number of this start of the node.
    pub incarnation: u64,
    is_alive: Arc<AtomicBool>,
}

impl Node {
    /// Creates a node that is not running yet.
    #[must_use]
    pub fn new(world: &Arc<World>, index: usize, plan: NodePlan) -> Self {
        let clock = SimulatedClock::new(&world.timeline, index + 1, plan.drift_ppm);
        clock.step_wall(plan.wall_offset);
        let (process, suspended_until, armed, incarnation) = (None, 0, None, 0);
        Self { index, plan, clock, process, suspended_until, armed, incarnation }
    }

    /// Starts the process.
    pub fn start(&mut self, world: &Arc<World>) {
        let Ok(executor) = Executor::new() else {
            world.history.violate(world.now(), "simulation", "no runtime could be made".into());
            return;
        };
        let Some(handle) = executor.handle().cloned() else { return };
        self.incarnation += 1;
        let (index, incarnation) = (self.index, self.incarnation);
        world.history.event(world.now(), "start_node", &[index as u64, incarnation], || {
            format!("node {index}, start {incarnation}")
        });
        if world.plan.is_exclusive {
            world.backend.open(&world.history, world.now());
        }
        let is_alive = Arc::new(AtomicBool::new(true));
        let store = Arc::new(NodeStore::new(world, index, incarnation, &is_alive));
        let stream = format!("node {index} {incarnation}");
        let rng = Arc::new(SeededRng::new(Random::new(world.plan.seed, &stream)));
        let clock = Arc::<SimulatedClock>::clone(&self.clock) as Arc<dyn Clock>;
        // As in the gateway, or as in a service: by the seed, without changing its plan.
        let is_on_cores = (world.plan.seed ^ index as u64) & 1 == 1;
        let gauges = EngineGauges::default();
        let engine = {
            let _inside = handle.enter();
            let lanes = if is_on_cores { 2 } else { 1 };
            let mut builder = Engine::builder(store)
                .clock(clock)
                .rng(rng)
                .limits(Limits { lanes, ..limits(&self.plan) })
                .housekeeping(self.housekeeping());
            if is_on_cores {
                builder = builder.run_in_callers_task();
            }
            if self.plan.has_journal {
                builder = builder.journal(Arc::new(SimulatedJournal::new(world, index)));
            }
            let engine = gauges.of(|| builder.build());
            let asking =
                ReconcileOptions { interval: Duration::from_millis(700), batch: 4, at_once: 2 };
            engine.reconcile_with(Arc::new(Desk::new(world, index)), asking);
            engine
        };
        let secrets = secrets(self.plan.seals_with_newer);
        let http = HttpLimits::default().body_bytes_max(512 << 10);
        let layer = OnetakeLayer::builder(engine.clone())
            .resolve(Routes(policies(world, &self.plan)))
            .limits(http)
            .secrets(secrets)
            .around_whole_app()
            .build();
        let layer = match layer {
            Ok(layer) => layer,
            Err(error) => {
                world.history.violate(world.now(), "simulation", error.to_string());
                return;
            }
        };
        let front = layer.layer(Proxy::new(world, index, incarnation));
        watch_for_damage(world, &executor, &engine, index);
        self.process = Some(Process { executor, engine, gauges, front, incarnation, is_alive });
        world.mark_busy(index + 1);
    }

    /// Ends the process. Unsaved outcomes are lost if `is_lossy` is set.
    pub fn crash(&mut self, world: &World, is_lossy: bool) {
        self.armed = None;
        let Some(mut process) = self.process.take() else { return };
        let index = self.index;
        world.history.event(world.now(), "crash", &[index as u64], || format!("node {index}"));
        if is_lossy {
            world.history.lost_process(index, process.incarnation);
        }
        process.is_alive.store(false, Ordering::Relaxed);
        world.set_corrupt(index, false);
        process.executor.crash();
    }

    fn housekeeping(&self) -> Housekeeping {
        Housekeeping {
            reap_interval: self.plan.reap_every,
            reap_batch: 2,
            sweep_interval: self.plan.sweep_every,
            sweep_batch: 2,
            sweep_pause: Duration::from_millis(50),
        }
    }
}

/// The routes of a node. All tenants are named by a header.
struct Routes(Vec<(&'static str, Arc<Policy>)>);

impl onetake_http::Resolve for Routes {
    fn resolve(&self, parts: &Parts) -> Option<Arc<Policy>> {
        let (path, policy) = self.0.iter().find(|(path, _)| *path == parts.uri.path())?;
        let arrived_at = parts.headers.get(ARRIVED_AT).and_then(|value| value.to_str().ok());
        // Requests with different labels do not share the decision of a velocity limit.
        let is_labelled =
            policy.on_store_down == OnStoreDown::FailOpen && policy.velocity.is_empty();
        let Some(arrived_at) = arrived_at.filter(|_| is_labelled) else {
            return Some(Arc::clone(policy));
        };
        // The label becomes a part of the claim, so that the history knows whose claim it is.
        let policy = Policy::clone(policy).label(format!("{path} {arrived_at}"));
        policy.mark_checked();
        Some(Arc::new(policy))
    }

    fn handle_tenants(&self) -> Vec<Tenant> {
        vec![tenant()]
    }
}

/// Returns the time at which a request arrived, from the label of its policy.
pub(super) fn arrival_in(label: &str) -> Option<Micros> {
    label.split_once(' ')?.1.parse().ok()
}

fn tenant() -> Tenant {
    Tenant::Header(http::HeaderName::from_static(TENANT))
}

/// Ends the process when its store must not be used any more, as the gateway does.
fn watch_for_damage(world: &Arc<World>, executor: &Executor, engine: &Engine, index: usize) {
    let (engine, world) = (engine.clone(), Arc::clone(world));
    executor.spawn(async move {
        let _error = engine.fatal().await;
        engine.abort().await;
        let gone_for = world.decide("damage", |random| random.below(3_000) * MILLISECOND);
        world
            .timeline
            .after(0, Box::new(move |simulator| simulator.restart(index, gone_for, true)));
    });
}

fn limits(plan: &NodePlan) -> Limits {
    let planned = plan.limits;
    Limits {
        running_max: planned.running_max,
        waiting_max: planned.waiting_max,
        waiting_per_key_max: planned.waiting_per_key_max,
        batch_items_max: planned.batch_items_max,
        writers_max: planned.writers_max,
        cache_bytes_max: planned.cache_bytes_max,
        cache_age_max: planned.cache_age_max,
        poll_interval: planned.poll_interval,
        claim_patience: planned.claim_patience,
        settle_patience: planned.settle_patience,
        ..Limits::default()
    }
}

/// Returns a newer and an older secret. Every node recognises both, and seals with one of them.
fn secrets(seals_with_newer: bool) -> Secrets {
    let older = FingerprintKey::new("f1", &[1; 32]);
    let newer = FingerprintKey::new("f2", &[2; 32]);
    let keys = if seals_with_newer { [newer, older] } else { [older, newer] };
    Secrets::default().fingerprint(keys).handles([3; 32]).tenants([4; 32])
}

fn policies(world: &Arc<World>, plan: &NodePlan) -> Vec<(&'static str, Arc<Policy>)> {
    let routes = Mode::ALL.into_iter().filter(|mode| *mode != Mode::Job);
    let policy_of = |mode: Mode| {
        let policy = policy(world, plan, mode);
        // In some plans a record expires before it can be reconciled. The layer would refuse that.
        policy.mark_checked();
        (mode.path(), Arc::new(policy))
    };
    routes.map(policy_of).collect()
}

fn policy(world: &Arc<World>, plan: &NodePlan, mode: Mode) -> Policy {
    let in_flight = match (mode, plan.waiting) {
        (Mode::Async, _) => InFlight::Async(plan.async_wait),
        (_, WaitMode::Reject) => InFlight::Reject,
        (_, WaitMode::Wait(wait)) => InFlight::Wait(wait),
    };
    let policy = Policy::new()
        .label(mode.path())
        .key_required()
        .key_min_length(4)
        .tenant(tenant())
        .terms(terms(plan, mode))
        .in_flight(in_flight)
        .remember([MemoField::Key])
        .upstream_timeout(plan.run_max);
    let policy = match mode {
        Mode::Rollback => policy.transactional_unchecked(),
        Mode::Retry => policy.on_retry(roll_back(world)),
        _ => policy,
    };
    if !world.plan.fails_open(mode) {
        return policy;
    }
    let policy = policy.on_store_down(OnStoreDown::FailOpen);
    if world.plan.fail_open_is_counted { policy.velocity(["tenant"], "1000/s") } else { policy }
}

/// Returns the terms of a route.
#[must_use]
pub fn terms(plan: &NodePlan, mode: Mode) -> Terms {
    let mut terms = Terms { on_unknown: mode.on_unknown(), ..plan.terms };
    // Records to be reconciled are kept long enough for it, except in one configuration.
    if mode == Mode::Reconcile && plan.has_journal {
        terms.ttl = terms.ttl.max(Duration::from_secs(120));
    }
    terms
}

/// Returns a hook that rolls back the half-done work of an earlier attempt, and sometimes fails.
fn roll_back(world: &Arc<World>) -> OnRetry {
    let world = Arc::clone(world);
    OnRetry::new(move |again| {
        let world = Arc::clone(&world);
        async move {
            let is_calm = world.is_calm();
            let can = world.decide("roll back", |random| is_calm || !random.chance(200));
            if can {
                return Ok(());
            }
            world.history.not_rolled_back(again.attempt.attempt);
            Err("the simulated rollback failed".to_owned())
        }
    })
}
