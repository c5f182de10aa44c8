//! The outbox: the suite that every outbox passes, and tests of PostgreSQL alone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{OutboxSubject, run_outbox};
use onetake_core::clock::Sleep;
use onetake_core::outbox::{Delivery, Outbox};
use onetake_core::{Clock, Fence, Message, MessageId, RecordId, Shift, SystemClock, Timestamp};
use onetake_sim::servers::{PgBouncer, Postgres};
use onetake_stores::{PostgresOptions, PostgresStore};
use tokio_postgres::{Client, NoTls};

use super::outbox_repair::mends_itself;
use super::{migrated, patient};

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
    /// The store and the writer use different URLs, because tokio-postgres prepares statements by
    /// name.
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
            let shift = self.shift.as_micros();
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
    let server = Postgres::shared().await;
    let fresh = async || {
        let url = migrated(server).await;
        Subject::new(&url, &url).await
    };
    run_outbox(fresh).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_outbox_behind_pgbouncer() {
    let server = Postgres::start_with(&["default_transaction_isolation = 'serializable'"]).await;
    let bouncer = PgBouncer::start(&server, "transaction", 2).await;
    let fresh = async || {
        let direct = migrated(&server).await;
        let (_, database) = direct.rsplit_once('/').unwrap();
        Subject::new(&server.url_at(bouncer.address(), database), &direct).await
    };
    run_outbox(fresh).await.assert_passed();
}

/// If transactions are serializable, the server may ask for a repetition for a while. The store
/// repeats for that long, and not only for a number of tries that are over in an instant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_the_server_refuses_often_is_sent_again() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let subject = Subject::new(&url, &url).await;
    let id = MessageId::of(RecordId::from_bytes([1; 16]), Fence::new(1), 0);
    subject.write(vec![(id, Message::new("t", "a", "p"))]).await;
    let options = PostgresOptions { clock: Arc::new(Unhurried), ..patient() };
    let store = PostgresStore::open(&url, options).await.unwrap();
    let (_, database) = url.rsplit_once('/').unwrap();
    server.sql(
        database,
        // A sequence also counts in transactions that are rolled back.
        "CREATE SEQUENCE tries;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN
              IF nextval('tries') < 380 THEN
                RAISE 'could not serialize access' USING ERRCODE = '40001';
              END IF;
              RETURN NEW;
            END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON onetake_lanes FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let turn = store.take(Duration::from_secs(9), 9, 999).await.unwrap().unwrap();
    assert_eq!(turn.messages.iter().map(|one| one.id).collect::<Vec<_>>(), [id]);
}

/// A clock on which hardly any time passes, however slow the machine is. Sleeps have their real
/// length.
#[derive(Debug)]
struct Unhurried;

impl Clock for Unhurried {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic() / 1_000
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        SystemClock.sleep(duration)
    }
}

/// An unreadable row is parked, and does not block its lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_parked() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_command_can_leave_behind_mends_itself() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let subject = Subject::new(&url, &url).await;
    let (_, database) = url.rsplit_once('/').unwrap();
    mends_itself(&subject, |sql| drop(server.sql(database, sql))).await;
}

/// With any number of waiting, delivered or held-back messages, a turn reads a few rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_reads_a_few_rows_of_many() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let subject = Subject::new(&url, &url).await;
    let (_, database) = url.rsplit_once('/').unwrap();
    let lane = Message::new("t", "slow", "p").lane();
    server.sql(
        database,
        &format!(
            "INSERT INTO onetake_outbox (message, lane, ordering, topic, headers, payload, created_at, state_at,
                                         state)
             SELECT decode(md5(n::text), 'hex'), {lane}, 'slow', 't', '', repeat('x', 100)::bytea, 1, 1,
                    CASE WHEN n <= 30000 THEN 1 ELSE 0 END
               FROM generate_series(1, 60000) AS n"
        ),
    );
    // By the statistics one of two rows is fresh, but the fresh ones are not at the beginning.
    server.sql(database, "ANALYZE onetake_outbox");
    // Returns the result of a statement, and the number of rows that its transaction read.
    let read = "SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class
                 WHERE oid = 'onetake_outbox'::regclass
                    OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'onetake_outbox'::regclass)";
    let cost = |sql: &str| {
        let output = server.psql(database).args(["-1", "-c", sql, "-c", read]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let (answer, rows) = told.trim_end().rsplit_once('\n').unwrap();
        (answer.to_owned(), rows.parse::<u64>().unwrap())
    };
    let hour = 3_600_000_000_u64;
    let take = |shift: u64, limit: u32| {
        format!(
            "SELECT count(*) || '/' || max(r_turn) FROM onetake_take_1({shift}, 1, {limit}, 999999)"
        )
    };
    let (taken, rows) = cost(&take(0, 1));
    let (count, turn) = taken.split_once('/').unwrap();
    assert_eq!(count, "1");
    assert!(rows < 1_000, "to take from 30,000 fresh ones: {rows}");
    let store = &subject.store;
    let first = server.sql(database, "SELECT min(place) FROM onetake_outbox WHERE state = 0");
    let later = Delivery::Again { after: Duration::from_micros(hour), error: "no".to_owned() };
    let said = vec![(first.parse().unwrap(), later)];
    assert!(store.settle(lane, turn.parse().unwrap(), said).await.unwrap());

    // The messages behind it are found once.
    let fresh = "SELECT count(*) FROM onetake_outbox WHERE state = 0";
    let mut rounds = 0;
    while server.sql(database, fresh) != "0" {
        assert_eq!(store.take(Duration::from_secs(60), 100, 999).await.unwrap(), None);
        rounds += 1;
        assert!(rounds < 30, "each call finds some of them");
    }
    server.sql(database, "VACUUM ANALYZE onetake_outbox");
    let (nothing, rows) = cost(&take(0, 100));
    assert_eq!(nothing, "");
    assert!(rows < 100, "to find nothing: {rows}");
    let id = MessageId::of(RecordId::from_bytes([1; 16]), Fence::new(1), 0);
    subject.write(vec![(id, Message::new("t", "another", "p"))]).await;
    let (one, rows) = cost(&take(0, 100));
    assert!(one.starts_with("1/"), "{one}");
    assert!(rows < 100, "to find one: {rows}");
    // A turn of one microsecond is over by now.
    let (many, rows) = cost(&take(2 * hour, 100));
    assert!(many.starts_with("100/") || many.starts_with("1/"), "{many}");
    let (other, more) = cost(&take(2 * hour, 100));
    assert_ne!(many.split('/').next(), other.split('/').next(), "one lane after the other");
    assert!(rows.max(more) < 1_000, "to take what is due again: {rows}, {more}");
    // First nothing was delivered long enough ago, then everything.
    let prune = |kept: u64| format!("SELECT onetake_prune_1(0, {kept}, 100)");
    let now = SystemClock.now().as_micros();
    let (none, rows) = cost(&prune(2 * now));
    assert!(none == "0" && rows < 100, "to find nothing to prune: {rows}");
    let (pruned, rows) = cost(&prune(0));
    assert!(pruned == "100" && rows < 1_000, "to prune {pruned}: {rows}");
    let (counted, rows) = cost("SELECT r_waiting FROM onetake_outbox_counts_1(0, 100000)");
    assert_eq!(counted, "30001");
    assert!((30_000..31_000).contains(&rows), "to count: {rows}");
}
