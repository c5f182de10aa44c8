//! Mode T: effects, messages and the outcome commit together, or nothing does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use onetake_core::{
    Answer, Attempt, Begin, Clock, Completion, Engine, Fingerprint, FinishError, Key, Message,
    MessageId, NotDone, Operation, Outcome, Recording, Scope, Settling, State, SystemClock, Terms,
    WhileRunning,
};
use onetake_sim::fault_proxy::FaultProxy;
use onetake_sim::servers::{PgBouncer, Postgres, until};
use onetake_stores::postgres::{Transactional, WorkError, finish};
use tokio::sync::{Notify, oneshot};
use tokio_postgres::{Client, NoTls};

use super::{is_busy, migrated, patient, store_on};

/// A database with a table of the user.
pub(crate) struct Bank {
    pub(crate) url: String,
    pub(crate) engine: Engine,
    pub(crate) client: Client,
}

impl Bank {
    pub(crate) async fn open(server: &Postgres) -> Self {
        let url = migrated(server).await;
        let store = store_on(&url).await;
        let client = connect(&url).await;
        client
            .batch_execute("CREATE TABLE transfers (who text NOT NULL, fence bigint NOT NULL)")
            .await
            .unwrap();
        Self { url, engine: Engine::new(Arc::new(store)), client }
    }

    pub(crate) fn transactional(&self) -> Transactional {
        self.transactional_at(&self.url)
    }

    pub(crate) fn transactional_at(&self, url: &str) -> Transactional {
        Transactional::new(self.engine.clone(), url, &patient()).unwrap()
    }

    pub(crate) async fn count(&self, what: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {what}");
        self.client.query_one(&sql, &[]).await.unwrap().get(0)
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn operation(key: &str) -> Operation {
    let key = Key::new(format!("transfer {key}")).unwrap();
    Operation::new(&Scope::new("bank"), &key, Fingerprint::of(b"10 EUR"))
}

/// One server for all of them. Each has its own database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mode_t() {
    let server = Postgres::start().await;
    effects_messages_and_outcome_commit_together(&server).await;
    what_fails_leaves_nothing_and_may_run_again(&server).await;
    a_commit_whose_answer_is_lost_is_settled_by_looking(&server).await;
    a_look_waits_for_a_transaction_that_is_being_committed(&server).await;
    an_operation_is_finished_in_its_own_transaction_and_durably(&server).await;
    a_late_finisher_is_rolled_back_and_told_the_outcome(&server).await;
    a_stale_finish_cannot_commit_even_if_the_commit_is_on_its_way(&server).await;
    places_of_an_ordering_key_are_in_the_order_of_commits(&server).await;
    it_works_behind_pgbouncer(&server).await;
    #[cfg(feature = "sealed")]
    what_a_transaction_records_is_sealed(&server).await;
    many_at_once_have_one_effect(&server).await;
    assert!(!server.log().contains("deadlock"), "{}", server.log());
}

/// An operation whose key can be taken over soon after its lease.
fn hasty(key: &str) -> Operation {
    operation(key).terms(Terms { grace: Duration::from_millis(100), ..Terms::default() })
}

async fn transfer(
    tx: &tokio_postgres::Transaction<'_>,
    attempt: Attempt,
    who: &str,
) -> Result<Completion, tokio_postgres::Error> {
    let fence = i64::try_from(attempt.fence.get()).unwrap();
    tx.execute("INSERT INTO transfers VALUES ($1, $2)", &[&who, &fence]).await?;
    let completion = Completion::new(Recording::new(format!("{who} paid")));
    Ok(completion.with_message(Message::new("paid", who, "10 EUR")))
}

async fn run(
    transactional: &Transactional,
    operation: Operation,
    who: &'static str,
) -> Result<Outcome, NotDone<WorkError<tokio_postgres::Error>>> {
    let mut ran = None;
    until("its key is free", async || {
        let work = transactional
            .run(operation.clone(), move |tx, attempt| transfer(tx, attempt, who).boxed());
        let done = work.await;
        let is_held = matches!(&done, Err(NotDone::Engine(error)) if is_busy(error));
        ran = Some(done);
        !is_held
    })
    .await;
    ran.unwrap()
}

fn said(outcome: &Outcome) -> &[u8] {
    outcome.recording().unwrap().body.as_deref().unwrap()
}

async fn effects_messages_and_outcome_commit_together(server: &Postgres) {
    let bank = Bank::open(server).await;
    let transactional = bank.transactional();
    let first = run(&transactional, operation("one"), "alice").await.unwrap();
    let Outcome::Ran(Settling::Recorded(record)) = &first else { panic!("{first:?}") };
    assert_eq!(said(&first), b"alice paid");
    let again = run(&transactional, operation("one"), "mallory").await.unwrap();
    assert!(matches!(again, Outcome::Answered(Answer::Replay(_))), "{again:?}");
    assert_eq!(said(&again), b"alice paid");
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (1, 1));
    let row = bank
        .client
        .query_one("SELECT message, ordering, topic, payload, state, lane FROM onetake_outbox", &[])
        .await
        .unwrap();
    let id = MessageId::of(record.id, record.fence, 0);
    assert_eq!(row.get::<_, &[u8]>(0), id.as_bytes());
    assert_eq!((row.get::<_, &str>(1), row.get::<_, &str>(2)), ("alice", "paid"));
    assert_eq!((row.get::<_, &[u8]>(3), row.get::<_, i16>(4)), (&b"10 EUR"[..], 0));
    assert_eq!(row.get::<_, i16>(5), i16::from(Message::new("", "alice", "").lane()));
    // It is kept like any other record.
    let kept =
        "onetake_records WHERE expires_at = created_at + ttl AND watch_at IS NULL AND state = 1";
    assert_eq!(bank.count(kept).await, 1);
}

