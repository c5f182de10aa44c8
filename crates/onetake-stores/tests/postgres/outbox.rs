//! The outbox: the suite that every outbox passes, and what only PostgreSQL has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::conformance::{OutboxSubject, run_outbox};
use onetake_core::outbox::{Delivery, Outbox};
use onetake_core::{Clock, Fence, Message, MessageId, RecordId, Shift, SystemClock};
use onetake_sim::servers::{PgBouncer, Postgres};
use onetake_stores::{PostgresOptions, PostgresStore};
use tokio_postgres::{Client, NoTls};

const INSERT: &str = "INSERT INTO onetake_outbox
        (message, lane, ordering, topic, headers, payload, created_at, state_at)
    SELECT $1, $2, $3, $4, $5, $6, now, now
      FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $7 AS now) AS clock";

struct Subject {
    store: Arc<PostgresStore>,
    shift: Shift,
    writer: tokio::sync::Mutex<Client>,
}

impl Subject {
    /// The store gets there by one URL and the writer by another, because tokio-postgres prepares by name.
    async fn new(url: &str, direct: &str) -> Self {
        let shift = Shift::default();
        let options = PostgresOptions { shift: shift.clone(), ..PostgresOptions::default() };
        PostgresStore::migrate(url, options.clone()).await.unwrap();
        let store = Arc::new(PostgresStore::open(url, options).await.unwrap());
        let (client, connection) = tokio_postgres::connect(direct, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { store, shift, writer: tokio::sync::Mutex::new(client) }
    }
}

impl OutboxSubject for Subject {
    fn outbox(&self) -> Arc<dyn Outbox> {
        Arc::clone(&self.store) as _
    }

    fn write(&self, messages: Vec<(MessageId, Message)>) -> BoxFuture<'_, ()> {
        async move {
            let mut writer = self.writer.lock().await;
            let transaction = writer.transaction().await.unwrap();
            let shift = i64::try_from(self.shift.as_micros()).unwrap();
            for (id, message) in messages {
                let id: &[u8] = id.as_bytes();
                let (lane, headers) = (i16::from(message.lane()), message.headers_to_bytes());
                let (order, topic) = (&message.order, &message.topic);
                let (headers, payload) = (headers.as_ref(), message.payload.as_ref());
                let row: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                    [&id, &lane, order, topic, &headers, &payload, &shift];
                transaction.execute(INSERT, &row).await.unwrap();
            }
            transaction.commit().await.unwrap();
        }
        .boxed()
    }

    fn advance(&self, by: Duration) {
        self.shift.advance(by);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_outbox() {
    let server = Postgres::start().await;
    let fresh = async || {
        let url = server.database();
        Subject::new(&url, &url).await
    };
    run_outbox(fresh).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_outbox_behind_pgbouncer() {
    let server = Postgres::start_with(&["default_transaction_isolation = 'serializable'"]).await;
    let bouncer = PgBouncer::start(&server, "transaction", 2).await;
    let fresh = async || {
        let direct = server.database();
        let (_, database) = direct.rsplit_once('/').unwrap();
        Subject::new(&server.url_at(bouncer.address(), database), &direct).await
    };
    run_outbox(fresh).await.assert_passed();
}

/// A row that nobody can read is set aside; it does not hold up its lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_parked() {
    let server = Postgres::start().await;
    let url = server.database();
    let subject = Subject::new(&url, &url).await;
    let id = |number| MessageId::of(RecordId::from_bytes([1; 16]), Fence::new(1), number);
    let messages = (0..2).map(|number| (id(number), Message::new("t", "a", "p"))).collect();
    subject.write(messages).await;
    let (_, database) = url.rsplit_once('/').unwrap();
    server.sql(database, "UPDATE onetake_outbox SET headers = 'odd' WHERE place = 1");
    let turn = subject.store.take(Duration::from_secs(9), 9, 999).await.unwrap().unwrap();
    assert_eq!(turn.messages.iter().map(|one| one.id).collect::<Vec<_>>(), [id(1)]);
    let parked = subject.store.parked(0, 9).await.unwrap();
    assert_eq!(parked[0].waiting.id, id(0));
    assert!(parked[0].error.contains("headers"), "{}", parked[0].error);
}

/// However much waits behind a message that failed, a take stays fast, and so does one that finds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_backlog_is_read_by_its_indexes() {
    let server = Postgres::start().await;
    let url = server.database();
    let subject = Subject::new(&url, &url).await;
    let (_, database) = url.rsplit_once('/').unwrap();
    let lane = Message::new("t", "slow", "p").lane();
    server.sql(
        database,
        &format!(
            "INSERT INTO onetake_outbox (message, lane, ordering, topic, headers, payload, created_at, state_at,
                                         state)
             SELECT decode(md5(n::text), 'hex'), {lane}, 'slow', 't', '', repeat('x', 100)::bytea, 1, 1,
                    CASE WHEN n <= 100000 THEN 1 ELSE 0 END
               FROM generate_series(1, 150000) AS n"
        ),
    );
    let store = &subject.store;
    let hold = Duration::from_secs(60);
    let turn = store.take(hold, 1, 999).await.unwrap().unwrap();
    let later = Delivery::Again { after: hold, error: "no".to_owned() };
    assert!(store.settle(lane, turn.turn, vec![(turn.messages[0].place, later)]).await.unwrap());
    let clock = SystemClock;
    let before = clock.monotonic();
    assert_eq!(store.take(hold, 100, 999).await.unwrap(), None);
    let held_back = clock.monotonic() - before;
    let before = clock.monotonic();
    assert_eq!(store.counts().await.unwrap().waiting, 50_000);
    let counted = clock.monotonic() - before;
    let id = MessageId::of(RecordId::from_bytes([1; 16]), Fence::new(1), 0);
    subject.write(vec![(id, Message::new("t", "another", "p"))]).await;
    let before = clock.monotonic();
    let turn = store.take(hold, 100, 999).await.unwrap().unwrap();
    let one = clock.monotonic() - before;
    assert_eq!(turn.messages[0].id, id);
    println!("held back: {held_back:?}, counted: {counted:?}, one: {one:?}");
    let slowest = held_back.max(counted).max(one);
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let scans = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'onetake_outbox'";
    assert_eq!(server.sql(database, scans), "0", "no plan went through the whole table");
}
