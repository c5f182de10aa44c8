//! The searches of the reaper, the reconciler and the sweep: ended leases, due reconciliations, and
//! stale entries of records that no longer exist.

use std::time::Duration;

use bytes::Bytes;
use onetake_core::store::{Due, DueAttempt};
use onetake_core::{AttemptId, RecordId, StoreError};
use redis::Value;

use super::RedisStore;
use super::errors::wrote_nothing;
use super::record::ScriptReply;
use super::scripts::ABSENT;

impl RedisStore {
    /// Returns the records that are due, the longest due first.
    pub(super) async fn due_ids(
        &self,
        which: Due,
        limit: usize,
    ) -> Result<Vec<RecordId>, StoreError> {
        let mut due = Vec::new();
        let mut answered = false;
        let mut failed = None;
        for answer in self.connection.run(&self.scripts.due(which, limit), None).await {
            match answer {
                // A dead node of a cluster must not hide the records of the others.
                Err(error) => failed = Some(error),
                Ok(value) => {
                    answered = true;
                    due.extend(read_due(value));
                }
            }
        }
        if let Some(error) = failed.filter(|_| !answered) {
            return Err(wrote_nothing(error));
        }
        due.sort_unstable();
        due.truncate(limit);
        Ok(due.into_iter().map(|(_, id)| id).collect())
    }

    /// Removes records from the sets that neither run nor are to be reconciled.
    pub(super) async fn trim(&self, stale: &[RecordId]) {
        let trims: Vec<_> = stale.iter().map(|id| self.scripts.trim(*id)).collect();
        for error in self.connection.run(&trims, None).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "a stale index entry could not be removed; this is tried again");
        }
    }

    /// Splits these records into those that run and may be taken over, and those that do not run or
    /// do not exist.
    pub(super) async fn look(&self, ids: Vec<RecordId>) -> (Vec<DueAttempt>, Vec<RecordId>) {
        let looks: Vec<_> = ids.iter().map(|id| self.scripts.look(*id)).collect();
        let (mut running, mut stale) = (Vec::new(), Vec::new());
        for (id, answer) in ids.into_iter().zip(self.connection.run(&looks, None).await) {
            let Ok(Value::Array(fields)) = answer else { continue };
            let [state, attempt, grace] = fields.as_slice() else { continue };
            match (state, attempt, grace) {
                (
                    Value::BulkString(state),
                    Value::BulkString(attempt),
                    Value::BulkString(grace),
                ) if state == b"running" => {
                    let Ok(attempt) = <[u8; AttemptId::BYTES]>::try_from(attempt.as_slice()) else {
                        continue;
                    };
                    // An owner that could not renew during an outage gets its whole grace again.
                    // The answer has just arrived, so unlike a command it cannot be delayed.
                    let back_for = self.connection.back_for(self.scripts.record(id).as_bytes());
                    if grace_of(grace).is_some_and(|grace| grace <= back_for) {
                        let attempt = AttemptId::from_bytes(attempt);
                        running.push(DueAttempt { id, attempt });
                    }
                }
                _ => stale.push(id),
            }
        }
        (running, stale)
    }

    /// Splits these records into those that are due for reconciliation, and those that are no
    /// longer to be reconciled.
    pub(super) async fn look_for_asks(
        &self,
        ids: Vec<RecordId>,
    ) -> (Vec<DueAttempt>, Vec<RecordId>) {
        let loads: Vec<_> = ids.iter().map(|id| self.scripts.load(*id)).collect();
        let (mut asked_for, mut stale) = (Vec::new(), Vec::new());
        for (id, answer) in ids.into_iter().zip(self.connection.run(&loads, None).await) {
            // An unreadable record stays where it is. It affects its key alone.
            let Ok(Ok(answer)) = answer.map(ScriptReply::read) else { continue };
            if answer.word == ABSENT {
                stale.push(id);
                continue;
            }
            let Ok((now, record)) = answer.record(id, &Bytes::new()) else { continue };
            match record.ask_at() {
                None => stale.push(id),
                Some(at) if at <= now => {
                    asked_for.push(DueAttempt { id, attempt: record.attempt });
                }
                // Another node has begun to reconcile it since the search.
                Some(_) => {}
            }
        }
        (asked_for, stale)
    }
}

/// Reads alternating members and scores. The scores are microseconds.
fn read_due(value: Value) -> Vec<(i64, RecordId)> {
    let Value::Array(values) = value else { return Vec::new() };
    let pair = |pair: &[Value]| {
        let [Value::BulkString(member), Value::BulkString(score)] = pair else { return None };
        let id = RecordId::from_bytes(member.as_slice().try_into().ok()?);
        let score: f64 = std::str::from_utf8(score).ok()?.parse().ok()?;
        // A whole number between -2^53 and 2^53. Only its order matters.
        Some((score as i64, id))
    };
    values.chunks(2).filter_map(pair).collect()
}

fn grace_of(field: &[u8]) -> Option<Duration> {
    Some(Duration::from_micros(std::str::from_utf8(field).ok()?.parse().ok()?))
}