async fn what_fails_leaves_nothing_and_may_run_again(server: &Postgres) {
    let bank = Bank::open(server).await;
    let transactional = bank.transactional();
    let key = || operation("two");
    let failed = transactional.run(key(), |tx, attempt| {
        async move {
            transfer(tx, attempt, "alice").await.unwrap();
            Err("no funds")
        }
        .boxed()
    });
    let failed = failed.await.unwrap_err();
    assert!(matches!(failed, NotDone::Work(WorkError::Own("no funds"))), "{failed:?}");
    let panicked = transactional.run::<(), _>(key(), |tx, attempt| {
        async move {
            transfer(tx, attempt, "alice").await.unwrap();
            panic!("in the middle")
        }
        .boxed()
    });
    assert!(matches!(panicked.await.unwrap_err(), NotDone::Interrupted));
    let soon_over = key().run_max(Duration::from_millis(500));
    let hung = transactional.run::<(), _>(soon_over, |tx, attempt| {
        async move {
            transfer(tx, attempt, "alice").await.unwrap();
            std::future::pending().await
        }
        .boxed()
    });
    assert!(matches!(hung.await.unwrap_err(), NotDone::Interrupted));
    let large = transactional.run::<String, _>(key(), |_, _| {
        let message = Message::new("t".repeat(300), "o", "p");
        async { Ok(Completion::new(Recording::new("x")).with_message(message)) }.boxed()
    });
    let large = large.await.unwrap_err();
    assert!(large.to_string().contains("message 0: the topic has 300 bytes"), "{large}");
    // The store, and not the operation's word, decides. Its effects may be there: it never runs
    // again.
    let forgot = || bank.engine.transact(operation("forgot"), |_| async { Ok::<(), ()>(()) });
    assert!(matches!(forgot().await, Err(NotDone::NotCommitted)));
    let again = forgot().await.unwrap();
    assert!(matches!(&again, Outcome::Answered(Answer::Failed(_))), "{again:?}");
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (0, 0));
    assert_eq!(said(&run(&transactional, key(), "bob").await.unwrap()), b"bob paid");
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (1, 1));
    assert_eq!(bank.count("onetake_records WHERE state = 4").await, 0, "nothing is unknown");
}

