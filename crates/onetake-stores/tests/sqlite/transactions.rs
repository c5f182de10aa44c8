//! SQLite: effects, messages and the outcome commit together in the user's file, or nothing does.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use onetake_core::inbox::{InboxOptions, Received};
use onetake_core::{
    Answer, Attempt, Completion, Engine, Fingerprint, FinishError, Key, Message, NotDone,
    Operation, Outcome, Recording, Scope, Settling, Store as _, StoreErrorKind,
};
use onetake_stores::SqliteStore;
use onetake_stores::sqlite::{Transactional, WorkError, finish};
use rusqlite::{Connection, Transaction};
use tempfile::TempDir;

struct Bank {
    _folder: TempDir,
    file: PathBuf,
    engine: Engine,
    transactional: Transactional,
}

fn open(file: &Path) -> (Engine, Transactional) {
    let engine = Engine::new(Arc::new(SqliteStore::open_in(file).unwrap()));
    let transactional = Transactional::open(engine.clone(), file).unwrap();
    (engine, transactional)
}

impl Bank {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bank.db");
        let own = Connection::open(&file).unwrap();
        own.execute_batch(
            "PRAGMA application_id = 77; PRAGMA user_version = 12;
             CREATE TABLE transfers (who TEXT NOT NULL); CREATE TABLE records (a);",
        )
        .unwrap();
        let (engine, transactional) = open(&file);
        Self { _folder: folder, file, engine, transactional }
    }

    fn count(&self, what: &str) -> i64 {
        let own = Connection::open(&self.file).unwrap();
        own.query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0)).unwrap()
    }
}

fn operation(key: &str) -> Operation {
    let key = Key::new(format!("transfer {key}")).unwrap();
    Operation::new(&Scope::new("bank"), &key, Fingerprint::of(b"10 EUR"))
}

fn transfer(tx: &Transaction<'_>, who: &str) -> rusqlite::Result<Completion> {
    tx.execute("INSERT INTO transfers VALUES (?1)", [who])?;
    let completion = Completion::new(Recording::new(format!("{who} paid")));
    Ok(completion.with_message(Message::new("paid", who, "10 EUR")))
}

async fn run(
    transactional: &Transactional,
    operation: Operation,
    who: &'static str,
) -> Result<Outcome, NotDone<WorkError<rusqlite::Error>>> {
    transactional.run(operation, move |tx, _| transfer(tx, who)).await
}

