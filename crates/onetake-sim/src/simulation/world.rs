//! The state that all processes of a simulation share: time, the network, the store's server, the
//! upstream, the disks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::backend::Backend;
use super::history::History;
use super::journal::Disk;
use super::plan::Plan;
use super::random::Random;
use super::timeline::{ExecutorIndex, Micros, Timeline};

/// The world around the nodes.
#[derive(Debug)]
pub struct World {
    /// The plan.
    pub plan: Plan,
    /// The time.
    pub timeline: Arc<Timeline>,
    /// The history.
    pub history: History,
    /// The store's server.
    pub backend: Backend,
    /// The disks of the nodes.
    pub disks: Vec<Disk>,
    links: Mutex<Links>,
    streams: Mutex<BTreeMap<String, Random>>,
    busy: Vec<AtomicBool>,
    calm: AtomicBool,
}

/// The state of the network between the nodes and the store.
#[derive(Debug)]
struct Links {
    /// Nodes for which the store is unreachable: the end of the outage, and true if calls hang.
    cut: BTreeMap<usize, (Micros, bool)>,
    noise_until: Micros,
    noise_per_mille: u64,
    corrupt: BTreeMap<usize, bool>,
}

impl World {
    /// Creates a world without events.
    #[must_use]
    pub fn new(plan: Plan, traces: bool) -> Arc<Self> {
        let timeline = Timeline::new(plan.seed);
        let nodes = plan.nodes.len();
        Arc::new(Self {
            history: History::new(&plan, traces),
            backend: Backend::new(&timeline),
            disks: (0..nodes).map(|_| Disk::default()).collect(),
            links: Mutex::new(Links {
                cut: BTreeMap::new(),
                noise_until: 0,
                noise_per_mille: 0,
                corrupt: BTreeMap::new(),
            }),
            streams: Mutex::default(),
            busy: (0..=nodes).map(|_| AtomicBool::new(true)).collect(),
            calm: AtomicBool::new(false),
            timeline,
            plan,
        })
    }

    /// Returns the present time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.timeline.now()
    }

    /// Makes a decision with the random stream of this name.
    pub fn decide<T>(&self, stream: &str, decide: impl FnOnce(&mut Random) -> T) -> T {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = self.plan.seed;
        if let Some(random) = streams.get_mut(stream) {
            return decide(random);
        }
        let random = streams.entry(stream.to_owned()).or_insert_with(|| Random::new(seed, stream));
        decide(random)
    }

    /// Records that a process has work.
    pub fn mark_busy(&self, place: ExecutorIndex) {
        if let Some(busy) = self.busy.get(place) {
            busy.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if a process has work, and clears that mark.
    pub(super) fn take_busy(&self, place: ExecutorIndex) -> bool {
        self.busy.get(place).is_some_and(|busy| busy.swap(false, Ordering::Relaxed))
    }

    /// Returns true if a process has work.
    pub(super) fn is_busy(&self, place: ExecutorIndex) -> bool {
        self.busy.get(place).is_some_and(|busy| busy.load(Ordering::Relaxed))
    }

    /// Ends all faults. From now on, everything must come to an end.
    pub fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
        let mut links = self.links();
        links.cut.clear();
        links.corrupt.clear();
        links.noise_until = 0;
    }

    /// Returns true if all faults are over.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// Makes the store unreachable for a node.
    pub fn cut_store(&self, node: usize, length: Micros, hangs: bool) {
        let until = self.now().saturating_add(length);
        self.links().cut.insert(node, (until, hangs));
    }

    /// Makes the store's network unreliable.
    pub fn add_noise(&self, length: Micros, per_mille: u64) {
        let until = self.now().saturating_add(length);
        let mut links = self.links();
        (links.noise_until, links.noise_per_mille) = (until, per_mille);
    }

    /// Sets or clears the damage of a node's store.
    pub fn set_corrupt(&self, node: usize, is_corrupt: bool) {
        self.links().corrupt.insert(node, is_corrupt);
    }

    /// Returns true if a node's store reports damage.
    #[must_use]
    pub fn is_corrupt(&self, node: usize) -> bool {
        self.links().corrupt.get(&node).copied().unwrap_or(false)
    }

    /// Returns whether calls of a node hang, if the store is unreachable for it; `None` otherwise.
    #[must_use]
    pub fn is_cut(&self, node: usize) -> Option<bool> {
        let now = self.now();
        self.links().cut.get(&node).filter(|(until, _)| *until > now).map(|(_, hangs)| *hangs)
    }

    /// Returns the number of calls in a thousand in which the store misbehaves now.
    #[must_use]
    pub fn noise_per_mille(&self) -> u64 {
        if self.is_calm() {
            return 0;
        }
        let now = self.now();
        let links = self.links();
        if links.noise_until > now {
            links.noise_per_mille.max(self.plan.noise_per_mille)
        } else {
            self.plan.noise_per_mille
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
