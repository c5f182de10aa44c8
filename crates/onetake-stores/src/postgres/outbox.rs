//! The outbox as relays use it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::outbox::{
    COUNTED_MAX, Delivery, LOOKS_MAX, Message, MessageId, Outbox, OutboxCounts, ParkedMessage,
    PendingMessage, Turn,
};
use onetake_core::{Rng, StoreError, StoreErrorKind};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::pool::Parameters;
use super::rows::{array, column, get, timestamp, unsigned};
use super::statement_error::{Effect, StatementError};
use crate::outbox_codes::{self, outbox_sql};

/// The longest wait for a lane that another relay is about to take. A relay holds that lock for a
/// moment only.
const LOCK_WAIT: &str = "1s";

const TAKE: &str = "SELECT * FROM onetake_take_1($1, $2, $3, $4)";
const SETTLE: &str = "SELECT onetake_delivered_1($1, $2, $3, $4, $5, $6, $7, $8)";
const PRUNE: &str = "SELECT onetake_prune_1($1, $2, $3)";
const COUNTS: &str = "SELECT * FROM onetake_outbox_counts_1($1, $2)";

/// The columns of a message are in the same order as in `onetake_take_1`.
const PARKED: &str = outbox_sql!("
    SELECT lane, 0::bigint, place, message, ordering, topic, headers, payload, tries,
        created_at, state_at, coalesce(error, '')
      FROM onetake_outbox WHERE state = " PARKED " AND place + 0 > $1 ORDER BY place + 0 LIMIT $2");

const FAILING: &str = outbox_sql!("
    SELECT lane, 0::bigint, place, message, ordering, topic, headers, payload, tries,
        created_at, state_at, coalesce(error, '')
      FROM onetake_outbox WHERE state = " LATER " AND tries > 0 AND place + 0 > $1 ORDER BY place + 0 LIMIT $2");

/// The tries of a parked message are counted from zero again.
const RETRY: &str = outbox_sql!("
    UPDATE onetake_outbox
       SET state = CASE state WHEN " PARKED " THEN " FRESH " ELSE state END,
           tries = CASE state WHEN " PARKED " THEN 0 ELSE tries END,
           state_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2::bigint
     WHERE message = $1 AND state IN (" PARKED ", " LATER ") RETURNING place");

const DISCARD: &str = "SELECT onetake_discard_1($1, $2, $3)";

/// The time for which a statement is sent again because the server asks for it (40001). If
/// transactions are serializable by default, relays that search for a lane at the same moment make
/// each other fail.
const AGAIN_FOR: Duration = Duration::from_secs(20);
/// The first pause before a statement is sent again; it doubles up to [`AGAIN_PAUSE_MAX`]. Without
/// pauses relays keep making each other fail, and a slower relay never succeeds.
const AGAIN_PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause.
const AGAIN_PAUSE_MAX: Duration = Duration::from_millis(64);

impl PostgresStore {
    async fn outbox(
        &self,
        sql: &str,
        parameters: &Parameters<'_>,
        effect: Effect,
    ) -> Result<Vec<Row>, StoreError> {
        let until = self.clock.monotonic().saturating_add(AGAIN_FOR);
        let mut pause = AGAIN_PAUSE_MIN;
        loop {
            match self.pool.query(sql, parameters, effect).await {
                Err(StatementError::Again) if self.clock.monotonic() < until => {
                    self.clock.sleep(jittered(&*self.rng, pause)).await;
                    pause = (pause * 2).min(AGAIN_PAUSE_MAX);
                }
                answer => return answer.map_err(StatementError::for_one),
            }
        }
    }

    async fn take_lane(
        &self,
        hold: Duration,
        limit: usize,
        bytes: usize,
    ) -> Result<Option<Turn>, StoreError> {
        for _ in 0..LOOKS_MAX {
            let Some((turn, odd)) = self.take_any(hold, limit, bytes).await? else {
                return Ok(None);
            };
            if !odd.is_empty() {
                // Unreadable messages are left to an operator, and the others proceed.
                self.settle_turn(turn.lane, turn.turn, odd).await?;
            } else if !turn.messages.is_empty() {
                return Ok(Some(turn));
            }
        }
        Ok(None)
    }

    /// Takes a turn. Returns also its unreadable messages. An empty turn means that there is more
    /// to search.
    async fn take_any(
        &self,
        hold: Duration,
        limit: usize,
        bytes: usize,
    ) -> Result<Option<(Turn, Vec<(u64, Delivery)>)>, StoreError> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let rows = self
            .outbox(
                TAKE,
                &[
                    (&self.shift(), Type::INT8),
                    (&column(hold), Type::INT8),
                    (&limit, Type::INT4),
                    (&bytes, Type::INT8),
                ],
                Effect::Writes,
            )
            .await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let lane = u8::try_from(get::<i16>(first, 0)?).map_err(|_| odd("lane"))?;
        let Some(turn) = get::<Option<i64>>(first, 1)? else {
            return Ok(Some((Turn { lane, turn: 0, messages: Vec::new() }, Vec::new())));
        };
        let turn = unsigned(turn);
        let (mut messages, mut odd) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in &rows {
            match waiting(row) {
                Ok(message) => messages.push(message),
                Err(error) => {
                    let error = error.to_string();
                    odd.push((unsigned(get(row, 2)?), Delivery::Park { error }));
                }
            }
        }
        messages.sort_unstable_by_key(|message| message.place);
        Ok(Some((Turn { lane, turn, messages }, odd)))
    }

    async fn settle_turn(
        &self,
        lane: u8,
        turn: u64,
        deliveries: Vec<(u64, Delivery)>,
    ) -> Result<bool, StoreError> {
        let (mut places, mut states) = (Vec::new(), Vec::new());
        let (mut afters, mut errors) = (Vec::new(), Vec::new());
        for (place, delivery) in deliveries {
            let (state, after, error) = match delivery {
                Delivery::Delivered => (outbox_codes::DELIVERED, Duration::ZERO, None),
                Delivery::Again { after, error } => (outbox_codes::LATER, after, Some(error)),
                Delivery::Park { error } => (outbox_codes::PARKED, Duration::ZERO, Some(error)),
            };
            places.push(i64::try_from(place).unwrap_or(i64::MAX));
            states.push(state);
            afters.push(column(after));
            // PostgreSQL stores every character except this one.
            errors.push(error.map(|error| error.replace('\0', "")));
        }
        let turn = i64::try_from(turn).unwrap_or(i64::MAX);
        let rows = self
            .outbox(
                SETTLE,
                &[
                    (&self.shift(), Type::INT8),
                    (&LOCK_WAIT, Type::TEXT),
                    (&i16::from(lane), Type::INT2),
                    (&turn, Type::INT8),
                    (&places, Type::INT8_ARRAY),
                    (&states, Type::INT2_ARRAY),
                    (&afters, Type::INT8_ARRAY),
                    (&errors, Type::TEXT_ARRAY),
                ],
                Effect::Writes,
            )
            .await?;
        rows.first().map_or(Ok(false), |row| get(row, 0))
    }

    async fn prune_delivered(&self, kept: Duration, limit: usize) -> Result<usize, StoreError> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let rows = self
            .outbox(
                PRUNE,
                &[(&self.shift(), Type::INT8), (&column(kept), Type::INT8), (&limit, Type::INT4)],
                Effect::Writes,
            )
            .await?;
        let count = rows.first().map_or(Ok(0), |row| get::<i64>(row, 0))?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    async fn count(&self) -> Result<OutboxCounts, StoreError> {
        let most = i64::try_from(COUNTED_MAX).unwrap_or(i64::MAX);
        let parameters: &Parameters<'_> = &[(&self.shift(), Type::INT8), (&most, Type::INT8)];
        let rows = self.outbox(COUNTS, parameters, Effect::Reads).await?;
        let Some(row) = rows.first() else { return Ok(OutboxCounts::default()) };
        let lag = Duration::from_micros(unsigned(get(row, 1)?));
        Ok(OutboxCounts::new(unsigned(get(row, 0)?), lag, unsigned(get(row, 2)?)))
    }

    async fn read_parked(
        &self,
        sql: &str,
        behind: u64,
        limit: usize,
    ) -> Result<Vec<ParkedMessage>, StoreError> {
        let behind = i64::try_from(behind).unwrap_or(i64::MAX);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let parameters: &Parameters<'_> = &[(&behind, Type::INT8), (&limit, Type::INT8)];
        let rows = self.outbox(sql, parameters, Effect::Reads).await?;
        let one = |row| {
            let at = timestamp(get(row, 10)?);
            Ok(ParkedMessage { waiting: parked(row)?, at, error: get::<String>(row, 11)? })
        };
        rows.iter().map(one).collect()
    }
}

fn waiting(row: &Row) -> Result<PendingMessage, StoreError> {
    let headers = Bytes::copy_from_slice(get(row, 6)?);
    let headers = Message::headers_from_bytes(headers).map_err(|_| odd("headers"))?;
    read(row, MessageId::from_bytes(array(row, 3)?), headers)
}

/// Reads a parked message. It may be parked because it is unreadable; then its readable parts are
/// returned.
fn parked(row: &Row) -> Result<PendingMessage, StoreError> {
    waiting(row).or_else(|_| {
        read(row, MessageId::from_bytes(array(row, 3).unwrap_or_default()), Vec::new())
    })
}

fn read(
    row: &Row,
    id: MessageId,
    headers: Vec<(String, String)>,
) -> Result<PendingMessage, StoreError> {
    Ok(PendingMessage {
        place: unsigned(get(row, 2)?),
        id,
        message: Message {
            topic: get::<String>(row, 5)?,
            order: get::<String>(row, 4)?,
            headers,
            payload: Bytes::copy_from_slice(get(row, 7)?),
        },
        tries: u32::try_from(get::<i32>(row, 8)?).unwrap_or_default(),
        created_at: timestamp(get(row, 9)?),
    })
}

/// Returns a random duration between half of the pause and the whole of it.
fn jittered(rng: &dyn Rng, pause: Duration) -> Duration {
    let mut random = [0; 1];
    rng.fill(&mut random);
    let [random] = random;
    pause.mul_f64(0.5 + f64::from(random) / 512.0)
}

fn odd(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Invalid,
        format!("the {what} of the message cannot be read: onetake did not write it"),
    )
}

impl Outbox for PostgresStore {
    fn take(
        &self,
        hold: Duration,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Turn>, StoreError>> {
        self.take_lane(hold, limit, bytes).boxed()
    }

    fn settle(
        &self,
        lane: u8,
        turn: u64,
        deliveries: Vec<(u64, Delivery)>,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.settle_turn(lane, turn, deliveries).boxed()
    }

    fn prune(&self, kept: Duration, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.prune_delivered(kept, limit).boxed()
    }

    fn counts(&self) -> BoxFuture<'_, Result<OutboxCounts, StoreError>> {
        self.count().boxed()
    }

    fn parked(
        &self,
        behind: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>> {
        self.read_parked(PARKED, behind, limit).boxed()
    }

    fn failing(
        &self,
        behind: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>> {
        self.read_parked(FAILING, behind, limit).boxed()
    }

    fn retry(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move {
            let id: &[u8] = id.as_bytes();
            let parameters: &Parameters<'_> = &[(&id, Type::BYTEA), (&self.shift(), Type::INT8)];
            Ok(!self.outbox(RETRY, parameters, Effect::Writes).await?.is_empty())
        }
        .boxed()
    }

    fn discard(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move {
            let id: &[u8] = id.as_bytes();
            let parameters: &Parameters<'_> =
                &[(&self.shift(), Type::INT8), (&LOCK_WAIT, Type::TEXT), (&id, Type::BYTEA)];
            let rows = self.outbox(DISCARD, parameters, Effect::Writes).await?;
            rows.first().map_or(Ok(false), |row| get(row, 0))
        }
        .boxed()
    }
}
