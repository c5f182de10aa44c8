//! Tests of the reaper's watch: which claims are in its index, and that none is missed.

use std::time::Duration;

use onetake_core::store::Due;
use onetake_core::{
    AttemptId, Cause, Claim, Claimed, Failure, OnUnknown, Recording, Settled, Settlement, Shift,
    Store, Terms, Transition,
};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};

use super::fences::claim_sql;
use super::lost_or_repeated::{claim, stranger};
use super::{migrated, patient, store_on};

const SECOND: Duration = Duration::from_secs(1);

/// A short grace, so that a node's contact is soon long enough.
fn terms() -> Terms {
    Terms { lease: 30 * SECOND, grace: Duration::from_millis(10), ..Terms::default() }
}

/// A database with a store on its own clock.
struct Watched<'a> {
    server: &'a Postgres,
    url: String,
    shift: Shift,
    store: PostgresStore,
}

impl<'a> Watched<'a> {
    async fn on(server: &'a Postgres) -> Self {
        let url = migrated(server).await;
        drop(store_on(&url).await);
        let shift = Shift::default();
        let options = PostgresOptions { shift: shift.clone(), ..patient() };
        let store = PostgresStore::open(&url, options).await.unwrap();
        Self { server, url, shift, store }
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(self.url.rsplit_once('/').unwrap().1, sql)
    }

    async fn granted(&self, claim: &Claim) {
        let claimed = self.store.claim(vec![claim.clone()]).await.remove(0).unwrap();
        assert!(matches!(claimed, Claimed::Granted { .. }), "{claimed:?}");
    }

    async fn settled(&self, claim: &Claim, transition: Transition) {
        let item = Settlement { id: claim.id, attempt: claim.attempt, transition };
        let settled = self.store.settle(vec![item]).await.remove(0).unwrap();
        assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
    }

    /// The number of due claims that one search finds.
    async fn look(&self) -> usize {
        self.store.due(Due::LeaseEnd, 100).await.unwrap().len()
    }

    /// Searches every ten seconds for an hour. Returns the number of searches until it found one,
    /// if ever.
    async fn found_within_an_hour(&self) -> Option<usize> {
        for looks in 1..=360 {
            self.shift.advance(10 * SECOND);
            if self.look().await > 0 {
                return Some(looks);
            }
        }
        None
    }

    /// The number of records in the index.
    fn watched(&self) -> String {
        self.sql("SELECT count(*) FROM onetake_records WHERE watch_at IS NOT NULL")
    }

    /// The number of records in the index with the end of their lease and grace.
    fn watched_rightly(&self) -> String {
        self.sql("SELECT count(*) FROM onetake_records WHERE watch_at = state_at + grace")
    }
}

fn long(number: u64) -> Claim {
    Claim { terms: terms(), ..claim(number) }
}

/// A claim whose commit waits for a standby, or for a disk, for minutes. It becomes visible long
/// after its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_becomes_visible_late_is_found() {
    let server = Postgres::start().await;
    let watched = Watched::on(&server).await;
    let late = stranger(&watched.url).await;
    let sql = claim_sql(&late, claim(1).id, 0, terms()).await;
    late.batch_execute(&format!("BEGIN; {sql}")).await.unwrap();
    for _ in 0..5 {
        watched.shift.advance(60 * SECOND);
        assert_eq!(watched.look().await, 0, "it cannot be seen yet");
    }
    late.batch_execute("COMMIT").await.unwrap();
    let looks = watched.found_within_an_hour().await;
    assert!(looks.is_some_and(|looks| looks <= 6), "found after {looks:?} looks");
}

/// The same for a claim that takes over a record which the watch has seen before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_a_known_key_that_becomes_visible_late_is_found() {
    let server = Postgres::start().await;
    let watched = Watched::on(&server).await;
    let late = stranger(&watched.url).await;
    let sql = claim_sql(&late, claim(1).id, 0, terms()).await;
    late.batch_execute(&sql).await.unwrap();
    let released =
        "UPDATE onetake_records SET state = 3, watch_at = NULL, expires_at = 9e15::bigint";
    watched.sql(released);
    // The next attempt.
    let sql = sql.replace("000102030405060708090a0b0c0d0e0f", "00000000000000000000000000000002");
    late.batch_execute(&format!("BEGIN; {sql}")).await.unwrap();
    for _ in 0..5 {
        watched.shift.advance(60 * SECOND);
        assert_eq!(watched.look().await, 0, "it cannot be seen yet");
    }
    late.batch_execute("COMMIT").await.unwrap();
    let looks = watched.found_within_an_hour().await;
    assert!(looks.is_some_and(|looks| looks <= 6), "found after {looks:?} looks");
}

