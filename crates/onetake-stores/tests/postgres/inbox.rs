//! Tests of messages that are delivered more than once and processed once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use onetake_core::inbox::{InboxOptions, POISONED, ReceiveError, Received};
use onetake_core::{Attempt, Completion, Engine, Message, Recording};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::postgres::{Transactional, TransactionalInbox, WorkError};
use tokio_postgres::Transaction;

use super::transactions::Bank;
use super::{is_busy, patient, store_on};

type Answer = Received<WorkError<String>>;

async fn deal(tx: &Transaction<'_>, attempt: Attempt) -> Result<Completion, String> {
    let fence = i64::try_from(attempt.fence.get()).unwrap();
    let insert = "INSERT INTO transfers VALUES ('message', $1)";
    tx.execute(insert, &[&fence]).await.map_err(|error| error.to_string())?;
    let said = Message::new("dealt", "with", "it");
    Ok(Completion::new(Recording::new("dealt with")).with_message(said))
}

fn mailer(transactional: &Transactional, attempts_max: u32) -> TransactionalInbox {
    transactional.inbox("mailer", InboxOptions { attempts_max, ..InboxOptions::default() })
}

async fn process(inbox: &TransactionalInbox, message: &str) -> Answer {
    let mut answer = None;
    until("its key is free", async || {
        let processed = inbox.process(message, |tx, attempt| deal(tx, attempt).boxed()).await;
        let is_held = matches!(&processed, Err(ReceiveError::Engine(error)) if is_busy(error));
        answer = Some(processed);
        !is_held
    })
    .await;
    answer.unwrap().unwrap()
}

async fn fail(inbox: &TransactionalInbox, message: &str) -> Answer {
    let processed = inbox.process(message, |tx, attempt| {
        async move {
            deal(tx, attempt).await?;
            Err("cannot be dealt with".to_owned())
        }
        .boxed()
    });
    processed.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbox() {
    let server = Postgres::shared().await;
    a_message_has_one_effect_however_often_it_comes(server).await;
    poison_is_parked(server).await;
    what_kills_its_consumer_is_poison_too(server).await;
    work_whose_database_is_unreachable_is_no_try(server).await;
}

async fn a_message_has_one_effect_however_often_it_comes(server: &Postgres) {
    let bank = Bank::open(server).await;
    let consumers: Vec<Transactional> =
        [bank.engine.clone(), Engine::new(Arc::new(store_on(&bank.url).await))]
            .map(|engine| Transactional::new(engine, &bank.url, &patient()))
            .map(Result::unwrap)
            .into();
    let deliveries = (0..16).map(|number| {
        let consumer = &consumers[number % 2];
        async move { process(&mailer(consumer, 5), "message 1").await }
    });
    let answers = futures_util::future::join_all(deliveries).await;
    let done = answers.iter().filter(|answer| matches!(answer, Received::Done(_))).count();
    assert_eq!(done, 1, "{answers:?}");
    let others = |answer: &&Answer| {
        matches!(answer, Received::Done(_) | Received::Duplicate(_) | Received::InProgress)
    };
    assert_eq!(answers.iter().filter(others).count(), 16, "{answers:?}");
    let again = process(&mailer(&consumers[1], 5), "message 1").await;
    let Received::Duplicate(recording) = again else { panic!("{again:?}") };
    assert_eq!(recording, Recording::new("dealt with"));
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (1, 1));
    // Another consumer has its own inbox.
    let other = process(&consumers[0].inbox("biller", InboxOptions::default()), "message 1").await;
    assert!(matches!(other, Received::Done(_)), "{other:?}");
    let week = "onetake_records WHERE ttl = 7 * 24 * 3600 * 1000000::bigint AND on_unknown = 3";
    assert_eq!(bank.count(week).await, 2);
    let empty = mailer(&consumers[0], 5);
    let empty = empty.process("", |tx, attempt| deal(tx, attempt).boxed());
    assert!(empty.await.unwrap_err().to_string().contains("id"), "it says what is wrong");
}

