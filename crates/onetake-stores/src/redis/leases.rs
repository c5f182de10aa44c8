//! What the reaper and the sweep look for: leases that are over, what is to be asked for, and what is left
//! of records that are gone.

use std::time::Duration;

use bytes::Bytes;
use onetake_core::store::{Due, DueAttempt};
use onetake_core::{AttemptId, RecordId, StoreError};
use redis::Value;

use super::RedisStore;
use super::errors::wrote_nothing;
use super::record::Answer;

impl RedisStore {
    /// The records whose time has come, the longest due first.
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
                // A dead node of a cluster must not keep the others' from being found.
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

    /// Takes out of the sets what neither runs nor is to be asked for.
    pub(super) async fn trim(&self, stale: &[RecordId]) {
        let trims: Vec<_> = stale.iter().map(|id| self.scripts.trim(*id)).collect();
        for error in self.connection.run(&trims, None).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "a stale entry could not be taken out; it is tried again");
        }
    }

    /// Of these records, those that run; and those that do not, or are not there.
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
                    // An owner that could not renew while the store was away gets its grace anew. The
                    // answer has just come: unlike a command, this cannot be stuck on its way.
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

    /// Of these records, those that are to be asked for now; and those that are not any more.
    pub(super) async fn look_for_asks(
        &self,
        ids: Vec<RecordId>,
    ) -> (Vec<DueAttempt>, Vec<RecordId>) {
        let loads: Vec<_> = ids.iter().map(|id| self.scripts.load(*id)).collect();
        let (mut asked_for, mut stale) = (Vec::new(), Vec::new());
        for (id, answer) in ids.into_iter().zip(self.connection.run(&loads, None).await) {
            // One that cannot be read stays where it is: it is that one's trouble alone.
            let Ok(Ok(answer)) = answer.map(Answer::read) else { continue };
            if answer.word.as_ref() == b"absent" {
                stale.push(id);
                continue;
            }
            let Ok((now, record)) = answer.record(id, &Bytes::new()) else { continue };
            match record.ask_at() {
                None => stale.push(id),
                Some(at) if at <= now => {
                    asked_for.push(DueAttempt { id, attempt: record.attempt });
                }
                // Somebody asks since we looked.
                Some(_) => {}
            }
        }
        (asked_for, stale)
    }
}

/// Members and scores in turn; the scores in microseconds.
fn read_due(value: Value) -> Vec<(i64, RecordId)> {
    let Value::Array(values) = value else { return Vec::new() };
    let pair = |pair: &[Value]| {
        let [Value::BulkString(member), Value::BulkString(score)] = pair else { return None };
        let id = RecordId::from_bytes(member.as_slice().try_into().ok()?);
        let score: f64 = std::str::from_utf8(score).ok()?.parse().ok()?;
        // A whole number between -2^53 and 2^53, and only its order counts.
        Some((score as i64, id))
    };
    values.chunks(2).filter_map(pair).collect()
}

fn grace_of(field: &[u8]) -> Option<Duration> {
    Some(Duration::from_micros(std::str::from_utf8(field).ok()?.parse().ok()?))
}