/// A transaction of another program that writes for hours: everything else is found in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_transaction_of_another_program_holds_up_nothing() {
    let server = Postgres::start().await;
    let watched = Watched::on(&server).await;
    let stranger = stranger(&watched.url).await;
    stranger.batch_execute("BEGIN; CREATE TABLE another (it integer)").await.unwrap();
    for number in 0..3 {
        watched.granted(&long(number)).await;
        let looks = watched.found_within_an_hour().await;
        assert!(looks.is_some_and(|looks| looks <= 6), "found after {looks:?} looks");
        watched.settled(&long(number), Transition::Complete(Recording::new("paid"))).await;
        watched.shift.advance(600 * SECOND);
    }
    stranger.batch_execute("ROLLBACK").await.unwrap();
    watched.granted(&long(7)).await;
    assert!(watched.found_within_an_hour().await.is_some_and(|looks| looks <= 6));
}

/// A mark in the future, by its time or its number, is replaced: the clock was set back, or the
/// tables were restored on another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_from_the_future_is_replaced() {
    let server = Postgres::start().await;
    for odd in [
        "UPDATE onetake_watch SET mark_xid = '9000000000000000000', mark_at = 1",
        "UPDATE onetake_watch SET mark_at = 9000000000000000, settled_until = 9000000000000000",
    ] {
        let watched = Watched::on(&server).await;
        watched.look().await;
        watched.sql(odd);
        watched.look().await;
        let sane = "SELECT count(*) FROM onetake_watch WHERE mark_at BETWEEN 2 AND 8000000000000000
             AND settled_until < 8000000000000000 AND mark_xid < pg_snapshot_xmax(pg_current_snapshot())";
        assert_eq!(watched.sql(sane), "1", "{odd}");
    }
}

/// The cursor passes a time only once, so every claim of that time must have been seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_cursor_follows_the_first() {
    let server = Postgres::start().await;
    let watched = Watched::on(&server).await;
    let behind = "SELECT seen_until >= settled_until, seen_until - settled_until < 120000000 FROM onetake_watch";
    for _ in 0..20 {
        watched.shift.advance(30 * SECOND);
        watched.look().await;
    }
    assert_eq!(watched.sql(behind), "t|t");
}

/// A claim whose rows are written more than three seconds after its time puts itself under watch:
/// the second cursor may pass its time before it has a transaction number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_slow_to_write_is_watched_from_the_start() {
    let server = Postgres::start().await;
    let watched = Watched::on(&server).await;
    watched.granted(&long(1)).await;
    assert_eq!(watched.watched(), "0", "a claim that is quick is not");
    watched.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_sleep(3.1); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON onetake_records FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    watched.granted(&long(2)).await;
    assert_eq!(watched.watched(), "1");
    // Beside a key that exists already.
    let retry = Claim { attempt: AttemptId::from_bytes([0xee; 16]), ..long(2) };
    let answers = watched.store.claim(vec![retry, long(3)]).await;
    assert!(matches!(answers[0], Ok(Claimed::Found { .. })), "{answers:?}");
    assert!(matches!(answers[1], Ok(Claimed::Granted { .. })), "{answers:?}");
    assert_eq!((watched.watched(), watched.watched_rightly()), ("2".into(), "2".into()));
}

