//! The tokio runtime of one simulated process, driven step by step from outside.
//!
//! Every process has its own current-thread runtime on the one thread of the simulation. A runtime
//! without I/O and timers polls its tasks in a fixed order, so a run depends on its seed alone.
//! Dropping the runtime is the crash of the process: all of its tasks are gone, wherever they were
//! waiting.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime that runs only on request.
#[derive(Debug)]
pub struct Executor {
    runtime: Option<Runtime>,
    parked: Arc<Parked>,
}

/// The signal that a runtime has nothing left to do.
#[derive(Debug, Default)]
struct Parked {
    is_idle: AtomicBool,
    driver: Mutex<Option<Waker>>,
}

impl Executor {
    /// Creates a runtime without tasks.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn new() -> std::io::Result<Self> {
        let parked = Arc::new(Parked::default());
        let hook = Arc::clone(&parked);
        let runtime = Builder::new_current_thread()
            // The driver gets its turn between two polls of tasks, so that a step is one poll.
            .event_interval(1)
            .on_thread_park(move || {
                hook.is_idle.store(true, Ordering::Relaxed);
                let driver = hook.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(driver) = driver {
                    driver.wake();
                }
            })
            .build()?;
        Ok(Self { runtime: Some(runtime), parked })
    }

    /// Returns the runtime's handle; `None` after a crash.
    #[must_use]
    pub fn handle(&self) -> Option<&Handle> {
        self.runtime.as_ref().map(Runtime::handle)
    }

    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            drop(runtime.spawn(task));
        }
    }

    /// Polls tasks until all of them wait.
    pub fn run_until_idle(&self) {
        let Some(runtime) = &self.runtime else { return };
        let parked = &self.parked;
        parked.is_idle.store(false, Ordering::Relaxed);
        runtime.block_on(poll_fn(|context| {
            if parked.is_idle.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            let mut driver = parked.driver.lock().unwrap_or_else(PoisonError::into_inner);
            *driver = Some(context.waker().clone());
            Poll::Pending
        }));
    }

    /// Polls at most `polls` tasks: a process can be stopped between any two polls.
    pub fn run_polls(&self, polls: u32) {
        let Some(runtime) = &self.runtime else { return };
        let mut left = polls;
        runtime.block_on(poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Ends the process at once: every task is dropped where it waits.
    pub fn crash(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
