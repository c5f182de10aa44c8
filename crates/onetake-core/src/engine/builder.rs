//! The builder of an engine.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::clock::{Clock, Rng, SystemClock, SystemRng};
use crate::store::Store;

use super::tasks::Tasks;
use super::{Engine, Housekeeping, Journal, Limits};

/// Builds an engine: see [`Engine::builder`].
#[derive(Debug)]
pub struct EngineBuilder {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    limits: Limits,
    housekeeping: Option<Housekeeping>,
    journal: Option<Arc<dyn Journal>>,
    in_callers_task: bool,
}

impl Engine {
    /// Builds an engine on `store`. By default it has the system's clock, [`Limits::default`], a
    /// reaper and a sweeper, and no journal.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder {
            store,
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            limits: Limits::default(),
            housekeeping: Some(Housekeeping::default()),
            journal: None,
            in_callers_task: false,
        }
    }
}

impl EngineBuilder {
    /// Sets the journal: a place on this machine for outcomes that the store did not take before
    /// [`shutdown`](Engine::shutdown). The engine settles the entries that it finds there, in the
    /// background, and looks again from time to time.
    #[must_use]
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Sets every bound of the engine.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how often the reaper and the sweeper run; `None` if another process does their work.
    #[must_use]
    pub fn housekeeping(mut self, housekeeping: impl Into<Option<Housekeeping>>) -> Self {
        self.housekeeping = housekeeping.into();
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of randomness.
    #[must_use]
    pub fn rng(mut self, rng: Arc<dyn Rng>) -> Self {
        self.rng = rng;
        self
    }

    /// Runs each operation in the task of its caller, which saves a task per operation. By default
    /// each operation has its own task, on the runtime that the engine was built in. In both cases
    /// an operation outlives a caller that is dropped: then it gets a task on the caller's runtime.
    ///
    /// Use it for a server that polls all requests until they are answered or dropped. A caller
    /// that holds its future without polling it would hold up the writes of others. End the
    /// callers' runtimes only after [`shutdown`](Engine::shutdown): the outcome of an operation
    /// whose runtime ends before it is unknown.
    #[must_use]
    pub fn run_in_callers_task(mut self) -> Self {
        self.in_callers_task = true;
        self
    }

    /// The engine. Must be called inside a tokio runtime.
    #[must_use]
    pub fn build(self) -> Engine {
        let mut tasks = Tasks::from(Handle::current());
        if self.in_callers_task {
            tasks = tasks.in_callers_task();
        }
        let Self { store, clock, rng, limits, housekeeping, journal, .. } = self;
        let engine = Engine::assemble(store, clock, rng, limits, journal, tasks);
        if let Some(housekeeping) = housekeeping {
            engine.keep_house(housekeeping);
        }
        engine
    }
}
