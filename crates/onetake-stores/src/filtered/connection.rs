//! The filter's way to Redis. Nobody ever waits for it to be there.
//!
//! A command is sent only over a connection that stands; connecting happens in the background. A
//! command that is not answered in time, or not at all, ends the connection, so that what a Redis
//! still has to say to it is never read; after a few failures the breaker keeps everybody away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind,
    Value,
};

use onetake_core::{Clock, RecordId, StoreError, StoreErrorKind};

use super::FilterOptions;
use super::target::Target;
use crate::breaker::Breaker;

/// A Redis, or a cluster, that is reached as long as it can be.
pub(super) struct Link {
    target: Target,
    /// Where it is, for messages: never with a password.
    name: String,
    clock: Arc<dyn Clock>,
    breaker: Breaker,
    connect_timeout: Duration,
    command_timeout: Duration,
    state: Mutex<State>,
}

/// A connection. Clones share it; it ends with the last of them.
#[derive(Clone)]
enum Live {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// Counts connections, so that the end of one is not blamed on the next.
    number: u64,
    connecting: bool,
}

impl Link {
    /// Reads the URL; nothing is connected yet.
    pub(super) fn new(url: &str, options: &FilterOptions) -> Result<Arc<Self>, StoreError> {
        let (target, name) = Target::parse(url, options)?;
        let FilterOptions { clock, rng, connect_timeout, command_timeout, .. } = options.clone();
        let breaker = Breaker::new(Arc::clone(&clock), rng);
        let state = Mutex::default();
        Ok(Arc::new(Self { target, name, clock, breaker, connect_timeout, command_timeout, state }))
    }

    /// Connects now.
    pub(super) async fn connect(&self) -> Result<(), StoreError> {
        let connecting = async {
            Ok(match &self.target {
                Target::One(client) => {
                    // Time is ours to take, by our own clock.
                    let config = AsyncConnectionConfig::new()
                        .set_connection_timeout(None)
                        .set_response_timeout(None);
                    Live::One(client.get_multiplexed_async_connection_with_config(&config).await?)
                }
                Target::Cluster(client) => Live::Cluster(client.get_async_connection().await?),
            })
        };
        let live = tokio::select! {
            biased;
            live = connecting => live.map_err(|error| self.explained(&error)),
            () = self.clock.sleep(self.connect_timeout) => Err(self.silent(self.connect_timeout)),
        };
        // That it can be connected to says nothing of its answers: only these close the breaker.
        let live = live.inspect_err(|error| self.breaker.failed(error))?;
        let mut state = self.lock();
        state.number += 1;
        state.live = Some(live);
        Ok(())
    }

    /// Reads up to `bytes_max` bytes and one more of each, so that a value that is too large shows,
    /// and never costs more than that. An absent value is empty.
    pub(super) async fn get_many(
        self: &Arc<Self>,
        ids: &[RecordId],
        bytes_max: usize,
    ) -> Result<Vec<Bytes>, StoreError> {
        let commands = ids.iter().map(|id| {
            let mut command = redis::cmd("GETRANGE");
            command.arg(key(id)).arg(0).arg(bytes_max);
            command
        });
        let values = self.run(commands.collect()).await?;
        Ok(values
            .into_iter()
            .map(|value| match value {
                Value::BulkString(bytes) if bytes.len() <= bytes_max => Bytes::from(bytes),
                // Too large, or not bytes at all (an error for this one key is `Nil`).
                _ => Bytes::from_static(NO_ENTRY),
            })
            .collect())
    }

    /// Writes each value for its time.
    pub(super) async fn set_many(self: &Arc<Self>, values: Vec<Put>) -> Result<(), StoreError> {
        let commands = values.into_iter().map(|put| {
            let mut command = redis::cmd("SET");
            let millis = u64::try_from(put.keep.as_millis()).unwrap_or(u64::MAX >> 1).max(1);
            command.arg(key(&put.id)).arg(&*put.value).arg("PX").arg(millis);
            if !put.overwrite {
                command.arg("NX");
            }
            command
        });
        self.run(commands.collect()).await.map(drop)
    }

    /// Deletes them.
    pub(super) async fn delete_many(self: &Arc<Self>, ids: &[RecordId]) -> Result<(), StoreError> {
        let commands = ids.iter().map(|id| {
            let mut command = redis::cmd("UNLINK");
            command.arg(key(id));
            command
        });
        self.run(commands.collect()).await.map(drop)
    }