fn said(outcome: &Outcome) -> &[u8] {
    outcome.recording().unwrap().body.as_deref().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_messages_and_outcome_commit_together_in_one_file() {
    let bank = Bank::open();
    let first = run(&bank.transactional, operation("one"), "alice").await.unwrap();
    assert!(matches!(first, Outcome::Ran(Settling::Recorded(_))), "{first:?}");
    // A new engine on the same file, as after a restart.
    let (_engine, transactional) = open(&bank.file);
    let again = run(&transactional, operation("one"), "mallory").await.unwrap();
    assert!(matches!(again, Outcome::Answered(Answer::Replay(_))), "{again:?}");
    assert_eq!(said(&again), b"alice paid");
    assert_eq!((bank.count("transfers"), bank.count("onetake_outbox")), (1, 1));
    // The file still belongs to its own program.
    let own = Connection::open(&bank.file).unwrap();
    let number = |name| own.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((number("application_id"), number("user_version")), (77, 12));
    let refused = SqliteStore::open(&bank.file).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    let foreign = bank.file.with_file_name("onetake.db");
    SqliteStore::open(&foreign).unwrap().close().await.unwrap();
    let refused = SqliteStore::open_in(&foreign).unwrap_err();
    assert!(refused.to_string().contains("a file of onetake alone"), "{refused}");
    own.execute_batch("UPDATE onetake_schema SET version = 99").unwrap();
    let newer = SqliteStore::open_in(&bank.file).unwrap_err();
    assert!(newer.to_string().contains("use a newer onetake"), "{newer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_leaves_nothing_and_may_run_again() {
    let bank = Bank::open();
    let key = || operation("two");
    let failed = bank.transactional.run(key(), |tx, _| {
        transfer(tx, "alice").unwrap();
        Err("no funds")
    });
    let failed = failed.await.unwrap_err();
    assert!(matches!(failed, NotDone::Work(WorkError::Own("no funds"))), "{failed:?}");
    let panicked = bank.transactional.run::<(), _>(key(), |tx, _| {
        transfer(tx, "alice").unwrap();
        panic!("in the middle")
    });
    assert!(matches!(panicked.await.unwrap_err(), NotDone::Interrupted));
    assert_eq!((bank.count("transfers"), bank.count("onetake_outbox")), (0, 0));
    // A connection whose commits could be lost.
    let file = bank.file.clone();
    let lossy = bank.engine.transact(key(), move |attempt| async move {
        let mut own = Connection::open(file).unwrap();
        own.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
        let tx = own.transaction().unwrap();
        let completion = transfer(&tx, "alice").unwrap();
        finish(&tx, &attempt, &completion)
    });
    let lossy = lossy.await.unwrap_err();
    assert!(matches!(lossy, NotDone::Work(FinishError::NotDurable(_))), "{lossy:?}");
    assert_eq!(said(&run(&bank.transactional, key(), "bob").await.unwrap()), b"bob paid");
    assert_eq!((bank.count("transfers"), bank.count("onetake_outbox")), (1, 1));
}

/// In one case the commit succeeds and the process dies before it reports that. In the other it
/// dies before the commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_heard_of_is_settled_by_looking() {
    let bank = Bank::open();
    for is_done in [true, false] {
        let (file, key) = (bank.file.clone(), format!("lost {is_done}"));
        let outcome = bank.engine.transact(operation(&key), move |attempt| async move {
            let mut own = Connection::open(file).unwrap();
            let tx = own.transaction().unwrap();
            let completion = transfer(&tx, "alice").unwrap();
            finish(&tx, &attempt, &completion).unwrap();
            if is_done {
                tx.commit().unwrap();
            }
            Err("nobody heard")
        });
        let outcome = outcome.await;
        assert_eq!(outcome.is_ok(), is_done, "{outcome:?}");
        let again = run(&bank.transactional, operation(&key), "alice").await.unwrap();
        assert_eq!(said(&again), b"alice paid");
    }
    assert_eq!((bank.count("transfers"), bank.count("onetake_outbox")), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_finisher_is_rolled_back_and_told_the_outcome() {
    let bank = Bank::open();
    let (begun, is_begun) = tokio::sync::oneshot::channel();
    let (resume, resumed) = mpsc::channel::<()>();
    let (ended, has_ended) = tokio::sync::oneshot::channel();
    let file = bank.file.clone();
    // The work goes on after `run_max`, because a thread cannot be stopped.
    let soon_over = operation("late").run_max(Duration::from_millis(200));
    let late = bank.engine.transact(soon_over, move |attempt: Attempt| async move {
        let late = tokio::task::spawn_blocking(move || {
            begun.send(attempt).unwrap();
            resumed.recv().unwrap();
            let mut own = Connection::open(file).unwrap();
            let tx = own.transaction().unwrap();
            let completion = transfer(&tx, "late").unwrap();
            let finished = finish(&tx, &attempt, &completion);
            // A caller that ignores the error commits nothing.
            ended.send((finished, tx.commit())).unwrap();
        });
        late.await.map_err(|_| "it panicked")
    });
    assert!(matches!(late.await, Err(NotDone::Interrupted)));
    let _attempt = is_begun.await.unwrap();
    let (_engine, taking) = open(&bank.file);
    let took = run(&taking, operation("late"), "other").await.unwrap();
    assert_eq!(said(&took), b"other paid");
    resume.send(()).unwrap();
    let (finished, committed) = has_ended.await.unwrap();
    assert!(matches!(finished, Err(FinishError::Stale)), "{finished:?}");
    assert!(committed.is_err());
    let again = run(&bank.transactional, operation("late"), "again").await.unwrap();
    assert_eq!(said(&again), b"other paid");
    assert_eq!((bank.count("transfers"), bank.count("onetake_outbox")), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_has_one_effect_and_poison_is_parked() {
    let bank = Bank::open();
    let (_engine, other) = open(&bank.file);
    let consumers = [bank.transactional.clone(), other];
    let deliveries = (0..10).map(|number| {
        let consumer = &consumers[number % 2];
        let inbox = consumer.inbox("mailer", InboxOptions::default());
        async move { inbox.process("message 1", |tx, _| transfer(tx, "m")).await.unwrap() }
    });
    let answers = futures_util::future::join_all(deliveries).await;
    let done = answers.iter().filter(|answer| matches!(answer, Received::Done(_))).count();
    assert_eq!(done, 1, "{answers:?}");
    assert_eq!((bank.count("transfers"), bank.count("onetake_outbox")), (1, 1));
    let inbox =
        consumers[0].inbox("mailer", InboxOptions { attempts_max: 2, ..InboxOptions::default() });
    let mut ends = Vec::new();
    for _ in 0..3 {
        let answer = inbox.process("poison", |tx, _| {
            transfer(tx, "poison").unwrap();
            Err::<Completion, _>("no")
        });
        ends.push(matches!(answer.await.unwrap(), Received::Poisoned { .. }));
    }
    assert_eq!(ends, [false, true, true]);
    assert!(inbox.forget("poison", "somebody", "it is mended").await.unwrap());
    assert!(!inbox.forget("poison", "somebody", "it is mended").await.unwrap());
    assert_eq!((bank.count("transfers"), bank.count("onetake_outbox")), (1, 1));
}

#[cfg(feature = "sealed")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_transaction_records_is_sealed() {
    use onetake_stores::{EncryptionKey, SealedStore};
    let bank = Bank::open();
    let keys = vec![EncryptionKey::new("k1", &[7; 32])];
    let store = SqliteStore::open_in(&bank.file).unwrap();
    let engine = Engine::new(Arc::new(SealedStore::around(Arc::new(store), keys)));
    let sealed = Transactional::open(engine, &bank.file).unwrap();
    for _ in 0..2 {
        let outcome = run(&sealed, operation("sealed"), "alice").await.unwrap();
        assert_eq!(said(&outcome), b"alice paid");
    }
    let open = "onetake_records WHERE instr(record, CAST('paid' AS BLOB)) > 0";
    assert_eq!((bank.count(open), bank.count("onetake_records")), (0, 1));
    run(&bank.transactional, operation("open"), "bob").await.unwrap();
    assert_eq!(bank.count(open), 1, "and would be seen");
}
