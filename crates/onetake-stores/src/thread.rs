//! The thread that owns the files of a single-node store and runs its jobs one after the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::{fmt, io};

use onetake_core::store::Answers;
use onetake_core::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

/// A handle to the thread. `J` is the type of a job.
pub(crate) struct StoreThread<J> {
    jobs: mpsc::Sender<J>,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_closed: AtomicBool,
}

impl<J: Send + 'static> StoreThread<J> {
    /// Starts the thread. `run` ends when the queue has no sender left, or with the last job.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(crate) fn start(
        name: &str,
        run: impl FnOnce(&mpsc::Receiver<J>) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&queue))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { jobs, thread, is_closed: AtomicBool::new(false) })
    }

    /// Sends a job to the thread and waits for its answer.
    pub(crate) async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<T>) -> J,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        // The callers bound the queue: an engine runs a limited number of operations, and each has
        // at most one item in a batch.
        self.jobs.send(job(reply)).map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())
    }

    /// Sends the last job to the thread and waits until the thread has ended.
    pub(crate) async fn close(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<(), StoreError>>) -> J,
    ) -> Result<(), StoreError> {
        self.is_closed.store(true, Ordering::Release);
        let answer = self.ask(job).await;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The last job has its answer, so the thread only closes its files.
            let _panicked = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        match answer {
            Ok(result) => result,
            Err(error) if error.kind() == StoreErrorKind::Unavailable => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The error for a thread that has ended: the store was closed, or the thread panicked. After a
    /// panic the state on disk is unknown.
    pub(crate) fn gone(&self) -> StoreError {
        if self.is_closed.load(Ordering::Acquire) {
            StoreError::new(StoreErrorKind::Unavailable, "the store is closed")
        } else {
            StoreError::new(
                StoreErrorKind::Corrupt,
                "the thread of the store ended unexpectedly: restart the process",
            )
        }
    }
}

impl<J> fmt::Debug for StoreThread<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreThread").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

/// Returns one answer for each item, also if the thread did not answer.
pub(crate) fn each<T>(count: usize, answers: Result<Answers<T>, StoreError>) -> Answers<T> {
    answers.unwrap_or_else(|error| (0..count).map(|_| Err(error.clone())).collect())
}
