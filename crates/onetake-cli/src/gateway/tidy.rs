//! Return of memory to the operating system after a burst of requests.
//!
//! Each thread returns its free memory by itself: mimalloc looks for it once in 10,000 allocations
//! of more than a kibibyte. A core whose connections are all idle allocates nothing, so it would
//! keep the memory of its last burst. This task makes these allocations in its place, after HTTP/1.1
//! connections were parked and after connections have ended. Idle HTTP/2 connections keep theirs.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use onetake_core::Clock;
use tokio::sync::Notify;
use tokio::task::yield_now;

/// How long after memory became free it is returned. mimalloc keeps a free page for a second, in case
/// it is needed again.
const TIDY_AFTER: Duration = Duration::from_secs(2);
/// The first round frees pages, and the second one returns them.
const ROUNDS: usize = 2;
/// The allocations of a round, and the size of each in bytes. They take about a millisecond, in slices
/// between which other tasks run.
const ALLOCATIONS: usize = 20_000;
const SLICE: usize = 1_000;
const BYTES: usize = 2_048;

thread_local! {
    /// Tells the task of this thread that memory became free.
    static FREED: RefCell<Option<Rc<Notify>>> = const { RefCell::new(None) };
}

/// Records that a connection of this thread was parked, or has ended. Its buffers are free.
pub(super) fn memory_freed() {
    FREED.with_borrow(|freed| {
        if let Some(freed) = freed {
            freed.notify_one();
        }
    });
}

/// Returns the free memory of this thread to the operating system after [`memory_freed`]. It never
/// ends, and wakes the thread only then.
pub(super) async fn run(clock: &dyn Clock) {
    let notify = Rc::new(Notify::new());
    FREED.set(Some(Rc::clone(&notify)));
    loop {
        notify.notified().await;
        for _ in 0..ROUNDS {
            clock.sleep(TIDY_AFTER).await;
            for _ in 0..ALLOCATIONS / SLICE {
                for _ in 0..SLICE {
                    black_box(Vec::<u8>::with_capacity(BYTES));
                }
                yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::ManualClock;

    /// Returns true if the task waits for a time, and not for a parked connection.
    async fn is_waiting_for_time(clock: &ManualClock) -> bool {
        for _ in 0..2 * ALLOCATIONS / SLICE {
            yield_now().await;
        }
        clock.sleepers() > 0
    }

    #[tokio::test]
    async fn an_idle_thread_is_woken_twice_after_memory_became_free() {
        let clock = ManualClock::default();
        let local = tokio::task::LocalSet::new();
        let of_task = clock.clone();
        local.spawn_local(async move { run(&of_task).await });
        local
            .run_until(async {
                assert!(!is_waiting_for_time(&clock).await, "nothing was freed");
                memory_freed();
                for _ in 0..ROUNDS {
                    assert!(is_waiting_for_time(&clock).await, "a round is due");
                    clock.advance(TIDY_AFTER);
                }
                assert!(!is_waiting_for_time(&clock).await, "nothing was freed since");
                memory_freed();
                assert!(is_waiting_for_time(&clock).await, "more was freed");
            })
            .await;
    }
}
