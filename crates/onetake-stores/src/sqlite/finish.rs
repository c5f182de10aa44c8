//! The last statement of a transaction that completes its own operation (mode T).

use onetake_core::decide::{self, Moment, SettleEffect};
use onetake_core::{
    Attempt, Clock, Completion, FinishError, Message, MessageId, Settlement, SystemClock,
    Timestamp, Transition,
};
use rusqlite::{Connection, Transaction, named_params};

use super::{table, transitions};

const SAY: &str = "
    INSERT INTO onetake_outbox (message, lane, ordering, topic, headers, payload, created_at, state_at)
    VALUES (:message, :lane, :ordering, :topic, :headers, :payload, :now, :now)";

/// Writes the messages and the outcome of an attempt, as the last statement of the transaction that
/// contains its effects. Commit the transaction immediately afterwards.
///
/// The transaction must be in the file that [`SqliteStore::open_in`](super::SqliteStore::open_in)
/// opened, on a connection with `PRAGMA synchronous = FULL`, preferably begun as `IMMEDIATE`. If
/// this returns an error, the transaction is already rolled back and must not be used any more.
///
/// # Errors
/// If the attempt is stale, a message is too large, or the database returns an error.
pub fn finish(
    transaction: &Transaction<'_>,
    attempt: &Attempt,
    completion: &Completion,
) -> Result<(), FinishError<rusqlite::Error>> {
    if transaction.is_autocommit() {
        // What was written before is committed already.
        return Err(FinishError::NoTransaction);
    }
    let finished = write(transaction, attempt, completion, SystemClock.now());
    if finished.is_err() && !transaction.is_autocommit() {
        // A caller that ignores the error cannot commit now. If the rollback fails, SQLite has
        // rolled back itself.
        let _rolled_back = transaction.execute_batch("ROLLBACK");
    }
    if finished.is_ok() || transaction.is_autocommit() {
        completion.mark_executed();
    }
    finished
}

fn write(
    connection: &Connection,
    attempt: &Attempt,
    completion: &Completion,
    now: Timestamp,
) -> Result<(), FinishError<rusqlite::Error>> {
    Message::check(&completion.messages)?;
    let synchronous =
        connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
    if synchronous.map_err(FinishError::Database)? < 2 {
        return Err(FinishError::NotDurable("set PRAGMA synchronous = FULL on the connection"));
    }
    let Completion { recording, messages, .. } = completion;
    let transition = Transition::Complete(recording.clone());
    let settlement = Settlement { id: attempt.id, attempt: attempt.attempt, transition };
    let found = transitions::load(connection, attempt.id).map_err(FinishError::Database)?;
    let found = found.map_err(FinishError::Unreadable)?;
    let SettleEffect::Write(record) = decide::settle(found.as_ref(), &settlement, Moment::at(now))
    else {
        return Err(FinishError::Stale);
    };
    say(connection, attempt, messages, now)
        .and_then(|()| table::write(connection, &record))
        .map_err(FinishError::Database)
}

/// Writes messages to the outbox. There is one writer at a time, so places are in the order of
/// commits.
fn say(
    connection: &Connection,
    attempt: &Attempt,
    messages: &[Message],
    now: Timestamp,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(SAY)?;
    let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    for (number, message) in (0..).zip(messages) {
        statement.execute(named_params! {
            ":message": MessageId::of(attempt.id, attempt.fence, number).as_bytes(),
            ":lane": message.lane(),
            ":ordering": message.order,
            ":topic": message.topic,
            ":headers": message.headers_to_bytes().as_ref(),
            ":payload": message.payload.as_ref(),
            ":now": now,
        })?;
    }
    Ok(())
}
