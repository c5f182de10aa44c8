//! File descriptors of the process: their limit, and its division between sockets and files.
//!
//! A process without free descriptors can neither accept a connection nor write a table of the
//! embedded store, which must not be used after a failed write. So the number of sockets is bounded
//! below the limit of the process, and the rest stays in reserve for the store and everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::in_flight::GateLimits;
use crate::config::{Config, Limits};

/// Descriptors that are never given to sockets: files of the store, listeners, runtimes, logs.
const RESERVE: usize = 256;
/// The most descriptors in reserve for other calls: the admin listener, `reconcile`, key sets,
/// traces, and a large compaction of the store. It is an eighth of the limit if that is less.
const RESERVE_CALLS_MAX: usize = 1_024;
/// The most descriptors for calls of `forward_auth`.
const RESERVE_AUTH_MAX: usize = 512;
/// The fewest sockets, however low the limit is.
const SOCKETS_MIN: usize = 32;
/// The limit below which the process warns at its start.
const LOW: usize = 4_096;
/// The limit that is taken if the operating system has none.
const UNLIMITED: u64 = 1 << 20;
/// The most connections of the admin listener.
const ADMIN_CONNECTIONS_MAX: usize = 256;
/// The most idle connections to upstreams, for each core.
const IDLE_PER_CORE_MAX: usize = 1_024;

/// Raises the soft limit of this process to its hard limit, and warns if that is low.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(UNLIMITED);
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files could not be raised");
        }
    }
    let limit = limit();
    if limit < LOW {
        tracing::warn!(
            limit,
            "the limit of open files is low, so few connections are accepted: raise it with `ulimit -n`, LimitNOFILE= of systemd, or --ulimit nofile= of Docker"
        );
    }
}

/// Returns the limit of open files of this process.
fn limit() -> usize {
    let current = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED);
    usize::try_from(current).unwrap_or(usize::MAX)
}

/// Returns the most connections of the admin listener.
pub(super) fn admin_connections_max() -> usize {
    ADMIN_CONNECTIONS_MAX.min(limit() / 16).max(8)
}

/// The division of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptors {
    /// Client connections.
    pub(super) connections_max: usize,
    /// Requests to upstreams, each with a socket.
    pub(super) upstream_requests_max: usize,
    /// Idle connections to upstreams, for each core.
    pub(super) idle_per_core_max: usize,
}

impl Descriptors {
    /// Divides the descriptors of this process.
    pub(super) fn of(config: &Config, cores: usize) -> Self {
        let asks = config.settings().any(|settings| settings.forward_auth.is_some());
        let divided = Self::divide(limit(), asks, &config.limits, cores);
        let wanted = config.limits.max_connections;
        if divided.connections_max < wanted {
            tracing::warn!(
                limit = limit(),
                connections = divided.connections_max,
                wanted,
                "limits.max_connections is lowered, because the process may open too few files"
            );
        }
        divided
    }

    fn divide(limit: usize, asks: bool, limits: &Limits, cores: usize) -> Self {
        let calls = (limit / 8).min(RESERVE_CALLS_MAX);
        let auth = if asks { (limit / 8).min(RESERVE_AUTH_MAX) } else { 0 };
        let sockets = limit.saturating_sub(RESERVE + calls + auth).max(SOCKETS_MIN);
        // Most client connections are idle, and need no connection to an upstream: a third is enough
        // for those, unless there are few descriptors for many cores.
        let upstream = (sockets / 3).max(2 * cores).min(sockets / 2);
        let connections_max = limits.max_connections.min(sockets - upstream);
        let upstream = sockets - connections_max;
        let idle_per_core_max = (upstream / 4 / cores.max(1)).clamp(1, IDLE_PER_CORE_MAX);
        let idle = idle_per_core_max * cores.max(1);
        let upstream_requests_max =
            limits.max_requests.min(upstream.saturating_sub(idle)).max(SOCKETS_MIN / 4);
        Self { connections_max, upstream_requests_max, idle_per_core_max }
    }

    /// The limits of the gates.
    pub(super) fn gates(&self, limits: &Limits) -> GateLimits {
        GateLimits {
            requests_max: limits.max_requests,
            requests_per_connection_max: limits.max_requests_per_connection,
            upstream_sockets_max: self.upstream_requests_max,
            requests_per_upstream_max: limits.max_requests_per_upstream,
            queue_max: limits.max_queued_requests,
            queue_timeout: limits.queue_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, load};

    fn limits() -> Limits {
        let file = "[gateway]\nupstream = \"http://a\"\n";
        load(Some(file), "test", std::iter::empty(), Overrides::default()).unwrap().limits
    }

    /// Sockets of clients and upstreams never take the reserve.
    #[test]
    fn a_reserve_is_left() {
        for limit in [512, 1_024, 4_096, 65_536, 1 << 20] {
            for (asks, cores) in [(false, 1), (false, 64), (true, 2)] {
                let it = Descriptors::divide(limit, asks, &limits(), cores);
                let idle = it.idle_per_core_max * cores;
                let sockets = it.connections_max + it.upstream_requests_max + idle;
                assert!(sockets + RESERVE + limit.min(8_192) / 8 <= limit, "{limit}: {it:?}");
                assert!(it.connections_max > 0 && it.upstream_requests_max > 0, "{limit}: {it:?}");
            }
        }
    }

    #[test]
    fn the_configured_limits_hold_where_there_are_descriptors() {
        let it = Descriptors::divide(1 << 20, true, &limits(), 4);
        assert_eq!((it.connections_max, it.upstream_requests_max), (16_384, 16_384));
        let it = Descriptors::divide(1_024, false, &limits(), 2);
        assert_eq!((it.connections_max, it.upstream_requests_max), (427, 161));
    }
}
