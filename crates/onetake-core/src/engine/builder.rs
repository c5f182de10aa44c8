//! How an engine is built.

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
    on_callers_runtime: bool,
}

impl Engine {
    /// Builds an engine on `store`. By default it has the system's clock, [`Limits::default`], a reaper and a sweeper, and
    /// no journal.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder {
            store,
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            limits: Limits::default(),
            housekeeping: Some(Housekeeping::default()),
            journal: None,
            on_callers_runtime: false,
        }
    }
}

impl EngineBuilder {
    /// Sets the journal: a place on this machine for outcomes that the store did not take before
    /// [`shutdown`](Engine::shutdown). They are settled at the next start.
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

    /// Runs each operation on the tokio runtime of its caller. By default all operations run on the
    /// runtime that the engine was built in.
    ///
    /// Use it for a server with a runtime per core. End these runtimes only after
    /// [`shutdown`](Engine::shutdown): the outcome of an operation whose runtime ends before it is
    /// unknown.
    #[must_use]
    pub fn run_on_callers_runtime(mut self) -> Self {
        self.on_callers_runtime = true;
        self
    }

    /// The engine. Must be called inside a tokio runtime.
    #[must_use]
    pub fn build(self) -> Engine {
        let mut tasks = Tasks::from(Handle::current());
        if self.on_callers_runtime {
            tasks = tasks.on_callers_runtime();
        }
        let engine = Engine::assemble(self.store, self.clock, self.rng, self.limits, tasks);
        if let Some(housekeeping) = self.housekeeping {
            engine.keep_house(housekeeping);
        }
        if let Some(journal) = self.journal {
            engine.use_journal(journal);
        }
        engine
    }
}
