//! The loop of a simulation: events in their order, processes in a seeded random order, and checks
//! at the end.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use super::client::{client, last_word};
use super::executor::Executor;
use super::history::{Actor, ReceivedResponse, Violation};
use super::node::{Armed, Node};
use super::operator::operate;
use super::plan::{Fault, Mode, Plan};
use super::random::Random;
use super::timeline::{Due, Micros, SECOND};
use super::upstream::SIMULATED_PANIC;
use super::world::World;

/// The time within which clients must end once all faults are over.
const CLIENTS_MAX: Micros = 400 * SECOND;
/// The time within which the final requests must end.
const LAST_WORDS_MAX: Micros = 1_500 * SECOND;
/// The time within which writes that are under way at the end must be done.
const WRITES_MAX: Micros = 10 * SECOND;
/// The maximum duration of a shutdown that nothing delays.
const SHUTDOWN_MAX: Micros = 60 * SECOND;

/// The last answer for each operation.
type LastWords = Arc<Mutex<Vec<(usize, Option<ReceivedResponse>)>>>;

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationReport {
    /// The invariant that was broken, if one was.
    pub violation: Option<Violation>,
    /// A digest of all events.
    pub hash: u64,
    /// The number of events.
    pub events: u64,
    /// The simulated time that passed.
    pub simulated: Micros,
    /// The events as text, if a trace was requested.
    pub trace: Vec<String>,
}

/// A simulation under way.
#[derive(Debug)]
pub struct Simulator {
    /// The state that all processes share.
    pub world: Arc<World>,
    /// The nodes.
    pub nodes: Vec<Node>,
    clients: Executor,
    scheduler: Random,
}

impl Simulator {
    /// Runs a plan to its end, or to the first violation.
    #[must_use]
    pub fn run(plan: Plan, traces: bool) -> SimulationReport {
        watch_panics();
        let world = World::new(plan, traces);
        let report = Executor::new().map(|clients| {
            let scheduler = Random::new(world.plan.seed, "scheduler");
            let nodes = world.plan.nodes.iter().enumerate();
            let nodes = nodes.map(|(index, plan)| Node::new(&world, index, *plan)).collect();
            let world = Arc::clone(&world);
            let mut simulator = Self { world, nodes, clients, scheduler };
            simulator.run_to_the_end();
            simulator.end();
        });
        if let Err(error) = report {
            world.history.violate(0, "simulation", format!("no runtime: {error}"));
        }
        world.timeline.clear();
        SimulationReport {
            violation: world.history.violation(),
            hash: world.history.hash(),
            events: world.history.events(),
            simulated: world.now(),
            trace: world.history.take_trace(),
        }
    }

    fn run_to_the_end(&mut self) {
        let world = Arc::clone(&self.world);
        for node in &mut self.nodes {
            node.start(&world);
        }
        let answered = self.start_clients();
        self.plan_faults();
        self.drive(world.plan.faults_end, |_| false);
        self.calm_down();
        let operations = &world.plan.operations;
        let clients: usize = operations.iter().map(|operation| operation.clients.len()).sum();
        let all_answered = |_: &Self| answered.load(Ordering::Relaxed) == clients;
        self.drive(world.now() + CLIENTS_MAX, all_answered);
        if !all_answered(self) {
            let (done, now) = (answered.load(Ordering::Relaxed), world.now());
            let what = format!("{done} of {clients} clients came to their end");
            world.history.violate(now, "every client is answered", what);
        }
        // Work without a waiting client ends too: leases, retries of settlements, journals.
        self.drive(world.now() + 2 * world.plan.lease_and_grace() + 70 * SECOND, |_| false);
        self.ask_for_last_words();
        // Answers are sent before the work after them is finished.
        self.drive(world.now() + world.plan.lease_and_grace() + 10 * SECOND, |_| false);
        self.check_that_nothing_is_left();
        self.shut_down_all();
    }

    fn start_clients(&self) -> Arc<AtomicUsize> {
        let answered = Arc::new(AtomicUsize::new(0));
        for operation in &self.world.plan.operations {
            for plan in &operation.clients {
                let key = super::history::key_text(operation.number, operation.mode);
                self.world.history.will_ask(operation.tenant, &key, plan.payload);
                let stream = format!("client {} {}", operation.number, plan.number);
                let asking = client(Arc::clone(&self.world), operation.clone(), *plan, stream);
                let answered = Arc::clone(&answered);
                self.clients.spawn(async move {
                    asking.await;
                    answered.fetch_add(1, Ordering::Relaxed);
                });
            }
        }
        answered
    }

