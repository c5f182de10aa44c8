//! New stores whose clock the test controls to the microsecond.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{Shifted, Simulated, Subject};
use onetake_core::clock::Sleep;
use onetake_core::store::Due;
use onetake_core::{Clock, ManualClock, MemoryStore, Shift, Store, Timestamp};
use onetake_sim::servers::{Dynamo, Postgres, Redis};
use onetake_stores::{
    DynamoOptions, DynamoStore, EmbeddedStore, PostgresOptions, PostgresStore, RedisOptions,
    RedisStore, SqliteStore,
};

/// 2030-01-01.
const START: Timestamp = Timestamp::from_micros(1_893_456_000_000_000);

/// Longer than any game: a manual clock must not end a wait for an answer.
const ENDLESS: Duration = Duration::from_secs(1 << 30);

pub(crate) fn memory() -> Simulated {
    Simulated::new(|clock| (MemoryStore::with_clock(clock), Box::new(())))
}

pub(crate) fn embedded() -> Simulated {
    Simulated::new(|clock| {
        let folder = tempfile::tempdir().unwrap();
        (EmbeddedStore::open_with(folder.path(), clock).unwrap(), Box::new(folder))
    })
}

pub(crate) fn sqlite() -> Simulated {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("records");
    let again = file.clone();
    Simulated::new(move |clock| (SqliteStore::open_with(&file, clock).unwrap(), Box::new(folder)))
        .reopened_by(move |clock| SqliteStore::open_with(&again, clock).unwrap())
}

/// A clock whose short sleeps end at once, so that pauses between two statements do not wait for
/// the game to advance the clock.
#[derive(Debug)]
struct Restless(Arc<dyn Clock>);

impl Clock for Restless {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let is_short = duration < Duration::from_secs(10);
        self.0.sleep(if is_short { Duration::ZERO } else { duration })
    }
}

/// A store on a server whose clock stands still: a function that shadows the server's own returns
/// the time.
pub(crate) async fn postgres(server: &Postgres) -> Shifted {
    let url = server.database();
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap();
    let start = START.as_micros() / 1_000_000;
    server.sql(
        &database,
        &format!(
            "CREATE SCHEMA stands_still;
             CREATE FUNCTION stands_still.clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
                 AS 'SELECT to_timestamp({start})';
             ALTER DATABASE {database} SET search_path = stands_still, pg_catalog, public;"
        ),
    );
    let open = move |clock, shift| {
        let url = url.clone();
        let options = PostgresOptions {
            clock: Arc::new(Restless(clock)),
            shift,
            connect_timeout: ENDLESS,
            command_timeout: ENDLESS,
            ..PostgresOptions::default()
        };
        async move { PostgresStore::open(&url, options).await.unwrap() }
    };
    let made = async |clock, shift| (open(clock, shift).await, Box::new(()) as Box<_>);
    Shifted::starting(START, Shift::default(), made).await.reopened_by(open)
}

pub(crate) async fn redis(server: &Redis) -> Shifted {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (url, prefix) = (server.url(), format!("game-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let open = move |clock, shift| {
        let url = url.clone();
        let options = RedisOptions {
            clock,
            shift,
            prefix: prefix.clone(),
            connect_timeout: ENDLESS,
            command_timeout: ENDLESS,
            ..RedisOptions::default()
        };
        async move { RedisStore::open(&url, options).await.unwrap() }
    };
    let made = async |clock, shift| (open(clock, shift).await, Box::new(()) as Box<_>);
    let shift = Shift::default();
    shift.fix(START);
    Shifted::starting(START, shift, made).await.reopened_by(open)
}

pub(crate) async fn dynamodb(server: &Dynamo) -> Watched {
    let (url, clock) = (server.table(), ManualClock::new(START));
    DynamoStore::migrate(&url, DynamoOptions::default()).await.unwrap();
    let store = Arc::new(DynamoStore::open(&url, on(&clock)).await.unwrap());
    Watched { clock, store: std::sync::Mutex::new(store), url }
}

/// A store on DynamoDB. The reaper searches before time passes, as it does every second.
pub(crate) struct Watched {
    clock: ManualClock,
    store: std::sync::Mutex<Arc<DynamoStore>>,
    url: String,
}

impl Watched {
    fn current(&self) -> Arc<DynamoStore> {
        Arc::clone(&self.store.lock().unwrap())
    }
}

impl Subject for Watched {
    fn store(&self) -> Arc<dyn Store> {
        self.current()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        async move {
            self.current().due(Due::LeaseEnd, usize::MAX).await.unwrap();
            self.clock.advance(by);
        }
        .boxed()
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        async move {
            let store = Arc::new(DynamoStore::open(&self.url, on(&self.clock)).await.unwrap());
            *self.store.lock().unwrap() = Arc::clone(&store);
            Some(store as Arc<dyn Store>)
        }
        .boxed()
    }
}

/// Options with this clock and without a margin.
fn on(clock: &ManualClock) -> DynamoOptions {
    DynamoOptions {
        clock: Arc::new(clock.clone()),
        skew_margin: Duration::ZERO,
        connect_timeout: ENDLESS,
        command_timeout: ENDLESS,
        ..DynamoOptions::default()
    }
}
