//! Tests of what operators see and do, in places that the common suite cannot check: rows and
//! plans.

use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::audit::{AUDIT_KEPT, AuditAction, AuditEntry, AuditPosition, AuditResult};
use onetake_core::clock::micros;
use onetake_core::origin::{HISTORY_BYTES_MAX, PastAttempt};
use onetake_core::store::{AuditLog, Due, RecordIndex};
use onetake_core::{
    AttemptId, Cause, Claim, Claimed, Clock, Failure, OnUnknown, Origin, Record, RecordId,
    Recording, Settled, Settlement, Shift, State, Store, SystemClock, SystemRng, TenantDigest,
    Timestamp, Transition,
};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};

use super::lost_or_repeated::claim;
use super::{migrated, store_on};

fn asked(number: u64) -> Claim {
    let origin = Origin::new(TenantDigest::from_bytes([7; 16]), "POST /pay");
    Claim { origin, ..claim(number) }
}

async fn granted(store: &PostgresStore, claim: &Claim) {
    let answer = store.claim(vec![claim.clone()]).await.remove(0);
    assert!(matches!(answer, Ok(Claimed::Granted { .. })), "{answer:?}");
}

async fn done(store: &PostgresStore, claim: &Claim, transition: Transition) -> Record {
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    match store.settle(vec![settlement]).await.remove(0).unwrap() {
        Settled::Done { record, .. } => Record::clone(&record),
        Settled::Stale { current } => panic!("stale: {current:?}"),
    }
}

async fn load(store: &PostgresStore, claim: &Claim) -> Option<Record> {
    let found = store.load(vec![claim.id]).await.remove(0).unwrap();
    found.map(|record| Record::clone(&record))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_the_forgotten_is_left_in_its_row() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1;
    let store = store_on(&url).await;
    let recording = Recording { head: "head".into(), body: Some("a secret".into()) };
    let failure = Failure { code: "declined".to_owned(), detail: "a secret".to_owned() };
    for (number, transition) in
        [(1, Transition::Complete(recording)), (2, Transition::Fail(failure))]
    {
        let claim = asked(number);
        granted(&store, &claim).await;
        done(&store, &claim, transition).await;
        let gone = done(&store, &claim, Transition::Forget).await;
        assert_eq!(gone.terms.ttl, Duration::ZERO);
        assert_eq!(gone.origin, claim.origin);
        let State::Released { at } = gone.state else { panic!("{}", gone.state.name()) };
        let row = "SELECT num_nulls(head, body, code, detail), state, ttl, state_at, expires_at, sweep_at,
                          created_at <= state_at FROM onetake_records";
        let at = at.as_micros();
        assert_eq!(server.sql(database, row), format!("4|3|0|{at}|{at}|{at}|t"));
        assert_eq!(store.sweep(10).await.unwrap().removed, 1, "and the sweep finds it at once");
    }
}

/// If many nodes could reconcile at once, one does. A row contains no more than necessary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_asks_and_what_rolled_back_has_no_cause() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1;
    let store = store_on(&url).await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(PostgresStore::open(&url, PostgresOptions::default()).await.unwrap());
    }
    let [mut asked, mut rolled] = [asked(1), asked(2)];
    asked.terms.on_unknown = OnUnknown::Reconcile;
    rolled.terms.on_unknown = OnUnknown::Rollback;
    for claim in [&asked, &rolled] {
        granted(&store, claim).await;
        done(&store, claim, Transition::Unknown(Cause::Reported("a detail".to_owned()))).await;
    }
    let row = "SELECT state, code IS NULL, detail IS NULL, ask_at = state_at FROM onetake_records
                ORDER BY on_unknown";
    assert_eq!(server.sql(database, row), "4|f|f|t\n3|t|t|");
    let (id, attempt) = (asked.id, asked.attempt);
    for _ in 0..5 {
        let transition = Transition::PostponeReconcile(Duration::from_secs(3600));
        let defer = Settlement { id, attempt, transition };
        let answers = stores.iter().map(|store| store.settle(vec![defer.clone()]));
        let answers = join_all(answers).await.into_iter().flatten();
        let won = answers.filter(|answer| matches!(answer, Ok(Settled::Done { .. }))).count();
        assert_eq!(won, 1, "one asks");
        // The reconciliation is due again.
        server.sql(database, "UPDATE onetake_records SET ask_at = state_at WHERE state = 4");
    }
    done(&store, &asked, Transition::Complete(Recording::new("found"))).await;
    assert_eq!(server.sql(database, row), "1|t|t|\n3|t|t|");

    // An owner that lost its key counts as running until then, in every store.
    rolled.terms.lease = Duration::from_millis(1);
    rolled.terms.grace = Duration::from_millis(1);
    rolled.attempt = AttemptId::from_bytes([0xdd; 16]);
    granted(&store, &rolled).await;
    until("its lease and grace are over", async || {
        let answer = store.claim(vec![asked_anew(&rolled)]).await.remove(0);
        matches!(answer, Ok(Claimed::Granted { .. }))
    })
    .await;
    let stood = "SELECT regexp_replace(history, '[0-9]+ ', '', 'g') FROM onetake_records WHERE on_unknown = 3";
    assert_eq!(server.sql(database, stood), "released\nrunning");
}

