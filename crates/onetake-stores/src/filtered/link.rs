//! The filter's commands to Redis. No caller waits for a connection.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use onetake_core::{RecordId, StoreError, StoreErrorKind, hex};

use super::FilterOptions;
use super::writer::FORGOTTEN;
use crate::redis::command::RedisCommand;
use crate::redis::connection::{Connection, ConnectionOptions};
use crate::redis::url::Address;

/// The placeholder for a value that exists and cannot be an entry.
const NO_ENTRY: &[u8] = b"?";

/// Replaces the value, unless it is the marker of a forgotten key: an operator's action takes
/// precedence over a late write of a node that read the key before. Two bytes are enough to
/// recognise the marker, and a value of another type cannot be the marker.
const REPLACE: &str = "\
if redis.pcall('GETRANGE', KEYS[1], 0, 1) == ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1";

/// Deletes the value, unless it is the marker of a forgotten key.
const DELETE: &str = "\
if redis.pcall('GETRANGE', KEYS[1], 0, 1) == ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])";

/// A write to one entry.
#[derive(Clone, Debug)]
pub(super) enum EntryWrite {
    /// Writes an entry.
    Put(Put),
    /// Deletes the entry, unless the key was forgotten.
    Delete,
    /// Writes the marker of a forgotten key for this long, whatever the current value is.
    Forget(Duration),
}

impl EntryWrite {
    /// The number of bytes that it sends.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Put(put) => put.value.len(),
            Self::Delete | Self::Forget(_) => 0,
        }
    }
}

/// An entry to be written.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub(super) value: Bytes,
    /// The lifetime of the entry.
    pub(super) keep: Duration,
    /// True if it replaces an existing entry. It never replaces the marker of a forgotten key.
    pub(super) overwrite: bool,
}

/// A Redis server or cluster that may be unreachable.
#[derive(Debug)]
pub(super) struct RedisLink {
    pub(super) connection: Connection,
}

impl RedisLink {
    /// Parses the URL. Nothing is connected yet.
    pub(super) fn new(url: &str, options: &FilterOptions) -> Result<Self, StoreError> {
        let (address, _) = Address::parse(url, &[])?;
        let FilterOptions { clock, rng, connect_timeout, command_timeout, .. } = options.clone();
        let options = ConnectionOptions {
            store: "the Redis filter",
            clock,
            rng,
            connect_timeout,
            command_timeout,
            in_background: true,
            scripts: Vec::new(),
            asks_time: None,
        };
        Ok(Self { connection: Connection::new(address, options) })
    }

    /// Reads at most `bytes_max` bytes and one more of each value, so that a value that is too
    /// large is recognised at bounded cost. An absent value is empty.
    pub(super) async fn get_many(
        &self,
        ids: &[RecordId],
        bytes_max: usize,
    ) -> Vec<Result<Bytes, StoreError>> {
        let last = bytes_max.to_string();
        let get = |id| on(id, "GETRANGE").arg("0").arg(last.clone());
        let commands: Vec<RedisCommand> = ids.iter().map(get).collect();
        let read = |answer: Result<Value, StoreError>| match answer {
            Ok(Value::BulkString(bytes)) if bytes.len() <= bytes_max => Ok(Bytes::from(bytes)),
            // Too large, or not a string.
            Ok(_) => Ok(Bytes::from_static(NO_ENTRY)),
            Err(error) if error.kind() == StoreErrorKind::Invalid => {
                tracing::debug!(%error, "an entry cannot be read");
                Ok(Bytes::from_static(NO_ENTRY))
            }
            Err(error) => Err(error),
        };
        self.connection.run(&commands, None).await.into_iter().map(read).collect()
    }

    /// Makes the changes. Returns the errors, each with its key.
    pub(super) async fn change_many(
        &self,
        changes: &[(RecordId, EntryWrite)],
    ) -> Vec<(RecordId, StoreError)> {
        let commands: Vec<RedisCommand> =
            changes.iter().map(|(id, change)| command(id, change)).collect();
        let answers = self.connection.run(&commands, None).await;
        let failed = |((id, _), answer): (&(RecordId, _), Result<Value, StoreError>)| {
            answer.err().map(|error| (*id, error))
        };
        changes.iter().zip(answers).filter_map(failed).collect()
    }
}

fn command(id: &RecordId, change: &EntryWrite) -> RedisCommand {
    match change {
        EntryWrite::Delete => script(id, DELETE),
        EntryWrite::Forget(keep) => on(id, "SET").arg(FORGOTTEN).arg("PX").arg(millis(*keep)),
        EntryWrite::Put(Put { value, keep, overwrite: true }) => {
            script(id, REPLACE).arg(value.clone()).arg(millis(*keep))
        }
        EntryWrite::Put(Put { value, keep, overwrite: false }) => {
            on(id, "SET").arg(value.clone()).arg("PX").arg(millis(*keep)).arg("NX")
        }
    }
}

fn millis(keep: Duration) -> String {
    u64::try_from(keep.as_millis()).unwrap_or(u64::MAX >> 1).max(1).to_string()
}

/// A command on the entry of an id.
fn on(id: &RecordId, name: &'static str) -> RedisCommand {
    let key = key(id);
    RedisCommand::on(key.as_bytes(), name).arg(key)
}

/// A script on the entry of an id. Its first argument is the marker of a forgotten key.
fn script(id: &RecordId, text: &'static str) -> RedisCommand {
    let key = key(id);
    RedisCommand::on(key.as_bytes(), "EVAL").arg(text).arg("1").arg(key).arg(FORGOTTEN)
}

/// The Redis key of an entry.
fn key(id: &RecordId) -> String {
    format!("onetake:f:{}", hex::encode(id.as_bytes()))
}
