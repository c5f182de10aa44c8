//! The threads that serve requests: one per core, each with a runtime of its own.
//!
//! A connection belongs to one core for its whole life: its requests, their operations and their
//! upstream connections never leave that core. So no lock or queue is shared between cores on the
//! way of a request, except for the engine's own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use onetake_core::Clock;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

use super::tidy;

/// All cores. Their threads end when this is dropped.
#[derive(Debug)]
pub(super) struct Cores {
    cores: Vec<Core>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Core {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// Counts a connection of a core until it is dropped.
#[derive(Debug)]
pub(super) struct OnCore(Arc<AtomicUsize>);

impl Drop for OnCore {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Cores {
    /// Starts this number of threads, at least one. `clock` is for the return of their memory.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(super) fn start(count: usize, clock: &Arc<dyn Clock>) -> io::Result<Self> {
        let mut cores = Self { cores: Vec::new(), stop: CancellationToken::new() };
        for number in 0..count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (handle, stop) = (runtime.handle().clone(), cores.stop.clone());
            let clock = Arc::clone(clock);
            let thread = std::thread::Builder::new().name(format!("onetake-core-{number}"));
            let thread = thread.spawn(move || {
                let tidy = tidy::run(&*clock);
                runtime.block_on(stop.run_until_cancelled(tidy));
            })?;
            let connections = Arc::default();
            cores.cores.push(Core { runtime: handle, connections, thread: Some(thread) });
        }
        Ok(cores)
    }

    pub(super) fn count(&self) -> usize {
        self.cores.len()
    }

    /// Returns the core with the fewest connections, and its number. The connection counts until
    /// the guard is dropped.
    ///
    /// The cores could also listen on one port each. But then the operating system chooses by the
    /// client's address, and a few connections are often on one core.
    pub(super) fn least_busy(&self) -> Option<(usize, &Handle, OnCore)> {
        let load = |core: &Core| core.connections.load(Ordering::Relaxed);
        let (number, core) = self.cores.iter().enumerate().min_by_key(|(_, core)| load(core))?;
        core.connections.fetch_add(1, Ordering::Relaxed);
        Some((number, &core.runtime, OnCore(Arc::clone(&core.connections))))
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.cores.iter_mut().filter_map(|core| core.thread.take()) {
            // A task of a core could hold the last reference to this value.
            if thread.thread().id() != std::thread::current().id() {
                let _panicked = thread.join();
            }
        }
    }
}
