//! Time limits of a request that goes on after its response has ended.
//!
//! Servers reset such a request at once, or read it to its end. So it may go on while it makes
//! progress, but not for ever: it holds a connection or a stream.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use onetake_core::Clock;

/// The time in which such a request must move [`PROGRESS_BYTES_MIN`].
pub(super) const AFTER_RESPONSE: Duration = Duration::from_secs(10);
/// The longest time for which a request may go on after its response.
pub(super) const AFTER_RESPONSE_MAX: Duration = Duration::from_secs(300);
/// The number of bytes that count as progress: 240 bytes per second, as the default of
/// `min_body_rate`.
pub(super) const PROGRESS_BYTES_MIN: u64 = 2_400;

/// The time limits of one request, from the end of its response.
pub(super) struct AfterResponse {
    clock: Arc<dyn Clock>,
    /// The end of the present interval of [`AFTER_RESPONSE`].
    interval: BoxFuture<'static, ()>,
    /// The number of bytes that had moved when this interval began.
    moved: u64,
    /// The end of [`AFTER_RESPONSE_MAX`].
    end: BoxFuture<'static, ()>,
}

impl AfterResponse {
    /// Begins the limits. `moved` is the number of bytes sent so far.
    pub(super) fn begin(clock: &Arc<dyn Clock>, moved: u64) -> Self {
        let (interval, end) = (clock.sleep(AFTER_RESPONSE), clock.sleep(AFTER_RESPONSE_MAX));
        Self { clock: Arc::clone(clock), interval, moved, end }
    }

    /// Waits until the time is over. `moved` is the number of bytes sent so far.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>, moved: u64) -> Poll<()> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        while self.interval.as_mut().poll(cx).is_ready() {
            if moved - self.moved < PROGRESS_BYTES_MIN {
                return Poll::Ready(());
            }
            self.moved = moved;
            self.interval = self.clock.sleep(AFTER_RESPONSE);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use onetake_core::ManualClock;
    use std::future::poll_fn;

    #[test]
    fn progress_prolongs_the_time_up_to_a_limit() {
        let second = Duration::from_secs(1);
        for (bytes, expected) in [
            (0, AFTER_RESPONSE),
            (PROGRESS_BYTES_MIN / 10 - 1, AFTER_RESPONSE),
            (PROGRESS_BYTES_MIN / 10, AFTER_RESPONSE_MAX),
        ] {
            let manual = ManualClock::default();
            let clock: Arc<dyn Clock> = Arc::new(manual.clone());
            let (mut time, mut moved) = (Duration::ZERO, 1_000_000);
            let mut limits = AfterResponse::begin(&clock, moved);
            while poll_fn(|cx| limits.poll_over(cx, moved)).now_or_never().is_none() {
                manual.advance(second);
                (time, moved) = (time + second, moved + bytes);
            }
            assert_eq!(time, expected, "{bytes} bytes a second");
        }
    }
}
