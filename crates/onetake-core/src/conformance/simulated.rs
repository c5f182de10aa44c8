//! Subjects on a clock that the suite moves.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::clock::{Clock, ManualClock, Shift, SystemClock};
use crate::store::Store;

use super::Subject;

/// A store on a simulated clock.
pub struct Simulated {
    clock: ManualClock,
    store: Arc<dyn Store>,
    _kept: Box<dyn Any + Send + Sync>,
}

impl Simulated {
    /// A store that is made on the given clock, and whatever has to live as long as it does (its
    /// folder, say).
    pub fn new<S: Store>(
        make: impl FnOnce(Arc<dyn Clock>) -> (S, Box<dyn Any + Send + Sync>),
    ) -> Self {
        let clock = ManualClock::default();
        let (store, kept) = make(Arc::new(clock.clone()));
        Self { clock, store: Arc::new(store), _kept: kept }
    }
}

impl Subject for Simulated {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(by);
        std::future::ready(()).boxed()
    }
}

/// A store whose server has a clock of its own, which the suite moves along by a [`Shift`].
pub struct Shifted {
    clock: ManualClock,
    shift: Shift,
    store: Arc<dyn Store>,
    _kept: Box<dyn Any + Send + Sync>,
}

impl Shifted {
    /// A store that is made on the given clock and shift, and whatever has to live as long as it
    /// does.
    pub async fn new<S, F>(make: impl FnOnce(Arc<dyn Clock>, Shift) -> F) -> Self
    where
        S: Store,
        F: Future<Output = (S, Box<dyn Any + Send + Sync>)>,
    {
        // The server shows the real time, and a node's clock should show about the same.
        let (clock, shift) = (ManualClock::new(SystemClock.now()), Shift::default());
        let (store, kept) = make(Arc::new(clock.clone()), shift.clone()).await;
        Self { clock, shift, store: Arc::new(store), _kept: kept }
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
}
