//! A foreign transaction that holds one key neither delays nor fails the others (S21).

use onetake_conformance::many;
use onetake_core::{
    AttemptId, Claim, Claimed, Fingerprint, Key, RecordId, Recording, Scope, Settled, Settlement,
    Store, StoreErrorKind, Terms, Transition,
};
use onetake_sim::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use super::{migrated, store_on};

fn claim(number: u8) -> Claim {
    Claim {
        id: RecordId::derive(&Scope::new("held"), &Key::new(format!("key {number}")).unwrap()),
        attempt: AttemptId::from_bytes([number; 16]),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

fn complete(claim: &Claim) -> Settlement {
    let transition = Transition::Complete(Recording::new("done"));
    Settlement { id: claim.id, attempt: claim.attempt, transition }
}

/// Opens another program's connection.
async fn stranger(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncommitted_insert_holds_up_its_key_alone() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = store_on(&url).await;
    let stranger = stranger(&url).await;
    let held = claim(7);
    stranger.batch_execute("BEGIN").await.unwrap();
    let insert = "INSERT INTO onetake_records (id, attempt, fence, fingerprint, ttl, lease, grace, created_at,
         claimed_at, state_at, sweep_at, state, on_unknown, origin)
         VALUES ($1, $2, 1, $2, 1, 1, 1, 1, 1, 1, 1, 0, 0, '')";
    let (id, other): (&[u8], &[u8]) = (held.id.as_bytes(), &[1; 33]);
    stranger.execute(insert, &[&id, &other]).await.unwrap();
    // The other program holds the key for any length of time.
    for round in 0..3_u8 {
        let batch: Vec<Claim> =
            (0..20).map(|n| if n == 7 { held.clone() } else { claim(n + round * 20) }).collect();
        let answers = store.claim(batch).await;
        for (at, answer) in answers.into_iter().enumerate() {
            match (at, answer) {
                (7, Err(error)) => {
                    assert_eq!(error.kind(), StoreErrorKind::Busy);
                    assert!(error.to_string().contains("another transaction"), "{error}");
                }
                (7, Ok(answer)) => panic!("nobody can know: {answer:?}"),
                (_, answer) => assert!(matches!(answer, Ok(Claimed::Granted { .. })), "{answer:?}"),
            }
        }
    }
    stranger.batch_execute("ROLLBACK").await.unwrap();
    let answer = store.claim(vec![held]).await.remove(0).unwrap();
    assert!(matches!(answer, Claimed::Granted { .. }), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_holds_up_its_key_alone() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = store_on(&url).await;
    let claims: Vec<Claim> = (0..20).map(claim).collect();
    for answer in store.claim(claims.clone()).await {
        assert!(matches!(answer, Ok(Claimed::Granted { .. })));
    }
    let stranger = stranger(&url).await;
    stranger.batch_execute("BEGIN").await.unwrap();
    let held = claims[7].id;
    let lock = "SELECT FROM onetake_records WHERE id = $1 FOR UPDATE";
    stranger.query(lock, &[&held.as_bytes().as_slice()]).await.unwrap();
    // A read takes no lock, and neither does a claim that finds the key running.
    let retry = Claim { attempt: AttemptId::from_bytes([0xee; 16]), ..claims[7].clone() };
    let seen = store.claim(vec![retry]).await.remove(0).unwrap();
    assert!(matches!(seen, Claimed::Found { .. }), "{seen:?}");
    assert!(store.load(vec![held]).await.remove(0).unwrap().is_some());
    let answers = store.settle(claims.iter().map(complete).collect()).await;
    for (at, answer) in answers.into_iter().enumerate() {
        match (at, answer) {
            (7, Err(error)) => assert_eq!(error.kind(), StoreErrorKind::Busy),
            (7, Ok(answer)) => panic!("it is locked: {answer:?}"),
            (_, answer) => assert!(matches!(answer, Ok(Settled::Done { .. })), "{answer:?}"),
        }
    }
    stranger.batch_execute("COMMIT").await.unwrap();
    let answer = store.settle(vec![complete(&claims[7])]).await.remove(0).unwrap();
    assert!(matches!(answer, Settled::Done { .. }), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_refused_item_fails_alone() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let store = store_on(&url).await;
    // Like a poisoned item: the server refuses this one row.
    let poisoned = claim(7);
    let hex: String = poisoned.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let database = url.rsplit_once('/').unwrap().1;
    server.sql(
        database,
        &format!("ALTER TABLE onetake_records ADD CONSTRAINT poison CHECK (id <> '\\x{hex}')"),
    );
    let answers = store.claim((0..20).map(claim).collect()).await;
    for (at, answer) in answers.into_iter().enumerate() {
        match at {
            7 => assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Invalid),
            _ => assert!(matches!(answer, Ok(Claimed::Granted { .. })), "{answer:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_of_four_nodes_never_deadlock() {
    let server = Postgres::start().await;
    let url = migrated(&server).await;
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(std::sync::Arc::new(store_on(&url).await) as _);
    }
    let time = super::long_or(std::time::Duration::from_secs(4));
    many::overlapping_batches(nodes, 64, time, 1_000).await;
    let log = server.log();
    assert!(!log.contains("deadlock"), "{log}");
}
