//! Tests of refusals: they name the cause and the fix, and nothing is lost.

use onetake_core::{
    AttemptId, Claim, Claimed, Fingerprint, Key, RecordId, Scope, Store, StoreError,
    StoreErrorKind, Terms,
};
use onetake_sim::servers::{Postgres, free_port};
use onetake_stores::{PostgresOptions, PostgresStore, Weight};

use super::store_on;

async fn refused(url: &str) -> StoreError {
    PostgresStore::open(url, PostgresOptions::default()).await.unwrap_err()
}

fn says(error: &StoreError, kind: StoreErrorKind, parts: &[&str]) {
    let said = error.to_string();
    assert_eq!(error.kind(), kind, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing: {said}");
    }
    assert!(!said.contains("takes"), "a password was shown: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_url_is_said() {
    let server = Postgres::shared().await;
    let url = server.url("postgres");
    let nobody = format!("postgres://me:takesecret@127.0.0.1:{}/x", free_port());
    says(
        &refused(&nobody).await,
        StoreErrorKind::Unavailable,
        &["cannot be reached", "host and port"],
    );
    let password = url.replace("one@", "two@");
    says(
        &refused(&password).await,
        StoreErrorKind::Invalid,
        &["password", "check the user and password"],
    );
    let database = server.url("nowhere");
    says(
        &refused(&database).await,
        StoreErrorKind::Invalid,
        &["\"nowhere\" does not exist", "create it"],
    );
    says(
        &refused(&url).await,
        StoreErrorKind::Invalid,
        &["tables of onetake are not in this database", "onetake migrate"],
    );
    let tls = format!("{url}?sslmode=require");
    says(&refused(&tls).await, StoreErrorKind::Invalid, &["TLS", "sslmode"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_keep_every_text_is_refused() {
    let server = Postgres::shared().await;
    let latin =
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    server.sql("postgres", latin);
    let url = server.url("latin");
    let parts = ["LATIN1", "ENCODING 'UTF8'"];
    says(&refused(&url).await, StoreErrorKind::Invalid, &parts);
    let migrated = PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap_err();
    says(&migrated, StoreErrorKind::Invalid, &parts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_is_refused_unless_told() {
    for setting in ["fsync = off", "synchronous_commit = off", "full_page_writes = off"] {
        let server = Postgres::start_with(&[setting]).await;
        let url = server.database();
        let options = PostgresOptions::default();
        PostgresStore::migrate(&url, options.clone()).await.unwrap();
        let name = setting.split_once(' ').unwrap().0;
        says(
            &refused(&url).await,
            StoreErrorKind::Invalid,
            &[&format!("{name}=off"), "allow_lossy = true"],
        );
        let diagnosis = PostgresStore::diagnose(&url, options.clone()).await.unwrap();
        assert_eq!(diagnosis.worst(), Weight::Broken);
        assert!(diagnosis.findings[0].what.contains(name), "{diagnosis:?}");
        PostgresStore::open(&url, PostgresOptions { allow_lossy: true, ..options }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_server_has_nothing_broken() {
    let server = Postgres::shared().await;
    let url = server.database();
    let before = PostgresStore::diagnose(&url, PostgresOptions::default()).await.unwrap();
    assert!(
        before.findings[0].what.contains("tables of onetake are not in this database"),
        "{before:?}"
    );
    drop(store_on(&url).await);
    let diagnosis = PostgresStore::diagnose(&url, PostgresOptions::default()).await.unwrap();
    assert_ne!(diagnosis.worst(), Weight::Broken, "{diagnosis:?}");
    assert!(diagnosis.server.starts_with("PostgreSQL 1"), "{diagnosis:?}");
    assert!(diagnosis.clock_ahead_micros.unwrap().abs() < 10_000_000, "{diagnosis:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing() {
    let server = Postgres::shared().await;
    let url = server.database();
    let store = store_on(&url).await;
    let claim = |name: &str| Claim {
        id: RecordId::derive(&Scope::new("disk"), &Key::new(name).unwrap()),
        attempt: AttemptId::from_bytes([1; 16]),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    };
    let before = store.claim(vec![claim("before")]).await.remove(0);
    assert!(matches!(before, Ok(Claimed::Granted { .. })));
    // The server's error for a full disk, without filling a disk.
    let database = url.rsplit_once('/').unwrap().1;
    server.sql(
        database,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER full_disk BEFORE INSERT ON onetake_records FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    let error = store.claim(vec![claim("during"), claim("too")]).await.remove(0).unwrap_err();
    says(&error, StoreErrorKind::Unavailable, &["disk of PostgreSQL is full", "make room"]);
    let retry = Claim { attempt: AttemptId::from_bytes([2; 16]), ..claim("before") };
    let found = store.claim(vec![retry]).await.remove(0);
    assert!(matches!(found, Ok(Claimed::Found { .. })), "reading goes on: {found:?}");
    server.sql(database, "DROP TRIGGER full_disk ON onetake_records");
    let after = store.claim(vec![claim("during")]).await.remove(0);
    assert!(matches!(after, Ok(Claimed::Granted { .. })), "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_as_strict_as_the_url_asks_for() {
    let file = |name| format!("{}/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"));
    let server =
        Postgres::start_with_tls(file("server.pem").as_ref(), file("server.key").as_ref()).await;
    let url = server.database();
    drop(store_on(&url).await);
    let named = url.replace("127.0.0.1", "localhost");
    let root = file("ca.pem");
    for (url, seen) in [
        (format!("{url}?sslmode=disable"), "is not encrypted"),
        (url.clone(), "the certificate of the server is not verified"),
        (format!("{url}?sslmode=require"), "the certificate of the server is not verified"),
        (
            format!("{named}?sslmode=verify-full&sslrootcert={root}"),
            "the certificate of the server is verified",
        ),
        (format!("{named}?sslrootcert={root}"), "the certificate of the server is verified"),
    ] {
        PostgresStore::open(&url, PostgresOptions::default()).await.unwrap().ready().await.unwrap();
        let diagnosis = PostgresStore::diagnose(&url, PostgresOptions::default()).await.unwrap();
        assert!(diagnosis.findings.iter().any(|f| f.what.contains(seen)), "{seen}: {diagnosis:?}");
    }
    let stranger = format!("{named}?sslmode=verify-full");
    says(&refused(&stranger).await, StoreErrorKind::Invalid, &["TLS", "sslrootcert"]);
    let other_name = format!("{url}?sslmode=verify-full&sslrootcert={root}");
    says(&refused(&other_name).await, StoreErrorKind::Invalid, &["TLS"]);
}