/// The answer to the COMMIT is lost, once after a commit and once before it.
async fn a_commit_whose_answer_is_lost_is_settled_by_looking(server: &Postgres) {
    let bank = Bank::open(server).await;
    let proxy = Arc::new(FaultProxy::start(server.address()).await.unwrap());
    let database = bank.url.rsplit_once('/').unwrap().1;
    let url = server.url_at(proxy.address(), database);
    for is_done in [true, false] {
        let key = format!("lost {is_done}");
        let (url, proxy) = (url.clone(), Arc::clone(&proxy));
        let killer = connect(&bank.url).await;
        let outcome = bank.engine.transact(operation(&key), move |attempt| async move {
            let mut client = connect(&url).await;
            let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
            let tx = client.transaction().await.unwrap();
            let completion = transfer(&tx, attempt, "alice").await.unwrap();
            finish(&tx, &attempt, &completion).await.unwrap();
            if is_done {
                proxy.lose_answers(1);
            } else {
                let sql = "SELECT pg_terminate_backend($1)";
                killer.query(sql, &[&pid]).await.unwrap();
            }
            tx.commit().await
        });
        let outcome = outcome.await;
        if is_done {
            let outcome = outcome.unwrap();
            assert!(matches!(outcome, Outcome::Ran(Settling::Recorded(_))), "{outcome:?}");
            assert_eq!(said(&outcome), b"alice paid");
        } else {
            assert!(matches!(outcome, Err(NotDone::Work(_))), "{outcome:?}");
        }
        let again = run(&bank.transactional(), operation(&key), "alice").await.unwrap();
        assert_eq!(said(&again), b"alice paid");
        assert_eq!(matches!(again, Outcome::Answered(_)), is_done);
    }
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (2, 2));
}

async fn an_operation_is_finished_in_its_own_transaction_and_durably(server: &Postgres) {
    let bank = Bank::open(server).await;
    let begun = bank.engine.begin(&operation("own")).await.unwrap();
    let Begin::Run(lease) = begun else { panic!("{begun:?}") };
    lease.start().unwrap();
    let attempt = Attempt { id: lease.id(), attempt: lease.attempt(), fence: lease.fence() };
    let mut client = connect(&bank.url).await;
    client.batch_execute("SET synchronous_commit = off").await.unwrap();
    let paid = Completion::new(Recording::new("alice paid"));
    let refused = |finished: Result<(), FinishError<tokio_postgres::Error>>, why: &str| {
        let Err(FinishError::Database(error)) = finished else { panic!("{finished:?}") };
        let said = error.as_db_error().unwrap();
        assert_eq!(said.code().code(), "OT002");
        assert!(said.message().contains(why), "{said}");
    };
    let mut tx = client.transaction().await.unwrap();
    transfer(&tx, attempt, "alice").await.unwrap();
    let behind = tx.transaction().await.unwrap();
    refused(finish(&behind, &attempt, &paid).await, "savepoint");
    behind.rollback().await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(bank.count("onetake_records WHERE state = 1").await, 0);

    let settings = "SELECT current_setting('synchronous_commit'),
        current_setting('idle_in_transaction_session_timeout')";
    let told = |row: tokio_postgres::Row| (row.get::<_, String>(0), row.get::<_, String>(1));
    let tx = client.transaction().await.unwrap();
    transfer(&tx, attempt, "alice").await.unwrap();
    finish(&tx, &attempt, &paid).await.unwrap();
    let inside = told(tx.query_one(settings, &[]).await.unwrap());
    assert_eq!(inside, ("on".to_owned(), "10s".to_owned()));
    tx.commit().await.unwrap();
    let outside = told(client.query_one(settings, &[]).await.unwrap());
    assert_eq!(outside, ("off".to_owned(), "0".to_owned()), "and are as they were");
    assert_eq!(bank.count("onetake_records WHERE state = 1").await, 1);
    drop(lease);
}

/// A fenced release meets a transaction that has finished and not committed yet: it waits for it.
async fn a_look_waits_for_a_transaction_that_is_being_committed(server: &Postgres) {
    let bank = Bank::open(server).await;
    let (url, (ready, is_ready)) = (bank.url.clone(), oneshot::channel());
    let (go, may_go) = oneshot::channel::<()>();
    let committing = async {
        let mut client = connect(&url).await;
        let attempt: Attempt = is_ready.await.unwrap();
        let tx = client.transaction().await.unwrap();
        let completion = transfer(&tx, attempt, "alice").await.unwrap();
        finish(&tx, &attempt, &completion).await.unwrap();
        go.send(()).unwrap();
        // The engine sends a release, and waits. It sends it again when its wait has timed out.
        let watching = connect(&url).await;
        let waits = async || {
            let waits = "SELECT min(query_start)::text FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            watching.query_one(waits, &[]).await.unwrap().get::<_, Option<String>>(0)
        };
        let mut first = None;
        until("it looks again", async || {
            let since = waits().await;
            let again = first.is_some() && since.is_some() && since != first;
            first = first.take().or(since);
            again
        })
        .await;
        tx.commit().await.unwrap();
    };
    let outcome = bank.engine.transact(operation("slow"), |attempt| async move {
        ready.send(attempt).unwrap();
        may_go.await.unwrap();
        Err("the answer got lost")
    });
    let (outcome, ()) = tokio::join!(outcome, committing);
    assert_eq!(said(&outcome.unwrap()), b"alice paid");
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (1, 1));
}

