//! Regression tests of further adversarial cases: an unreachable standby, a locked key, a full
//! disk, plans that were made too early. Each of them failed once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onetake_core::{
    Claimed, Clock, Engine, Fingerprint, Key, Limits, Operation, Recording, Scope, Settled,
    Settlement, Store, SystemClock, SystemRng, Transition, Verdict,
};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};

use super::lost_or_repeated::{claim, stranger};
use super::{migrated, store_on};

fn engine(store: Arc<dyn Store>) -> Engine {
    Engine::with(store, Arc::new(SystemClock), Arc::new(SystemRng), Limits::default())
}

/// A synchronous standby is unreachable, as when the primary is cut off and about to be replaced:
/// no commit is acknowledged. An operation whose claim no standby has must not run, and an outcome
/// that no standby has must not be shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_standby_acknowledged_neither_runs_nor_is_shown() {
    let server = Postgres::start().await;
    let url = migrated(&server).await;
    drop(store_on(&url).await);
    server.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'");
    server.sql("postgres", "SELECT pg_reload_conf()");
    until("the standby is named", async || {
        server.sql("postgres", "SHOW synchronous_standby_names").trim() == "standby"
    })
    .await;
    let store = PostgresStore::open(&url, PostgresOptions::default()).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let engine = engine(store);
    let runs = Arc::new(AtomicUsize::new(0));
    let operation =
        Operation::new(&Scope::new("sync"), &Key::new("charge").unwrap(), Fingerprint::of(b"pay"));
    let work = {
        let runs = Arc::clone(&runs);
        async move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            Verdict::Complete(Recording::new("charged"))
        }
    };
    let outcome = engine.run(operation, work).await;
    let log: Vec<String> = server
        .log()
        .lines()
        .filter(|line| {
            line.contains("synchronous replication") || line.contains("committed locally")
        })
        .map(ToOwned::to_owned)
        .collect();
    let shown = outcome.as_ref().is_ok_and(|outcome| outcome.recording().is_some());
    assert_eq!(
        (runs.load(Ordering::SeqCst), shown),
        (0, false),
        "(runs, shown) while no standby acknowledged anything: {outcome:?}\n{log:#?}"
    );
}

/// Another node's claim of the same key is waiting for the disk, or for a standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_somebody_is_claiming_is_not_leave_to_run_it() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = Arc::new(store_on(&url).await);
    let operation =
        Operation::new(&Scope::new("open"), &Key::new("charge").unwrap(), Fingerprint::of(b"pay"));
    let hex: String = operation.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let other = stranger(&url).await;
    // The same statement as another node's, with a slow commit.
    other
        .batch_execute(&format!(
            "BEGIN; SELECT * FROM onetake_claim_3(0, '50ms', 0, 0, 0::smallint, ARRAY['\\x{hex}'::bytea],
               ARRAY['\\x000102030405060708090a0b0c0d0e0f'::bytea], ARRAY['\\x00'::bytea], ARRAY[86400000000],
               ARRAY[30000000], ARRAY[30000000], ARRAY[0::smallint], ARRAY[''::bytea])"
        ))
        .await
        .unwrap();
    let began = SystemClock.monotonic();
    let error = engine(store.clone()).begin(&operation).await.unwrap_err();
    let took = SystemClock.monotonic() - began;
    assert!(store.ready().await.is_ok(), "the store is there");
    assert!(
        !error.is_store_down(),
        "after {took:?} a fail-open route runs what another node is claiming: {error}"
    );
}

/// A new key for which the disk has no space is in one batch with a retry of a finished key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_fails_new_keys_alone() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = store_on(&url).await;
    let before = claim(1);
    assert!(matches!(
        store.claim(vec![before.clone()]).await.remove(0),
        Ok(Claimed::Granted { .. })
    ));
    let transition = Transition::Complete(Recording::new("charged"));
    let done = Settlement { id: before.id, attempt: before.attempt, transition };
    assert!(matches!(store.settle(vec![done]).await.remove(0), Ok(Settled::Done { .. })));
    server.sql(
        url.rsplit_once('/').unwrap().1,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER full_disk BEFORE INSERT ON onetake_records FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    let alone = store.claim(vec![before.clone()]).await.remove(0);
    assert!(matches!(alone, Ok(Claimed::Found { .. })), "{alone:?}");
    let mut together = store.claim(vec![claim(2), before]).await;
    let retry = together.pop().unwrap();
    assert!(matches!(retry, Ok(Claimed::Found { .. })), "the retry of a finished key: {retry:?}");
}

/// Plans are kept, and may be from a time when the table was small. None of them may read all of
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_from_when_there_were_few_records_reads_few_of_many() {
    const MANY: u64 = 100_000;
    let server = Postgres::start_with(&["autovacuum = off"]).await;
    let url = migrated(&server).await;
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    let one = PostgresOptions { connections: 1, ..PostgresOptions::default() };
    PostgresStore::migrate(&url, one.clone()).await.unwrap();
    let store = PostgresStore::open(&url, one).await.unwrap();
    let settle = async |number: u64| {
        let claim = claim(number);
        let (id, attempt) = (claim.id, claim.attempt);
        assert!(matches!(
            store.claim(vec![claim.clone()]).await.remove(0),
            Ok(Claimed::Granted { .. })
        ));
        let transition = Transition::Complete(Recording::new("charged"));
        let done = store.settle(vec![Settlement { id, attempt, transition }]).await.remove(0);
        assert!(matches!(done, Ok(Settled::Done { .. })));
        // Finding an existing record is a separate statement in claims and in settlements.
        assert!(matches!(store.claim(vec![claim]).await.remove(0), Ok(Claimed::Found { .. })));
        let late = Settlement { id, attempt, transition: Transition::Release };
        assert!(matches!(store.settle(vec![late]).await.remove(0), Ok(Settled::Stale { .. })));
    };
    for number in 0..5 {
        settle(number).await;
    }
    server.sql(&database, "ANALYZE onetake_records");
    settle(60).await;
    server.sql(
        &database,
        &format!(
            "INSERT INTO onetake_records (id, attempt, fence, fingerprint, ttl, lease, grace, created_at, claimed_at,
                 state_at, sweep_at, expires_at, state, on_unknown, origin)
             SELECT substring(sha256(n::text::bytea) FROM 1 FOR 16), '\\x00', n, '\\x01', 1, 1, 1, 1, 1, 1, 1,
                    9000000000000000, 3, 0, '' FROM generate_series(1, {MANY}) AS n"
        ),
    );
    let read = || -> (u64, u64) {
        let text = server.sql(
            &database,
            "SELECT idx_scan || ' ' || idx_tup_read FROM pg_stat_user_indexes
              WHERE indexrelname = 'onetake_records_pkey'",
        );
        let (scans, rows) = text.trim().split_once(' ').unwrap();
        (scans.parse().unwrap(), rows.parse().unwrap())
    };
    let before = read();
    let mut number = 1000;
    until("the server counted", async || {
        settle(number).await;
        number += 1;
        read().0 > before.0 + 20
    })
    .await;
    let (scans, rows) = read();
    let (scans, rows) = (scans - before.0, rows - before.1);
    // Each inserted row may have been looked up once, but not all of them twice.
    assert!(rows < MANY, "{scans} scans read {rows} of {MANY} rows");
}
