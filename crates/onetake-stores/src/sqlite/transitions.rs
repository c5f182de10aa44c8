//! Decisions on claims, settlements, secrets and notes against the rows, inside a transaction.

use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::oneshot;

use onetake_core::audit::AuditEntry;
use onetake_core::codec::DecodeError;
use onetake_core::decide::{self, ClaimEffect, Moment, SettleEffect};
use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Fence, Record, RecordId, Settled, Settlement, StoreError, StoreErrorKind,
};

use super::error::is_too_big;
use super::{audit, table};

/// A batch of writes. It is decided with others, and answered once they are durable.
pub(super) trait WriteBatch: Send {
    /// Decides each item and keeps the answers.
    fn decide(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()>;

    /// Sends the answers, or the error of the whole group.
    fn answer(self: Box<Self>, result: Result<(), &StoreError>);
}

/// The result of a decision. The outer error fails the group, the inner one the item alone.
pub(super) type Decided<R> = rusqlite::Result<Result<R, StoreError>>;

struct Batch<T, R> {
    items: Vec<T>,
    decide: fn(&Connection, &T, Moment) -> Decided<R>,
    answers: Answers<R>,
    to: oneshot::Sender<Answers<R>>,
}

/// A batch of claims.
pub(super) fn claims(
    items: Vec<Claim>,
    to: oneshot::Sender<Answers<Claimed>>,
) -> Box<dyn WriteBatch> {
    Box::new(Batch { items, decide: claim, answers: Vec::new(), to })
}

/// A batch of settlements.
pub(super) fn settlements(
    items: Vec<Settlement>,
    to: oneshot::Sender<Answers<Settled>>,
) -> Box<dyn WriteBatch> {
    Box::new(Batch { items, decide: settle, answers: Vec::new(), to })
}

/// One secret.
pub(super) fn secret(
    name: &'static str,
    fresh: [u8; 32],
    to: oneshot::Sender<Answers<[u8; 32]>>,
) -> Box<dyn WriteBatch> {
    Box::new(Batch { items: vec![(name, fresh)], decide: keep_secret, answers: Vec::new(), to })
}

/// One item that is decided by `decide`.
pub(super) fn one<T: Send + 'static, R: Send + 'static>(
    item: T,
    decide: fn(&Connection, &T, Moment) -> Decided<R>,
    to: oneshot::Sender<Answers<R>>,
) -> Box<dyn WriteBatch> {
    Box::new(Batch { items: vec![item], decide, answers: Vec::new(), to })
}

/// One audit entry.
pub(super) fn audit(entry: AuditEntry, to: oneshot::Sender<Answers<()>>) -> Box<dyn WriteBatch> {
    let decide = |connection: &_, entry: &_, _| audit::write(connection, entry).map(Ok);
    Box::new(Batch { items: vec![entry], decide, answers: Vec::new(), to })
}

impl<T: Send, R: Send> WriteBatch for Batch<T, R> {
    fn decide(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()> {
        for item in &self.items {
            let answer = match (self.decide)(connection, item, moment) {
                // Only this item fails (S21). SQLite undid this statement alone.
                Err(error) if is_too_big(&error) => Err(too_big(error)),
                decided => decided?,
            };
            self.answers.push(answer);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, result: Result<(), &StoreError>) {
        let answers = match result {
            Ok(()) => self.answers,
            Err(error) => self.items.iter().map(|_| Err(error.clone())).collect(),
        };
        let _gone = self.to.send(answers);
    }
}

fn claim(connection: &Connection, claim: &Claim, moment: Moment) -> Decided<Claimed> {
    let now = moment.now;
    let found = match table::find(connection, claim.id)?.transpose() {
        Ok(found) => found,
        Err(error) => return Ok(Err(unreadable(claim.id, error))),
    };
    // The fences of swept records matter only for a key that has no record.
    let floor = match found {
        Some(_) => Ok(Fence::default()),
        None => table::swept_fence(connection)?,
    };
    let floor = match floor {
        Ok(floor) => floor,
        Err(error) => return Ok(Err(unreadable(claim.id, error))),
    };
    Ok(Ok(match (decide::claim(found.as_ref(), claim, moment, floor), found) {
        (ClaimEffect::Grant(record), _) => {
            table::write(connection, &record)?;
            Claimed::Granted { fence: record.fence }
        }
        (ClaimEffect::BecomeUnknown(record), _) => {
            table::write(connection, &record)?;
            Claimed::Found { record: Arc::new(record), now }
        }
        (ClaimEffect::Keep, Some(record)) => Claimed::Found { record: Arc::new(record), now },
        (ClaimEffect::Keep, None) => return Ok(Err(StoreError::kept_nothing())),
    }))
}

fn settle(connection: &Connection, item: &Settlement, moment: Moment) -> Decided<Settled> {
    let now = moment.now;
    let found = match table::find(connection, item.id)?.transpose() {
        Ok(found) => found,
        Err(error) => return Ok(Err(unreadable(item.id, error))),
    };
    Ok(Ok(match (decide::settle(found.as_ref(), item, moment), found) {
        (SettleEffect::Write(record), _) => {
            table::write(connection, &record)?;
            Settled::Done { record: Arc::new(record), now }
        }
        (SettleEffect::Already, Some(record)) => Settled::Done { record: Arc::new(record), now },
        (_, current) => {
            let current = current.filter(|record| !record.is_expired(now));
            Settled::Stale { current: current.map(Arc::new) }
        }
    }))
}

/// Returns the existing secret, and creates it if there is none.
fn keep_secret(
    connection: &Connection,
    (name, fresh): &(&'static str, [u8; 32]),
    _: Moment,
) -> Decided<[u8; 32]> {
    match table::secret(connection, name)? {
        Some(found) => {
            Ok(found.as_slice().try_into().map_err(|_| StoreError::damaged_secret(name)))
        }
        None => {
            table::make_secret(connection, name, fresh)?;
            Ok(Ok(*fresh))
        }
    }
}

/// Returns the record of a row, or an error if it is unreadable.
pub(super) fn load(connection: &Connection, id: RecordId) -> Decided<Option<Record>> {
    Ok(table::find(connection, id)?.transpose().map_err(|error| unreadable(id, error)))
}

/// The error for one unreadable record: another program changed the row, or a newer version wrote
/// it. It affects this key alone.
fn unreadable(id: RecordId, error: DecodeError) -> StoreError {
    let what = format!("the record {} cannot be read: {error}", id.reference());
    StoreError::new(StoreErrorKind::Invalid, what).with_source(error)
}

fn too_big(error: rusqlite::Error) -> StoreError {
    let what = "the record is too large for SQLite: lower max_response_body";
    StoreError::new(StoreErrorKind::Invalid, what).with_source(error)
}