async fn a_late_finisher_is_rolled_back_and_told_the_outcome(server: &Postgres) {
    let bank = Bank::open(server).await;
    let other = Engine::new(Arc::new(store_on(&bank.url).await));
    let taking = Transactional::new(other, &bank.url, &patient()).unwrap();
    let (begun, is_begun) = oneshot::channel();
    let resume = Arc::new(Notify::new());
    let (url, resumed) = (bank.url.clone(), Arc::clone(&resume));
    let seen = Arc::new(AtomicU32::new(0));
    let stale = Arc::clone(&seen);
    // Renewals end with `run_max` alone, so the test suspends an attempt by preventing its
    // renewals.
    let engine = bank.engine.clone();
    let work = move |attempt| async move {
        let mut client = connect(&url).await;
        let tx = client.transaction().await.unwrap();
        let completion = transfer(&tx, attempt, "late").await.unwrap();
        begun.send(attempt).unwrap();
        resumed.notified().await;
        let finished = finish(&tx, &attempt, &completion).await;
        if matches!(finished, Err(FinishError::Stale)) {
            stale.fetch_add(1, Ordering::SeqCst);
        }
        // A caller that ignores the error commits nothing, because the server rolls back.
        tx.commit().await.map_err(|error| error.to_string())?;
        Ok::<(), String>(())
    };
    let late = tokio::spawn(async move { engine.transact(hasty("late"), work).await });
    let attempt: Attempt = is_begun.await.unwrap();
    // As if the owner were stopped: its lease and grace have ended by the server's clock.
    let passed = "UPDATE onetake_records SET state_at = 1 WHERE attempt = $1";
    let of = attempt.attempt.as_bytes().as_slice();
    let took = loop {
        bank.client.execute(passed, &[&of]).await.unwrap();
        let took = run(&taking, hasty("late"), "other").await.unwrap();
        if !matches!(took, Outcome::Answered(Answer::InFlight)) {
            break took;
        }
        // The other node has to be in contact for a grace first, and a renewal may come in between.
        SystemClock.sleep(Duration::from_millis(20)).await;
    };
    assert!(matches!(took, Outcome::Ran(_)), "{took:?}");
    resume.notify_one();
    let told = late.await.unwrap().unwrap();
    assert_eq!(said(&told), b"other paid", "its client is told the recorded outcome");
    assert!(matches!(told, Outcome::Ran(Settling::Stale(Some(_)))), "{told:?}");
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    assert_eq!(bank.count("transfers WHERE who = 'other'").await, 1);
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (1, 1));
}

async fn a_stale_finish_cannot_commit_even_if_the_commit_is_on_its_way(server: &Postgres) {
    let bank = Bank::open(server).await;
    let outcome = run(&bank.transactional(), operation("done"), "alice").await.unwrap();
    let Outcome::Ran(Settling::Recorded(record)) = outcome else { panic!() };
    let attempt = Attempt { id: record.id, attempt: record.attempt, fence: record.fence };
    let mut client = connect(&bank.url).await;
    let tx = client.transaction().await.unwrap();
    tx.execute("INSERT INTO transfers VALUES ('twice', 1)", &[]).await.unwrap();
    let completion = Completion::new(Recording::new("twice"));
    // Both are sent together, without waiting for the first answer.
    let (finished, committed) =
        tokio::join!(finish(&tx, &attempt, &completion), tx.batch_execute("COMMIT"));
    assert!(matches!(finished, Err(FinishError::Stale)), "{finished:?}");
    assert!(committed.is_ok(), "the server answers a COMMIT of what failed with ROLLBACK");
    assert_eq!(bank.count("transfers").await, 1);
    let State::Completed { recording, .. } =
        &bank.engine.look(record.id).await.unwrap().unwrap().state
    else {
        panic!()
    };
    assert_eq!(recording.body.as_deref(), Some(&b"alice paid"[..]));
}

