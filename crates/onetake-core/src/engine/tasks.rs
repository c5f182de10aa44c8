//! Tasks and channels of the engine, with counters.
//!
//! Every task costs an allocation and a turn of the scheduler, and so does every message that wakes
//! another task. ARCHITECTURE.md states how many of both a request needs, and tests compare that
//! with the numbers counted here.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

/// The number of tasks that an engine has spawned, and of messages that woke another task, since
/// its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Tasks.
    pub tasks: u64,
    /// Messages for which a task had to wait until another one sent them.
    pub hops: u64,
}

/// The runtime of an engine. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    /// True if operations run in the tasks of their callers.
    in_callers_task: bool,
    counts: Arc<TaskCounts>,
}

#[derive(Debug, Default)]
struct TaskCounts {
    tasks: AtomicU64,
    hops: AtomicU64,
}

impl From<Handle> for Tasks {
    fn from(runtime: Handle) -> Self {
        Self { runtime, in_callers_task: false, counts: Arc::default() }
    }
}

impl Tasks {
    /// Runs operations in the tasks of their callers.
    pub(crate) fn in_callers_task(mut self) -> Self {
        self.in_callers_task = true;
        self
    }

    pub(crate) fn are_in_callers_task(&self) -> bool {
        self.in_callers_task
    }

    /// Spawns a task on the runtime of the caller if operations run there, so that the two never
    /// wake each other across threads.
    pub(crate) fn spawn_near<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let here = self.in_callers_task.then(Handle::try_current).and_then(Result::ok);
        self.counts.tasks.fetch_add(1, Ordering::Relaxed);
        here.as_ref().unwrap_or(&self.runtime).spawn(future)
    }

    pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.counts.tasks.fetch_add(1, Ordering::Relaxed);
        self.runtime.spawn(future)
    }

    /// Spawns a task that `tracker` waits for.
    pub(crate) fn spawn_tracked<F>(&self, tracker: &TaskTracker, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.spawn(tracker.track_future(future))
    }

    /// Creates a channel for one message.
    pub(crate) fn channel<T>(&self) -> (oneshot::Sender<T>, Receiver<T>) {
        let (sender, inner) = oneshot::channel();
        (sender, Receiver { inner, counts: Arc::clone(&self.counts), has_waited: false })
    }

    /// Counts a task that is woken by other means than a channel of this engine.
    pub(crate) fn hop(&self) {
        self.counts.hops.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let TaskCounts { tasks, hops } = &*self.counts;
        Traffic { tasks: tasks.load(Ordering::Relaxed), hops: hops.load(Ordering::Relaxed) }
    }
}

/// Runs a future inside a span. It costs nothing if the span is disabled.
pub(crate) fn in_span<T>(
    span: Span,
    future: Pin<Box<impl Future<Output = T> + Send + 'static>>,
) -> BoxFuture<'static, T> {
    if span.is_disabled() { future } else { Box::pin(future.instrument(span)) }
}

/// The receiving end of a channel for one message.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    inner: oneshot::Receiver<T>,
    counts: Arc<TaskCounts>,
    has_waited: bool,
}

impl<T> Receiver<T> {
    /// Takes the message if it is there. Use it if this task itself sends it.
    pub(crate) fn take_now(&mut self) -> Option<T> {
        self.inner.try_recv().ok()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.inner).poll(cx);
        // A message that was there from the start woke no task: the task has sent it to itself.
        if polled.is_pending() && !std::mem::replace(&mut self.has_waited, true) {
            self.counts.hops.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }
}

/// A future that continues in its own task if it is dropped before it is ready. A panic ends it, as
/// it would end a task, and not its caller.
pub(crate) struct Detached {
    /// `None` while it is polled, so that a future that panics is not polled again.
    future: Option<BoxFuture<'static, ()>>,
    tasks: Tasks,
}

impl Detached {
    pub(crate) fn new(tasks: &Tasks, future: BoxFuture<'static, ()>) -> Self {
        Self { future: Some(future), tasks: tasks.clone() }
    }
}

impl Future for Detached {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut future) = self.future.take() else {
            return Poll::Ready(());
        };
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        let polled = polled.unwrap_or(Poll::Ready(()));
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.tasks.spawn_near(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_message_counts_if_somebody_waited_for_it() {
        let tasks = Tasks::from(Handle::current());
        let (sender, early) = tasks.channel();
        sender.send(1).unwrap();
        assert_eq!(early.await, Ok(1));
        assert_eq!(tasks.traffic(), Traffic { tasks: 0, hops: 0 });
        let (sender, late) = tasks.channel();
        tasks.spawn(async move { sender.send(2).unwrap() });
        assert_eq!(late.await, Ok(2));
        assert_eq!(tasks.traffic(), Traffic { tasks: 1, hops: 1 });
    }

    #[tokio::test]
    async fn what_is_dropped_goes_on_in_a_task() {
        let tasks = Tasks::from(Handle::current());
        let (go, gone) = tasks.channel::<()>();
        let (done, is_done) = tasks.channel();
        let future = async move {
            gone.await.unwrap();
            done.send(()).unwrap();
        };
        let mut detached = Detached::new(&tasks, Box::pin(future));
        assert_eq!((&mut detached).now_or_never(), None);
        assert_eq!(tasks.traffic().tasks, 0);
        drop(detached);
        go.send(()).unwrap();
        is_done.await.unwrap();
        assert_eq!(tasks.traffic().tasks, 1);
        Detached::new(&tasks, Box::pin(async {})).await;
        assert_eq!(tasks.traffic().tasks, 1, "there was nothing left to do");
    }

    #[tokio::test]
    async fn a_panic_ends_the_future_and_not_its_caller() {
        let tasks = Tasks::from(Handle::current());
        Detached::new(&tasks, Box::pin(async { panic!("of the future") })).await;
        assert_eq!(tasks.traffic().tasks, 0, "it does not go on");
    }
}
