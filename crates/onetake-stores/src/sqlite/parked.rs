//! Operator actions on messages that could not be delivered.

use rusqlite::{Connection, OptionalExtension, named_params};

use onetake_core::decide::Moment;
use onetake_core::outbox::{Delivery, MessageId, ParkedMessage};

use super::outbox::{bring_forward, signed, timestamp, unsigned, waiting, write};
use super::transitions::Decided;
use crate::outbox_codes::outbox_sql;

pub(super) const PARKED: &str = outbox_sql!("
    SELECT place, message, ordering, topic, headers, payload, tries, created_at, state_at, coalesce(error, '')
      FROM onetake_outbox INDEXED BY onetake_outbox_parked WHERE state = " PARKED " AND place > :behind ORDER BY place LIMIT :limit");

pub(super) const FAILING: &str = outbox_sql!("
    SELECT place, message, ordering, topic, headers, payload, tries, created_at, state_at, coalesce(error, '')
      FROM onetake_outbox INDEXED BY onetake_outbox_failing
     WHERE state = " LATER " AND tries > 0 AND place > :behind ORDER BY place LIMIT :limit");

/// The tries of a parked message are counted from zero again.
const RETRY: &str = outbox_sql!("
    UPDATE onetake_outbox
       SET state = CASE state WHEN " PARKED " THEN " FRESH " ELSE state END,
           tries = CASE state WHEN " PARKED " THEN 0 ELSE tries END,
           state_at = :now
     WHERE message = :message AND state IN (" PARKED ", " LATER ")");

const FIND: &str = outbox_sql!("
    SELECT place, lane FROM onetake_outbox WHERE message = :message AND state IN (" PARKED ", " LATER ")");

const DISCARD: &str = "DELETE FROM onetake_outbox WHERE place = :place";

pub(super) fn parked(
    connection: &Connection,
    sql: &str,
    behind: u64,
    limit: usize,
) -> rusqlite::Result<Vec<ParkedMessage>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(
        named_params! { ":behind": signed(behind), ":limit": limit },
        |row| {
            Ok(ParkedMessage {
                waiting: waiting(row)?.0,
                at: timestamp(row.get(8)?),
                error: row.get(9)?,
            })
        },
    )?;
    rows.collect()
}

pub(super) fn retry(connection: &Connection, id: &MessageId, moment: Moment) -> Decided<bool> {
    let now = signed(moment.now.as_micros());
    let mut statement = connection.prepare_cached(RETRY)?;
    let changed = statement.execute(named_params! { ":now": now, ":message": id.as_bytes() })?;
    Ok(Ok(changed > 0))
}

pub(super) fn discard(connection: &Connection, id: &MessageId, moment: Moment) -> Decided<bool> {
    let mut statement = connection.prepare_cached(FIND)?;
    let found = named_params! { ":message": id.as_bytes() };
    let found = statement.query_row(found, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, u8>(1)?)));
    let Some((place, lane)) = found.optional()? else { return Ok(Ok(false)) };
    let place = unsigned(place);
    // It is parked first, so that it is not itself the next message to proceed.
    let parked = Delivery::Park { error: String::new() };
    let now = signed(moment.now.as_micros());
    write(connection, lane, place, &parked, now)?;
    bring_forward(connection, lane, place, now)?;
    let mut statement = connection.prepare_cached(DISCARD)?;
    statement.execute(named_params! { ":place": signed(place) })?;
    Ok(Ok(true))
}
