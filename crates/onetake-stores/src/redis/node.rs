//! One server, and the one connection to it that all callers share.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onetake_core::clock::micros;
use onetake_core::{Clock, Shift, StoreError, StoreErrorKind};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, Value};

use super::command::NodeContact;
use super::connection::ConnectionOptions;
use super::errors;
use crate::breaker::Breaker;

/// A connection.
#[derive(Clone)]
struct Live {
    /// The number of the try that opened it.
    number: u64,
    connection: MultiplexedConnection,
    /// The clock of this connection's server. Another connection may lead to another server, which
    /// has another clock.
    heard: Option<ClockReading>,
}

/// A reading of a server's clock.
#[derive(Clone, Copy)]
struct ClockReading {
    /// The server's time in microseconds.
    time: u64,
    /// The arrival of the answer, by this node's clock. The server's clock has advanced since it
    /// was read, so a time that is computed from it is never too late.
    at: Duration,
}

/// One server. Each has its own breaker, so that a dead node of a cluster does not block the
/// others.
pub(crate) struct Node {
    /// The host and port.
    pub(crate) name: String,
    info: ConnectionInfo,
    clock: Arc<dyn Clock>,
    connect_timeout: Duration,
    asks_time: Option<Shift>,
    breaker: Breaker,
    connection: Mutex<Option<Live>>,
    /// The number of tries to connect.
    tries: AtomicU64,
    /// Locked while connecting. Contains the number and the error of the last try that failed.
    connecting: Arc<tokio::sync::Mutex<Option<(u64, StoreError)>>>,
    /// The last time at which owners could perhaps not renew their leases here.
    in_doubt_at: Mutex<Option<Duration>>,
}

impl Node {
    pub(super) fn new(info: ConnectionInfo, options: &ConnectionOptions) -> Self {
        let ConnectionOptions { store, clock, rng, connect_timeout, asks_time, .. } = options;
        Self {
            name: info.addr().to_string(),
            info,
            breaker: Breaker::new(store, Arc::clone(clock), Arc::clone(rng)),
            clock: Arc::clone(clock),
            connect_timeout: *connect_timeout,
            asks_time: asks_time.clone(),
            connection: Mutex::default(),
            tries: AtomicU64::new(0),
            connecting: Arc::default(),
            in_doubt_at: Mutex::default(),
        }
    }

    /// The host, for nodes that do not know their own.
    pub(super) fn host(&self) -> &str {
        self.name.rsplit_once(':').map_or(self.name.as_str(), |(host, _)| host)
    }

    /// Sends commands together, and connects first if necessary. Returns one value for each of
    /// them, in their order. A refusal is a value.
    ///
    /// # Errors
    /// `Unavailable` if certainly nothing was sent, `Indeterminate` if all of it may have been
    /// executed.
    pub(super) async fn send(
        &self,
        commands: Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        self.breaker.enter()?;
        let live = self.connection().await.map_err(|error| {
            self.breaker.failed(&error);
            // This includes a wrong password: it was right when the store was opened.
            StoreError::new(StoreErrorKind::Unavailable, error.to_string()).with_source(error)
        })?;
        self.send_over(live, commands, within).await
    }

    /// As [`send`](Self::send), but without waiting for a connection: connecting begins in the
    /// background.
    pub(super) async fn send_if_connected(
        self: &Arc<Self>,
        commands: Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        self.breaker.enter()?;
        let Some(live) = self.live() else {
            self.begin_connecting();
            return Err(errors::not_yet_connected(&self.name));
        };
        self.send_over(live, commands, within).await
    }

