//! The outbox as relays use it: the rows of `onetake_outbox` and `onetake_lanes`.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use onetake_core::clock::micros;
use onetake_core::decide::Moment;
use onetake_core::outbox::{
    COUNTED_MAX, Delivery, LOOKS_MAX, Message, MessageId, Outbox, OutboxCounts, ParkedMessage,
    PendingMessage, Turn,
};
use onetake_core::{StoreError, Timestamp};

use super::SqliteStore;
use super::committer::SqliteJob;
use super::parked::{FAILING, PARKED, discard, parked, retry};
use super::transitions::{self, Decided};
use super::turns::{TurnLimits, TurnResult, take};
use crate::outbox_codes::{self, HELD_MAX, outbox_sql};

/// The schema. Times are microseconds since the epoch. The columns are those of PostgreSQL.
pub(super) const TABLES: &str = outbox_sql!("
    CREATE TABLE onetake_outbox (
        place      INTEGER PRIMARY KEY AUTOINCREMENT,
        message    BLOB NOT NULL UNIQUE,
        lane       INTEGER NOT NULL,
        ordering   TEXT NOT NULL,
        topic      TEXT NOT NULL,
        headers    BLOB NOT NULL,
        payload    BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        state      INTEGER NOT NULL DEFAULT " FRESH ",
        state_at   INTEGER NOT NULL,
        tries      INTEGER NOT NULL DEFAULT 0,
        error      TEXT
    ) STRICT;
    CREATE INDEX onetake_outbox_fresh ON onetake_outbox (lane, place) WHERE state = " FRESH ";
    CREATE INDEX onetake_outbox_later ON onetake_outbox (lane, state_at) WHERE state IN " HELD ";
    CREATE INDEX onetake_outbox_held ON onetake_outbox (lane, ordering, place) WHERE state IN " HELD ";
    CREATE INDEX onetake_outbox_oldest ON onetake_outbox (created_at) WHERE state IN " HELD ";
    CREATE INDEX onetake_outbox_failing ON onetake_outbox (place) WHERE state = " LATER ";
    CREATE INDEX onetake_outbox_delivered ON onetake_outbox (state_at) WHERE state = " DELIVERED ";
    CREATE INDEX onetake_outbox_parked ON onetake_outbox (place) WHERE state = " PARKED ";
    CREATE TABLE onetake_lanes (
        lane        INTEGER PRIMARY KEY,
        turn        INTEGER NOT NULL DEFAULT 0,
        taken_until INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    WITH RECURSIVE lanes (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM lanes WHERE lane < 63)
    INSERT INTO onetake_lanes (lane) SELECT lane FROM lanes;
    ");

/// Giving a lane back ends the turn, so a repeated report has no effect.
const GIVE_BACK: &str = "
    UPDATE onetake_lanes SET turn = turn + 1, taken_until = 0 WHERE lane = :lane AND turn = :turn";

const SETTLE: &str = outbox_sql!("
    UPDATE onetake_outbox
       SET state = :state, state_at = :at, tries = tries + (:error IS NOT NULL), error = :error
     WHERE place = :place AND lane = :lane AND state IN (" FRESH ", " LATER ", " BEHIND ")");

/// The first held-back message that has the same ordering key as a message.
pub(super) const NEXT: &str = outbox_sql!("
    SELECT place, state FROM onetake_outbox INDEXED BY onetake_outbox_held
     WHERE lane = :lane AND state IN " HELD "
       AND ordering = (SELECT settled.ordering FROM onetake_outbox AS settled WHERE settled.place = :place)
     ORDER BY place LIMIT 1");

const BRING_FORWARD: &str = outbox_sql!("
    UPDATE onetake_outbox SET state = " LATER ", state_at = :now WHERE place = :place");

// Corrects times that a clock wrote while it was far ahead. A correct clock writes no time that is
// more than a day ahead.
const FREE_AHEAD: &str = "UPDATE onetake_lanes SET taken_until = 0 WHERE taken_until > :ahead";
const DUE_AHEAD: &str = outbox_sql!("
    UPDATE onetake_outbox SET state_at = :now WHERE place IN (
        SELECT held.place
          FROM onetake_lanes CROSS JOIN onetake_outbox AS held INDEXED BY onetake_outbox_later
         WHERE held.lane = onetake_lanes.lane AND held.state IN " HELD " AND held.state_at > :ahead LIMIT :limit)");

const PRUNE: &str = outbox_sql!("
    DELETE FROM onetake_outbox WHERE place IN (
        SELECT place FROM onetake_outbox WHERE state = " DELIVERED " AND state_at <= :until ORDER BY state_at LIMIT :limit)");

pub(super) const COUNTS: &str = outbox_sql!("
    SELECT min(:most,
             (SELECT count(*) FROM (
               SELECT 1 FROM onetake_outbox INDEXED BY onetake_outbox_fresh WHERE state = " FRESH " LIMIT :most))
             + (SELECT count(*) FROM (
               SELECT 1 FROM onetake_outbox INDEXED BY onetake_outbox_oldest WHERE state IN " HELD " LIMIT :most))),
           (SELECT min(oldest) FROM (
              SELECT (SELECT created_at FROM onetake_outbox INDEXED BY onetake_outbox_fresh
                       WHERE onetake_outbox.lane = onetake_lanes.lane AND state = " FRESH "
                       ORDER BY place LIMIT 1) AS oldest
                FROM onetake_lanes
               UNION ALL
              SELECT (SELECT created_at FROM onetake_outbox INDEXED BY onetake_outbox_oldest
                       WHERE state IN " HELD " ORDER BY created_at LIMIT 1))),
           (SELECT count(*) FROM (
               SELECT 1 FROM onetake_outbox INDEXED BY onetake_outbox_parked WHERE state = " PARKED " LIMIT :most))");

/// A relay's report on a turn.
struct TurnReport {
    lane: u8,
    turn: u64,
    deliveries: Vec<(u64, Delivery)>,
}

pub(super) fn write(
    connection: &Connection,
    lane: u8,
    place: u64,
    delivery: &Delivery,
    now: i64,
) -> rusqlite::Result<()> {
    let (state, after, error) = match delivery {
        Delivery::Delivered => (outbox_codes::DELIVERED, Duration::ZERO, None),
        Delivery::Again { after, error } => {
            (outbox_codes::LATER, (*after).min(HELD_MAX), Some(error))
        }
        Delivery::Park { error } => (outbox_codes::PARKED, Duration::ZERO, Some(error)),
    };
    let written = connection.prepare_cached(SETTLE)?.execute(named_params! {
        ":state": state,
        ":at": now.saturating_add(signed(micros(after))),
        ":error": error,
        ":place": signed(place),
        ":lane": lane,
    });
    written.map(drop)
}

fn settle(connection: &Connection, said: &TurnReport, moment: Moment) -> Decided<bool> {
    let now = signed(moment.now.as_micros());
    let turn = named_params! { ":lane": said.lane, ":turn": signed(said.turn) };
    if connection.prepare_cached(GIVE_BACK)?.execute(turn)? == 0 {
        return Ok(Ok(false));
    }
    for (place, delivery) in &said.deliveries {
        write(connection, said.lane, *place, delivery, now)?;
    }
    for (place, delivery) in &said.deliveries {
        if !matches!(delivery, Delivery::Again { .. }) {
            bring_forward(connection, said.lane, *place, now)?;
        }
    }
    Ok(Ok(true))
}

/// Lets the next message of the same ordering key proceed after a message was settled, if there is
/// one.
pub(super) fn bring_forward(
    connection: &Connection,
    lane: u8,
    place: u64,
    now: i64,
) -> rusqlite::Result<()> {
    let mut next = connection.prepare_cached(NEXT)?;
    let asked = named_params! { ":lane": lane, ":place": signed(place) };
    let next = next.query_row(asked, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i16>(1)?)));
    if let Some((place, outbox_codes::BEHIND)) = next.optional()? {
        let mut forward = connection.prepare_cached(BRING_FORWARD)?;
        forward.execute(named_params! { ":place": place, ":now": now })?;
    }
    Ok(())
}

fn prune(connection: &Connection, asked: &(Duration, usize), moment: Moment) -> Decided<usize> {
    let until = moment.now.as_micros().saturating_sub(micros(asked.0));
    let limit = i64::try_from(asked.1).unwrap_or(i64::MAX);
    let ahead = signed(moment.now.plus(HELD_MAX * 2).as_micros());
    connection.prepare_cached(FREE_AHEAD)?.execute(named_params! { ":ahead": ahead })?;
    let now = signed(moment.now.as_micros());
    let mut held = connection.prepare_cached(DUE_AHEAD)?;
    held.execute(named_params! { ":ahead": ahead, ":now": now, ":limit": limit })?;
    let mut statement = connection.prepare_cached(PRUNE)?;
    statement.execute(named_params! { ":until": signed(until), ":limit": limit }).map(Ok)
}

fn counts(connection: &Connection, now: Timestamp) -> rusqlite::Result<OutboxCounts> {
    connection.prepare_cached(COUNTS)?.query_row(
        named_params! { ":most": signed(COUNTED_MAX) },
        |row| {
            let oldest: Option<i64> = row.get(1)?;
            let lag = oldest.map(|at| now.since(timestamp(at))).unwrap_or_default();
            Ok(OutboxCounts::new(unsigned(row.get(0)?), lag, unsigned(row.get(2)?)))
        },
    )
}

/// Returns a message, and whether all of it was readable.
pub(super) fn waiting(row: &Row<'_>) -> rusqlite::Result<(PendingMessage, bool)> {
    let id: Option<[u8; MessageId::BYTES]> = row.get_ref(1)?.as_blob()?.try_into().ok();
    let headers = Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?);
    let headers = Message::headers_from_bytes(headers).ok();
    let ((order, order_is_text), (topic, topic_is_text)) = (text(row, 2)?, text(row, 3)?);
    let is_readable = id.is_some() && headers.is_some() && order_is_text && topic_is_text;
    let waiting = PendingMessage {
        place: unsigned(row.get(0)?),
        id: MessageId::from_bytes(id.unwrap_or_default()),
        message: Message {
            topic,
            order,
            headers: headers.unwrap_or_default(),
            payload: Bytes::copy_from_slice(row.get_ref(5)?.as_blob()?),
        },
        tries: u32::try_from(row.get::<_, i64>(6)?).unwrap_or_default(),
        created_at: timestamp(row.get(7)?),
    };
    Ok((waiting, is_readable))
}

/// Returns a text, and whether it is valid UTF-8: other programs may have written something else.
fn text(row: &Row<'_>, at: usize) -> rusqlite::Result<(String, bool)> {
    let bytes = row.get_ref(at)?.as_bytes()?;
    Ok((String::from_utf8_lossy(bytes).into_owned(), std::str::from_utf8(bytes).is_ok()))
}

pub(super) fn timestamp(column: i64) -> Timestamp {
    Timestamp::from_micros(unsigned(column))
}

pub(super) fn unsigned(column: i64) -> u64 {
    u64::try_from(column).unwrap_or_default()
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl SqliteStore {
    /// Runs one item on the thread, in the same group as other writes.
    fn outbox<T: Send + 'static, R: Send + 'static>(
        &self,
        item: T,
        decide: fn(&Connection, &T, Moment) -> Decided<R>,
    ) -> BoxFuture<'_, Result<R, StoreError>> {
        async move {
            let answers =
                self.ask(|reply| SqliteJob::Write(transitions::one(item, decide, reply))).await?;
            self.only(answers)
        }
        .boxed()
    }
}

impl Outbox for SqliteStore {
    fn take(
        &self,
        hold: Duration,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Turn>, StoreError>> {
        async move {
            for _ in 0..LOOKS_MAX {
                match self.outbox(TurnLimits { hold, limit, bytes }, take).await? {
                    TurnResult::Turn(turn) => return Ok(Some(turn)),
                    TurnResult::More => {}
                    TurnResult::Nothing => break,
                }
            }
            Ok(None)
        }
        .boxed()
    }

    fn settle(
        &self,
        lane: u8,
        turn: u64,
        deliveries: Vec<(u64, Delivery)>,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.outbox(TurnReport { lane, turn, deliveries }, settle)
    }

    fn prune(&self, kept: Duration, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.outbox((kept, limit), prune)
    }

    fn counts(&self) -> BoxFuture<'_, Result<OutboxCounts, StoreError>> {
        self.read(counts).boxed()
    }

    fn parked(
        &self,
        behind: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>> {
        self.read(move |it, _| parked(it, PARKED, behind, limit)).boxed()
    }

    fn failing(
        &self,
        behind: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>> {
        self.read(move |it, _| parked(it, FAILING, behind, limit)).boxed()
    }

    fn retry(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.outbox(id, retry)
    }

    fn discard(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.outbox(id, discard)
    }
}
