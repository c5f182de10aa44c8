//! Regression tests of adversarial cases. Each of them once lost or repeated an operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onetake_core::store::Due;
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Engine, Fingerprint, Key, OnUnknown, Operation, Outcome,
    RecordId, Recording, Scope, Settled, Settlement, Shift, Store, StoreErrorKind, SystemClock,
    Terms, Transition, Verdict, WhileRunning,
};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{PgBouncer, Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls};

use super::{migrated, patient, store_on};

fn id(number: u64) -> RecordId {
    RecordId::derive(&Scope::new("attack"), &Key::new(format!("key {number}")).unwrap())
}

pub(super) fn claim(number: u64) -> Claim {
    Claim {
        id: id(number),
        attempt: AttemptId::from_bytes(u128::from(number + 1).to_be_bytes()),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

pub(super) async fn stranger(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// If a server's connection dies behind PgBouncer, PgBouncer reports that with its own SQLSTATE
/// (08P01), although the statement may have been committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_landed_behind_pgbouncer_is_not_called_unwritten() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1;
    drop(store_on(&url).await);
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let bouncer = PgBouncer::start_at(proxy.address().port(), "transaction", 2).await;
    let through = server.url_at(bouncer.address(), database);
    let store = PostgresStore::open(&through, PostgresOptions::default()).await.unwrap();
    store.ready().await.unwrap();
    // The proxy may deliver held answers when it dies, so the test repeats until an answer is lost.
    let mut seen = Vec::new();
    for round in 0..20 {
        proxy.set(Weather::CutBack);
        let asked = async { store.claim(vec![claim(round)]).await.remove(0) };
        let cut = async {
            SystemClock.sleep(Duration::from_millis(300)).await;
            proxy.set(Weather::Dead);
        };
        let (answer, ()) = tokio::join!(asked, cut);
        let hex: String = id(round).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let landed = server
            .sql(database, &format!("SELECT count(*) FROM onetake_records WHERE id = '\\x{hex}'"));
        if let Err(error) = answer {
            seen.push((landed == "1", error.kind(), error.to_string()));
        }
        proxy.set(Weather::Fair);
        until("the store is back", async || store.ready().await.is_ok()).await;
    }
    assert!(seen.iter().any(|(landed, ..)| *landed), "no answer got lost: {seen:?}");
    let wrong: Vec<_> = seen
        .iter()
        .filter(|(landed, kind, _)| *landed && *kind != StoreErrorKind::Indeterminate)
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} landed and are called unwritten: {:?}",
        wrong.len(),
        seen.len(),
        wrong.first()
    );
}

/// Many held keys: each costs its own 50 ms on the one connection that all wait for. No statement
/// waits for a disk here, so that only the held keys could cause a delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_held_keys_neither_delay_nor_fail_the_others() {
    let server = Postgres::start_with(&["fsync = off"]).await;
    let url = migrated(&server).await;
    let options = PostgresOptions { allow_lossy: true, ..PostgresOptions::default() };
    PostgresStore::migrate(&url, options.clone()).await.unwrap();
    let store = PostgresStore::open(&url, options).await.unwrap();
    let held: Vec<Claim> = (0..80).map(claim).collect();
    for answer in store.claim(held.clone()).await {
        assert!(matches!(answer, Ok(Claimed::Granted { .. })));
    }
    let stranger = stranger(&url).await;
    stranger.batch_execute("BEGIN; SELECT FROM onetake_records FOR UPDATE").await.unwrap();
    let free: Vec<Claim> = (1000..1020).map(claim).collect();
    for answer in store.claim(free.clone()).await {
        assert!(matches!(answer, Ok(Claimed::Granted { .. })));
    }
    let complete = |claim: &Claim| Settlement {
        id: claim.id,
        attempt: claim.attempt,
        transition: Transition::Complete(Recording::new("done")),
    };
    let batch: Vec<Settlement> = held.iter().chain(&free).map(complete).collect();
    let answers = store.settle(batch).await;
    let failed: Vec<String> = answers
        .iter()
        .skip(held.len())
        .filter_map(|answer| answer.as_ref().err().map(ToString::to_string))
        .collect();
    let unsure = answers
        .iter()
        .filter(|a| matches!(a, Err(e) if e.kind() == StoreErrorKind::Indeterminate))
        .count();
    let away = store.claim(vec![claim(5000)]).await.remove(0).err().map(|e| e.to_string());
    assert!(
        failed.is_empty() && unsure == 0 && away.is_none(),
        "{} of 20 free keys failed ({:?}), {unsure} unsure; another key afterwards: {away:?}",
        failed.len(),
        failed.first(),
    );
}

fn shifted(shift: &Shift) -> PostgresOptions {
    PostgresOptions { shift: shift.clone(), ..patient() }
}

/// Short terms, so that this node's contact is soon long enough.
fn short(number: u64) -> Claim {
    let terms = Terms {
        lease: Duration::from_secs(30),
        grace: Duration::from_millis(10),
        ..Terms::default()
    };
    Claim { terms, ..claim(number) }
}

