//! Test subjects on clocks that the suite advances.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::clock::{Clock, ManualClock, Shift, SystemClock, Timestamp};
use onetake_core::store::Store;

use super::Subject;
use super::buggy::{BuggyStore, StoreBug};

/// Opens a store again on its data.
type Reopen = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync>;

/// A store on a simulated clock.
pub struct Simulated {
    clock: ManualClock,
    store: Arc<dyn Store>,
    open: Option<Reopen>,
    engine_bug: Option<StoreBug>,
    _kept: Box<dyn Any + Send + Sync>,
}

impl Simulated {
    /// Creates a subject from a store on the given clock. The second value is kept as long as the
    /// store, for example its folder.
    pub fn new<S: Store>(
        make: impl FnOnce(Arc<dyn Clock>) -> (S, Box<dyn Any + Send + Sync>),
    ) -> Self {
        let clock = ManualClock::default();
        let (store, kept) = make(Arc::new(clock.clone()));
        Self { clock, store: Arc::new(store), open: None, engine_bug: None, _kept: kept }
    }

    /// The bug of the store that engines get.
    #[must_use]
    pub fn with_engine_bug(mut self, bug: StoreBug) -> Self {
        self.engine_bug = Some(bug);
        self
    }

    /// Sets the function that opens the store again on its data.
    #[must_use]
    pub fn reopened_by<S: Store>(
        mut self,
        open: impl Fn(Arc<dyn Clock>) -> S + Send + Sync + 'static,
    ) -> Self {
        let clock = self.clock();
        self.open = Some(Box::new(move || {
            let store = Arc::new(open(Arc::clone(&clock))) as Arc<dyn Store>;
            std::future::ready(store).boxed()
        }));
        self
    }
}

impl Subject for Simulated {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn for_engine(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match self.engine_bug {
            Some(bug) => Arc::new(BuggyStore::new(store, bug, self.clock())),
            None => store,
        }
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(by);
        std::future::ready(()).boxed()
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        reopened(self.open.as_ref())
    }
}

/// A store whose server has a clock of its own, which the suite advances by a [`Shift`].
pub struct Shifted {
    clock: ManualClock,
    shift: Shift,
    store: Arc<dyn Store>,
    open: Option<Reopen>,
    _kept: Box<dyn Any + Send + Sync>,
}

impl Shifted {
    /// Creates a subject from a store on the given clock and shift. The second value is kept as
    /// long as the store.
    pub async fn new<S, F>(make: impl FnOnce(Arc<dyn Clock>, Shift) -> F) -> Self
    where
        S: Store,
        F: Future<Output = (S, Box<dyn Any + Send + Sync>)>,
    {
        // The server shows the real time, and a node's clock should show about the same.
        Self::starting(SystemClock.now(), Shift::default(), make).await
    }

    /// Creates a subject as [`new`](Self::new) does, on a node's clock that shows `now`. It is for
    /// a server whose clock is stopped at that time, or for a shift that is fixed to it
    /// ([`Shift::fix`]).
    pub async fn starting<S, F>(
        now: Timestamp,
        shift: Shift,
        make: impl FnOnce(Arc<dyn Clock>, Shift) -> F,
    ) -> Self
    where
        S: Store,
        F: Future<Output = (S, Box<dyn Any + Send + Sync>)>,
    {
        let clock = ManualClock::new(now);
        let (store, kept) = make(Arc::new(clock.clone()), shift.clone()).await;
        Self { clock, shift, store: Arc::new(store), open: None, _kept: kept }
    }

    /// Sets the function that opens the store again on its data.
    #[must_use]
    pub fn reopened_by<S, F>(
        mut self,
        open: impl Fn(Arc<dyn Clock>, Shift) -> F + Send + Sync + 'static,
    ) -> Self
    where
        S: Store,
        F: Future<Output = S> + Send + 'static,
    {
        let (clock, shift) = (self.clock(), self.shift.clone());
        self.open = Some(Box::new(move || {
            let opening = open(Arc::clone(&clock), shift.clone());
            opening.map(|store| Arc::new(store) as Arc<dyn Store>).boxed()
        }));
        self
    }
}

impl Subject for Shifted {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.shift.advance(by);
        self.clock.advance(by);
        std::future::ready(()).boxed()
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        reopened(self.open.as_ref())
    }
}

fn reopened(open: Option<&Reopen>) -> BoxFuture<'static, Option<Arc<dyn Store>>> {
    match open {
        Some(open) => open().map(Some).boxed(),
        None => std::future::ready(None).boxed(),
    }
}
