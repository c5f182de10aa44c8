//! Eviction of idle client connections while every place is taken.
//!
//! Without it, clients that connect and stay silent would hold every place for `keep_alive`, and
//! connect again. The task that accepts connections keeps a list of its own, so requests and the
//! ends of connections take no lock for it. It reads the list only while no place is free. The
//! connection itself decides whether it is still idle.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use metrics::{Counter, counter, describe_counter};
use tokio::task::yield_now;

use super::activity::Activity;

/// How long a connection is idle before it can be evicted. Until then, the first request of a new
/// one may still be on its way.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(1);
/// The same for a connection of HTTP/2 that has had a request. The end of its last response may wait
/// in hyper for the peer to make room, which hyper does not report.
pub(super) const IDLE_MIN_HTTP2: Duration = Duration::from_secs(5);
/// Pause before the next eviction if the last one has made no place yet.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Connections that one reading of the list selects for eviction, at most.
const SELECTED_MAX: usize = 64;
/// Ended connections that stay in the list at least.
const ENDED_MIN: usize = 64;

/// Name of the metric of evicted connections.
const EVICTED: &str = "onetake_connections_evicted_total";

/// Registers the metrics.
pub(super) fn describe_metrics() {
    describe_counter!(EVICTED, "Idle client connections that were closed to make a place.");
    counter!(EVICTED).increment(0);
}

/// Counts an evicted connection.
pub(super) fn count_eviction() {
    counter!(EVICTED).increment(1);
}

/// The counter of connections that had to wait for a place.
pub(super) fn waits() -> Counter {
    counter!("onetake_overloaded_total", "reason" => "connections")
}

/// The list of open connections. Ended ones leave it from time to time.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    connections: Vec<Open>,
    /// Ended connections leave the list at this length.
    prune_at: usize,
    /// Connections that were idle when the list was read, those that were idle longest first.
    selected: VecDeque<(Duration, Open)>,
}

#[derive(Clone, Debug)]
struct Open {
    since: Duration,
    activity: Weak<Activity>,
}

impl Open {
    /// Since when the connection has been idle, if it can be evicted.
    fn idle_since(&self, now: Duration) -> Option<Duration> {
        let activity = self.activity.upgrade()?;
        let idle_since = activity.idle_since(self.since).filter(|_| !activity.is_evicted())?;
        let has_served = activity.is_http2() && activity.requests() > 0;
        let idle_min = if has_served { IDLE_MIN_HTTP2 } else { IDLE_MIN };
        (idle_since + idle_min <= now).then_some(idle_since)
    }
}

impl OpenConnections {
    pub(super) fn add(&mut self, activity: &Arc<Activity>, now: Duration) {
        if self.connections.len() >= self.prune_at {
            self.connections.retain(|open| open.activity.strong_count() > 0);
            self.prune_at = self.connections.len() * 2 + ENDED_MIN;
        }
        self.connections.push(Open { since: now, activity: Arc::downgrade(activity) });
    }

    /// Asks the connection that has been idle longest to end. Returns false if none was idle for
    /// long enough.
    pub(super) fn evict(&mut self, now: Duration) -> bool {
        if self.selected.is_empty() {
            self.select(now);
        }
        while let Some((idle_since, open)) = self.selected.pop_front() {
            if open.idle_since(now) == Some(idle_since)
                && let Some(activity) = open.activity.upgrade()
            {
                activity.evict();
                return true;
            }
        }
        false
    }

    fn select(&mut self, now: Duration) {
        let idle = |open: &Open| Some((open.idle_since(now)?, open.clone()));
        let mut idle: Vec<_> = self.connections.iter().filter_map(idle).collect();
        if idle.len() > SELECTED_MAX {
            idle.select_nth_unstable_by_key(SELECTED_MAX, |(since, _)| *since);
            idle.truncate(SELECTED_MAX);
        }
        idle.sort_by_key(|(since, _)| *since);
        self.selected = idle.into();
    }
}

/// The eviction of one connection, as its own task sees it.
pub(super) struct Eviction<'a> {
    activity: &'a Activity,
    is_registered: bool,
    /// The number of requests when the eviction was noticed, and the runtime's look at its sockets.
    noticed: Option<(u64, BoxFuture<'static, ()>)>,
}

impl<'a> Eviction<'a> {
    pub(super) fn new(activity: &'a Activity) -> Self {
        Self { activity, is_registered: false, noticed: None }
    }

    /// Resolves if the connection is to end. It is idle, also after the runtime has looked at its
    /// sockets once more: on a busy core, a request may have arrived that was not read yet.
    ///
    /// The caller reads the stream before each poll. After it has resolved, it is not polled again.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_registered {
            self.is_registered = true;
            self.activity.register_for_eviction(cx);
        }
        if !self.activity.is_evicted() {
            return Poll::Pending;
        }
        let requests = self.activity.requests();
        let notice = || (requests, Box::pin(yield_now()) as BoxFuture<'static, ()>);
        let (requests_before, yielding) = self.noticed.get_or_insert_with(notice);
        let requests_before = *requests_before;
        ready!(yielding.as_mut().poll(cx));
        self.noticed = None;
        if requests == requests_before && self.activity.idle_since(Duration::ZERO).is_some() {
            return Poll::Ready(());
        }
        // The waker is used up.
        self.activity.register_for_eviction(cx);
        self.activity.set_evicted(false);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn the_connection_that_was_idle_longest_is_evicted_first() {
        let mut open = OpenConnections::default();
        let connections: Vec<_> = (0..200).map(|_| Arc::<Activity>::default()).collect();
        for (at, activity) in connections.iter().enumerate() {
            open.add(activity, Duration::from_millis(200 - at as u64));
        }
        let evicted = || connections.iter().filter(|activity| activity.is_evicted()).count();
        assert!(!open.evict(secs(1)), "none was idle for long enough");
        for count in 1..=200 {
            assert!(open.evict(secs(5)));
            assert!(connections[200 - count].is_evicted(), "{count}");
            assert_eq!(evicted(), count);
        }
        assert!(!open.evict(secs(5)), "each is asked once");
    }

    #[test]
    fn a_connection_that_is_not_idle_is_not_evicted() {
        let mut open = OpenConnections::default();
        let busy = Arc::<Activity>::default();
        let http2 = Arc::<Activity>::default();
        open.add(&busy, secs(1));
        open.add(&http2, secs(1));
        open.select(secs(3));
        busy.set_head(true);
        http2.set_http2(true);
        let clock: Arc<dyn onetake_core::Clock> = Arc::new(onetake_core::ManualClock::default());
        drop(super::super::activity::Running::new(&http2, &clock).respond(()));
        assert!(!open.evict(secs(5)), "{open:?}");
        busy.set_head(false);
        assert!(open.evict(secs(5)) && busy.is_evicted());
        assert!(open.evict(secs(9)) && http2.is_evicted());
        drop((busy, http2));
        assert!(!open.evict(secs(9)));
    }

    #[test]
    fn ended_connections_leave_the_list() {
        let mut open = OpenConnections::default();
        let kept = Arc::<Activity>::default();
        open.add(&kept, secs(1));
        for _ in 0..10_000 {
            open.add(&Arc::default(), secs(1));
            assert!(open.connections.len() <= 2 + 2 * ENDED_MIN);
        }
        assert!(open.evict(secs(5)) && kept.is_evicted());
    }
}
