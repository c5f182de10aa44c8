//! The choice of a lane and of messages for a relay's turn.
//!
//! A message that failed is tried later, and holds back the later messages of its ordering key.
//! However many they are, each is found once: among the fresh messages, where it is put behind the
//! failed one. Due messages are then found by their time, and the messages behind them by their
//! ordering key. At least one held-back message of a key has a time. If that one is deleted, the
//! others are checked when a day is over.
//!
//! Each statement names its index. Statistics from an `ANALYZE` must not lead to another index,
//! which would read all messages that were ever delivered.

use std::time::Duration;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, named_params};

use onetake_core::Timestamp;
use onetake_core::decide::Moment;
use onetake_core::outbox::{Delivery, PendingMessage, Turn};

use super::outbox::{bring_forward, signed, unsigned, waiting, write};
use super::transitions::Decided;
use crate::outbox_codes::{self, HELD_MAX, outbox_sql};

const FREE: &str =
    "SELECT lane, turn FROM onetake_lanes WHERE taken_until <= :now ORDER BY turn, lane";

const FRESH: &str = outbox_sql!("
    SELECT place FROM onetake_outbox INDEXED BY onetake_outbox_fresh
     WHERE lane = :lane AND state = " FRESH " ORDER BY place LIMIT :limit");

/// Finds an earlier message of the same ordering key that is held back.
const IS_BEHIND: &str = outbox_sql!("
    SELECT 1 FROM onetake_outbox INDEXED BY onetake_outbox_held
     WHERE lane = :lane AND state IN " HELD " AND place < :place
       AND ordering = (SELECT fresh.ordering FROM onetake_outbox AS fresh WHERE fresh.place = :place)
     ORDER BY place DESC LIMIT 1");

const PUT_BEHIND: &str = outbox_sql!("
    UPDATE onetake_outbox SET state = " BEHIND ", state_at = :at WHERE place = :place");

const DUE: &str = outbox_sql!("
    SELECT place FROM onetake_outbox INDEXED BY onetake_outbox_later
     WHERE lane = :lane AND state IN " HELD " AND state_at <= :now ORDER BY state_at LIMIT :limit");

/// The held-back messages of a message's ordering key, each with whether it still has to wait.
const OF_KEY: &str = outbox_sql!("
    SELECT place, state = " LATER " AND state_at > :now FROM onetake_outbox INDEXED BY onetake_outbox_held
     WHERE lane = :lane AND state IN " HELD "
       AND ordering = (SELECT due.ordering FROM onetake_outbox AS due WHERE due.place = :place)
     ORDER BY place LIMIT :limit");

const MESSAGE: &str = "
    SELECT place, message, ordering, topic, headers, payload, tries, created_at
      FROM onetake_outbox WHERE place = :place";

const TAKE: &str = "
    UPDATE onetake_lanes SET turn = (SELECT max(turn) + 1 FROM onetake_lanes), taken_until = :until
     WHERE lane = :lane RETURNING turn";

const LOOK_MIN: usize = outbox_codes::LOOK_MIN as usize;
const LOOKED_MAX: usize = outbox_codes::LOOKED_MAX as usize;

/// The limits of a turn that a relay asks for.
pub(super) struct TurnLimits {
    pub(super) hold: Duration,
    pub(super) limit: usize,
    pub(super) bytes: usize,
}

/// The result of a search for a turn.
pub(super) enum TurnResult {
    Turn(Turn),
    /// There is more to search. The call ends here so that no call takes long.
    More,
    Nothing,
}

/// A lane at one moment.
struct OutboxLane<'a> {
    connection: &'a Connection,
    lane: u8,
    now: Timestamp,
    limit: usize,
}

pub(super) fn take(
    connection: &Connection,
    wanted: &TurnLimits,
    moment: Moment,
) -> Decided<TurnResult> {
    let now = signed(moment.now.as_micros());
    let mut free = connection.prepare_cached(FREE)?;
    let lanes = free.query_map(named_params! { ":now": now }, |row| Ok((row.get(0)?, row.get(1)?)));
    let lanes = lanes?.collect::<rusqlite::Result<Vec<(u8, i64)>>>()?;
    let limit = wanted.limit.max(1);
    let mut looks_left = (LOOKED_MAX / limit.max(LOOK_MIN)).max(1);
    for (number, turns) in lanes {
        let lane = OutboxLane { connection, lane: number, now: moment.now, limit };
        let fresh = lane.fresh(&mut looks_left)?;
        let chosen = choose(lane.due()?, fresh, limit, turns);
        let messages = lane.messages(&chosen, wanted.bytes)?;
        if !messages.is_empty() {
            let turn = lane.take(moment.now.plus(wanted.hold.min(HELD_MAX)))?;
            return Ok(Ok(TurnResult::Turn(Turn { lane: number, turn, messages })));
        }
        if looks_left == 0 {
            // This lane may have more of the same messages, so the other lanes come first.
            lane.take(Timestamp::from_micros(0))?;
            return Ok(Ok(TurnResult::More));
        }
    }
    Ok(Ok(TurnResult::Nothing))
}

/// Chooses the messages of a turn. Fresh messages get half of it, and due messages, which failed
/// before, the rest. Turns of one message alternate between the two kinds.
fn choose(mut due: Vec<u64>, mut fresh: Vec<u64>, limit: usize, turns: i64) -> Vec<u64> {
    let is_other = turns / 2 % 2 != 0;
    due.truncate(limit - fresh.len().min((limit + usize::from(is_other)) / 2));
    fresh.truncate(limit - due.len());
    let mut chosen = Vec::with_capacity(due.len() + fresh.len());
    let (mut due, mut fresh) = (due.into_iter(), fresh.into_iter());
    loop {
        let before = chosen.len();
        chosen.extend(due.next());
        chosen.extend(fresh.next());
        if chosen.len() == before {
            return chosen;
        }
    }
}

impl OutboxLane<'_> {
    /// Returns fresh messages that are not held back. The others are put behind the message that
    /// holds them back.
    fn fresh(&self, looks_left: &mut usize) -> rusqlite::Result<Vec<u64>> {
        let look = self.limit.max(LOOK_MIN);
        loop {
            let mut fresh = self.connection.prepare_cached(FRESH)?;
            let looked =
                places(&mut fresh, named_params! { ":lane": self.lane, ":limit": count(look) })?;
            let seen = looked.len();
            let mut free = Vec::new();
            for place in looked {
                let asked = named_params! { ":lane": self.lane, ":place": place };
                let mut is_behind = self.connection.prepare_cached(IS_BEHIND)?;
                if is_behind.query_row(asked, |_| Ok(())).optional()?.is_some() {
                    self.put_behind(place)?;
                } else {
                    free.push(unsigned(place));
                }
            }
            if !free.is_empty() || seen < look || *looks_left == 0 {
                return Ok(free);
            }
            *looks_left -= 1;
        }
    }

    fn put_behind(&self, place: i64) -> rusqlite::Result<()> {
        let mut behind = self.connection.prepare_cached(PUT_BEHIND)?;
        let at = signed(self.now.plus(HELD_MAX).as_micros());
        behind.execute(named_params! { ":place": place, ":at": at }).map(drop)
    }

    /// Returns messages whose time has come, with the messages behind them.
    fn due(&self) -> rusqlite::Result<Vec<u64>> {
        let mut found = self.connection.prepare_cached(DUE)?;
        let now = signed(self.now.as_micros());
        let asked = named_params! { ":lane": self.lane, ":now": now, ":limit": count(self.limit) };
        let mut due = Vec::new();
        for place in places(&mut found, asked)? {
            if due.len() >= self.limit {
                break;
            }
            if due.contains(&unsigned(place)) {
                continue;
            }
            let room = self.limit - due.len();
            let of_key = self.of_key(place, room)?;
            if of_key.len() < room && !of_key.contains(&unsigned(place)) {
                // An earlier message of the key waits, and has a time of its own.
                self.put_behind(place)?;
            }
            // A key is added once, also if two of its messages are due and one between them is not.
            if !of_key.first().is_some_and(|first| due.contains(first)) {
                due.extend(of_key);
            }
        }
        Ok(due)
    }

    /// Returns the messages of a message's ordering key, from the first one up to one that has to
    /// wait.
    fn of_key(&self, place: i64, limit: usize) -> rusqlite::Result<Vec<u64>> {
        let mut of_key = self.connection.prepare_cached(OF_KEY)?;
        let now = signed(self.now.as_micros());
        let mut rows = of_key.query(named_params! {
            ":lane": self.lane, ":place": place, ":now": now, ":limit": count(limit),
        })?;
        let mut places = Vec::new();
        while let Some(row) = rows.next()? {
            if row.get(1)? {
                break;
            }
            places.push(unsigned(row.get(0)?));
        }
        Ok(places)
    }

    /// Returns as many of these messages as fit, in the order of their places.
    fn messages(&self, chosen: &[u64], bytes_max: usize) -> rusqlite::Result<Vec<PendingMessage>> {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        for place in chosen {
            let mut found = self.connection.prepare_cached(MESSAGE)?;
            let mut rows = found.query(named_params! { ":place": signed(*place) })?;
            let Some(row) = rows.next()? else { continue };
            let (waiting, is_readable) = waiting(row)?;
            if !is_readable {
                // An unreadable message is left to an operator, and the others proceed.
                let error =
                    "the headers or texts of the message cannot be read: onetake did not write it"
                        .to_owned();
                let now = signed(self.now.as_micros());
                write(self.connection, self.lane, *place, &Delivery::Park { error }, now)?;
                bring_forward(self.connection, self.lane, *place, now)?;
                continue;
            }
            let message = &waiting.message;
            bytes += message.payload.len() + message.topic.len() + message.order.len();
            bytes += row.get_ref(4)?.as_blob().map_or(0, <[u8]>::len);
            if bytes > bytes_max && !messages.is_empty() {
                break;
            }
            messages.push(waiting);
        }
        messages.sort_unstable_by_key(|waiting| waiting.place);
        Ok(messages)
    }

    /// Takes the lane until this time. Returns the number of the turn.
    fn take(&self, until: Timestamp) -> rusqlite::Result<u64> {
        let mut taken = self.connection.prepare_cached(TAKE)?;
        let asked = named_params! { ":lane": self.lane, ":until": signed(until.as_micros()) };
        taken.query_row(asked, |row| row.get(0)).map(unsigned)
    }
}

fn places(statement: &mut CachedStatement<'_>, asked: impl Params) -> rusqlite::Result<Vec<i64>> {
    statement.query_map(asked, |row| row.get(0))?.collect()
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::super::outbox::{COUNTS, NEXT, TABLES};
    use super::{DUE, FRESH, IS_BEHIND, OF_KEY, choose};

    /// With any number of messages, the needed rows are found by an index, in their order.
    #[test]
    fn no_statement_reads_more_than_it_has_to() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(TABLES).unwrap();
        for sql in [FRESH, IS_BEHIND, DUE, OF_KEY, NEXT, COUNTS] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let rows = plan.raw_query();
            let rows = rows.mapped(|row| row.get::<_, String>("detail"));
            let rows: Vec<String> = rows.map(Result::unwrap).collect();
            let of_table: Vec<&String> =
                rows.iter().filter(|row| row.contains(" onetake_outbox")).collect();
            assert!(!of_table.is_empty(), "{rows:?}");
            assert!(of_table.iter().all(|row| row.contains("USING")), "{sql}: {rows:?}");
            assert!(!rows.iter().any(|row| row.contains("B-TREE")), "{sql}: {rows:?}");
        }
    }

    #[test]
    fn what_failed_leaves_half_of_a_turn_to_what_did_not() {
        for turns in 0..4 {
            assert_eq!(choose(vec![1, 2, 3, 4], vec![5, 6, 7, 8], 4, turns), [1, 5, 2, 6]);
            assert_eq!(choose(vec![1, 2, 3, 4], vec![5], 4, turns), [1, 5, 2, 3]);
            assert_eq!(choose(vec![1], vec![5, 6, 7, 8], 4, turns), [1, 5, 6, 7]);
            assert_eq!(choose(vec![], vec![5, 6], 1, turns), [5]);
        }
        assert_eq!(choose(vec![1, 2], vec![5, 6], 1, 1), [1]);
        assert_eq!(choose(vec![1, 2], vec![5, 6], 1, 3), [5]);
    }
}