/// Places of one ordering key rise in the order of commits: a reader up to a place never misses an
/// earlier one that is committed later.
async fn places_of_an_ordering_key_are_in_the_order_of_commits(server: &Postgres) {
    let bank = Bank::open(server).await;
    bank.client.batch_execute("CREATE TABLE committed (number bigserial, who text)").await.unwrap();
    // Two keys each, named in different orders, which must not deadlock.
    let transactional = bank.transactional();
    let reader = connect(&bank.url).await;
    let watch = tokio::spawn(async move {
        let mut highest: HashMap<String, i64> = HashMap::new();
        let mut seen = HashSet::new();
        loop {
            let rows = reader
                .query("SELECT place, ordering FROM onetake_outbox ORDER BY place", &[])
                .await
                .unwrap();
            for row in &rows {
                let (place, ordering): (i64, String) = (row.get(0), row.get(1));
                if seen.insert(place) {
                    let before = highest.insert(ordering.clone(), place).unwrap_or_default();
                    assert!(place > before, "{ordering}: {place} came after {before}");
                }
            }
            if rows.len() == 480 {
                return;
            }
        }
    });
    let mut tasks = Vec::new();
    for lane in 0..8_u32 {
        let transactional = transactional.clone();
        tasks.push(tokio::spawn(async move {
            for number in 0..30_u32 {
                let key = operation(&format!("{lane} {number}"));
                let mut orders = ["account 1", "account 2"];
                if (lane + number) % 2 == 1 {
                    orders.reverse();
                }
                let messages = orders.map(|order| Message::new("t", order, "p"));
                let completion = Completion::new(Recording::new("done")).with_messages(messages);
                let ran = transactional
                    .run(key, move |_, _| async move { Ok::<_, ()>(completion) }.boxed());
                ran.await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    watch.await.unwrap();
}

async fn it_works_behind_pgbouncer(server: &Postgres) {
    let bank = Bank::open(server).await;
    let bouncer = PgBouncer::start(server, "transaction", 2).await;
    let database = bank.url.rsplit_once('/').unwrap().1;
    let transactional = bank.transactional_at(&server.url_at(bouncer.address(), database));
    for number in 0..5 {
        let outcome = transactional.run(operation(&format!("bounced {number}")), |tx, attempt| {
            async move {
                let fence = i64::try_from(attempt.fence.get()).unwrap();
                let insert = "INSERT INTO transfers VALUES ('alice', $1)";
                let of = tokio_postgres::types::Type::INT8;
                tx.query_typed(insert, &[(&fence, of)]).await?;
                Ok::<_, tokio_postgres::Error>(Completion::new(Recording::new("bounced")))
            }
            .boxed()
        });
        assert_eq!(said(&outcome.await.unwrap()), b"bounced");
    }
    assert_eq!(bank.count("transfers").await, 5);
}

async fn many_at_once_have_one_effect(server: &Postgres) {
    let bank = Bank::open(server).await;
    let nodes: Vec<Transactional> =
        [bank.engine.clone(), Engine::new(Arc::new(store_on(&bank.url).await))]
            .map(|engine| Transactional::new(engine, &bank.url, &patient()).unwrap())
            .into();
    let calls = (0..40).map(|number| {
        let node = nodes[number % 2].clone();
        let key = operation("hot").in_flight(WhileRunning::Wait(Duration::from_secs(60)));
        async move { run(&node, key, "alice").await.unwrap() }
    });
    for outcome in futures_util::future::join_all(calls).await {
        assert_eq!(said(&outcome), b"alice paid");
    }
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (1, 1));
}

#[cfg(feature = "sealed")]
async fn what_a_transaction_records_is_sealed(server: &Postgres) {
    use onetake_stores::{EncryptionKey, SealedStore};
    let bank = Bank::open(server).await;
    let keys = vec![EncryptionKey::new("k1", &[7; 32])];
    let store = SealedStore::around(Arc::new(store_on(&bank.url).await), keys);
    let engine = Engine::new(Arc::new(store));
    let sealed = Transactional::new(engine, &bank.url, &patient()).unwrap();
    let first = run(&sealed, operation("sealed"), "alice").await.unwrap();
    assert!(matches!(first, Outcome::Ran(Settling::Recorded(_))), "{first:?}");
    assert_eq!(said(&first), b"alice paid");
    assert_eq!(said(&run(&sealed, operation("sealed"), "alice").await.unwrap()), b"alice paid");
    let open = "onetake_records WHERE position('paid'::bytea IN head || coalesce(body, '')) > 0";
    assert_eq!(bank.count(open).await, 0);
}
