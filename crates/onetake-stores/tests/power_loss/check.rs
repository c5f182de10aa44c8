//! Opening of a folder after a power loss, and comparison with what was acknowledged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use onetake_core::clock::ManualClock;
use onetake_core::engine::Journal;
use onetake_core::{Claimed, Record, State, Store};

use crate::expected::{Certainty, Expected, KeyState, Known};
use crate::script::{Ending, Run, Subject, kept};
use crate::subject::{open_journal, open_store};
use crate::worker::{FRESH, SECRET};

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    /// The reasons why the folder, or something in it, was refused.
    pub(crate) refused: Vec<String>,
    /// Acknowledged data that is lost or wrong.
    pub(crate) violations: Vec<String>,
    pub(crate) panicked: bool,
}

/// Opens the subject in `root` and reads everything that was acknowledged.
pub(crate) fn check(root: &Path, expected: &Expected) -> Verdict {
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut verdict = Verdict { violations: expected.wrong.clone(), ..Verdict::default() };
        runtime.block_on(async {
            let checked = async {
                match expected.script.subject {
                    Subject::Journal => check_journal(root, expected, &mut verdict).await,
                    subject => check_store(subject, root, expected, &mut verdict).await,
                }
            };
            if tokio::time::timeout(Duration::from_secs(120), checked).await.is_err() {
                verdict.violations.push("no answer for two minutes".to_owned());
            }
        });
        verdict
    }));
    checked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let refused = vec![format!("panic: {}", text.unwrap_or_default())];
        Verdict { refused, violations: Vec::new(), panicked: true }
    })
}

async fn check_store(subject: Subject, root: &Path, expected: &Expected, verdict: &mut Verdict) {
    let clock = ManualClock::new(expected.now());
    let store = match open_store(subject, root, &clock) {
        Ok(store) => store,
        Err(error) => return verdict.refused.push(error),
    };
    for (key, state) in &expected.keys {
        let run = Run { key: *key, attempt: 0 };
        match store.load(vec![run.id()]).await.remove(0) {
            Err(error) => verdict.refused.push(format!("key {key}: {error}")),
            Ok(found) => {
                let found = found.as_deref();
                if !is_allowed(found, state, subject) {
                    let found = found.map(brief);
                    verdict.violations.push(format!("key {key}: {state:?}, found {found:?}"));
                    continue;
                }
                check_claim(&*store, *key, state, found, verdict).await;
            }
        }
    }
    match store.secret(SECRET, [6; 32]).await {
        Err(error) => verdict.refused.push(format!("secret: {error}")),
        Ok(FRESH) if expected.secret.is_some() => {}
        Ok([6, ..]) if expected.secret != Some(Certainty::Sure) => {}
        Ok(secret) => verdict.violations.push(format!("another secret: {secret:?}")),
    }
    match store.audit_entries(None, None, 10_000).await {
        Err(error) => verdict.refused.push(format!("notes: {error}")),
        Ok(found) => {
            for (number, certainty) in &expected.entries {
                let by = format!("operator {number}");
                let is_there = found.entries.iter().any(|entry| entry.by == by);
                if !is_there && *certainty == Certainty::Sure {
                    verdict.violations.push(format!("note {number} is lost (S20)"));
                }
            }
        }
    }
    if let Err(error) = store.close().await {
        verdict.refused.push(format!("close: {error}"));
    }
}

/// A key that was acknowledged does not run again (S12); one that may run gets a higher fence (S2).
async fn check_claim(
    store: &dyn Store,
    key: u32,
    state: &KeyState,
    found: Option<&Record>,
    verdict: &mut Verdict,
) {
    let may_run = found.is_none_or(|record| matches!(record.state, State::Released { .. }));
    let claim = Run { key, attempt: 200 }.claim();
    match store.claim(vec![claim]).await.remove(0) {
        Err(error) => verdict.refused.push(format!("claim of key {key}: {error}")),
        Ok(Claimed::Granted { fence }) => {
            if !may_run {
                verdict.violations.push(format!("key {key} runs again (S12): {state:?}"));
            }
            if fence.get() <= state.fence {
                verdict.violations.push(format!("key {key}: fence {fence:?} (S2): {state:?}"));
            }
        }
        Ok(Claimed::Found { .. }) if may_run => {
            verdict.violations.push(format!("key {key} does not run: {state:?}"));
        }
        Ok(Claimed::Found { .. }) => {}
    }
}

fn brief(record: &Record) -> String {
    let mut text = format!("{:?} {:?}", record.attempt, record.state);
    text.truncate(300);
    text
}

/// Returns true if a record is a possible state of a key after a crash.
pub(crate) fn is_allowed(found: Option<&Record>, state: &KeyState, subject: Subject) -> bool {
    let may_be = |known: Known| is(found, known, subject);
    may_be(state.sure) || state.maybe.is_some_and(may_be)
}

/// Returns true if a record is in this state.
fn is(found: Option<&Record>, known: Known, subject: Subject) -> bool {
    let (run, record) = match (known, found) {
        (Known::Absent, None) => return true,
        (Known::Absent, Some(_)) | (_, None) => return false,
        (Known::Running(run) | Known::Settled(run, _), Some(record)) => (run, record),
    };
    if record.attempt != run.attempt_id() || record.terms != run.claim().terms {
        return false;
    }
    match (known, &record.state) {
        // No other process can have run it, so the embedded store makes it unknown when it is
        // opened.
        (Known::Running(_), State::Running { .. }) => subject == Subject::Sqlite,
        (Known::Running(_), State::Unknown { .. }) => subject == Subject::Embedded,
        (Known::Settled(run, Ending::Complete(bytes)), State::Completed { recording, .. }) => {
            *recording == run.recording(bytes)
        }
        (Known::Settled(_, Ending::Fail), State::Failed { failure, .. }) => {
            failure.code == "c" && failure.detail == "d"
        }
        (Known::Settled(_, Ending::Release), State::Released { .. }) => true,
        (Known::Settled(_, Ending::Unknown), State::Unknown { .. }) => true,
        _ => false,
    }
}

async fn check_journal(root: &Path, expected: &Expected, verdict: &mut Verdict) {
    let journal = match open_journal(root) {
        Ok(journal) => journal,
        Err(error) => return verdict.refused.push(error),
    };
    let names = match journal.names().await {
        Ok(names) => names,
        Err(error) => return verdict.refused.push(error.to_string()),
    };
    let mut found = Vec::new();
    for name in names {
        match journal.read(name).await {
            Err(error) => verdict.refused.push(error.to_string()),
            Ok(Some(read)) if read.is_whole => found.push(read.settlements),
            Ok(Some(_)) => verdict.refused.push("a file of the journal is damaged".to_owned()),
            Ok(None) => {}
        }
    }
    for (runs, certainty) in &expected.kept {
        let is_there = found.contains(&kept(runs));
        if !is_there && *certainty == Certainty::Sure {
            verdict.violations.push(format!("the file of {runs:?} is lost"));
        }
    }
    for settlements in found {
        if !expected.kept.keys().any(|runs| kept(runs) == settlements) {
            verdict.violations.push(format!("nobody kept this: {settlements:?}"));
        }
    }
}
