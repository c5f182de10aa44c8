//! What the filter asks of Redis. Nobody ever waits for it to be there.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use onetake_core::{RecordId, StoreError, StoreErrorKind, hex};

use super::FilterOptions;
use super::writer::FORGOTTEN;
use crate::redis::command::Command;
use crate::redis::connection::{Connection, ConnectionOptions};
use crate::redis::url::Address;

/// Stands for something that is there and cannot be an entry.
const NO_ENTRY: &[u8] = b"?";

/// Replaces what is there, unless that is the marker of a forgotten key. An operator's word stands
/// against whatever another node read before it and writes late. Two bytes are enough to tell the
/// marker from anything else, and a value of another type cannot be the marker.
const REPLACE: &str = "\
if redis.pcall('GETRANGE', KEYS[1], 0, 1) == ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1";

/// Deletes what is there, unless that is the marker of a forgotten key.
const DELETE: &str = "\
if redis.pcall('GETRANGE', KEYS[1], 0, 1) == ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])";

/// A write to one entry.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// An entry.
    Put(Put),
    /// No entry any more, unless the key was forgotten.
    Delete,
    /// The marker of a forgotten key, for so long, whatever is there.
    Forget(Duration),
}

impl Change {
    /// How many bytes it sends.
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
    /// For how long.
    pub(super) keep: Duration,
    /// Whether it replaces an entry that is there; it never replaces the marker of a forgotten key.
    pub(super) overwrite: bool,
}

/// A Redis, or a cluster, that is reached as long as it can be.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Connection,
}

impl Link {
    /// Reads the URL; nothing is connected yet.
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

    /// Reads up to `bytes_max` bytes and one more of each, so that a value that is too large shows,
    /// and never costs more than that. An absent value is empty.
    pub(super) async fn get_many(
        &self,
        ids: &[RecordId],
        bytes_max: usize,
    ) -> Vec<Result<Bytes, StoreError>> {
        let last = bytes_max.to_string();
        let get = |id| on(id, "GETRANGE").arg("0").arg(last.clone());
        let commands: Vec<Command> = ids.iter().map(get).collect();
        let read = |answer: Result<Value, StoreError>| match answer {
            Ok(Value::BulkString(bytes)) if bytes.len() <= bytes_max => Ok(Bytes::from(bytes)),
            // Too large, or not bytes at all.
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
        changes: &[(RecordId, Change)],
    ) -> Vec<(RecordId, StoreError)> {
        let commands: Vec<Command> =
            changes.iter().map(|(id, change)| command(id, change)).collect();
        let answers = self.connection.run(&commands, None).await;
        let failed = |((id, _), answer): (&(RecordId, _), Result<Value, StoreError>)| {
            answer.err().map(|error| (*id, error))
        };
        changes.iter().zip(answers).filter_map(failed).collect()
    }
}

fn command(id: &RecordId, change: &Change) -> Command {
    match change {
        Change::Delete => script(id, DELETE),
        Change::Forget(keep) => on(id, "SET").arg(FORGOTTEN).arg("PX").arg(millis(*keep)),
        Change::Put(Put { value, keep, overwrite: true }) => {
            script(id, REPLACE).arg(value.clone()).arg(millis(*keep))
        }
        Change::Put(Put { value, keep, overwrite: false }) => {
            on(id, "SET").arg(value.clone()).arg("PX").arg(millis(*keep)).arg("NX")
        }
    }
}

fn millis(keep: Duration) -> String {
    u64::try_from(keep.as_millis()).unwrap_or(u64::MAX >> 1).max(1).to_string()
}

/// A command on the entry of an id.
fn on(id: &RecordId, name: &'static str) -> Command {
    let key = key(id);
    Command::on(key.as_bytes(), name).arg(key)
}

/// A script on the entry of an id. Its first argument is the marker of a forgotten key.
fn script(id: &RecordId, text: &'static str) -> Command {
    let key = key(id);
    Command::on(key.as_bytes(), "EVAL").arg(text).arg("1").arg(key).arg(FORGOTTEN)
}

/// Where the entry of an id is.
fn key(id: &RecordId) -> String {
    format!("onetake:f:{}", hex::encode(id.as_bytes()))
}