async fn poison_is_parked(server: &Postgres) {
    let bank = Bank::open(server).await;
    let consumer = bank.transactional();
    let inbox = mailer(&consumer, 3);
    for (attempt, seconds) in [(1, 1), (2, 2)] {
        let failed = fail(&inbox, "poison").await;
        let Received::Failed { again, attempts, error } = failed else { panic!("{failed:?}") };
        assert_eq!((again, attempts), (Duration::from_secs(seconds), attempt));
        assert_eq!(error.unwrap().to_string(), "cannot be dealt with");
    }
    for _ in 0..2 {
        let poisoned = fail(&inbox, "poison").await;
        let Received::Poisoned { reference, failure } = poisoned else { panic!("{poisoned:?}") };
        let found = bank.engine.find(reference).await.unwrap();
        assert_eq!(found.len(), 1, "an operator finds it by its reference");
        assert_eq!((failure.code.as_str(), failure.detail.contains("3 times")), (POISONED, true));
    }
    // The same on a node that has not seen the message, also if the work would succeed by now.
    let elsewhere = Engine::new(Arc::new(store_on(&bank.url).await));
    let elsewhere = Transactional::new(elsewhere, &bank.url, &patient()).unwrap();
    let parked = process(&mailer(&elsewhere, 3), "poison").await;
    assert!(matches!(parked, Received::Poisoned { .. }), "{parked:?}");
    assert_eq!((bank.count("transfers").await, bank.count("onetake_outbox").await), (0, 0));
    assert_eq!(bank.count("onetake_records WHERE state = 2").await, 1);
    let fine = process(&inbox, "another").await;
    assert!(matches!(fine, Received::Done(_)), "one is not held up by the other: {fine:?}");
    // After the cause is repaired, the message is tried again. Only poison can be forgotten in this
    // way.
    for (message, is_poison) in [("another", false), ("unheard of", false), ("poison", true)] {
        let forgotten = inbox.forget(message, "somebody", "it is mended").await.unwrap();
        assert_eq!(forgotten, is_poison, "{message}");
    }
    let mended = process(&inbox, "poison").await;
    assert!(matches!(mended, Received::Done(_)), "{mended:?}");
    assert_eq!(bank.count("transfers").await, 2);
}

/// The process dies before it can report the failure, so the attempts themselves are counted.
async fn what_kills_its_consumer_is_poison_too(server: &Postgres) {
    let bank = Bank::open(server).await;
    let consumer = bank.transactional();
    let inbox = mailer(&consumer, 2);
    for number in 1..=2_u64 {
        let killed = inbox.process("deadly", |_, _| async { panic!("as good as dead") }.boxed());
        let killed: Answer = killed.await.unwrap();
        assert!(matches!(killed, Received::Failed { error: None, .. }), "{number}: {killed:?}");
    }
    let parked = process(&inbox, "deadly").await;
    assert!(matches!(parked, Received::Poisoned { .. }), "{parked:?}");
    assert_eq!(bank.count("transfers").await, 0);
}

/// No server listens on port 1: no transaction can begin, while the engine's own connections work.
async fn work_whose_database_is_unreachable_is_no_try(server: &Postgres) {
    let bank = Bank::open(server).await;
    let nowhere = "postgres://nobody@127.0.0.1:1/nothing";
    let unreachable = Transactional::new(bank.engine.clone(), nowhere, &patient()).unwrap();
    for number in 0..3 {
        let failed = fail(&mailer(&unreachable, 2), "unlucky").await;
        let Received::Failed { attempts, error, .. } = failed else {
            panic!("{number}: {failed:?}")
        };
        assert!(matches!(error, Some(WorkError::Connect(_))), "{error:?}");
        assert_eq!(attempts, 0);
    }
    let done = process(&mailer(&bank.transactional(), 2), "unlucky").await;
    assert!(matches!(done, Received::Done(_)), "{done:?}");
}
