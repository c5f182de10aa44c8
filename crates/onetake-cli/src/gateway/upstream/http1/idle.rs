//! Idle connections. The one that was used last is used next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onetake_core::Clock;

use super::super::AGE_MAX;
use super::Http1Connection;

/// The idle connections of one core.
pub(in super::super) struct Idle {
    connections: Mutex<Connections>,
    /// Maximum number of connections, to all upstreams.
    max: usize,
    /// How long a connection may be idle. If the upstream closes it first, a request that is on its
    /// way at that moment has an unknown outcome.
    keep_alive: Duration,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Connections {
    /// The connections to each upstream, by its number.
    #[expect(clippy::vec_box, reason = "a connection is moved often: here, to its request, back")]
    of_upstream: Vec<Vec<Box<Http1Connection>>>,
    /// The number of all connections.
    count: usize,
    /// True if a task closes old connections.
    is_watched: bool,
}

impl Idle {
    pub(in super::super) fn new(max: usize, keep_alive: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { connections: Mutex::default(), max, keep_alive, clock }
    }

    pub(in super::super) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection that a request can use.
    pub(in super::super) fn take(
        &self,
        upstream: usize,
        is_keyed: bool,
    ) -> Option<Box<Http1Connection>> {
        let mut all = self.lock();
        while let Some(mut connection) = all.of_upstream.get_mut(upstream)?.pop() {
            all.count -= 1;
            let is_young = self.may_be_used(&connection, self.clock.monotonic());
            if is_young && connection.is_usable(is_keyed) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection, unless there are too many.
    pub(super) fn put(self: &Arc<Self>, upstream: usize, mut connection: Box<Http1Connection>) {
        connection.since = self.clock.monotonic();
        let mut all = self.lock();
        if all.count >= self.max {
            return;
        }
        if all.of_upstream.len() <= upstream {
            all.of_upstream.resize_with(upstream + 1, Vec::new);
        }
        if let Some(connections) = all.of_upstream.get_mut(upstream) {
            connections.push(connection);
            all.count += 1;
        }
        let was_watched = std::mem::replace(&mut all.is_watched, true);
        drop(all);
        if !was_watched {
            tokio::spawn(close_old(Arc::clone(self)));
        }
    }

    /// Removes connections that are too old, or idle for too long. Returns true if none are left.
    fn remove_old(&self) -> bool {
        let now = self.clock.monotonic();
        let mut all = self.lock();
        for connections in &mut all.of_upstream {
            connections.retain(|connection| self.may_be_used(connection, now));
        }
        all.count = all.of_upstream.iter().map(Vec::len).sum();
        all.is_watched = all.count > 0;
        !all.is_watched
    }

    /// True if the connection is neither too old nor idle for too long.
    fn may_be_used(&self, connection: &Http1Connection, now: Duration) -> bool {
        let since = |then: Duration| now.saturating_sub(then);
        since(connection.since) < self.keep_alive && since(connection.opened) < AGE_MAX
    }

    /// True if a connection could be used now.
    #[cfg(test)]
    pub(in super::super) fn has_usable(&self) -> bool {
        let mut all = self.lock();
        all.of_upstream.iter_mut().flatten().any(|connection| connection.is_usable(true))
    }
}

/// Closes old connections until none are left.
async fn close_old(idle: Arc<Idle>) {
    loop {
        idle.clock.sleep(idle.keep_alive / 4).await;
        if idle.remove_old() {
            return;
        }
    }
}
