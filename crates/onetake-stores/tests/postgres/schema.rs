//! Tests of migrations, versions, and the views for SQL queries.

use futures_util::future::join_all;
use onetake_core::origin::Memo;
use onetake_core::{
    AttemptId, Claim, Claimed, Fingerprint, Key, Origin, RecordId, Recording, Scope, Settled,
    Settlement, Store, StoreErrorKind, TenantDigest, Terms, Transition,
};
use onetake_sim::servers::Postgres;
use onetake_stores::postgres::migrations;
use onetake_stores::{Migrated, PostgresOptions, PostgresStore, Weight};

use super::lost_or_repeated::{claim, stranger};
use super::store_on;

fn memo(text: &'static str) -> Memo {
    Memo::new(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_may_migrate_at_once_and_again() {
    let server = Postgres::shared().await;
    let url = server.database();
    let migrated =
        join_all((0..6).map(|_| PostgresStore::migrate(&url, PostgresOptions::default()))).await;
    let migrated: Vec<Migrated> = migrated.into_iter().map(Result::unwrap).collect();
    assert_eq!(migrated.iter().filter(|done| done.from.is_none()).count(), 1, "{migrated:?}");
    assert!(migrated.iter().all(|done| done.to == 3), "{migrated:?}");
    store_on(&url).await.ready().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_and_newer_versions_are_told_apart() {
    let server = Postgres::shared().await;
    let url = server.database();
    drop(store_on(&url).await);
    let database = url.rsplit_once('/').unwrap().1;
    let set = |version: u32, works_from: u32| {
        let update = "UPDATE onetake_schema SET version =";
        server.sql(database, &format!("{update} {version}, works_from = {works_from}"));
    };
    let open = async || PostgresStore::open(&url, PostgresOptions::default()).await;
    set(4, 3);
    open().await.unwrap().ready().await.unwrap();
    let kept = PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap();
    assert_eq!((kept.from, kept.to), (Some(4), 4), "a newer one is left alone");
    set(5, 4);
    let newer = open().await.unwrap_err();
    assert_eq!(newer.kind(), StoreErrorKind::Invalid);
    assert!(
        newer.to_string().contains("version 5")
            && newer.to_string().contains("install a newer onetake")
    );
    PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap_err();
    set(0, 0);
    let older = open().await.unwrap_err();
    assert!(
        older.to_string().contains("version 0") && older.to_string().contains("onetake migrate"),
        "{older}"
    );
    set(3, 1);
    open().await.unwrap();
}

/// Everything in the catalogs that has onetake's prefix: tables, columns, indexes, constraints,
/// views, sequences and functions; and the rows that migrations write.
const CATALOG: &str = "
    SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
      SELECT concat_ws(' ', 'relation', relname, relkind, reloptions) AS line FROM pg_class
       WHERE relname LIKE 'onetake%'
      UNION ALL SELECT concat_ws(' ', 'column', table_name, ordinal_position, column_name, data_type, is_nullable,
                       column_default, is_identity) FROM information_schema.columns WHERE table_name LIKE 'onetake%'
      UNION ALL SELECT concat_ws(' ', 'index', indexdef) FROM pg_indexes WHERE tablename LIKE 'onetake%'
      UNION ALL SELECT concat_ws(' ', 'constraint', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint
       WHERE conrelid::regclass::text LIKE 'onetake%'
      UNION ALL SELECT concat_ws(' ', 'view', viewname, definition) FROM pg_views WHERE viewname LIKE 'onetake%'
      UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'onetake%'
      UNION ALL SELECT concat_ws(' ', 'version', version, works_from) FROM onetake_schema
      UNION ALL SELECT concat_ws(' ', 'lanes', count(*), sum(turn), sum(taken_until)) FROM onetake_lanes
      UNION ALL SELECT concat_ws(' ', 'watch', onetake_watch) FROM onetake_watch
      UNION ALL SELECT concat_ws(' ', 'floor', onetake_floor) FROM onetake_floor
    ) AS lines";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_from_files_make_the_same_schema() {
    let server = Postgres::shared().await;
    let (migrated, by_files) = (server.database(), server.database());
    PostgresStore::migrate(&migrated, PostgresOptions::default()).await.unwrap();
    let client = stranger(&by_files).await;
    let steps = migrations();
    let versions: Vec<u32> = steps.iter().map(|step| step.version).collect();
    assert_eq!(versions, [1, 2, 3]);
    for step in steps {
        client.batch_execute(&step.sql).await.unwrap();
    }
    let catalog = |url: &str| server.sql(url.rsplit_once('/').unwrap().1, CATALOG);
    let expected = catalog(&migrated);
    assert!(expected.contains("onetake_claim_3") && expected.contains("version 3 1"), "{expected}");
    assert_eq!(catalog(&by_files), expected);
    PostgresStore::open(&by_files, PostgresOptions::default())
        .await
        .unwrap()
        .ready()
        .await
        .unwrap();
    let again = PostgresStore::migrate(&by_files, PostgresOptions::default()).await.unwrap();
    assert_eq!((again.from, again.to), (Some(3), 3));
}

/// Tables of version 1, as a program of that version made them, with a key that runs and one that
/// is finished. They are refused until they are migrated; then nodes of both versions work on them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_version_1_are_migrated_and_keep_what_they_have() {
    let server = Postgres::shared().await;
    let url = server.database();
    let database = url.rsplit_once('/').unwrap().1;
    let old = stranger(&url).await;
    old.batch_execute(&migrations()[0].sql).await.unwrap();
    let claims: Vec<Claim> = (1..=3).map(claim).collect();
    let by_version_1 = |claim: &Claim| {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (id, attempt) = (hex(claim.id.as_bytes()), hex(claim.attempt.as_bytes()));
        let fingerprint =
            format!("{:02x}{}", claim.fingerprint.scheme(), hex(claim.fingerprint.digest()));
        format!(
            "SELECT r_kind FROM onetake_claim_1(0, '1s', 0, 0, 0::smallint, ARRAY['\\x{id}'::bytea],
               ARRAY['\\x{attempt}'::bytea], ARRAY['\\x{fingerprint}'::bytea], ARRAY[86400000000],
               ARRAY[30000000], ARRAY[30000000], ARRAY[0::smallint], ARRAY[''::bytea])"
        )
    };
    for claim in &claims[..2] {
        old.batch_execute(&by_version_1(claim)).await.unwrap();
    }
    server.sql(database, "UPDATE onetake_watch SET seen_until = 12345");
    let refused = PostgresStore::open(&url, PostgresOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("onetake migrate"), "{refused}");

    let migrated =
        join_all((0..3).map(|_| PostgresStore::migrate(&url, PostgresOptions::default()))).await;
    let migrated: Vec<Migrated> = migrated.into_iter().map(Result::unwrap).collect();
    assert!(migrated.iter().any(|done| done.from == Some(1)), "{migrated:?}");
    assert!(migrated.iter().all(|done| done.to == 3), "{migrated:?}");
    let kept =
        "SELECT version, works_from, seen_until, settled_until FROM onetake_schema, onetake_watch";
    assert_eq!(server.sql(database, kept), "3|1|12345|12345");

    let store = PostgresStore::open(&url, PostgresOptions::default()).await.unwrap();
    let transition = Transition::Complete(Recording::new("paid"));
    let done = Settlement { id: claims[0].id, attempt: claims[0].attempt, transition };
    assert!(matches!(store.settle(vec![done]).await.remove(0), Ok(Settled::Done { .. })));
    let attempt = AttemptId::from_bytes([9; 16]);
    let others = claims.iter().map(|claim| Claim { attempt, ..claim.clone() });
    let answers = store.claim(others.collect()).await;
    let states: Vec<&str> = answers
        .iter()
        .map(|answer| match answer.as_ref().unwrap() {
            Claimed::Found { record, .. } => record.state.name(),
            Claimed::Granted { .. } => "granted",
        })
        .collect();
    assert_eq!(states, ["completed", "running", "granted"]);
    // A node of the earlier version still works: it finds the records of the others.
    let rows = old.query(&by_version_1(&claims[2]), &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, i16>(0), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completing_touches_no_index_and_people_can_read_it() {
    let server = Postgres::shared().await;
    let url = server.database();
    let store = store_on(&url).await;
    let claims: Vec<Claim> = (0..50_u8)
        .map(|number| Claim {
            id: RecordId::derive(
                &Scope::new("people"),
                &Key::new(format!("key {number}")).unwrap(),
            ),
            attempt: AttemptId::from_bytes([number; 16]),
            fingerprint: Fingerprint::of(b"pay"),
            terms: Terms::default(),
            origin: Origin::new(TenantDigest::from_bytes([0xa5; 16]), "POST /pay"),
        })
        .collect();
    for batch in claims.chunks(10) {
        store.claim(batch.to_vec()).await;
        let done = batch.iter().map(|claim| Settlement {
            id: claim.id,
            attempt: claim.attempt,
            transition: Transition::Complete(Recording::new(vec![b'x'; 300])),
        });
        store.settle(done.collect()).await;
    }
    let database = url.rsplit_once('/').unwrap().1;
    let updates = "SELECT n_tup_hot_upd || ' of ' || n_tup_upd FROM pg_stat_user_tables WHERE relname = 'onetake_records'";
    onetake_sim::servers::until("the counts arrive", async || {
        server.sql(database, updates) == "50 of 50"
    })
    .await;
    let shown = "SELECT state, replayable, bytes, expires_at - created_at FROM onetake_keys GROUP BY 1, 2, 3, 4";
    assert_eq!(server.sql(database, shown), "completed|t|300|1 day");
    let who = "SELECT tenant, route FROM onetake_keys GROUP BY 1, 2";
    assert_eq!(server.sql(database, who), format!("{}|POST /pay", "a5".repeat(16)));
    // The tenant is optional, a route may have any name, and the view does not show the memo, which
    // only a reconciler needs.
    let silent = Claim { origin: Origin::default(), ..claims[0].clone() };
    let odd = Origin::new(TenantDigest::default(), "größe \\000").with_memo(memo("\0a\0key"));
    let odd = Claim { origin: odd, ..claims[1].clone() };
    let only = Origin::new(TenantDigest::from_bytes([1; 16]), "").with_memo(memo("a key"));
    let only = Claim { origin: only, ..claims[2].clone() };
    server.sql(database, "DELETE FROM onetake_records");
    let odd_id = odd.id;
    store.claim(vec![silent, odd.clone(), only]).await;
    let who = "SELECT tenant IS NULL, route FROM onetake_keys ORDER BY tenant NULLS FIRST";
    let expected = r"gr\303\266\303\237e \\000";
    assert_eq!(server.sql(database, who), format!("t|\nf|{expected}\nf|"));
    let kept = store.load(vec![odd_id]).await.remove(0).unwrap().unwrap();
    assert_eq!(kept.origin, odd.origin);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_not_whole_are_refused_and_the_doctor_says_so() {
    let server = Postgres::shared().await;
    for damage in [
        "DROP TABLE onetake_notes",
        "ALTER TABLE onetake_records DROP COLUMN origin CASCADE",
        "ALTER TABLE onetake_records DROP COLUMN history",
        "ALTER TABLE onetake_records DROP COLUMN ask_at CASCADE",
    ] {
        let url = server.database();
        drop(store_on(&url).await);
        server.sql(url.rsplit_once('/').unwrap().1, damage);
        let error = PostgresStore::open(&url, PostgresOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        let said = error.to_string();
        assert!(said.contains("incomplete") && said.contains("onetake migrate"), "{said}");
        let found = PostgresStore::diagnose(&url, PostgresOptions::default()).await.unwrap();
        let broken = |finding: &onetake_stores::Finding| {
            finding.weight == Weight::Broken && finding.what.contains("incomplete")
        };
        assert!(found.findings.iter().any(broken), "{:?}", found.findings);
    }
}
