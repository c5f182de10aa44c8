//! Tests of a server that becomes unreachable and comes back.

use std::sync::Arc;
use std::time::Duration;

use onetake_conformance::many;
use onetake_core::{
    Answer, Clock, Engine, Fingerprint, Key, ManualClock, OnUnknown, Operation, Outcome, Recording,
    Scope, Settlement, Store, StoreErrorKind, SystemClock, Terms, Transition, Verdict,
    WhileRunning,
};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};
use tokio::sync::Notify;

use super::lost_or_repeated::claim;
use super::{migrated, store_on};

async fn nodes(url: &str, count: usize) -> Vec<Engine> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(Engine::new(Arc::new(store_on(url).await)));
    }
    engines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_and_killed_under_load_nothing_runs_twice_or_is_lost() {
    let mut server = Postgres::start().await;
    let url = migrated(&server).await;
    let engines = nodes(&url, 2).await;
    let clock = SystemClock;
    let trouble = async {
        for round in 0..4 {
            clock.sleep(Duration::from_millis(400)).await;
            if round % 2 == 0 {
                server.stop()
            } else {
                server.kill()
            }
            clock.sleep(Duration::from_millis(100)).await;
            server.restart().await;
        }
    };
    let tally = many::charges_under(engines, Terms::default(), 16, trouble).await;
    assert!(tally.acknowledged > 50 && tally.after >= 16, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_noticed_and_the_store_comes_back() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    drop(store_on(&url).await);
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let options = PostgresOptions {
        command_timeout: Duration::from_millis(200),
        ..PostgresOptions::default()
    };
    let through = server.url_at(proxy.address(), url.rsplit_once('/').unwrap().1);
    let store = PostgresStore::open(&through, options).await.unwrap();
    until("the store answers", async || store.ready().await.is_ok()).await;
    proxy.set(Weather::Cut);
    for _ in 0..3 {
        assert_eq!(store.ready().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
    // One caller tries now and then, and gets the cause.
    let before = proxy.connections();
    let mut tried = Vec::new();
    for _ in 0..100 {
        let error = store.ready().await.unwrap_err().to_string();
        if !error.contains("reconnects automatically") {
            tried.push(error);
        }
    }
    assert!(tried.len() <= 5, "a dead server costs everybody a timeout: {tried:?}");
    assert!(proxy.connections() - before <= 5, "a dead server costs everybody a connection");
    proxy.set(Weather::Fair);
    until("the store answers again", async || store.ready().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn away_for_longer_than_lease_and_grace_an_outcome_is_believed() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    drop(store_on(&url).await);
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let database = url.rsplit_once('/').unwrap().1;
    let through = server.url_at(proxy.address(), database);
    let node = async || {
        let options = PostgresOptions::default();
        Engine::new(Arc::new(PostgresStore::open(&through, options).await.unwrap()))
    };
    let (owner, other) = (node().await, node().await);
    // The worst case: a node that may take over runs the operation again.
    let terms =
        Terms { grace: Duration::from_secs(6), on_unknown: OnUnknown::Retry, ..Terms::default() };
    let operation =
        Operation::new(&Scope::new("away"), &Key::new("charge").unwrap(), Fingerprint::of(b"pay"))
            .terms(terms)
            .in_flight(WhileRunning::Reject);
    let (started, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let work = {
        let (started, finish) = (Arc::clone(&started), Arc::clone(&finish));
        async move |_| {
            started.notify_one();
            finish.notified().await;
            Verdict::Complete(Recording::new("charged once"))
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
    proxy.set(Weather::Dead);
    // By the server's clock, lease and grace have ended too.
    server.sql(database, "UPDATE onetake_records SET state_at = 1");
    finish.notify_one();
    SystemClock.sleep(terms.grace + Duration::from_millis(500)).await;
    assert!(other.ready().await.is_err());
    proxy.set(Weather::Fair);
    // The other node tries first, again and again, and must not run it.
    let mut seen = None;
    until("the outcome is replayed", async || {
        let again = async |_| panic!("it ran twice");
        if let Ok(Outcome::Answered(answer)) = other.run(operation.clone(), again).await {
            seen = Some(answer);
        }
        matches!(seen, Some(Answer::Replay(_)))
    })
    .await;
    drop(running.await.unwrap());
    // The owner may not know yet that the outcome was written, and answers "in progress" for a
    // moment.
    until("its owner replays it too", async || {
        let again = async |_| panic!("it ran twice");
        let outcome = owner.run(operation.clone(), again).await.unwrap();
        let body = outcome.recording().and_then(|recording| recording.body.as_deref());
        body == Some(b"charged once".as_slice())
    })
    .await;
}

/// A statement that writes a large recording gets more time, by the store's own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_recording_gets_more_time() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let through = server.url_at(proxy.address(), url.rsplit_once('/').unwrap().1);
    for (number, bytes, seconds) in [(1, 300, 2), (2, 1 << 20, 3)] {
        proxy.set(Weather::Fair);
        let clock = ManualClock::new(SystemClock.now());
        let options =
            PostgresOptions { clock: Arc::new(clock.clone()), ..PostgresOptions::default() };
        let store = Arc::new(PostgresStore::open(&through, options).await.unwrap());
        let claim = claim(number);
        store.claim(vec![claim.clone()]).await.remove(0).unwrap();
        proxy.set(Weather::Cut);
        let recording = Recording::new(vec![b'x'; bytes]);
        let settlement = Settlement {
            id: claim.id,
            attempt: claim.attempt,
            transition: Transition::Complete(recording),
        };
        let settling = tokio::spawn(async move { store.settle(vec![settlement]).await.remove(0) });
        until("the store waits for the server", async || clock.sleepers() > 0).await;
        let last = Duration::from_millis(10);
        clock.advance(Duration::from_secs(seconds) - last);
        SystemClock.sleep(Duration::from_millis(200)).await;
        assert!(!settling.is_finished(), "{bytes} bytes");
        clock.advance(last * 2);
        let error = settling.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Indeterminate, "{bytes} bytes");
    }
}