/// The same operation by another attempt.
fn asked_anew(claim: &Claim) -> Claim {
    Claim { attempt: AttemptId::from_bytes([0xee; 16]), ..claim.clone() }
}

/// The server's clock was set back since, or a standby whose clock is behind took over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_claimed_in_the_future_is_forgotten_at_once_too() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = store_on(&url).await;
    let shift = Shift::default();
    shift.advance(Duration::from_secs(3600));
    let ahead = PostgresOptions { shift, ..PostgresOptions::default() };
    let ahead = PostgresStore::open(&url, ahead).await.unwrap();
    let claim = asked(1);
    granted(&ahead, &claim).await;
    done(&ahead, &claim, Transition::Complete(Recording::new("paid"))).await;
    let gone = done(&store, &claim, Transition::Forget).await;
    let State::Released { at } = gone.state else { panic!("{}", gone.state.name()) };
    assert_eq!(gone.expires_at(), Some(at));
    assert_eq!(load(&store, &claim).await, None);
    assert_eq!(store.sweep(10).await.unwrap().removed, 1);
}

/// Each attempt adds what [`decide`](onetake_core::decide) would add, byte for byte, also if the
/// text is cut. The answer to a settlement is equal to a later read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_is_cut_where_every_store_cuts_it() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = store_on(&url).await;
    let mut before: Option<Record> = None;
    let mut cut = false;
    for number in 0..40_u128 {
        let claim = Claim { attempt: AttemptId::from_bytes(number.to_be_bytes()), ..asked(1) };
        granted(&store, &claim).await;
        let released = done(&store, &claim, Transition::Release).await;
        assert_eq!(load(&store, &claim).await.as_ref(), Some(&released));
        if let Some(before) = before {
            let State::Released { at } = before.state else { panic!("{}", before.state.name()) };
            let past = PastAttempt {
                fence: before.fence,
                claimed_at: before.claimed_at,
                ended_at: at,
                stood: "released",
            };
            assert_eq!(released.history, before.history.with(&past), "attempt {number}");
        }
        cut |= released.history.as_text().len() == HISTORY_BYTES_MAX;
        before = Some(released);
    }
    assert!(cut, "it never was as long");
    let database = url.rsplit_once('/').unwrap().1;
    let length = server.sql(database, "SELECT octet_length(history) FROM onetake_records");
    assert_eq!(length, HISTORY_BYTES_MAX.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_has_ids_from_its_first_to_its_last() {
    let server = Postgres::shared().await;
    let store = store_on(&migrated(server).await).await;
    let reference = claim(1).id.reference();
    let (first, last) = reference.ids().into_inner();
    let number = |id: RecordId| u128::from_be_bytes(*id.as_bytes());
    let ids = [number(first) - 1, number(first), number(last), number(last) + 1]
        .map(|number| RecordId::from_bytes(number.to_be_bytes()));
    for id in ids {
        granted(&store, &Claim { id, ..claim(1) }).await;
    }
    assert_eq!(store.find(reference).await.unwrap(), [first, last]);
}

fn audit(id: RecordId, at: Timestamp) -> AuditEntry {
    AuditEntry {
        place: AuditPosition::new(at, &SystemRng),
        id,
        attempt: AttemptId::from_bytes([7; 16]),
        action: AuditAction::Forget,
        ended: AuditResult::Asked,
        before: "completed".to_owned(),
        by: "ops".to_owned(),
        reason: "why".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_that_cannot_be_read_hides_no_other() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = store_on(&url).await;
    let (id, now) = (claim(1).id, SystemClock.now());
    let mut expected = Vec::new();
    for second in 0..6 {
        let entry = audit(id, now.plus(Duration::from_secs(second)));
        store.audit(entry.clone()).await.unwrap();
        expected.insert(0, entry);
    }
    let damaged = "(SELECT place FROM onetake_notes ORDER BY place OFFSET 3 LIMIT 1)";
    let damage = format!("UPDATE onetake_notes SET said = '\\x09' WHERE place = {damaged}");
    server.sql(url.rsplit_once('/').unwrap().1, &damage);
    expected.remove(2);
    for of in [None, Some(id)] {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let page = store.audit_entries(of, from, 2).await.unwrap();
            all.extend(page.entries);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(all, expected);
    }
}

/// If a transaction locks audit entries, or two nodes sweep at once, the other entries are still
/// swept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_notes_are_swept_a_few_at_a_time_and_none_that_is_held() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    let store = store_on(&url).await;
    let now = SystemClock.now();
    let old = Timestamp::from_micros(now.as_micros() - micros(AUDIT_KEPT));
    let (young, held) = (old.plus(Duration::from_secs(60)), audit(claim(1).id, old));
    store.audit(audit(claim(1).id, young)).await.unwrap();
    store.audit(held.clone()).await.unwrap();
    let many = format!(
        "INSERT INTO onetake_notes SELECT int8send({} - n) || '\\x0000000000000000'::bytea, '\\x01', '\\x00'
           FROM generate_series(1, 1500) AS n",
        old.as_micros()
    );
    server.sql(&database, &many);
    let stranger = super::lost_or_repeated::stranger(&url).await;
    stranger.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT FROM onetake_notes WHERE place = $1 FOR UPDATE";
    stranger.execute(lock, &[&held.place.as_bytes().as_slice()]).await.unwrap();
    let count = || server.sql(&database, "SELECT count(*) FROM onetake_notes");
    for left in ["502", "2", "2"] {
        store.sweep(10).await.unwrap();
        assert_eq!(count(), left);
    }
    stranger.batch_execute("ROLLBACK").await.unwrap();
    store.sweep(10).await.unwrap();
    assert_eq!(count(), "1", "the one that is not old enough");
}

/// References, the audit, and due reconciliations are found by an index, also with plans from a
/// time when there were few rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_ask_for_reads_few_rows_of_many() {
    const MANY: u64 = 50_000;
    const ROUNDS: u64 = 40;
    let server = Postgres::start_with(&["autovacuum = off"]).await;
    let url = migrated(&server).await;
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    let one = PostgresOptions { connections: 1, ..PostgresOptions::default() };
    PostgresStore::migrate(&url, one.clone()).await.unwrap();
    let store = PostgresStore::open(&url, one).await.unwrap();
    let mut asked = asked(1);
    asked.terms.on_unknown = OnUnknown::Reconcile;
    granted(&store, &asked).await;
    done(&store, &asked, Transition::Unknown(Cause::TimedOut)).await;
    let now = SystemClock.now();
    let ask = async || {
        store.audit(audit(asked.id, now)).await.unwrap();
        assert_eq!(store.find(asked.id.reference()).await.unwrap(), [asked.id]);
        assert!(!store.audit_entries(None, None, 5).await.unwrap().entries.is_empty());
        assert!(!store.audit_entries(Some(asked.id), None, 5).await.unwrap().entries.is_empty());
        assert_eq!(store.due(Due::Reconcile, 5).await.unwrap().len(), 1);
        store.sweep(10).await.unwrap();
    };
    for _ in 0..6 {
        ask().await;
    }
    server.sql(&database, "ANALYZE");
    ask().await;
    // Newer notes of other records, which precede these notes. Nothing is due for the sweep or for
    // reconciliation.
    let many = format!(
        "INSERT INTO onetake_records (id, attempt, fence, fingerprint, origin, ttl, lease, grace, created_at,
             claimed_at, state_at, sweep_at, expires_at, ask_at, state, on_unknown)
         SELECT substring(sha256(n::text::bytea) FROM 1 FOR 16), '\\x00', n, '\\x01', '', 1, 1, 1, 1, 1, 1,
                9000000000000000, 9000000000000000, 8000000000000000, 4, 1 FROM generate_series(1, {MANY}) AS n;
         INSERT INTO onetake_notes (place, id, said)
         SELECT place || substring(sha256(place) FROM 1 FOR 16), sha256(place), said
           FROM generate_series(1, {MANY}) AS n, int8send({} + n) AS place,
                (SELECT said FROM onetake_notes LIMIT 1) AS one",
        now.as_micros()
    );
    server.sql(&database, &many);
    let before = counted(&server, &database);
    for _ in 0..ROUNDS {
        ask().await;
    }
    // At the latest, the server counts the reads of a connection when it is closed.
    store.close().await.unwrap();
    until("the server counted", async || {
        counted(&server, &database).scans >= before.scans + 5 * ROUNDS
    })
    .await;
    let rows = counted(&server, &database).rows - before.rows;
    assert!(rows < 50 * ROUNDS, "{ROUNDS} rounds read {rows} of {MANY} rows");
}

struct Counted {
    /// The number of index scans.
    scans: u64,
    /// The number of rows that were read, with or without an index.
    rows: u64,
}

fn counted(server: &Postgres, database: &str) -> Counted {
    let tables = "('onetake_records', 'onetake_notes')";
    let text = server.sql(
        database,
        &format!(
            "SELECT (SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname IN {tables})
                 || ' ' || (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN {tables})
                         + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN {tables})"
        ),
    );
    let (scans, rows) = text.split_once(' ').unwrap();
    Counted { scans: scans.parse().unwrap(), rows: rows.parse().unwrap() }
}
