//! An estimate of the authority's time without a request to it.
//!
//! The authority's clock decides when a key expires. The filter answers without the authority, so
//! it needs a time that is not behind the authority's. It uses the later of this machine's clock
//! and the authority's last known time, advanced since before the request for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onetake_core::{Clock, Timestamp};

#[derive(Debug)]
pub(super) struct AuthorityTime {
    clock: Arc<dyn Clock>,
    /// The authority's last known time, and this node's monotonic clock before the request for it.
    heard: Mutex<Option<(Timestamp, Duration)>>,
}

impl AuthorityTime {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, heard: Mutex::default() }
    }

    pub(super) fn now(&self) -> Timestamp {
        let wall = self.clock.now();
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.map_or(wall, |(at, asked_at)| {
            wall.max(at.plus(self.clock.monotonic().saturating_sub(asked_at)))
        })
    }

    /// Records the authority's time from the answer to a request at `asked_at`.
    pub(super) fn hear(&self, now: Timestamp, asked_at: Duration) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, asked_at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::ManualClock;

    #[test]
    fn it_is_never_behind_the_authority() {
        let clock = ManualClock::default();
        let time = AuthorityTime::new(Arc::new(clock.clone()));
        assert_eq!(time.now(), clock.now());
        let (ahead, asked_at) = (clock.now().plus(Duration::from_secs(60)), clock.monotonic());
        clock.advance(Duration::from_secs(1));
        time.hear(ahead, asked_at);
        assert_eq!(time.now(), ahead.plus(Duration::from_secs(1)));
        // The machine's clock is set back. The last known time still counts, and advances.
        clock.set_wall(Timestamp::from_micros(1));
        clock.advance(Duration::from_secs(5));
        assert_eq!(time.now(), ahead.plus(Duration::from_secs(6)));
        // An authority that is behind does not extend the life of entries.
        clock.set_wall(ahead.plus(Duration::from_secs(100)));
        time.hear(Timestamp::from_micros(2), clock.monotonic());
        assert_eq!(time.now(), clock.now());
    }
}
