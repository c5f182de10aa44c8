//! The outbox, as relays see it: the rows of `onetake_outbox` and `onetake_lanes`.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::{Connection, Row, named_params};

use onetake_core::clock::micros;
use onetake_core::outbox::{
    COUNTED_MAX, Delivery, Message, MessageId, Outbox, OutboxCounts, Parked, Turn, Waiting,
};
use onetake_core::{StoreError, Timestamp};

use super::SqliteStore;
use super::committer::Job;
use super::ledger::{self, Decided, Moment};

/// The schema. Times are microseconds since the epoch; the columns are those of PostgreSQL.
pub(super) const TABLES: &str = "
    CREATE TABLE onetake_outbox (
        place      INTEGER PRIMARY KEY AUTOINCREMENT,
        message    BLOB NOT NULL UNIQUE,
        lane       INTEGER NOT NULL,
        ordering   TEXT NOT NULL,
        topic      TEXT NOT NULL,
        headers    BLOB NOT NULL,
        payload    BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        state      INTEGER NOT NULL DEFAULT 0,
        state_at   INTEGER NOT NULL,
        tries      INTEGER NOT NULL DEFAULT 0,
        error      TEXT
    ) STRICT;
    CREATE INDEX onetake_outbox_waiting ON onetake_outbox (lane, place) WHERE state = 0;
    CREATE INDEX onetake_outbox_failing ON onetake_outbox (lane, ordering, place) WHERE state = 0 AND tries > 0;
    CREATE INDEX onetake_outbox_delivered ON onetake_outbox (state_at) WHERE state = 1;
    CREATE INDEX onetake_outbox_parked ON onetake_outbox (place) WHERE state = 2;
    CREATE TABLE onetake_lanes (
        lane        INTEGER PRIMARY KEY,
        turn        INTEGER NOT NULL DEFAULT 0,
        taken_until INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    WITH RECURSIVE lanes (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM lanes WHERE lane < 63)
    INSERT INTO onetake_lanes (lane) SELECT lane FROM lanes;
    ";

const FREE: &str = "SELECT lane FROM onetake_lanes WHERE taken_until <= :now ORDER BY turn, lane";

/// What failed is not tried before its time, and holds back those behind it of the same ordering key.
const DUE: &str = "
    SELECT place, message, ordering, topic, headers, payload, tries, created_at
      FROM onetake_outbox AS waiting
     WHERE lane = :lane AND state = 0 AND (tries = 0 OR state_at <= :now)
       AND NOT EXISTS (
         SELECT 1 FROM onetake_outbox AS failing
          WHERE failing.lane = :lane AND failing.ordering = waiting.ordering AND failing.state = 0
            AND failing.tries > 0 AND failing.place < waiting.place AND failing.state_at > :now)
     ORDER BY place LIMIT :limit";

const TAKE: &str = "
    UPDATE onetake_lanes SET turn = (SELECT max(turn) + 1 FROM onetake_lanes), taken_until = :until
     WHERE lane = :lane RETURNING turn";

/// Giving it back ends the turn: what is said twice is heard once.
const GIVE_BACK: &str = "
    UPDATE onetake_lanes SET turn = turn + 1, taken_until = 0 WHERE lane = :lane AND turn = :turn";

const SETTLE: &str = "
    UPDATE onetake_outbox
       SET state = :state, state_at = :at, tries = tries + (:error IS NOT NULL), error = :error
     WHERE place = :place AND lane = :lane AND state = 0";

const PRUNE: &str = "
    DELETE FROM onetake_outbox WHERE place IN (
        SELECT place FROM onetake_outbox WHERE state = 1 AND state_at <= :until ORDER BY state_at LIMIT :limit)";

const COUNTS: &str = "
    SELECT (SELECT count(*) FROM (SELECT 1 FROM onetake_outbox WHERE state = 0 LIMIT :most)),
           (SELECT min((SELECT created_at FROM onetake_outbox
                         WHERE onetake_outbox.lane = onetake_lanes.lane AND state = 0 ORDER BY place LIMIT 1))
              FROM onetake_lanes),
           (SELECT count(*) FROM (SELECT 1 FROM onetake_outbox WHERE state = 2 LIMIT :most))";

const PARKED: &str = "
    SELECT place, message, ordering, topic, headers, payload, tries, created_at, state_at, coalesce(error, '')
      FROM onetake_outbox WHERE state = 2 AND place > :behind ORDER BY place LIMIT :limit";

/// Its tries are counted anew.
const RETRY: &str = "
    UPDATE onetake_outbox SET state = 0, tries = 0, state_at = :now WHERE message = :message AND state = 2";

const DISCARD: &str = "DELETE FROM onetake_outbox WHERE message = :message AND state = 2";

// The states of a row.
const WAITING: i64 = 0;
const DELIVERED: i64 = 1;
const PARKED_STATE: i64 = 2;

/// How much a relay wants, and for how long.
struct Wanted {
    hold: Duration,
    limit: usize,
    bytes: usize,
}

/// What a relay says.
struct Said {
    lane: u8,
    turn: u64,
    deliveries: Vec<(u64, Delivery)>,
}

fn take(connection: &Connection, wanted: &Wanted, moment: Moment) -> Decided<Option<Turn>> {
    let now = signed(moment.now.as_micros());
    let mut free = connection.prepare_cached(FREE)?;
    let lanes = free.query_map(named_params! { ":now": now }, |row| row.get::<_, u8>(0))?;
    let lanes = lanes.collect::<rusqlite::Result<Vec<u8>>>()?;
    for lane in lanes {
        let messages = due(connection, lane, wanted, moment.now)?;
        if messages.is_empty() {
            continue;
        }
        let until = signed(moment.now.plus(wanted.hold).as_micros());
        let mut taken = connection.prepare_cached(TAKE)?;
        let asked = named_params! { ":lane": lane, ":until": until };
        let turn = unsigned(taken.query_row(asked, |row| row.get(0))?);
        return Ok(Ok(Some(Turn { lane, turn, messages })));
    }
    Ok(Ok(None))
}

fn due(
    connection: &Connection,
    lane: u8,
    wanted: &Wanted,
    now: Timestamp,
) -> rusqlite::Result<Vec<Waiting>> {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    let mut odd = Vec::new();
    let mut due = connection.prepare_cached(DUE)?;
    let limit = i64::try_from(wanted.limit).unwrap_or(i64::MAX);
    let now = signed(now.as_micros());
    let mut rows = due.query(named_params! { ":lane": lane, ":now": now, ":limit": limit })?;
    while let Some(row) = rows.next()? {
        let (waiting, is_readable) = waiting(row)?;
        if !is_readable {
            odd.push(waiting.place);
            continue;
        }
        let message = &waiting.message;
        bytes += message.payload.len() + message.topic.len() + message.order.len();
        bytes += row.get_ref(4)?.as_blob().map_or(0, <[u8]>::len);
        if bytes > wanted.bytes && !messages.is_empty() {
            break;
        }
        messages.push(waiting);
    }
    // Nobody can read these: an operator has to, and the others go on.
    for place in odd {
        let error = "its headers cannot be read: it was not written by onetake".to_owned();
        write(connection, lane, place, &Delivery::Park { error }, now)?;
    }
    Ok(messages)
}

fn write(
    connection: &Connection,
    lane: u8,
    place: u64,
    delivery: &Delivery,
    now: i64,
) -> rusqlite::Result<()> {
    let (state, after, error) = match delivery {
        Delivery::Delivered => (DELIVERED, Duration::ZERO, None),
        Delivery::Again { after, error } => (WAITING, *after, Some(error)),
        Delivery::Park { error } => (PARKED_STATE, Duration::ZERO, Some(error)),
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

fn settle(connection: &Connection, said: &Said, moment: Moment) -> Decided<bool> {
    let now = signed(moment.now.as_micros());
    let turn = named_params! { ":lane": said.lane, ":turn": signed(said.turn) };
    if connection.prepare_cached(GIVE_BACK)?.execute(turn)? == 0 {
        return Ok(Ok(false));
    }
    for (place, delivery) in &said.deliveries {
        write(connection, said.lane, *place, delivery, now)?;
    }
    Ok(Ok(true))
}

fn prune(connection: &Connection, asked: &(Duration, usize), moment: Moment) -> Decided<usize> {
    let until = moment.now.as_micros().saturating_sub(micros(asked.0));
    let limit = i64::try_from(asked.1).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(PRUNE)?;
    statement.execute(named_params! { ":until": signed(until), ":limit": limit }).map(Ok)
}

fn counts(connection: &Connection, (): &(), moment: Moment) -> Decided<OutboxCounts> {
    let counted = connection.prepare_cached(COUNTS)?.query_row(
        named_params! { ":most": signed(COUNTED_MAX) },
        |row| {
            let oldest: Option<i64> = row.get(1)?;
            let lag = oldest.map(|at| moment.now.since(timestamp(at))).unwrap_or_default();
            Ok(OutboxCounts { waiting: unsigned(row.get(0)?), lag, parked: unsigned(row.get(2)?) })
        },
    );
    counted.map(Ok)
}

fn parked(connection: &Connection, asked: &(u64, usize), _: Moment) -> Decided<Vec<Parked>> {
    let limit = i64::try_from(asked.1).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(PARKED)?;
    let rows = statement.query_map(
        named_params! { ":behind": signed(asked.0), ":limit": limit },
        |row| {
            Ok(Parked { waiting: waiting(row)?.0, at: timestamp(row.get(8)?), error: row.get(9)? })
        },
    )?;
    rows.collect::<rusqlite::Result<_>>().map(Ok)
}

fn retry(connection: &Connection, id: &MessageId, moment: Moment) -> Decided<bool> {
    let now = signed(moment.now.as_micros());
    let mut statement = connection.prepare_cached(RETRY)?;
    let changed = statement.execute(named_params! { ":now": now, ":message": id.as_bytes() })?;
    Ok(Ok(changed > 0))
}

fn discard(connection: &Connection, id: &MessageId, _: Moment) -> Decided<bool> {
    let mut statement = connection.prepare_cached(DISCARD)?;
    let changed = statement.execute(named_params! { ":message": id.as_bytes() })?;
    Ok(Ok(changed > 0))
}

/// A message, and whether all of it could be read.
fn waiting(row: &Row<'_>) -> rusqlite::Result<(Waiting, bool)> {
    let id: Option<[u8; MessageId::BYTES]> = row.get_ref(1)?.as_blob()?.try_into().ok();
    let headers = Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?);
    let headers = Message::headers_from_bytes(headers).ok();
    let is_readable = id.is_some() && headers.is_some();
    let waiting = Waiting {
        place: unsigned(row.get(0)?),
        id: MessageId::from_bytes(id.unwrap_or_default()),
        message: Message {
            topic: row.get(3)?,
            order: row.get(2)?,
            headers: headers.unwrap_or_default(),
            payload: Bytes::copy_from_slice(row.get_ref(5)?.as_blob()?),
        },
        tries: u32::try_from(row.get::<_, i64>(6)?).unwrap_or_default(),
        created_at: timestamp(row.get(7)?),
    };
    Ok((waiting, is_readable))
}

fn timestamp(column: i64) -> Timestamp {
    Timestamp::from_micros(unsigned(column))
}

fn unsigned(column: i64) -> u64 {
    u64::try_from(column).unwrap_or_default()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl SqliteStore {
    /// Has the thread do one thing, with whatever else it writes just then.
    fn outbox<T: Send + 'static, R: Send + 'static>(
        &self,
        item: T,
        decide: fn(&Connection, &T, Moment) -> Decided<R>,
    ) -> BoxFuture<'_, Result<R, StoreError>> {
        async move {
            let answers = self.ask(|reply| Job::Write(ledger::one(item, decide, reply))).await?;
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
        self.outbox(Wanted { hold, limit, bytes }, take)
    }

    fn settle(
        &self,
        lane: u8,
        turn: u64,
        deliveries: Vec<(u64, Delivery)>,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.outbox(Said { lane, turn, deliveries }, settle)
    }

    fn prune(&self, kept: Duration, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.outbox((kept, limit), prune)
    }

    fn counts(&self) -> BoxFuture<'_, Result<OutboxCounts, StoreError>> {
        self.outbox((), counts)
    }

    fn parked(&self, behind: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Parked>, StoreError>> {
        self.outbox((behind, limit), parked)
    }

    fn retry(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.outbox(id, retry)
    }

    fn discard(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.outbox(id, discard)
    }
}
