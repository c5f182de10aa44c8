//! What time it is for the authority, without asking it.
//!
//! The authority's clock decides when a key expires. The filter answers without it, so it needs a
//! time that is not behind the authority's: the later of this machine's clock and of what the
//! authority last said, counted from before it was asked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onetake_core::{Clock, Timestamp};

#[derive(Debug)]
pub(super) struct AuthorityTime {
    clock: Arc<dyn Clock>,
    /// What the authority last said, and our monotonic clock before it was asked.
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

    /// The authority said its time in an answer to what was asked at `asked_at`.
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
        // The machine's clock is set back: what was heard still counts, and goes on.
        clock.set_wall(Timestamp::from_micros(1));
        clock.advance(Duration::from_secs(5));
        assert_eq!(time.now(), ahead.plus(Duration::from_secs(6)));
        // An authority that is behind does not make entries live longer.
        clock.set_wall(ahead.plus(Duration::from_secs(100)));
        time.hear(Timestamp::from_micros(2), clock.monotonic());
        assert_eq!(time.now(), clock.now());
    }
}
