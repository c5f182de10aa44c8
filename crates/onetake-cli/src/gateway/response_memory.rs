//! The memory of responses that clients have not read yet.
//!
//! The response to a keyed request is in memory as a whole, because it is recorded before it is
//! shown. A client that does not read keeps it there. So responses take memory from a budget, which
//! connections share fairly, as they share the gates ([`fair_share`]). A response without memory is
//! not shown. Its outcome is recorded, and a retry gets it.
//!
//! Responses to requests without a key are not counted: they pass through in small parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::{Counter, counter};
use onetake_http::{Code, Problem, fair_share};

use super::in_flight::Connection;

/// Smaller responses are not counted. The limit on requests bounds them.
const COUNTED_BYTES_MIN: usize = 4 << 10;
/// `Retry-After` of a response that is not shown, in seconds.
const RETRY_AFTER_SECONDS: u64 = 1;

/// The memory of all responses.
#[derive(Debug)]
pub(super) struct ResponseMemory {
    bytes_max: usize,
    used: AtomicUsize,
    refused: Counter,
}

/// The memory of one response. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct ResponseShare {
    memory: Arc<ResponseMemory>,
    connection: Arc<Connection>,
    bytes: usize,
}

/// There is no memory for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl Exhausted {
    /// The problem in place of the response.
    pub(super) fn problem(self, is_replay: bool) -> Problem {
        let (code, detail) = match is_replay {
            true => (
                Code::Overloaded,
                "Too many responses wait for clients that do not read them. Nothing was run. Retry after Retry-After with the same key.",
            ),
            false => (
                Code::OutcomePending,
                "The operation has its outcome, but too many responses wait for clients that do not read them. Retry after Retry-After with the same key.",
            ),
        };
        Problem::new(code, detail).retry_after(RETRY_AFTER_SECONDS)
    }
}

impl ResponseMemory {
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        let refused = counter!("onetake_overloaded_total", "reason" => "response_memory");
        Arc::new(Self { bytes_max, used: AtomicUsize::new(0), refused })
    }

    /// The bytes that are taken now.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes memory for a response of a connection. Returns `None` if the response is small.
    ///
    /// # Errors
    /// If there is not enough, or if the connection has too much of it.
    pub(super) fn take(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        bytes: usize,
    ) -> Result<Option<ResponseShare>, Exhausted> {
        if bytes < COUNTED_BYTES_MIN {
            return Ok(None);
        }
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let others = connection.response_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (memory, connection) = (Arc::clone(self), Arc::clone(connection));
        // Dropped if there is not enough.
        let share = ResponseShare { memory, connection, bytes };
        let free = self.bytes_max.checked_sub(used);
        if free.is_some_and(|free| others <= fair_share(free, self.bytes_max)) {
            return Ok(Some(share));
        }
        self.refused.increment(1);
        Err(Exhausted)
    }
}

impl Drop for ResponseShare {
    fn drop(&mut self) {
        self.connection.response_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_flight::tests::connection_of_tests;
    use super::*;

    const ONE: usize = 1 << 20;

    fn fill(memory: &Arc<ResponseMemory>, connection: &Arc<Connection>) -> Vec<ResponseShare> {
        std::iter::from_fn(|| memory.take(connection, ONE).ok().flatten()).collect()
    }

    #[test]
    fn one_connection_does_not_get_all_of_it() {
        let memory = ResponseMemory::new(64 * ONE);
        let first = connection_of_tests();
        let held = fill(&memory, &first);
        assert!((16..30).contains(&held.len()), "about a third: {}", held.len());
        assert_eq!(memory.take(&first, ONE).unwrap_err(), Exhausted);
        let hogs: Vec<_> = (0..20).map(|_| fill(&memory, &connection_of_tests())).collect();
        assert!(hogs.iter().all(|held| !held.is_empty()), "each gets something");
        assert!(memory.used() <= 64 * ONE);
        assert!(memory.take(&connection_of_tests(), ONE).is_ok(), "and so does the next one");
        drop((held, hogs));
        assert_eq!((memory.used(), first.response_bytes.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn small_responses_are_not_counted() {
        let memory = ResponseMemory::new(ONE);
        let connection = connection_of_tests();
        let _all = memory.take(&connection, ONE).unwrap();
        assert!(memory.take(&connection, COUNTED_BYTES_MIN - 1).unwrap().is_none());
        assert_eq!(memory.take(&connection, COUNTED_BYTES_MIN).unwrap_err(), Exhausted);
        assert_eq!(memory.used(), ONE);
    }
}
