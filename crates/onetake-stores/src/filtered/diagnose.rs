//! What `onetake doctor` has to say of the filter.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use onetake_core::StoreError;

use super::FilteredStore;
use super::connection::Link;
use crate::diagnosis::{Diagnosis, Finding};

/// Round trips to take the median of.
const ROUND_TRIPS: usize = 5;

impl FilteredStore {
    /// Looks at the filter alone; the authority has its own diagnosis.
    ///
    /// # Errors
    /// If Redis cannot be reached, or does not answer in time.
    pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        let link = &self.shared.link;
        link.connect().await?;
        let info = info(link).await?;
        let said = |name: &str| info.get(name).map_or("", String::as_str);
        let kind = if info.contains_key("valkey_version") { "Valkey" } else { "Redis" };
        let version = info.get("valkey_version").or_else(|| info.get("redis_version"));
        let server = format!("{kind} {}", version.map_or("of unknown version", String::as_str));

        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let from = self.shared.clock.monotonic();
            link.run(vec![redis::cmd("PING")]).await?;
            trips.push(self.shared.clock.monotonic().saturating_sub(from));
        }
        trips.sort_unstable();
        let round_trip = trips.get(ROUND_TRIPS / 2).copied().unwrap_or_default();

        let mut findings =
            vec![Finding::fine("nothing is lost with what the filter holds: the authority has it")];
        findings.push(slowness(round_trip));
        findings.extend(memory(said("maxmemory"), said("maxmemory_policy")));
        // The filter goes by the authority's clock and its own: Redis's does not count.
        Ok(Diagnosis::new(server, round_trip, None, findings))
    }
}

async fn info(link: &Arc<Link>) -> Result<HashMap<String, String>, StoreError> {
    let mut command = redis::cmd("INFO");
    command.arg("everything");
    let answer = link.run(vec![command]).await?.pop();
    let text = match answer {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Some(Value::VerbatimString { text, .. }) => text,
        _ => String::new(),
    };
    let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn slowness(round_trip: Duration) -> Finding {
    if round_trip > Duration::from_millis(5) {
        return Finding::weak(
            format!("a round trip takes {round_trip:?}, which every new key pays too"),
            "put the filter's Redis near the gateway, or leave it out",
        );
    }
    Finding::fine(format!("a round trip takes {round_trip:?}"))
}

fn memory(maxmemory: &str, policy: &str) -> Option<Finding> {
    match (maxmemory, policy) {
        ("", _) => None,
        ("0", _) => Some(Finding::weak(
            "Redis may take all of the machine's memory (maxmemory is 0)",
            "set maxmemory, and maxmemory-policy allkeys-lru",
        )),
        (_, "noeviction") => Some(Finding::weak(
            "when its memory is full, Redis takes no new entries (maxmemory-policy is noeviction)",
            "set maxmemory-policy allkeys-lru",
        )),
        (_, policy) => {
            Some(Finding::fine(format!("old entries make room for new ones ({policy})")))
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