/// A long operation is in the index after ten seconds, with the current end of its lease and grace.
/// It leaves the index when it ends, with any ending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_operations_are_in_the_index_and_no_others() {
    let server = Postgres::start().await;
    let watched = Watched::on(&server).await;
    let failure = Failure { code: "declined".into(), detail: String::new() };
    let ends = [
        Transition::Complete(Recording::new("paid")),
        Transition::Fail(failure),
        Transition::Release,
        Transition::Unknown(Cause::TimedOut),
        Transition::ExpireLease,
    ];
    for (number, end) in (0..).zip(ends) {
        let claim = Claim { terms: Terms { lease: 1_000 * SECOND, ..terms() }, ..long(number) };
        watched.granted(&claim).await;
        watched.look().await;
        assert_eq!(watched.watched(), "0", "it has not run for long");
        watched.shift.advance(10 * SECOND);
        watched.look().await;
        assert_eq!((watched.watched(), watched.watched_rightly()), ("1".into(), "1".into()));
        for _ in 0..5 {
            watched.shift.advance(20 * SECOND);
            watched.settled(&long(number), Transition::Renew).await;
            assert_eq!(watched.watched_rightly(), "1", "its lease has moved");
            assert_eq!(watched.look().await, 0, "its owner renews it");
        }
        if end == Transition::ExpireLease {
            watched.shift.advance(900 * SECOND);
            assert_eq!(watched.look().await, 0);
            watched.shift.advance(101 * SECOND);
            assert_eq!(watched.look().await, 1, "long after the cursors passed its claim");
        }
        watched.settled(&long(number), end.clone()).await;
        assert_eq!(watched.watched(), "0", "{end:?}");
        assert_eq!(watched.look().await, 0);
    }
}

/// An attempt that takes over is watched from its own time on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_takes_over_is_watched_anew() {
    let server = Postgres::start().await;
    let watched = Watched::on(&server).await;
    let terms = Terms { on_unknown: OnUnknown::Retry, ..terms() };
    let first = Claim { terms, ..claim(1) };
    let second = Claim { attempt: claim(2).attempt, ..first.clone() };
    watched.granted(&first).await;
    watched.shift.advance(31 * SECOND);
    assert_eq!(watched.look().await, 1);
    watched.granted(&second).await;
    assert_eq!(watched.watched(), "0");
    watched.shift.advance(10 * SECOND);
    assert_eq!(watched.look().await, 0);
    assert_eq!((watched.watched(), watched.watched_rightly()), ("1".into(), "1".into()));
    watched.shift.advance(21 * SECOND);
    let found = watched.store.due(Due::LeaseEnd, 10).await.unwrap();
    assert_eq!(found.iter().map(|it| it.attempt).collect::<Vec<_>>(), [second.attempt]);
}

/// With any number of records, a search reads only a few, by the indexes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_reads_a_few_records_of_many() {
    const MANY: u64 = 30_000;
    let server = Postgres::start_with(&["autovacuum = off"]).await;
    let watched = Watched::on(&server).await;
    watched.sql(&format!(
        "INSERT INTO onetake_records (id, attempt, fence, fingerprint, ttl, lease, grace, created_at, claimed_at,
             state_at, sweep_at, expires_at, state, on_unknown, origin)
         SELECT substring(sha256(n::text::bytea) FROM 1 FOR 16), '\\x00', n, '\\x01', 1, 1, 1, 1, 1, 1, 1,
                9000000000000000, 1, 0, '' FROM generate_series(1, {MANY}) AS n"
    ));
    watched.sql("ANALYZE onetake_records");
    for number in 0..5 {
        watched.granted(&long(number)).await;
    }
    // The first searches go through the existing records.
    for _ in 0..10 {
        watched.shift.advance(60 * SECOND);
        watched.look().await;
    }
    let read = || -> (u64, u64) {
        let text = watched.sql(
            "SELECT (SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'onetake_records_watch') || ' ' ||
                    (SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'onetake_records')",
        );
        let (scans, rows) = text.trim().split_once(' ').unwrap();
        (scans.parse().unwrap(), rows.parse().unwrap())
    };
    // The server counts the reads of the first searches up to ten seconds later, so some rounds
    // seem to read more than they do. A search that scans the table reads all of it in every round.
    until("five looks read fewer rows than the table has", async || {
        let before = read();
        until("the index of the watched is used", async || {
            assert_eq!(watched.look().await, 5);
            read().0 >= before.0 + 5
        })
        .await;
        read().1 - before.1 < MANY
    })
    .await;
}
