//! A consumer of NATS JetStream that processes each message with one effect, even if it is
//! delivered more than once. The effect and the record of the message commit together.
//!
//! ```text
//! onetake migrate --store postgres://localhost/bank
//! nats stream add PAYMENTS --subjects 'payments.>' --defaults
//! DATABASE_URL=postgres://localhost/bank NATS_URL=nats://localhost:4222 \
//!     cargo run -p onetake --example consumer --features postgres
//! ```
//!
//! A relay publishes the messages: docs/OUTBOX.md shows the whole setup.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::{AckKind, Message as Delivered};
use futures_util::{FutureExt, StreamExt};
use onetake::clock::{Clock, SystemClock};
use onetake::inbox::{InboxOptions, Received};
use onetake::postgres::{Transactional, TransactionalInbox};
use onetake::prelude::*;
use onetake::transaction::Completion;

type Failed = Box<dyn Error + Send + Sync>;

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS ledger (message text NOT NULL, entry text NOT NULL)";
/// The number of messages that are processed at once.
const AT_ONCE: usize = 8;
/// The time after which a poisoned message is delivered again. It is then set aside again.
const PARKED: Duration = Duration::from_secs(3600);
/// The time that an attempt may be silent before another consumer processes its message.
const LEASE: Duration = Duration::from_secs(10);

/// The consumer: it writes each message to a ledger.
pub(crate) struct Bookkeeper {
    inbox: TransactionalInbox,
}

impl Bookkeeper {
    /// Opens the inbox in this database, which also holds the tables of onetake.
    pub(crate) async fn new(database: &str) -> Result<Self, Failed> {
        let store = PostgresStore::open(database, PostgresOptions::default()).await?;
        let engine = Engine::new(Arc::new(store));
        let transactional = Transactional::new(engine, database, &PostgresOptions::default())?;
        let options = InboxOptions { lease: LEASE, ..InboxOptions::default() };
        Ok(Self { inbox: transactional.inbox("ledger", options) })
    }

    /// Processes the messages of the stream until the broker is unreachable.
    pub(crate) async fn consume(&self, nats: &str, stream: &str) -> Result<(), Failed> {
        let client = async_nats::connect(nats).await?;
        let stream = async_nats::jetstream::new(client).get_stream(stream).await?;
        let config = Config {
            durable_name: Some("ledger".to_owned()),
            ack_wait: 2 * LEASE,
            ..Config::default()
        };
        let consumer = stream.get_or_create_consumer("ledger", config).await?;
        let messages = consumer.messages().await?;
        // Messages are processed concurrently and so out of order. A consumer that needs the
        // outbox's order per key processes one message at a time.
        let mut answers = messages
            .map(async |message| {
                let message = message?;
                let answer = self.deal_with(&message).await;
                message.ack_with(answer).await
            })
            .buffer_unordered(AT_ONCE);
        while let Some(answered) = answers.next().await {
            answered?;
        }
        Ok(())
    }

    /// Writes a message to the ledger unless that was done before. Returns the answer for the
    /// broker.
    async fn deal_with(&self, message: &Delivered) -> AckKind {
        let headers = message.headers.as_ref();
        let named = headers.and_then(|headers| headers.get("Nats-Msg-Id"));
        let id = match (named, message.info()) {
            (Some(id), _) => id.to_string(),
            // The sender gave the message no id. Its place in the stream identifies it too, as long
            // as the message is sent once.
            (None, Ok(info)) => format!("{} {}", info.stream, info.stream_sequence),
            (None, Err(error)) => {
                eprintln!("a message that is of no stream is left alone: {error}");
                return AckKind::Nak(Some(PARKED));
            }
        };
        let entry = String::from_utf8_lossy(&message.payload).into_owned();
        let key = id.clone();
        let received = self.inbox.process(&key, move |tx, _attempt| {
            async move {
                let enter = "INSERT INTO ledger (message, entry) VALUES ($1, $2)";
                tx.execute(enter, &[&id, &entry]).await?;
                Ok::<_, tokio_postgres::Error>(Completion::new(Recording::default()))
            }
            .boxed()
        });
        match received.await {
            Ok(Received::Done(_) | Received::Duplicate(_)) => AckKind::Ack,
            Ok(Received::InProgress) => AckKind::Nak(Some(Duration::from_secs(1))),
            Ok(Received::Failed { again, .. }) => AckKind::Nak(Some(again)),
            Ok(Received::Poisoned { reference, failure }) => {
                // The broker keeps the message. Once the cause is fixed,
                // `TransactionalInbox::forget` allows another attempt.
                eprintln!("{key} ({reference}) is poison: {}", failure.detail);
                AckKind::Nak(Some(PARKED))
            }
            // The store is unreachable. Nothing was attempted.
            Err(error) => {
                eprintln!("{key} was not tried: {error}");
                AckKind::Nak(Some(Duration::from_secs(1)))
            }
        }
    }
}

/// Creates the consumer's own table.
pub(crate) async fn prepare(database: &str) -> Result<(), Failed> {
    let (client, connection) = tokio_postgres::connect(database, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client.batch_execute(TABLE).await?)
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let database = std::env::var("DATABASE_URL")?;
    let nats = std::env::var("NATS_URL")?;
    prepare(&database).await?;
    let bookkeeper = Bookkeeper::new(&database).await?;
    loop {
        let ended = bookkeeper.consume(&nats, "PAYMENTS").await;
        eprintln!("the broker is away ({ended:?}); trying again");
        SystemClock.sleep(Duration::from_secs(1)).await;
    }
}