/// The row is locked for a moment (by a renewal) while the watch passes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_locked_when_the_watch_passed_is_still_reaped() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1;
    drop(store_on(&url).await);
    let shift = Shift::default();
    let store = PostgresStore::open(&url, shifted(&shift)).await.unwrap();
    assert!(matches!(store.claim(vec![short(1)]).await.remove(0), Ok(Claimed::Granted { .. })));
    // The reaper could not run for a while (an outage). Then it runs while a row is being written.
    shift.advance(Duration::from_secs(40));
    let stranger = stranger(&url).await;
    stranger.batch_execute("BEGIN; SELECT FROM onetake_records FOR UPDATE").await.unwrap();
    store.due(Due::LeaseEnd, 10).await.unwrap();
    stranger.batch_execute("ROLLBACK").await.unwrap();
    let mut found = 0;
    for _ in 0..200 {
        shift.advance(Duration::from_secs(60));
        found = found.max(store.due(Due::LeaseEnd, 10).await.unwrap().len());
    }
    let row = server.sql(database, "SELECT state, watch_at FROM onetake_records");
    assert_eq!(found, 1, "three hours after its lease ended nobody finds it: {row}");
}

/// The server's clock is set back, or a standby whose clock is behind takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_claimed_after_the_clock_was_set_back_is_still_reaped() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1;
    drop(store_on(&url).await);
    let ahead = Shift::default();
    ahead.advance(Duration::from_secs(3600));
    let before = PostgresStore::open(&url, shifted(&ahead)).await.unwrap();
    before.due(Due::LeaseEnd, 10).await.unwrap();
    // Back by an hour.
    let shift = Shift::default();
    let store = PostgresStore::open(&url, shifted(&shift)).await.unwrap();
    assert!(matches!(store.claim(vec![short(1)]).await.remove(0), Ok(Claimed::Granted { .. })));
    let mut found = 0;
    for _ in 0..200 {
        shift.advance(Duration::from_secs(60));
        found = found.max(store.due(Due::LeaseEnd, 10).await.unwrap().len());
    }
    let row = server.sql(database, "SELECT state, watch_at FROM onetake_records");
    assert_eq!(found, 1, "three hours later nobody finds it: {row}");
}

/// After a month without a running node, the watch covers it in steps of five minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_long_rest_the_watch_is_soon_where_it_matters() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    drop(store_on(&url).await);
    let shift = Shift::default();
    let store = PostgresStore::open(&url, shifted(&shift)).await.unwrap();
    let mut old = short(1);
    old.terms.ttl = Duration::from_secs(60 * 86_400);
    let done = Settlement {
        id: old.id,
        attempt: old.attempt,
        transition: Transition::Complete(Recording::new("done")),
    };
    assert!(matches!(store.claim(vec![old]).await.remove(0), Ok(Claimed::Granted { .. })));
    assert!(matches!(store.settle(vec![done]).await.remove(0), Ok(Settled::Done { .. })));
    store.due(Due::LeaseEnd, 10).await.unwrap();
    shift.advance(Duration::from_secs(30 * 86_400));
    assert!(matches!(store.claim(vec![short(2)]).await.remove(0), Ok(Claimed::Granted { .. })));
    shift.advance(Duration::from_secs(31));
    let mut looks = 0;
    while store.due(Due::LeaseEnd, 10).await.unwrap().is_empty() && looks < 500 {
        shift.advance(Duration::from_secs(1));
        looks += 1;
    }
    assert!(looks < 60, "{looks} looks, one a second, and its lease is over for as long");
}

