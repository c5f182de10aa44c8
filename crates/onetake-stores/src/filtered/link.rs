//! What the filter asks of Redis. Nobody ever waits for it to be there.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use onetake_core::{RecordId, StoreError, StoreErrorKind, hex};

use super::FilterOptions;
use crate::redis::command::Command;
use crate::redis::connection::{Connection, ConnectionOptions};
use crate::redis::url::Address;

/// Stands for something that is there and cannot be an entry.
const NO_ENTRY: &[u8] = b"?";

/// A value to be written.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub(super) value: Bytes,
    /// For how long.
    pub(super) keep: Duration,
    /// Whether it replaces what is there.
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

    /// Writes each value for its time, or deletes what is there (`None`). What went wrong, and where.
    pub(super) async fn put_many(
        &self,
        puts: &[(RecordId, Option<Put>)],
    ) -> Vec<(RecordId, StoreError)> {
        let commands: Vec<Command> = puts.iter().map(|(id, put)| write(id, put.as_ref())).collect();
        let answers = self.connection.run(&commands, None).await;
        let failed = |((id, _), answer): (&(RecordId, _), Result<Value, StoreError>)| {
            answer.err().map(|error| (*id, error))
        };
        puts.iter().zip(answers).filter_map(failed).collect()
    }
}

fn write(id: &RecordId, put: Option<&Put>) -> Command {
    let Some(put) = put else { return on(id, "UNLINK") };
    let millis = u64::try_from(put.keep.as_millis()).unwrap_or(u64::MAX >> 1).max(1);
    let set = on(id, "SET").arg(put.value.clone()).arg("PX").arg(millis.to_string());
    if put.overwrite { set } else { set.arg("NX") }
}

/// A command on the entry of an id.
fn on(id: &RecordId, name: &'static str) -> Command {
    let key = format!("onetake:f:{}", hex::encode(id.as_bytes()));
    Command::on(key.as_bytes(), name).arg(key)
}
