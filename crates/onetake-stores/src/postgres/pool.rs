//! The engine's own connections. A connection is held for one statement, never while an operation
//! runs or a caller waits.
//!
//! This pool is our own, and not `deadpool-postgres`, `bb8-postgres` or the pool of sqlx, because a
//! claim is only as certain as the connection that carried it:
//!
//! - A connection whose caller was cancelled, or whose answer did not come in time, is closed. A
//!   general pool gives it to the next caller, whose statement then waits behind the lost one.
//! - An error says whether the statement can have had an effect ([`Effect`]). The same error moves
//!   the circuit breaker, and the breaker's record of contact decides about leases and graces.
//! - A statement that is too late is left alone and not cancelled: see
//!   [`query_sized`](PooledConnection::query_sized).
//! - Each new connection is checked before its first use: durability, schema and encoding.
//! - All waits use [`Clock`], so tests control them.
//!
//! Around a general pool, all of this would still be our code. What such a pool would replace is a
//! semaphore and a list of idle connections.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onetake_core::store::transfer_time;
use onetake_core::{Clock, StoreError, StoreErrorKind};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::config::Host;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::PostgresOptions;
use super::address::Address;
use super::statement_error::{Effect, StatementError};
use super::{schema, tls};
use crate::breaker::Breaker;

/// The number of times that a statement is sent again because the server asks for it.
const AGAIN_MAX: usize = 8;

/// A statement's parameters with their types. Nothing is prepared by name.
pub(super) type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// The requirements of a new connection before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demands {
    /// None: for migrations and diagnoses.
    None,
    /// The schema exists, and acknowledged writes are durable unless `allow_lossy`.
    Store { allow_lossy: bool },
}

/// Connections to one database.
pub(super) struct Pool {
    pub(super) address: Address,
    connector: MakeRustlsConnect,
    demands: Demands,
    clock: Arc<dyn Clock>,
    connect_timeout: Duration,
    pub(super) command_timeout: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Client>>,
    pub(super) breaker: Breaker,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("server", &self.server()).finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn new(
        address: Address,
        options: &PostgresOptions,
        demands: Demands,
    ) -> Result<Self, StoreError> {
        let connector = tls::connector(&address.tls)?;
        let connections = address.connections.unwrap_or(options.connections).max(1);
        Ok(Self {
            connector,
            address,
            demands,
            clock: Arc::clone(&options.clock),
            connect_timeout: options.connect_timeout,
            command_timeout: options.command_timeout,
            permits: Semaphore::new(connections),
            idle: Mutex::default(),
            breaker: Breaker::new(
                "the PostgreSQL store",
                Arc::clone(&options.clock),
                Arc::clone(&options.rng),
            ),
        })
    }