/// A statement that was sent when the network broke is executed when the network recovers, with the
/// contact that its node had before. Without a check the owner would not get its grace again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_stuck_in_the_network_does_not_take_over_early() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1;
    drop(store_on(&url).await);
    let ways = [
        FaultProxy::start(server.address()).await.unwrap(),
        FaultProxy::start(server.address()).await.unwrap(),
    ];
    let options = PostgresOptions::default();
    let mut engines = Vec::new();
    for way in &ways {
        let through = server.url_at(way.address(), database);
        let store = PostgresStore::open(&through, options.clone()).await.unwrap();
        engines.push(Engine::new(Arc::new(store)));
    }
    let (owner, other) = (engines[0].clone(), engines[1].clone());
    let terms =
        Terms { grace: Duration::from_secs(6), on_unknown: OnUnknown::Retry, ..Terms::default() };
    let operation =
        Operation::new(&Scope::new("stuck"), &Key::new("charge").unwrap(), Fingerprint::of(b"pay"))
            .terms(terms)
            .in_flight(WhileRunning::Reject);
    let runs = Arc::new(AtomicUsize::new(0));
    let (started, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let work = {
        let (started, finish, runs) =
            (Arc::clone(&started), Arc::clone(&finish), Arc::clone(&runs));
        async move |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            started.notify_one();
            finish.notified().await;
            Verdict::Complete(Recording::new("charged"))
        }
    };
    let mut running = tokio::spawn({
        let (owner, operation) = (owner.clone(), operation.clone());
        async move { owner.run(operation, work).await }
    });
    tokio::select! {
        () = started.notified() => {}
        ended = &mut running => panic!("it did not start: {ended:?}"),
    }
    // Both have been in contact for longer than the grace.
    SystemClock.sleep(terms.grace + Duration::from_millis(500)).await;
    for way in &ways {
        way.set(Weather::Cut);
    }
    // Lease and grace have ended by the server's clock.
    server.sql(database, "UPDATE onetake_records SET state_at = 1");
    let again = {
        let runs = Arc::clone(&runs);
        move || {
            let runs = Arc::clone(&runs);
            async move |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                Verdict::Complete(Recording::new("charged again"))
            }
        }
    };
    // At that moment a client's retry arrives at the other node.
    let refused = other.run(operation.clone(), again()).await;
    assert!(refused.is_err(), "{refused:?}");
    finish.notify_one();
    // By then the other node's contact is too old to be used.
    SystemClock.sleep(options.command_timeout + Duration::from_millis(500)).await;
    // The other node's network recovers first, and the owner's well within the grace after that.
    ways[1].set(Weather::Fair);
    SystemClock.sleep(Duration::from_millis(700)).await;
    ways[0].set(Weather::Fair);
    let mut body = None;
    until("there is an outcome", async || {
        if let Ok(outcome @ (Outcome::Answered(_) | Outcome::Ran(_))) =
            other.run(operation.clone(), again()).await
        {
            body = outcome.recording().and_then(|recording| recording.body.clone());
        }
        body.is_some()
    })
    .await;
    drop(running.await.unwrap());
    assert_eq!(runs.load(Ordering::SeqCst), 1, "it ran twice; the outcome is {body:?}");
}

/// One item that the server cannot serve (a damaged row, too little memory for it) fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_damaged_row_fails_alone() {
    let mut server = Postgres::start().await;
    let url = migrated(&server).await;
    let database = url.rsplit_once('/').unwrap().1;
    let store = store_on(&url).await;
    // A recording whose TOAST chunks are missing, as after damage of a page (XX001).
    let damaged = claim(7);
    assert!(matches!(
        store.claim(vec![damaged.clone()]).await.remove(0),
        Ok(Claimed::Granted { .. })
    ));
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..100_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let transition = Transition::Complete(Recording::new(noise));
    let done = Settlement { id: damaged.id, attempt: damaged.attempt, transition };
    assert!(matches!(store.settle(vec![done]).await.remove(0), Ok(Settled::Done { .. })));
    let file = server.sql(
        database,
        "SELECT current_setting('data_directory') || '/' || pg_relation_filepath(reltoastrelid)
           FROM pg_class WHERE relname = 'onetake_records'",
    );
    // Without it, recovery would repair the damage.
    server.sql(database, "CHECKPOINT");
    server.stop();
    SystemClock.sleep(Duration::from_millis(300)).await;
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(0).unwrap();
    server.restart().await;
    until("the store is back", async || store.ready().await.is_ok()).await;
    let mut failed = Vec::new();
    for round in 1..=4_u64 {
        let mut batch: Vec<Claim> = (round * 100..round * 100 + 10).map(claim).collect();
        batch.push(damaged.clone());
        let mut answers = store.claim(batch).await;
        let broken = answers.pop();
        assert!(matches!(broken, Some(Err(_))), "it is damaged: {:?}", broken.map(|b| b.is_ok()));
        failed.extend(answers.into_iter().filter_map(|answer| answer.err().map(|e| e.to_string())));
    }
    assert!(failed.is_empty(), "{} of 40 others failed: {:?}", failed.len(), failed.last());
}

/// The most frequent mistake: a password with `@` or `?` that is not percent-encoded.
#[tokio::test]
async fn no_message_shows_a_part_of_a_password() {
    let mut shown = Vec::new();
    for url in [
        "postgres://me:p@topsecret@127.0.0.1:1/x",
        "postgres://me:p?topsecret=1@127.0.0.1:1/x",
        "postgres://me:p?topsecret@127.0.0.1:1/x",
        "postgres://me:p#topsecret@127.0.0.1:1/x",
        "postgres://me:p/topsecret@127.0.0.1:1/x",
        "postgres://me:p&topsecret=3@127.0.0.1:1/x",
        "postgres://me:p%zztopsecret@127.0.0.1:1/x",
    ] {
        let options = PostgresOptions {
            connect_timeout: Duration::from_millis(500),
            ..PostgresOptions::default()
        };
        let said = match PostgresStore::open(url, options).await {
            Ok(_) => continue,
            Err(error) => error.to_string(),
        };
        if said.contains("topsecret") {
            shown.push((url, said));
        }
    }
    assert!(shown.is_empty(), "{shown:#?}");
}
