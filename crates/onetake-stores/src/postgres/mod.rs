//! The PostgreSQL store: many nodes on one database.
//!
//! The unique row of a key decides. Ownership, the end of a lease and the expiry of a key are
//! decided inside the statement that writes, by the server's clock. Concurrent claims and
//! settlements go out as one statement each. Nothing remains on the server after a statement (no
//! session settings, no prepared names, no LISTEN), so PgBouncer may be used in transaction mode.
//!
//! The order of modules: `claims`/`settles → batch (each key once, held ones apart) → pool → sql`,
//! and `rows` for the answers.

mod address;
mod audit;
mod batch;
mod claims;
mod codes;
mod doctor;
mod driver;
mod finish;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod outbox;
mod pool;
mod rows;
mod schema;
mod settles;
mod sql;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod statement_error;
mod tls;
mod transactional;
mod upkeep;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::audit::{AuditEntry, AuditPage};
use onetake_core::clock::micros;
use onetake_core::decide::Contact;
use onetake_core::store::{
    Answers, AuditLog, Cursor, Due, DueAttempt, FOUND_MAX, Page, RecordIndex, Sealing,
    SharedSecrets, Swept,
};
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Record, RecordId, Recording, Reference, Rng, Settled,
    Settlement, Shift, Store, StoreError, StoreErrorKind, SystemClock, SystemRng, Timestamp,
};
use tokio_postgres::types::Type;

use crate::diagnosis::Diagnosis;
use address::Address;
use batch::Held;
use pool::{Demands, Parameters, Pool};
use rows::RecordRow;
use statement_error::{Effect, StatementError};

pub use driver::{ClientTransaction, TokioPostgres};
pub use finish::{STALE_SQLSTATE, finish};
pub use schema::{Migrated, Migration, migrations};
pub use transactional::{Transactional, TransactionalInbox, WorkError};

/// The options of a connection to the server.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The clock for timeouts and pauses. The server's clock decides everything else.
    pub clock: Arc<dyn Clock>,
    /// The source of jitter.
    pub rng: Arc<dyn Rng>,
    /// Time that has passed only in a test.
    pub shift: Shift,
    /// The number of connections of this node. `connections=` in the URL overrides it.
    pub connections: usize,
    /// The timeout of connecting.
    pub connect_timeout: Duration,
    /// The timeout of a statement.
    pub command_timeout: Duration,
    /// True if the store may use a server that loses acknowledged writes in a crash (`fsync=off`,
    /// `synchronous_commit=off`).
    pub allow_lossy: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            shift: Shift::default(),
            connections: 4,
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(2),
            allow_lossy: false,
        }
    }
}

/// A store of records in PostgreSQL.
#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    shift: Shift,
    held: Held,
    /// The lead of the server's clock over this node's monotonic clock, in microseconds.
    server_ahead: AtomicI64,
}

/// The least connect timeout of a migration.
const MIGRATE_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The server's time is not known yet.
const UNHEARD: i64 = i64::MIN;

/// The contact of a node with the server.
#[derive(Clone, Copy, Debug)]
struct InTouch {
    /// The length of the contact so far, in microseconds.
    since: i64,
    /// The time until which `since` may be used, by the server's clock.
    until: i64,
}

impl InTouch {
    /// Returns the contact that the server assumes at its time `now`.
    fn contact(self, now: Timestamp) -> Contact {
        let until = Timestamp::from_micros(u64::try_from(self.until).unwrap_or_default());
        if now > until {
            return Contact::Unknown;
        }
        Contact::For(Duration::from_micros(u64::try_from(self.since).unwrap_or_default()))
    }
}