    async fn send_over(
        &self,
        Live { number, mut connection, .. }: Live,
        mut commands: Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        if self.asks_time.is_some() {
            commands.cmd("TIME");
        }
        let mut answer = tokio::select! {
            biased;
            answer = connection.req_packed_commands(&commands, 0, commands.len()) => {
                answer.map_err(|error| errors::lost(&self.name, &error.to_string()))
            }
            () = self.clock.sleep(within) => {
                Err(errors::lost(&self.name, &format!("no reply within {within:?}")))
            }
        };
        match &mut answer {
            Ok(values) => {
                if let Some(shift) = &self.asks_time {
                    self.heard(number, values.pop(), shift);
                }
                self.answered(values);
            }
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
                // A primary that became a replica. Its name may lead to the new primary by now.
                if error.code() == "READONLY" {
                    self.forget_any();
                }
            }
            None => self.breaker.succeeded(),
        }
    }

    /// Records the server's time.
    fn heard(&self, number: u64, time: Option<Value>, shift: &Shift) {
        let at = self.clock.monotonic();
        let Some(time) = time.and_then(read_time) else { return };
        let heard = ClockReading { time: shift.apply(time), at };
        if let Some(live) = lock(&self.connection).as_mut().filter(|live| live.number == number) {
            live.heard = Some(heard);
        }
    }

    /// Returns the contact for commands that are sent now and executed within `command_timeout`.
    /// While the server's clock is unknown, the contact does not count.
    pub(super) fn contact(&self, command_timeout: Duration) -> NodeContact {
        let heard = lock(&self.connection).as_ref().and_then(|live| live.heard);
        let until = heard.map_or(0, |ClockReading { time, at }| {
            let since = self.clock.monotonic().saturating_sub(at);
            time.saturating_add(micros(since)).saturating_add(micros(command_timeout))
        });
        NodeContact { back_for: self.back_for(), until }
    }

    /// Returns how long every owner could renew its lease here, as far as this node knows.
    pub(super) fn back_for(&self) -> Duration {
        let in_doubt_at = *lock(&self.in_doubt_at);
        let since = in_doubt_at.map(|at| self.clock.monotonic().saturating_sub(at));
        since.unwrap_or(Duration::MAX).min(self.breaker.back_for())
    }

    /// Restarts the contact: owners can renew here from now on, and the time before is unknown.
    pub(super) fn count_anew(&self) {
        *lock(&self.in_doubt_at) = Some(self.clock.monotonic());
    }

    /// Connects if necessary, and returns the error: for opening a store.
    pub(super) async fn connect_now(&self) -> Result<(), StoreError> {
        self.connection().await.map(drop)
    }

    /// Closes the connection.
    pub(super) fn forget_any(&self) {
        lock(&self.connection).take();
    }

    fn forget(&self, number: u64) {
        lock(&self.connection).take_if(|live| live.number == number);
    }

    fn live(&self) -> Option<Live> {
        lock(&self.connection).clone()
    }

    async fn connection(&self) -> Result<Live, StoreError> {
        let seen = self.tries.load(Ordering::Acquire);
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let mut failed = self.connecting.lock().await;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        // A caller that waited for a failed try does not try again itself.
        if let Some((_, error)) = failed.as_ref().filter(|(number, _)| *number > seen) {
            return Err(error.clone());
        }
        self.connect(&mut failed).await
    }

    /// Connects in the background, unless another task does.
    fn begin_connecting(self: &Arc<Self>) {
        let Ok(mut failed) = Arc::clone(&self.connecting).try_lock_owned() else { return };
        let node = Arc::clone(self);
        tokio::spawn(async move {
            // A connection alone is no success for the breaker. Only answers are.
            if node.live().is_none()
                && let Err(error) = node.connect(&mut failed).await
            {
                node.breaker.failed(&error);
            }
        });
    }

    /// Connects. `failed` is the lock that permits it.
    async fn connect(&self, failed: &mut Option<(u64, StoreError)>) -> Result<Live, StoreError> {
        let number = self.tries.fetch_add(1, Ordering::AcqRel) + 1;
        match self.dial().await {
            Ok(connection) => {
                let live = Live { number, connection, heard: None };
                *lock(&self.connection) = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                *failed = Some((number, error.clone()));
                Err(error)
            }
        }
    }

    async fn dial(&self) -> Result<MultiplexedConnection, StoreError> {
        // Timeouts are measured here, by the node's clock.
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

/// Converts seconds and microseconds to microseconds.
fn read_time(value: Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(value).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
