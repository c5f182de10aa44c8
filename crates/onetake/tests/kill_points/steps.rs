//! The steps of a server, and the step at which it is killed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake::store::{Answers, Claim, Claimed, Settled, Settlement, Transition};
use onetake::{Store, delegate_store};
use rustix::process::{Pid, Signal, getpid, kill_process};

/// Counts the steps of one operation in a file that outlives the process, and kills the process at
/// one of them.
#[derive(Debug)]
pub(crate) struct Steps {
    taken: Mutex<(usize, File)>,
    dies_at: usize,
}

impl Steps {
    /// Kills the process at this step, counted from 1; never if it is 0.
    pub(crate) fn new(file: &Path, dies_at: usize) -> Arc<Self> {
        let file = File::options().create(true).append(true).open(file).unwrap();
        Arc::new(Self { taken: Mutex::new((0, file)), dies_at })
    }

    /// Records a step, at which the process may be killed. After the kill nothing more happens, in
    /// any thread.
    pub(crate) fn reach(&self, name: &str) {
        let mut taken = self.taken.lock().unwrap();
        taken.0 += 1;
        writeln!(taken.1, "{name}").unwrap();
        if taken.0 == self.dies_at {
            let me: Pid = getpid();
            kill_process(me, Signal::KILL).unwrap();
            loop {
                std::thread::park();
            }
        }
    }

    /// Returns the names of the reached steps, in order.
    pub(crate) fn read(file: &PathBuf) -> Vec<String> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// A store that can kill the process before or after every durable step of an operation.
#[derive(Debug)]
pub(crate) struct Stepping {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) steps: Arc<Steps>,
}

impl Store for Stepping {
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            self.steps.reach("before the claim is durable");
            let answers = self.inner.claim(batch).await;
            self.steps.reach("after the claim is durable");
            answers
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            // Renewals and reaper runs are not counted, because their number depends on the
            // machine.
            let counts = batch
                .iter()
                .any(|it| !matches!(it.transition, Transition::Renew | Transition::ExpireLease));
            if counts {
                self.steps.reach("before the settlement is durable");
            }
            let answers = self.inner.settle(batch).await;
            if counts {
                self.steps.reach("after the settlement is durable");
            }
            answers
        }
        .boxed()
    }

    delegate_store!(self => self.inner; name, load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Stepping, self => self.inner);
