//! The outbox in SQLite: the suite that every outbox passes.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{OutboxSubject, run_outbox};
use onetake_core::outbox::Delivery;
use onetake_core::{Clock, Fence, ManualClock, Message, MessageId, Outbox, RecordId};
use onetake_stores::SqliteStore;
use tempfile::TempDir;

const INSERT: &str = "INSERT INTO onetake_outbox
        (message, lane, ordering, topic, headers, payload, created_at, state_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)";

struct Subject {
    store: Arc<SqliteStore>,
    clock: ManualClock,
    file: PathBuf,
    _folder: TempDir,
}

impl Subject {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, clock) = (folder.path().join("onetake.db"), ManualClock::default());
        let store = SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
        Self { store: Arc::new(store), clock, file, _folder: folder }
    }
}

impl OutboxSubject for Subject {
    fn outbox(&self) -> Arc<dyn Outbox> {
        Arc::clone(&self.store) as _
    }

    fn write(&self, messages: Vec<(MessageId, Message)>) -> BoxFuture<'_, ()> {
        async move {
            let mut writer = rusqlite::Connection::open(&self.file).unwrap();
            let transaction = writer.transaction().unwrap();
            let now = i64::try_from(self.clock.now().as_micros()).unwrap();
            for (id, message) in messages {
                let headers = message.headers_to_bytes();
                let row = (
                    id.as_bytes(),
                    message.lane(),
                    &message.order,
                    &message.topic,
                    headers.as_ref(),
                    message.payload.as_ref(),
                    now,
                );
                transaction.execute(INSERT, row).unwrap();
            }
            transaction.commit().unwrap();
        }
        .boxed()
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_outbox() {
    run_outbox(async || Subject::new()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_command_can_leave_behind_mends_itself() {
    let subject = Subject::new();
    let writer = rusqlite::Connection::open(&subject.file).unwrap();
    crate::outbox_repair::mends_itself(&subject, |sql| writer.execute_batch(sql).unwrap()).await;
}

/// Only the messages whose text is not valid UTF-8 are parked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_text_is_parked() {
    let subject = Subject::new();
    let id = |number| MessageId::of(RecordId::from_bytes([1; 16]), Fence::new(1), number);
    subject.write((0..3).map(|number| (id(number), Message::new("t", "a", "p"))).collect()).await;
    let writer = rusqlite::Connection::open(&subject.file).unwrap();
    let odd = "UPDATE onetake_outbox SET topic = CAST(x'ff' AS TEXT) WHERE place = 1;
               UPDATE onetake_outbox SET ordering = CAST(x'ff' AS TEXT) WHERE place = 2";
    writer.execute_batch(odd).unwrap();
    let turn = subject.store.take(Duration::from_secs(9), 9, 999).await.unwrap().unwrap();
    assert_eq!(turn.messages.iter().map(|one| one.id).collect::<Vec<_>>(), [id(2)]);
    let parked = subject.store.parked(0, 9).await.unwrap();
    assert_eq!(parked.iter().map(|one| one.waiting.id).collect::<Vec<_>>(), [id(0), id(1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_parked() {
    let subject = Subject::new();
    let id = |number| MessageId::of(RecordId::from_bytes([1; 16]), Fence::new(1), number);
    let messages = (0..3).map(|number| (id(number), Message::new("t", "a", "p"))).collect();
    subject.write(messages).await;
    let writer = rusqlite::Connection::open(&subject.file).unwrap();
    writer.execute("UPDATE onetake_outbox SET headers = x'0f' WHERE place = 1", []).unwrap();
    let hold = Duration::from_secs(9);
    let turn = subject.store.take(hold, 9, 999).await.unwrap().unwrap();
    assert_eq!(turn.messages.iter().map(|one| one.id).collect::<Vec<_>>(), [id(1), id(2)]);
    let parked = subject.store.parked(0, 9).await.unwrap();
    assert_eq!(parked[0].waiting.id, id(0));
    assert!(parked[0].error.contains("headers"), "{}", parked[0].error);
    // The same for a message that holds others back: they proceed, and are tried again if
    // necessary.
    let later = Delivery::Again { after: hold, error: "no".to_owned() };
    assert!(subject.store.settle(turn.lane, turn.turn, vec![(2, later)]).await.unwrap());
    assert_eq!(subject.store.take(hold, 9, 999).await.unwrap(), None);
    writer.execute("UPDATE onetake_outbox SET headers = x'0f' WHERE place = 2", []).unwrap();
    for _ in 0..2 {
        subject.advance(hold);
        let turn = subject.store.take(hold, 9, 999).await.unwrap().unwrap();
        assert_eq!(turn.messages.iter().map(|one| one.id).collect::<Vec<_>>(), [id(2)]);
    }
}
