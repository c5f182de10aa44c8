//! The checks of `onetake doctor` on the filter.

use std::time::Duration;

use futures_util::future::join_all;

use onetake_core::{StoreError, StoreErrorKind};

use super::FilteredStore;
use crate::diagnosis::{Diagnosis, Finding};
use crate::redis::diagnose::{ask, lines, named, together};

/// The number of round trips for the median.
const ROUND_TRIPS: usize = 5;

impl FilteredStore {
    /// Checks the filter alone. The authority has its own diagnosis.
    ///
    /// # Errors
    /// If Redis is unreachable, or does not answer in time.
    pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        let connection = &self.shared.link.connection;
        connection.connect().await?;
        let within = connection.options().command_timeout;
        let nodes = connection.primaries();
        let Some(first) = nodes.first() else {
            let what = "no node of the Redis Cluster serves a slot";
            return Err(StoreError::new(StoreErrorKind::Unavailable, what));
        };
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let from = self.shared.clock.monotonic();
            ask(first, &[&["PING"]], within).await?;
            trips.push(self.shared.clock.monotonic().saturating_sub(from));
        }
        trips.sort_unstable();
        let round_trip = trips.get(ROUND_TRIPS / 2).copied().unwrap_or_default();

        let questions: [&[&str]; 2] = [&["INFO", "server"], &["INFO", "memory"]];
        let mut server = String::new();
        let mut findings = Vec::new();
        for answers in join_all(nodes.iter().map(|node| ask(node, &questions, within))).await {
            let mut answers = answers?.into_iter();
            server = named(&lines(answers.next()));
            let info = lines(answers.next());
            let said = |name: &str| info.get(name).map_or("", String::as_str);
            findings
                .push(memory(said("maxmemory"), said("maxmemory_policy")).into_iter().collect());
        }
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let mut findings = together(&names, findings);
        findings.push(Finding::fine(
            "the filter can lose its entries without harm: the authority has all records",
        ));
        findings.push(slowness(round_trip));
        // The filter uses the authority's clock and its own. Redis's clock is not used.
        Ok(Diagnosis::new(server, round_trip, None, findings))
    }
}

fn slowness(round_trip: Duration) -> Finding {
    if round_trip > Duration::from_millis(5) {
        return Finding::weak(
            format!("a round trip takes {round_trip:?}, and every new key waits for it"),
            "run the Redis of the filter near the gateway, or remove the filter",
        );
    }
    Finding::fine(format!("a round trip takes {round_trip:?}"))
}

fn memory(maxmemory: &str, policy: &str) -> Option<Finding> {
    match (maxmemory, policy) {
        ("", _) => None,
        ("0", _) => Some(Finding::weak(
            "Redis can use all memory of its machine (maxmemory is 0)",
            "set maxmemory, and maxmemory-policy allkeys-lru",
        )),
        (_, "noeviction") => Some(Finding::weak(
            "when its memory is full, Redis accepts no new entries (maxmemory-policy is noeviction)",
            "set maxmemory-policy allkeys-lru",
        )),
        (_, policy) => {
            Some(Finding::fine(format!("old entries are evicted for new ones ({policy})")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Weight;

    #[test]
    fn memory_that_does_not_make_room_is_weak() {
        let weight = |max, policy| memory(max, policy).map(|finding| finding.weight);
        assert_eq!(weight("0", "noeviction"), Some(Weight::Weak));
        assert_eq!(weight("1000000", "noeviction"), Some(Weight::Weak));
        assert_eq!(weight("1000000", "allkeys-lru"), Some(Weight::Fine));
        assert_eq!(weight("", ""), None);
    }

    #[test]
    fn a_distant_redis_is_weak() {
        assert_eq!(slowness(Duration::from_millis(20)).weight, Weight::Weak);
        assert_eq!(slowness(Duration::from_micros(200)).weight, Weight::Fine);
    }
}
