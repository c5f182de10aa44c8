//! What the reaper and the sweep look for: leases that are over, and those of records that are gone.

use std::time::Duration;

use onetake_core::store::Abandoned;
use onetake_core::{AttemptId, RecordId, StoreError};
use redis::Value;

use super::RedisStore;
use super::errors::wrote_nothing;

impl RedisStore {
    /// The records whose lease and grace are over, by when they were, the longest over first.
    pub(super) async fn due(&self, limit: usize) -> Result<Vec<RecordId>, StoreError> {
        let mut due = Vec::new();
        let mut answered = false;
        let mut failed = None;
        for answer in self.connection.run(&self.scripts.due(limit), None).await {
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

    /// Takes what does not run out of the sets of what runs.
    pub(super) async fn trim(&self, stale: &[RecordId]) {
        let trims: Vec<_> = stale.iter().map(|id| self.scripts.trim(*id)).collect();
        for error in self.connection.run(&trims, None).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "a stale lease could not be taken out; it is tried again");
        }
    }

    /// Of these records, those that run; and those that do not, or are not there.
    pub(super) async fn look(&self, ids: Vec<RecordId>) -> (Vec<Abandoned>, Vec<RecordId>) {
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
                        running.push(Abandoned { id, attempt });
                    }
                }
                _ => stale.push(id),
            }
        }
        (running, stale)
    }
}

/// Members and scores in turn; the scores in microseconds.
fn read_due(value: Value) -> Vec<(u64, RecordId)> {
    let Value::Array(values) = value else { return Vec::new() };
    let pair = |pair: &[Value]| {
        let [Value::BulkString(member), Value::BulkString(score)] = pair else { return None };
        let id = RecordId::from_bytes(member.as_slice().try_into().ok()?);
        let score: f64 = std::str::from_utf8(score).ok()?.parse().ok()?;
        // A whole number between 0 and 2^53, and only its order counts.
        Some((score as u64, id))
    };
    values.chunks(2).filter_map(pair).collect()
}

fn grace_of(field: &[u8]) -> Option<Duration> {
    Some(Duration::from_micros(std::str::from_utf8(field).ok()?.parse().ok()?))
}
