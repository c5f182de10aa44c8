//! One server, and the one connection to it that everybody shares.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onetake_core::{Clock, Rng, StoreError, StoreErrorKind};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, Value};

use super::errors;
use crate::breaker::Breaker;

/// One server. Each has a breaker of its own, so that a dead node of a cluster does not close the
/// others.
pub(super) struct Node {
    /// Its host and port.
    pub(super) name: String,
    info: ConnectionInfo,
    clock: Arc<dyn Clock>,
    connect_timeout: Duration,
    breaker: Breaker,
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
    /// How often a connection was tried.
    tries: AtomicU64,
    /// Held while connecting; which try was the last to fail, and how.
    connecting: tokio::sync::Mutex<Option<(u64, StoreError)>>,
    /// When it last was not there for owners that wanted to renew.
    in_doubt_at: Mutex<Option<Duration>>,
}

impl Node {
    pub(super) fn new(
        info: ConnectionInfo,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            name: info.addr().to_string(),
            info,
            breaker: Breaker::new(Arc::clone(&clock), rng),
            clock,
            connect_timeout,
            connection: Mutex::default(),
            tries: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::default(),
            in_doubt_at: Mutex::default(),
        }
    }

    /// Its host, for nodes that do not know their own.
    pub(super) fn host(&self) -> &str {
        self.name.rsplit_once(':').map_or(self.name.as_str(), |(host, _)| host)
    }

    /// Sends commands together; one value for each of them, in their order. A refusal is a value.
    ///
    /// # Errors
    /// `Unavailable` if surely nothing was sent, `Indeterminate` if all of it may have been done.
    pub(super) async fn send(
        &self,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        self.breaker.enter()?;
        let (number, mut connection) = self.connection().await.map_err(|error| {
            self.breaker.failed(&error);
            // Even a wrong password: it was right when the store was opened.
            StoreError::new(StoreErrorKind::Unavailable, error.to_string()).with_source(error)
        })?;
        let answer = tokio::select! {
            biased;
            answer = connection.req_packed_commands(commands, 0, commands.len()) => {
                answer.map_err(|error| errors::lost(&self.name, &error.to_string()))
            }
            () = self.clock.sleep(within) => {
                Err(errors::lost(&self.name, &format!("not within {within:?}")))
            }
        };
        match &answer {
            Ok(values) => self.answered(values),
            Err(error) => {
                self.forget(number);
                self.breaker.failed(error);
            }
        }
        answer
    }

    fn answered(&self, values: &[Value]) {
        let mut outage = None;
        for value in values {
            if let Value::ServerError(error) = value {
                if errors::is_outage(error) {
                    outage = Some(error);
                }
                if errors::refuses_writes(error) {
                    self.count_anew();
                }
            }
        }
        match outage {
            Some(error) => {
                self.breaker.failed(&errors::refused(&self.name, error));
                // A primary that became a replica: its name may lead to the new primary by now.
                if error.code() == "READONLY" {
                    self.forget_any();
                }
            }
            None => self.breaker.succeeded(),
        }
    }

    /// For how long every owner could renew its lease here, as far as this side can tell.
    pub(super) fn back_for(&self) -> Duration {
        let in_doubt_at = *lock(&self.in_doubt_at);
        let since = in_doubt_at.map(|at| self.clock.monotonic().saturating_sub(at));
        since.unwrap_or(Duration::MAX).min(self.breaker.back_for())
    }

    /// From now on owners can renew here; nobody knows about before.
    pub(super) fn count_anew(&self) {
        *lock(&self.in_doubt_at) = Some(self.clock.monotonic());
    }

    /// Connects, if it is not connected, and says why it cannot be: for opening a store.
    pub(super) async fn connect_now(&self) -> Result<(), StoreError> {
        self.connection().await.map(drop)
    }

    /// Lets go of the connection.
    pub(super) fn forget_any(&self) {
        lock(&self.connection).take();
    }

    fn forget(&self, number: u64) {
        lock(&self.connection).take_if(|(live, _)| *live == number);
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), StoreError> {
        let seen = self.tries.load(Ordering::Acquire);
        if let Some(live) = lock(&self.connection).clone() {
            return Ok(live);
        }
        let mut failed = self.connecting.lock().await;
        if let Some(live) = lock(&self.connection).clone() {
            return Ok(live);
        }
        // Whoever waited for a try that failed does not try once more itself.
        if let Some((_, error)) = failed.as_ref().filter(|(number, _)| *number > seen) {
            return Err(error.clone());
        }
        let number = self.tries.fetch_add(1, Ordering::AcqRel) + 1;
        match self.connect().await {
            Ok(connection) => {
                *lock(&self.connection) = Some((number, connection.clone()));
                Ok((number, connection))
            }
            Err(error) => {
                *failed = Some((number, error.clone()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        // Timeouts are ours, on our clock.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let refused = |error| errors::not_connected(&self.name, &error);
        let client = Client::open(self.info.clone()).map_err(refused)?;
        tokio::select! {
            biased;
            made = client.get_multiplexed_async_connection_with_config(&config) => {
                made.map_err(refused)
            }
            () = self.clock.sleep(self.connect_timeout) => {
                Err(errors::connect_timeout(&self.name, self.connect_timeout))
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.name).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