    /// The server's address, for messages.
    pub(super) fn server(&self) -> String {
        let config = &self.address.config;
        let ports = config.get_ports();
        let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| {
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => path.display().to_string(),
            }
        });
        hosts.collect::<Vec<_>>().join(",")
    }

    /// Sends a statement, and sends it again if the server asks for that.
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &Parameters<'_>,
        effect: Effect,
    ) -> Result<Vec<Row>, StatementError> {
        let mut again = 0;
        loop {
            let link = self.link().await.map_err(StatementError::Store)?;
            match link.query(sql, parameters, effect).await {
                Err(StatementError::Again) if again < AGAIN_MAX => again += 1,
                answer => return answer,
            }
        }
    }

    /// Returns a connection. It goes back to the pool when the link is dropped.
    pub(super) async fn link(&self) -> Result<PooledConnection<'_>, StoreError> {
        self.breaker.enter()?;
        let permit = self.within(self.command_timeout, self.permits.acquire()).await;
        let Some(Ok(permit)) = permit else {
            let what = "all connections to PostgreSQL are in use; raise `connections=` in the URL";
            return Err(StoreError::new(StoreErrorKind::Unavailable, what));
        };
        let idle = loop {
            match self.idle().pop() {
                Some(client) if client.is_closed() => {}
                other => break other,
            }
        };
        let client = match idle {
            Some(client) => client,
            None => self.connect().await.inspect_err(|error| self.breaker.failed(error))?,
        };
        Ok(PooledConnection {
            client: Some(client),
            bad: AtomicBool::new(false),
            pool: self,
            _permit: permit,
        })
    }

    async fn connect(&self) -> Result<Client, StoreError> {
        let server = self.server();
        let connecting = self.address.config.connect(self.connector.clone());
        let connected = self.within(self.connect_timeout, connecting).await.ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Unavailable,
                format!("PostgreSQL at {server} did not respond within {:?}", self.connect_timeout),
            )
        })?;
        let (client, connection) =
            connected.map_err(|error| StatementError::of_connecting(error, &server))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
            }
        });
        if let Demands::Store { allow_lossy } = self.demands {
            let checked = self.within(self.connect_timeout, schema::check(&client, allow_lossy));
            checked.await.unwrap_or_else(|| {
                let what = format!("PostgreSQL at {server} does not respond");
                Err(StoreError::new(StoreErrorKind::Unavailable, what))
            })?;
        }
        Ok(client)
    }

    /// Returns the output of a future, or `None` if it takes longer than `patience`.
    async fn within<F: Future>(&self, patience: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.clock.sleep(patience) => None,
        }
    }

    /// Closes all idle connections.
    pub(super) fn close(&self) {
        self.permits.close();
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Client>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is in use. It goes back to the pool when it is dropped, if it is still good.
pub(super) struct PooledConnection<'a> {
    client: Option<Client>,
    /// True if an answer was lost on it, or if the server is not in a state to serve.
    bad: AtomicBool,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take()
            && !self.bad.load(Ordering::Acquire)
            && !client.is_closed()
            && !self.pool.permits.is_closed()
        {
            self.pool.idle().push(client);
        }
    }
}

impl PooledConnection<'_> {
    /// Sends a statement. Concurrent statements are pipelined, each in its own transaction.
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &Parameters<'_>,
        effect: Effect,
    ) -> Result<Vec<Row>, StatementError> {
        self.query_sized(sql, parameters, effect, 0).await
    }

    /// Like [`query`](Self::query), for a statement of about this many bytes, which gets more time.
    pub(super) async fn query_sized(
        &self,
        sql: &str,
        parameters: &Parameters<'_>,
        effect: Effect,
        bytes: usize,
    ) -> Result<Vec<Row>, StatementError> {
        let Some(client) = &self.client else {
            return Err(StatementError::Store(
                effect.lost("the connection to PostgreSQL was closed"),
            ));
        };
        let pool = self.pool;
        // If the caller is cancelled here, an answer is still on its way on this connection.
        self.bad.store(true, Ordering::Release);
        let timeout = pool.command_timeout.saturating_add(transfer_time(bytes));
        let asked = pool.within(timeout, client.query_typed(sql, parameters)).await;
        let answer = match asked {
            Some(answer) => answer.map_err(|error| StatementError::of_statement(error, effect)),
            // The statement is not cancelled. A cancelled commit that waits for a synchronous
            // standby would become visible although no standby has it.
            None => {
                let why = format!("PostgreSQL did not respond within {timeout:?}");
                Err(StatementError::Store(effect.lost(&why)))
            }
        };
        match answer.as_ref().err().and_then(StatementError::away) {
            Some(error) => pool.breaker.failed(error),
            None => {
                self.bad.store(false, Ordering::Release);
                pool.breaker.succeeded();
            }
        }
        answer
    }

    /// Lends the connection for a caller's transaction. The connection is closed afterwards, unless
    /// [`returned`](Self::returned) is called: failed work leaves it in an unknown state.
    pub(super) fn borrowed(&mut self) -> Result<&mut Client, StoreError> {
        self.bad.store(true, Ordering::Release);
        let gone = || StoreError::new(StoreErrorKind::Unavailable, "the connection was closed");
        self.client.as_mut().ok_or_else(gone)
    }

    /// Reports that a borrowed connection can be used again.
    pub(super) fn returned(&self) {
        self.bad.store(false, Ordering::Release);
        self.pool.breaker.succeeded();
    }

    /// The connection itself, for statements that are not on records.
    pub(super) fn client(&mut self) -> Option<&mut Client> {
        self.client.as_mut()
    }
}