impl PostgresStore {
    /// Connects, and checks that the schema exists and that the server does not lose acknowledged
    /// writes.
    ///
    /// # Errors
    /// `Invalid` if it can never work this way (URL, password, schema, settings), `Unavailable` if
    /// the server is unreachable.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        Self::open_at(Address::parse(url)?, options).await
    }

    async fn open_at(address: Address, options: PostgresOptions) -> Result<Self, StoreError> {
        let allow_lossy = options.allow_lossy;
        let store = Self::new(address, options, Demands::Store { allow_lossy })?;
        drop(store.pool.link().await?);
        Ok(store)
    }

    /// Opens the store on the server and the database of a pool of sqlx, with its user, its
    /// password and its TLS.
    ///
    /// The store opens connections of its own, as many as `options.connections`: its statements are
    /// pipelined, which sqlx does not do. It never takes a connection from the pool, and so the two
    /// cannot wait for each other. Hooks of the pool, such as `after_connect`, do not run on the
    /// store's connections. Set `search_path` in the connect options or for the role if the tables
    /// are not in the default schema.
    ///
    /// # Errors
    /// As [`open`](Self::open). `Invalid` also if the pool's TLS cannot be carried over: a client
    /// certificate, roots that are no file, or `sslmode=verify-ca`.
    #[cfg(feature = "sqlx")]
    pub async fn with_pool(
        pool: &::sqlx::PgPool,
        options: PostgresOptions,
    ) -> Result<Self, StoreError> {
        Self::open_at(sqlx::address(&pool.connect_options())?, options).await
    }

    /// Makes the tables, or brings them up to date.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if the tables have a version that this program is too old for.
    pub async fn migrate(url: &str, mut options: PostgresOptions) -> Result<Migrated, StoreError> {
        // No request waits for a migration.
        options.connect_timeout = options.connect_timeout.max(MIGRATE_CONNECT_TIMEOUT);
        let store = Self::new(Address::parse(url)?, options, Demands::None)?;
        let mut link = store.pool.link().await?;
        match link.client() {
            Some(client) => schema::migrate(client).await,
            None => Err(StoreError::new(StoreErrorKind::Unavailable, "the connection was closed")),
        }
    }

    /// Checks the server for `onetake doctor`.
    ///
    /// # Errors
    /// If the server is unreachable.
    pub async fn diagnose(url: &str, options: PostgresOptions) -> Result<Diagnosis, StoreError> {
        doctor::diagnose(&Self::new(Address::parse(url)?, options, Demands::None)?).await
    }

    async fn keep_secret(&self, name: &str, fresh: &[u8]) -> Result<[u8; 32], StoreError> {
        let [first, second] = schema::SECRET_TYPES;
        // The first statement does not see a secret that another node created at the same moment.
        for _ in 0..2 {
            let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
                [(&name, first.clone()), (&fresh, second.clone())];
            let rows = self
                .pool
                .query(schema::SECRET, &parameters, Effect::Writes)
                .await
                .map_err(StatementError::for_one)?;
            if let Some(row) = rows.first() {
                let found: &[u8] = rows::get(row, 0)?;
                return found.try_into().map_err(|_| StoreError::damaged_secret(name));
            }
        }
        Err(StoreError::new(StoreErrorKind::Unavailable, "the secret could not be read"))
    }

    fn new(
        address: Address,
        options: PostgresOptions,
        demands: Demands,
    ) -> Result<Self, StoreError> {
        let pool = Pool::new(address, &options, demands)?;
        let PostgresOptions { clock, rng, shift, .. } = options;
        let server_ahead = AtomicI64::new(UNHEARD);
        Ok(Self { pool, clock, rng, shift, held: Held::default(), server_ahead })
    }

    fn shift(&self) -> i64 {
        self.shift.as_micros()
    }

    /// Returns how long this node has been in contact with the server without a break, and until
    /// when, by the server's clock, that may be used.
    fn in_touch(&self) -> InTouch {
        let since = i64::try_from(micros(self.pool.breaker.back_for())).unwrap_or(i64::MAX);
        let monotonic = i64::try_from(micros(self.clock.monotonic())).unwrap_or(i64::MAX);
        let patience = i64::try_from(micros(self.pool.command_timeout)).unwrap_or(i64::MAX);
        let until = match self.server_ahead.load(Ordering::Acquire) {
            UNHEARD => i64::MIN,
            ahead => ahead.saturating_add(monotonic).saturating_add(patience),
        };
        InTouch { since, until }
    }

    /// Records the server's time. The server's clock has advanced since, so a time that is computed
    /// from it is early.
    fn heard(&self, now: Timestamp) {
        let monotonic = i64::try_from(micros(self.clock.monotonic())).unwrap_or(i64::MAX);
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        self.server_ahead.store(now.saturating_sub(monotonic), Ordering::Release);
    }

    async fn page_from(&self, from: Option<Cursor>, limit: usize) -> Result<Page, StoreError> {
        let from = from.map(|cursor| cursor.id()).transpose()?;
        // Without a start, `from` is empty, which is less than every id.
        let from = from.as_ref().map_or(&[][..], |id| id.as_bytes());
        let count = i64::try_from(limit).unwrap_or(i64::MAX);
        let ids = self.ids(sql::IDS, &[(&from, Type::BYTEA), (&count, Type::INT8)]).await?;
        Ok(Page::in_order(ids, limit))
    }

    async fn with_reference(&self, reference: Reference) -> Result<Vec<RecordId>, StoreError> {
        let (first, last) = reference.ids().into_inner();
        let (first, last): (&[u8], &[u8]) = (first.as_bytes(), last.as_bytes());
        let count = i64::try_from(FOUND_MAX).unwrap_or(i64::MAX);
        self.ids(
            sql::WITH_REFERENCE,
            &[(&first, Type::BYTEA), (&last, Type::BYTEA), (&count, Type::INT8)],
        )
        .await
    }

    async fn ids(
        &self,
        sql: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<RecordId>, StoreError> {
        let rows = self.pool.query(sql, parameters, Effect::Reads).await;
        let rows = rows.map_err(StatementError::for_one)?;
        rows.iter().map(|row| rows::array(row, 0).map(RecordId::from_bytes)).collect()
    }

    async fn load_all(&self, ids: &[RecordId]) -> Answers<Option<Arc<Record>>> {
        let wanted: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes().as_slice()).collect();
        let rows = self
            .pool
            .query(
                sql::LOAD,
                &[
                    (&self.shift(), Type::INT8),
                    (&batch::LOCK_TIMEOUT, Type::TEXT),
                    (&wanted, Type::BYTEA_ARRAY),
                ],
                Effect::Reads,
            )
            .await;
        let found = rows.map_err(StatementError::for_one).and_then(|rows| {
            let answers = rows.into_iter().map(RecordRow::read);
            answers
                .map(|answer| {
                    answer.map(|answer| {
                        self.heard(answer.now);
                        (answer.id, answer)
                    })
                })
                .collect()
        });
        let found: HashMap<RecordId, RecordRow> = match found {
            Ok(found) => found,
            Err(error) => return ids.iter().map(|_| Err(error.clone())).collect(),
        };
        let one = |id| found.get(id).map(|answer| answer.record().map(Arc::new)).transpose();
        ids.iter().map(one).collect()
    }
}

impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move { batch::drive(self, &batch).await }.boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move { batch::drive(self, &batch).await }.boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move { if ids.is_empty() { Vec::new() } else { self.load_all(&ids).await } }.boxed()
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        match which {
            Due::LeaseEnd => upkeep::abandoned(self, limit).boxed(),
            Due::Reconcile => upkeep::unsettled(self, limit).boxed(),
        }
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        upkeep::sweep(self, limit).boxed()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let asked = self.pool.query("SELECT FROM onetake_floor", &[], Effect::Reads);
            asked.await.map(drop).map_err(StatementError::for_one)
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.pool.close();
        std::future::ready(Ok(())).boxed()
    }
}

impl RecordIndex for PostgresStore {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.page_from(from, limit).boxed()
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        self.with_reference(reference).boxed()
    }
}

impl AuditLog for PostgresStore {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        audit::write(self, entry).boxed()
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        audit::read(self, of, from, limit).boxed()
    }
}

impl SharedSecrets for PostgresStore {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        async move { self.keep_secret(name, &fresh).await }.boxed()
    }
}

impl Sealing for PostgresStore {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}