    fn plan_faults(&self) {
        for planned in &self.world.plan.faults {
            let (fault, number) = (planned.fault.clone(), planned.number);
            let happens = move |simulator: &mut Self| simulator.fault(number, fault);
            self.world.timeline.after(planned.at, Box::new(happens));
        }
    }

    fn fault(&mut self, number: usize, fault: Fault) {
        let world = Arc::clone(&self.world);
        if world.is_calm() {
            return;
        }
        let now = world.now();
        world.history.event(now, "fault", &[number as u64], || format!("{number}: {fault:?}"));
        match fault {
            Fault::Crash { node, polls, gone_for } => {
                self.arm(node, Armed::Crash { polls, gone_for });
            }
            Fault::Suspend { node, polls, length } => {
                self.arm(node, Armed::Suspend { polls, length });
            }
            Fault::Shutdown { node, patience, is_cut_off, gone_for } => {
                if is_cut_off && !world.plan.is_exclusive {
                    world.cut_store(node, patience + 20 * SECOND, false);
                }
                self.shut_down(node, patience, gone_for);
            }
            Fault::CutStore { node, length, hangs } => world.cut_store(node, length, hangs),
            Fault::Noise { length, per_mille } => world.add_noise(length, per_mille),
            Fault::StoreClock { by } => world.backend.clock().step_wall(by),
            Fault::WallClock { node, by } => {
                if let Some(node) = self.nodes.get(node) {
                    node.clock.step_wall(by);
                }
            }
            Fault::Corrupt { node, .. } => world.set_corrupt(node, true),
            Fault::JournalDown { node, length } => {
                if let Some(disk) = world.disks.get(node) {
                    disk.fail_until(now + length);
                }
            }
            Fault::Operator { node, operation, forgets } => {
                if let Some(process) = self.nodes.get(node).and_then(|it| it.process.as_ref()) {
                    let engine = process.engine.clone();
                    process.executor.spawn(operate(world, node, engine, operation, forgets));
                }
            }
            Fault::Housekeeping { node } => {
                if let Some(process) = self.nodes.get(node).and_then(|it| it.process.as_ref()) {
                    let engine = process.engine.clone();
                    process.executor.spawn(async move {
                        engine.reap(10).await;
                        engine.sweep(10).await;
                    });
                }
            }
        }
        for place in 0..=self.nodes.len() {
            self.world.mark_busy(place);
        }
    }

