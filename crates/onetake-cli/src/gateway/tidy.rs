//! Return of memory to the operating system after a burst of requests.
//!
//! Each thread returns its free memory by itself: mimalloc looks for it once in 10,000 allocations
//! of more than a kibibyte. A core whose connections are all idle allocates nothing, so it would
//! keep the memory of its last burst. This task makes these allocations in its place.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use onetake_core::Clock;
use tokio::sync::Notify;

/// How long after the parking of a connection the memory is returned. mimalloc keeps a free page for
/// a second, in case it is needed again.
const TIDY_AFTER: Duration = Duration::from_secs(2);
/// The first round frees pages, and the second one returns them.
const ROUNDS: usize = 2;
/// The allocations of a round, and the size of each in bytes. They take about a millisecond.
const ALLOCATIONS: usize = 20_000;
const BYTES: usize = 2_048;

thread_local! {
    /// Tells the task of this thread that a connection was parked.
    static PARKED: RefCell<Option<Rc<Notify>>> = const { RefCell::new(None) };
}

/// Records that a connection of this thread was parked. Its buffers are free.
pub(super) fn parked() {
    PARKED.with_borrow(|parked| {
        if let Some(parked) = parked {
            parked.notify_one();
        }
    });
}

/// Returns the memory of this thread to the operating system whenever connections were parked. It
/// never ends, and wakes the thread only after that.
pub(super) async fn run(clock: &dyn Clock) {
    let notify = Rc::new(Notify::new());
    PARKED.set(Some(Rc::clone(&notify)));
    loop {
        notify.notified().await;
        for _ in 0..ROUNDS {
            clock.sleep(TIDY_AFTER).await;
            for _ in 0..ALLOCATIONS {
                black_box(Vec::<u8>::with_capacity(BYTES));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::ManualClock;
    use tokio::task::yield_now;

    /// Returns true if the task waits for a time, and not for a parked connection.
    async fn is_waiting_for_time(clock: &ManualClock) -> bool {
        for _ in 0..10 {
            yield_now().await;
        }
        clock.sleepers() > 0
    }

    #[tokio::test]
    async fn an_idle_thread_is_woken_twice_after_connections_were_parked() {
        let clock = ManualClock::default();
        let local = tokio::task::LocalSet::new();
        let of_task = clock.clone();
        local.spawn_local(async move { run(&of_task).await });
        local
            .run_until(async {
                assert!(!is_waiting_for_time(&clock).await, "nothing is parked");
                parked();
                for _ in 0..ROUNDS {
                    assert!(is_waiting_for_time(&clock).await, "a round is due");
                    clock.advance(TIDY_AFTER);
                }
                assert!(!is_waiting_for_time(&clock).await, "nothing was parked since");
                parked();
                assert!(is_waiting_for_time(&clock).await, "the next connection was parked");
            })
            .await;
    }
}
