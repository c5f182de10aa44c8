//! The options of a relay.

use std::time::Duration;

use onetake_core::Rng;

/// The options of a relay. It holds at most `lanes_at_once` × `batch_bytes` of messages (or one
/// larger message for each lane).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayOptions {
    /// The number of lanes that are delivered at the same time.
    pub lanes_at_once: usize,
    /// The largest number of messages in a turn.
    pub batch_items: usize,
    /// The largest number of bytes in a turn. A single message is delivered however large it is.
    pub batch_bytes: usize,
    /// The time for which a relay holds a lane. If a relay dies, other relays deliver its messages
    /// after this time.
    pub hold: Duration,
    /// The pause before the next search when there was nothing to do.
    pub idle_poll: Duration,
    /// The first pause after a failure; each further failure doubles it.
    pub backoff_min: Duration,
    /// The longest pause after a failure, also if a receiver asks for a longer one.
    pub backoff_max: Duration,
    /// The longest pause of the relay itself after a turn without a delivery. Failed messages wait
    /// as long as their own backoff, and other messages must not wait for them.
    pub fruitless_max: Duration,
    /// The number of failures after which a message is parked, if other messages are delivered
    /// meanwhile. `None`: messages are retried for ever, because a message that can be retried is
    /// not poison.
    pub tries_max: Option<u32>,
    /// The retention of delivered messages.
    pub kept: Duration,
    /// The pause between two rounds of deleting delivered messages whose retention has ended.
    pub prune_interval: Duration,
    /// The number of messages that one statement deletes.
    pub prune_batch: usize,
    /// The interval at which waiting messages are counted for the metrics.
    pub count_interval: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            lanes_at_once: 4,
            batch_items: 100,
            batch_bytes: 4 << 20,
            hold: Duration::from_secs(30),
            idle_poll: Duration::from_millis(200),
            backoff_min: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
            fruitless_max: Duration::from_secs(2),
            tries_max: None,
            kept: Duration::from_hours(24),
            prune_interval: Duration::from_secs(60),
            prune_batch: 1_000,
            count_interval: Duration::from_secs(5),
        }
    }
}

impl RelayOptions {
    /// The time for the deliveries of a turn. A quarter of the hold is left for reporting the
    /// results.
    #[must_use]
    pub fn deliver_within(&self) -> Duration {
        self.hold.mul_f64(0.75)
    }

    /// Extends the hold so that a receiver may take `patience`. A delivery that is cut off would be
    /// repeated for ever.
    pub(crate) fn patient(mut self, patience: Duration) -> Self {
        if self.deliver_within() < patience {
            self.hold = patience.saturating_mul(4) / 3 + Duration::from_millis(1);
            tracing::warn!(
                hold = ?self.hold, ?patience,
                "relay.hold is too short for the timeout of the sink: a longer hold is used"
            );
        }
        self
    }

    /// Returns the pause after `failures` failures in a row: a random duration between half of the
    /// doubled value and the whole of it.
    pub(crate) fn backoff(&self, failures: u32, rng: &dyn Rng) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1).min(31)).unwrap_or(u32::MAX);
        let whole = self.backoff_min.saturating_mul(factor).min(self.backoff_max);
        let mut bytes = [0; 4];
        rng.fill(&mut bytes);
        let part = f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX);
        whole.mul_f64(0.5 + part / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(u8);

    impl Rng for Fixed {
        fn fill(&self, into: &mut [u8]) {
            into.fill(self.0);
        }
    }

    #[test]
    fn a_hold_leaves_time_for_the_slowest_answer() {
        for seconds in [1, 10, 22, 23, 60, 4000] {
            let options = RelayOptions::default().patient(Duration::from_secs(seconds));
            assert!(options.deliver_within() >= Duration::from_secs(seconds), "{seconds}");
            assert_eq!(options.hold == RelayOptions::default().hold, seconds < 23, "{seconds}");
        }
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let options = RelayOptions {
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(1),
            ..RelayOptions::default()
        };
        let (most, least) = (Fixed(255), Fixed(0));
        let millis = |failures, rng: &dyn Rng| options.backoff(failures, rng).as_millis();
        let whole = [1, 2, 3, 4, 5, 90, u32::MAX].map(|failures| millis(failures, &most));
        assert_eq!(whole, [100, 200, 400, 800, 1000, 1000, 1000]);
        assert_eq!(millis(1, &least), 50);
        assert_eq!(millis(90, &least), 500);
    }
}
