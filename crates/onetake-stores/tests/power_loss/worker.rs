//! The worker: a process that executes the steps of a script and reports each answer.
//!
//! It is this test program, started with a variable that names the script. A report is one line in
//! the file of marks, which the tracer records between the changes on disk.
//!
//! The reports are `ask N` before a step, `ok N [FENCE…]` after it, and `err N TEXT` if it was
//! refused. `wrong N TEXT` is an answer that is always wrong.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onetake_core::audit::{AuditAction, AuditEntry, AuditPosition, AuditResult};
use onetake_core::clock::ManualClock;
use onetake_core::engine::Journal;
use onetake_core::{Claimed, Clock, Settled, Store, SystemRng};
use onetake_stores::FileJournal;

use crate::script::{Script, Step, Subject, kept};
use crate::subject::{open_journal, open_store};

/// The name of the secret that workers create.
pub(crate) const SECRET: &str = "power";
/// Its value.
pub(crate) const FRESH: [u8; 32] = [5; 32];

/// The body of a worker process. It is not a test: without its variable it does nothing.
#[test]
fn worker_process() {
    let variable = |name: &str| std::env::var(format!("ONETAKE_POWER_{name}"));
    let Ok(script) = variable("WORKER") else { return };
    let script: Script = script.parse().unwrap();
    let root = PathBuf::from(variable("ROOT").unwrap());
    let marks = File::create(variable("MARKS").unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(work(script, &root, marks));
}

enum Open {
    Store(Arc<dyn Store>),
    Journal(FileJournal),
}

struct Worker {
    script: Script,
    root: PathBuf,
    clock: ManualClock,
    marks: File,
}

impl Worker {
    fn mark(&mut self, text: &str) {
        let written = self.marks.write(text.as_bytes()).unwrap();
        assert_eq!(written, text.len(), "a mark is one write");
    }

    fn open(&self) -> Result<Open, String> {
        match self.script.subject {
            Subject::Journal => open_journal(&self.root).map(Open::Journal),
            subject => open_store(subject, &self.root, &self.clock).map(Open::Store),
        }
    }
}

async fn work(script: Script, root: &Path, marks: File) {
    let clock = ManualClock::new(script.start());
    let mut worker = Worker { script, root: root.to_owned(), clock, marks };
    worker.mark("ask open");
    let mut open = match worker.open() {
        Ok(open) => open,
        Err(error) => return worker.mark(&format!("err open {error}")),
    };
    worker.mark("ok open");
    // Keys with a failed step. Their later steps would have no meaning.
    let mut failed = BTreeSet::new();
    for (number, step) in script.steps().into_iter().enumerate() {
        let Some(step) = step.without(&failed) else { continue };
        worker.mark(&format!("ask {number}"));
        let answer = match (&step, &open) {
            (Step::Reopen, _) => {
                if let Open::Store(store) = &open {
                    let _refused = store.close().await;
                }
                drop(open);
                match worker.open() {
                    Ok(again) => open = again,
                    Err(error) => return worker.mark(&format!("err {number} {error}")),
                }
                Ok(String::new())
            }
            (Step::Clock(by), _) => {
                worker.clock.advance(*by);
                Ok(String::new())
            }
            (step, Open::Store(store)) => on_store(step, &**store, &worker.clock).await,
            (step, Open::Journal(journal)) => on_journal(step, journal).await,
        };
        match answer {
            Ok(said) => worker.mark(&format!("ok {number} {said}")),
            Err(Refused::Error(error)) => {
                failed.extend(step.keys());
                worker.mark(&format!("err {number} {error}"));
            }
            Err(Refused::Wrong(what)) => worker.mark(&format!("wrong {number} {what}")),
        }
    }
    worker.mark("ask close");
    if let Open::Store(store) = open {
        match store.close().await {
            Ok(()) => worker.mark("ok close"),
            Err(error) => worker.mark(&format!("err close {error}")),
        }
    }
}

enum Refused {
    Error(String),
    Wrong(String),
}

impl From<onetake_core::StoreError> for Refused {
    fn from(error: onetake_core::StoreError) -> Self {
        Self::Error(error.to_string().replace('\n', " "))
    }
}

async fn on_store(step: &Step, store: &dyn Store, clock: &ManualClock) -> Result<String, Refused> {
    match step {
        Step::Claim(runs) => {
            let mut fences = Vec::new();
            for claimed in store.claim(runs.iter().map(|run| run.claim()).collect()).await {
                match claimed? {
                    Claimed::Granted { fence } => fences.push(fence.get().to_string()),
                    Claimed::Found { record, .. } => {
                        return Err(Refused::Wrong(format!("found {record:?}")));
                    }
                }
            }
            Ok(fences.join(" "))
        }
        Step::Settle(endings) => {
            let settlements = endings.iter().map(|(run, ending)| run.settlement(*ending));
            for settled in store.settle(settlements.collect()).await {
                if let Settled::Stale { current } = settled? {
                    return Err(Refused::Wrong(format!("stale: {current:?}")));
                }
            }
            Ok(String::new())
        }
        Step::Sweep => store.sweep(1_000).await.map(|_| String::new()).map_err(Refused::from),
        Step::Secret => match store.secret(SECRET, FRESH).await? {
            FRESH => Ok(String::new()),
            other => Err(Refused::Wrong(format!("another secret: {other:?}"))),
        },
        Step::Note(number) => {
            store.audit(audit(*number, clock)).await.map(|()| String::new()).map_err(Refused::from)
        }
        step => panic!("not for a store: {step:?}"),
    }
}

fn audit(number: u32, clock: &ManualClock) -> AuditEntry {
    let run = crate::script::Run { key: number, attempt: 1 };
    AuditEntry {
        place: AuditPosition::new(clock.now(), &SystemRng),
        id: run.id(),
        attempt: run.attempt_id(),
        action: AuditAction::Fail,
        ended: AuditResult::Done,
        before: "unknown".to_owned(),
        by: format!("operator {number}"),
        reason: String::new(),
    }
}

async fn on_journal(step: &Step, journal: &FileJournal) -> Result<String, Refused> {
    match step {
        Step::Keep(runs) => journal.keep(kept(runs)).await?,
        Step::LetGo(runs) => {
            for name in journal.names().await? {
                let read = journal.read(name.clone()).await?;
                if read.is_some_and(|read| read.settlements == kept(runs)) {
                    journal.let_go(name).await?;
                }
            }
        }
        step => panic!("not for a journal: {step:?}"),
    }
    Ok(String::new())
}
