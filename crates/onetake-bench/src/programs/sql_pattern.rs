//! The common first solution: a row that is inserted before an operation and updated after it, each
//! with a commit of its own.

use std::io;

use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::{Client, NoTls, Statement};

/// Connections to PostgreSQL for each core.
const CONNECTIONS: usize = 8;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS plain (
    key text PRIMARY KEY, status text NOT NULL, response bytea,
    created_at timestamptz NOT NULL DEFAULT now())";
/// `$1` is the key.
const INSERT: &str =
    "INSERT INTO plain (key, status) VALUES ($1, 'running') ON CONFLICT DO NOTHING";
/// `$1` is the key, `$2` the response.
const UPDATE: &str = "UPDATE plain SET status = 'completed', response = $2 WHERE key = $1";

/// A pool of connections. A statement has a connection for itself.
pub(super) struct SqlPattern {
    connections: Vec<Mutex<Connection>>,
    next: std::cell::Cell<usize>,
}

struct Connection {
    client: Client,
    insert: Statement,
    update: Statement,
}

impl SqlPattern {
    pub(super) async fn connect(url: &str) -> io::Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Mutex::new(Connection::open(url).await.map_err(io::Error::other)?));
        }
        Ok(Self { connections, next: std::cell::Cell::new(0) })
    }

    pub(super) async fn insert(&self, key: &str) -> io::Result<()> {
        let connection = self.connection().await?;
        let inserted = connection.client.execute(&connection.insert, &[&key]).await;
        one_row(inserted)
    }

    pub(super) async fn update(&self, key: &str, response: &[u8]) -> io::Result<()> {
        let connection = self.connection().await?;
        let updated = connection.client.execute(&connection.update, &[&key, &response]).await;
        one_row(updated)
    }

    /// Returns a free connection, or waits for the next one in turn.
    async fn connection(&self) -> io::Result<MutexGuard<'_, Connection>> {
        if let Some(free) = self.connections.iter().find_map(|one| one.try_lock().ok()) {
            return Ok(free);
        }
        let next = self.next.get();
        self.next.set((next + 1) % CONNECTIONS);
        let next = self.connections.get(next).ok_or_else(|| io::Error::other("no connection"))?;
        Ok(next.lock().await)
    }
}

impl Connection {
    async fn open(url: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::task::spawn_local(connection);
        let insert = client.prepare(INSERT).await?;
        let update = client.prepare(UPDATE).await?;
        Ok(Self { client, insert, update })
    }
}

/// Creates the table of the pattern.
pub(crate) async fn migrate(url: &str) -> io::Result<()> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    client.batch_execute(TABLE).await.map_err(io::Error::other)
}

fn one_row(written: Result<u64, tokio_postgres::Error>) -> io::Result<()> {
    match written.map_err(io::Error::other)? {
        1 => Ok(()),
        rows => Err(io::Error::other(format!("{rows} rows were written"))),
    }
}