    /// Sends commands of one key each together, and waits for all answers, for no longer than a
    /// command may take.
    pub(super) async fn run(
        self: &Arc<Self>,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.breaker.enter()?;
        let Some((live, number)) = self.live() else {
            let what = format!("the filter at {} is not connected", self.name);
            return Err(StoreError::new(StoreErrorKind::Unavailable, what));
        };
        let count = commands.len();
        let answered = tokio::select! {
            biased;
            answered = live.run(commands) => answered.map_err(|error| self.explained(&error)),
            () = self.clock.sleep(self.command_timeout) => Err(self.silent(self.command_timeout)),
        };
        let answered = answered.and_then(|values| {
            if values.len() == count {
                return Ok(values);
            }
            let what = format!("the filter at {} does not answer one by one", self.name);
            Err(StoreError::new(StoreErrorKind::Unavailable, what))
        });
        match answered {
            Ok(values) => {
                self.breaker.succeeded();
                Ok(values)
            }
            Err(error) => {
                let mut state = self.lock();
                if state.number == number {
                    state.live = None;
                }
                drop(state);
                self.breaker.failed(&error);
                Err(error)
            }
        }
    }

    /// The connection that stands; if there is none, the next one is begun, and nobody waits for it.
    fn live(self: &Arc<Self>) -> Option<(Live, u64)> {
        let mut state = self.lock();
        if let Some(live) = &state.live {
            return Some((live.clone(), state.number));
        }
        if !std::mem::replace(&mut state.connecting, true) {
            let link = Arc::clone(self);
            tokio::spawn(async move {
                let connecting = Connecting(&link);
                if let Err(error) = link.connect().await {
                    tracing::debug!(%error, "the filter could not be connected to");
                }
                drop(connecting);
            });
        }
        None
    }

    fn silent(&self, after: Duration) -> StoreError {
        let what = format!("the filter at {} did not answer within {after:?}", self.name);
        StoreError::new(StoreErrorKind::Unavailable, what)
    }

    fn explained(&self, error: &RedisError) -> StoreError {
        let code = error.code().unwrap_or_default();
        let refused = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM");
        let (kind, fix) = if refused {
            (StoreErrorKind::Invalid, "; check user and password in the filter's URL")
        } else {
            (StoreErrorKind::Unavailable, "")
        };
        StoreError::new(kind, format!("the filter at {}: {error}{fix}", self.name))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The right to connect, given back however that ends.
struct Connecting<'a>(&'a Link);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.lock().connecting = false;
    }
}

/// Stands for something that is there and cannot be an entry.
const NO_ENTRY: &[u8] = b"?";

/// One value to be written.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub(super) id: RecordId,
    pub(super) value: Bytes,
    /// For how long.
    pub(super) keep: Duration,
    /// Whether it replaces what is there.
    pub(super) overwrite: bool,
}

impl Live {
    async fn run(mut self, commands: Vec<Cmd>) -> RedisResult<Vec<Value>> {
        match &mut self {
            Self::One(connection) => {
                let mut pipeline = Pipeline::with_capacity(commands.len());
                for command in commands {
                    pipeline.add_command(command);
                }
                let count = pipeline.len();
                let values = connection.req_packed_commands(&pipeline, 0, count).await?;
                values.into_iter().map(usable).collect()
            }
            // Each goes to the node of its slot; the client sends what goes to one node together.
            Self::Cluster(connection) => {
                let sent = commands.into_iter().map(|command| {
                    let mut connection = connection.clone();
                    async move {
                        match connection.req_packed_command(&command).await {
                            Ok(value) => usable(value),
                            Err(error) if is_about_one_key(&error) => Ok(Value::Nil),
                            Err(error) => Err(error),
                        }
                    }
                });
                join_all(sent).await.into_iter().collect()
            }
        }
    }
}

/// Passes an answer on, or turns it into an error if it says that the server is of no use now.
fn usable(value: Value) -> RedisResult<Value> {
    match value {
        Value::ServerError(error) => {
            let error = RedisError::from(error);
            if is_about_one_key(&error) { Ok(Value::Nil) } else { Err(error) }
        }
        value => Ok(value),
    }
}

/// Whether only this key could not be read or written (another type, no room), so that the other
/// answers still count.
fn is_about_one_key(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => kind == ServerErrorKind::ResponseError,
        ErrorKind::Extension => matches!(error.code(), Some("WRONGTYPE" | "OOM")),
        _ => false,
    }
}

fn key(id: &RecordId) -> String {
    use std::fmt::Write as _;
    let mut key = String::with_capacity(10 + 2 * RecordId::BYTES);
    key.push_str("onetake:f:");
    for byte in id.as_bytes() {
        let _infallible = write!(key, "{byte:02x}");
    }
    key
}