    fn arm(&mut self, node: usize, armed: Armed) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.armed = Some(armed);
        }
    }

    /// Shuts a node down in an orderly way. Then its process ends, and starts again later.
    fn shut_down(&mut self, index: usize, patience: Micros, gone_for: Micros) {
        let Some(process) = self.nodes.get(index).and_then(|node| node.process.as_ref()) else {
            return;
        };
        let (engine, world) = (process.engine.clone(), Arc::clone(&self.world));
        // The node's clock may be a little too fast.
        let patient_until = world.now() + patience - patience / 50;
        world.history.shuts_down(index, process.incarnation, patient_until);
        world.history.closes(world.now(), Actor::Node(index, process.incarnation));
        // Unsaved outcomes are in the journal, unless there is none or it could not be written.
        let has_journal = self.nodes.get(index).is_some_and(|node| node.plan.has_journal);
        let breaks =
            |fault: &Fault| matches!(fault, Fault::JournalDown { .. } | Fault::Corrupt { .. });
        let is_lossy =
            !has_journal || world.plan.faults.iter().any(|planned| breaks(&planned.fault));
        process.executor.spawn(async move {
            let _drained = engine.shutdown(Duration::from_micros(patience)).await;
            let ends = move |simulator: &mut Self| simulator.restart(index, gone_for, is_lossy);
            world.timeline.after(0, Box::new(ends));
        });
    }

    /// Ends a node's process, and starts it again later.
    pub fn restart(&mut self, index: usize, gone_for: Micros, is_lossy: bool) {
        let world = Arc::clone(&self.world);
        let Some(node) = self.nodes.get_mut(index) else { return };
        if node.process.is_none() {
            return;
        }
        node.crash(&world, is_lossy);
        let starts = move |simulator: &mut Self| {
            let world = Arc::clone(&simulator.world);
            if let Some(node) = simulator.nodes.get_mut(index).filter(|it| it.process.is_none()) {
                node.start(&world);
            }
        };
        world.timeline.after(gone_for, Box::new(starts));
    }

    /// Ends all faults: every node runs, and all connections work.
    fn calm_down(&mut self) {
        let world = Arc::clone(&self.world);
        world.calm_down();
        world.history.event(world.now(), "calm", &[], String::new);
        for node in &mut self.nodes {
            (node.suspended_until, node.armed) = (0, None);
            if node.process.is_none() {
                node.start(&world);
            }
            world.mark_busy(node.index + 1);
        }
    }

    /// Runs the simulation until a time, or until a condition holds.
    fn drive(&mut self, until: Micros, is_done: impl Fn(&Self) -> bool) {
        let world = Arc::clone(&self.world);
        loop {
            self.run_processes();
            take_panic(&world);
            if world.history.is_violated() || is_done(self) {
                return;
            }
            match world.timeline.next(until) {
                None => return world.timeline.advance_to(until),
                Some(Due::Wake(waker, place)) => {
                    waker.wake();
                    world.mark_busy(place);
                }
                Some(Due::Act(action)) => action(self),
            }
        }
    }

    /// Runs processes, one after the other in random order, until all of them wait.
    fn run_processes(&mut self) {
        let mut ready = Vec::with_capacity(self.nodes.len() + 1);
        loop {
            ready.clear();
            ready.extend((0..=self.nodes.len()).filter(|place| self.can_run(*place)));
            if ready.is_empty() {
                return;
            }
            let place = self.scheduler.pick(&ready, 0);
            match place.checked_sub(1) {
                None => {
                    self.world.take_busy(place);
                    self.clients.run_until_idle();
                }
                Some(index) => self.run_node(index),
            }
        }
    }

    fn can_run(&self, place: usize) -> bool {
        if !self.world.is_busy(place) {
            return false;
        }
        let Some(index) = place.checked_sub(1) else { return true };
        let now = self.world.now();
        self.nodes
            .get(index)
            .is_some_and(|node| node.process.is_some() && node.suspended_until <= now)
    }

    fn run_node(&mut self, index: usize) {
        let world = Arc::clone(&self.world);
        let scheduler = &mut self.scheduler;
        let Some(node) = self.nodes.get_mut(index) else { return };
        let Some(process) = &node.process else { return };
        match &mut node.armed {
            Some(Armed::Crash { polls: 0, gone_for }) => {
                let gone_for = *gone_for;
                self.restart(index, gone_for, true);
            }
            Some(Armed::Suspend { polls: 0, length }) => {
                let until = world.now().saturating_add(*length);
                node.armed = None;
                node.suspended_until = until;
                world.history.suspends(world.now(), index, until);
                let length = until.saturating_sub(world.now());
                world.history.event(world.now(), "suspend", &[index as u64], || {
                    format!("node {index} for {length} us")
                });
                let resumes = move |simulator: &mut Self| simulator.world.mark_busy(index + 1);
                world.timeline.after(length, Box::new(resumes));
            }
            Some(Armed::Crash { polls, .. } | Armed::Suspend { polls, .. }) => {
                *polls -= 1;
                process.executor.run_polls(1);
            }
            None if scheduler.chance(150) => {
                process.executor.run_polls(1 + u32::try_from(scheduler.below(5)).unwrap_or(0));
            }
            None => {
                world.take_busy(index + 1);
                process.executor.run_until_idle();
            }
        }
        self.check_waiting(index);
    }

    /// Checks the number of callers that wait in a process (S19). The history checks the number of
    /// its running operations.
    fn check_waiting(&self, index: usize) {
        let Some(node) = self.nodes.get(index) else { return };
        let Some(process) = &node.process else { return };
        let (waiting, max) = (process.gauges.waiting(), node.plan.limits.waiting_max);
        if usize::try_from(waiting).is_ok_and(|waiting| waiting > max) {
            let what = format!("{waiting} callers wait on node {index}, and {max} are allowed");
            self.world.history.violate(self.world.now(), "S19", what);
        }
    }

    /// Requests every key once more. Each must have an outcome, or a final answer that it has none.
    fn ask_for_last_words(&mut self) {
        let world = Arc::clone(&self.world);
        let words = LastWords::default();
        let operations = world.plan.operations.clone();
        let count = operations.len();
        for operation in operations {
            let (words, world) = (Arc::clone(&words), Arc::clone(&world));
            self.clients.spawn(async move {
                let number = operation.number;
                let payload = operation.clients.first().map_or(0, |client| client.payload);
                let heard = last_word(world, operation, payload).await;
                words.lock().unwrap_or_else(PoisonError::into_inner).push((number, heard));
            });
        }
        world.mark_busy(0);
        let heard = |_: &Self| words.lock().unwrap_or_else(PoisonError::into_inner).len() == count;
        self.drive(world.now() + LAST_WORDS_MAX, heard);
        if world.history.is_violated() {
            return;
        }
        let words = words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.len() < count {
            let what = format!("{} of {count} keys were answered for good", words.len());
            world.history.violate(world.now(), "every key settles", what);
        }
        for operation in &world.plan.operations {
            let word = words.iter().find(|(number, _)| *number == operation.number);
            let heard = word.and_then(|(_, heard)| heard.as_ref());
            let is_refused = heard.is_some_and(|heard| {
                // An operator may have declared that it failed.
                let is_failed = String::from_utf8_lossy(&heard.body)
                    .contains("failed, and the operation is not run again");
                heard.code.as_deref() == Some("previous_attempt_failed") && !is_failed
            });
            let runs_again = matches!(operation.mode, Mode::Retry | Mode::Rollback);
            if runs_again && is_refused {
                let what = format!("operation {} may run again, and does not", operation.number);
                world.history.violate(world.now(), "every key settles", what);
            }
        }
    }

    /// Checks that nothing runs, waits or is in a queue or a journal any more, and that attempts
    /// that never started are not unknown.
    fn check_that_nothing_is_left(&mut self) {
        let world = Arc::clone(&self.world);
        // The engine goes on to release claims whose answers were lost. One such release may be
        // under way now.
        let writes = |simulator: &Self| {
            let processes = simulator.nodes.iter().filter_map(|node| node.process.as_ref());
            processes.map(|process| process.engine.queued_writes()).sum::<usize>()
        };
        self.drive(world.now() + WRITES_MAX, |simulator| writes(simulator) == 0);
        let (history, now) = (&world.history, world.now());
        for (id, stands) in history.unfinished() {
            history.violate(now, "every key settles", format!("{id:?} is still {stands}"));
        }
        for (id, run) in history.lost_outcomes() {
            let what = format!("run {run} of {id:?} had answered, and its outcome is not recorded");
            history.violate(now, "outcomes are not lost", what);
        }
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let busy = history.ids().into_iter().find(|id| process.engine.is_under_way(*id));
            if let Some(id) = busy {
                let what = format!("node {} still has {id:?} under way", node.index);
                history.violate(now, "memory is empty", what);
            }
            let (running, waiting) = (process.gauges.running(), process.gauges.waiting());
            let queued = process.engine.queued_writes();
            if (running, waiting, queued) != (0, 0, 0) {
                let what = format!(
                    "node {} has {running} operations, {waiting} waiting callers, {queued} writes",
                    node.index
                );
                history.violate(now, "memory is empty", what);
            }
            let files = world.disks.get(node.index).map_or(0, super::journal::Disk::files);
            if files > 0 && node.plan.has_journal {
                let what = format!("the journal of node {} has {files} files", node.index);
                history.violate(now, "journals are empty", what);
            }
            if world.plan.unavailable_may_be_applied {
                continue;
            }
            let own = Actor::Node(node.index, process.incarnation);
            for (id, attempt) in history.unknown_but_never_started(own) {
                let what = format!("{id:?} is unknown although {attempt:?} never started");
                history.violate(now, "unknown means started", what);
            }
        }
    }

    /// Shuts down all nodes. Nothing may delay that any more.
    fn shut_down_all(&mut self) {
        let world = Arc::clone(&self.world);
        if world.history.is_violated() {
            return;
        }
        let done = Arc::new(AtomicUsize::new(0));
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let (engine, done) = (process.engine.clone(), Arc::clone(&done));
            let (world, index) = (Arc::clone(&world), node.index);
            process.executor.spawn(async move {
                match engine.shutdown(Duration::from_secs(20)).await {
                    Ok(true) => {}
                    other => {
                        let what = format!("node {index} did not drain: {other:?}");
                        world.history.violate(world.now(), "shutdown drains", what);
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
            self.world.mark_busy(index + 1);
        }
        let count = self.nodes.len();
        let all = |_: &Self| done.load(Ordering::Relaxed) == count;
        self.drive(world.now() + SHUTDOWN_MAX, all);
        if !all(self) && !world.history.is_violated() {
            let what = "a node did not come to its end".to_owned();
            world.history.violate(world.now(), "shutdown drains", what);
        }
    }

    /// Ends all processes.
    fn end(&mut self) {
        for node in &mut self.nodes {
            if let Some(mut process) = node.process.take() {
                process.executor.crash();
            }
        }
        self.clients.crash();
    }
}

thread_local! {
    /// The message of an unplanned panic on this thread.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records unplanned panics, and silences planned ones.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or_default();
            if text == SIMULATED_PANIC {
                return;
            }
            PANICKED.with(|panicked| {
                if let Ok(mut panicked) = panicked.try_borrow_mut() {
                    *panicked = Some(info.to_string());
                }
            });
            usual(info);
        }));
    });
    PANICKED.with(|panicked| panicked.borrow_mut().take());
}

fn take_panic(world: &World) {
    if let Some(what) = PANICKED.with(|panicked| panicked.borrow_mut().take()) {
        world.history.violate(world.now(), "no panic", what);
    }
}
