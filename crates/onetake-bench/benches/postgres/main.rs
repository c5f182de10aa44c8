//! PostgreSQL: claim + complete through the engine beside the plain pattern (one
//! `INSERT … ON CONFLICT` and one `UPDATE` a request) and beside the limit of the server (the
//! engine's two statements alone, in the engine's batches: with all connections busy, and with as
//! many operations under way as the engine has tasks), and claims beside a sweep of a million
//! expired rows.
//!
//! `cargo bench --bench postgres` runs it. The contenders alternate in one run on one server,
//! because machines are noisy. The ratio is the result.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may panic")]

mod counting;
mod limit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use counting::Counting;
use limit::Limit;
use onetake_core::store::Swept;
use onetake_core::{
    Clock, Engine, Fingerprint, Key, Limits, Operation, Outcome, Recording, Scope, Settling, Store,
    SystemClock, SystemRng, Verdict,
};
use onetake_sim::servers::Postgres;
use onetake_stores::{PostgresOptions, PostgresStore};
use tokio_postgres::{Client, NoTls};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TASKS: usize = 64;
const CONNECTIONS: usize = 4;
const ROUNDS: usize = 5;
const SWEEP_ROUNDS: usize = 15;
/// Threads of the client, beside a server on the same machine.
const THREADS: [usize; 2] = [1, 2];
/// The number of statements of one kind in progress at once.
const WRITERS: usize = 2;
const BODY_BYTES: usize = 300;
const ROUND: Duration = Duration::from_secs(4);
/// Expired rows for the sweep.
const EXPIRED: u64 = 1_000_000;
/// The number of rows that one step of a sweep deletes, and the pause after it.
const SWEEP_BATCH: usize = 5_000;
const SWEEP_PAUSE: Duration = Duration::from_millis(50);
/// Claims a second beside the sweep.
const CLAIMS_A_SECOND: u32 = 400;

fn main() {
    // `cargo test --benches` uses other arguments. Then the benchmark only shows that it runs.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let (round, expired) = if whole { (ROUND, EXPIRED) } else { (ROUND / 40, 20_000) };
    let server = runtime(1).block_on(Postgres::start());
    for threads in THREADS {
        runtime(threads).block_on(rates(&server, round, threads));
    }
    runtime(2).block_on(sweeping(&server, round, expired));
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(threads).enable_all().build().unwrap()
}

async fn open(url: &str) -> Arc<PostgresStore> {
    let options = PostgresOptions { connections: CONNECTIONS, ..PostgresOptions::default() };
    PostgresStore::migrate(url, options.clone()).await.unwrap();
    Arc::new(PostgresStore::open(url, options).await.unwrap())
}

fn engine(store: Arc<dyn Store>) -> Engine {
    let limits = Limits { writers_max: WRITERS, ..Limits::default() };
    Engine::with(store, Arc::new(SystemClock), Arc::new(SystemRng), limits)
}

async fn rates(server: &Postgres, round: Duration, threads: usize) {
    let (mut ours, mut plain, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut batches, mut round_trips, mut same_load) = (Vec::new(), Vec::new(), Vec::new());
    let url = server.database();
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    for number in 0..ROUNDS {
        let counting = Counting::around(open(&url).await);
        let engine = engine(Arc::clone(&counting) as Arc<dyn Store>);
        let body = bytes::Bytes::from(vec![b'x'; BODY_BYTES]);
        let ran = {
            let engine = engine.clone();
            move |task, at| {
                let (engine, body) = (engine.clone(), body.clone());
                async move {
                    let key = Key::new(format!("{number}-{task}-{at}")).unwrap();
                    let operation =
                        Operation::new(&Scope::new("benchmark"), &key, Fingerprint::of(b"pay"));
                    let work = |_| async { Verdict::Complete(Recording::new(body)) };
                    let outcome = engine.run(operation, work).await.unwrap();
                    assert!(matches!(outcome, Outcome::Ran(Settling::Recorded(_))));
                }
            }
        };
        ours.push(measure(round, ran).await);
        engine.shutdown(Duration::from_secs(30)).await.unwrap();
        batches.push(counting.items_per_statement());
        round_trips.push(counting.statements_per_claim());
        let pattern = Arc::new(Plain::connect(&url).await);
        let ran = move |task, at| {
            let pattern = Arc::clone(&pattern);
            async move {
                pattern.operation(&format!("{number}-{task}-{at}"), &vec![b'x'; BODY_BYTES]).await;
            }
        };
        plain.push(measure(round, ran).await);
        let batch = batches.last().copied().unwrap_or(1.0).round().max(1.0) as usize;
        limits.push(Limit::connect(&url, CONNECTIONS, batch).await.rate(round).await);
        // The same with only as many operations under way as the engine has tasks.
        let connections = TASKS.div_ceil(batch).clamp(1, CONNECTIONS);
        let limit = Limit::connect(&url, connections, TASKS / connections).await;
        same_load.push(limit.rate(round).await);
    }
    let hot = server.sql(
        &database,
        "SELECT n_tup_upd || ' updates, ' || n_tup_hot_upd || ' of them touched no index'
           FROM pg_stat_user_tables WHERE relname = 'onetake_records'",
    );
    println!(
        "PostgreSQL, claim + complete, {BODY_BYTES}-byte outcome, {TASKS} tasks, {CONNECTIONS} connections, \
         {threads} of the client's threads"
    );
    println!("  engine:        {:>9.0} operations/s {ours:.0?}", median(&ours));
    println!("  plain pattern: {:>9.0} operations/s {plain:.0?}", median(&plain));
    println!("  limit:         {:>9.0} operations/s {limits:.0?}", median(&limits));
    println!(
        "  limit, {TASKS} operations under way: {:.0} operations/s {same_load:.0?}",
        median(&same_load)
    );
    let ratios = |others: &[f64]| -> Vec<f64> {
        ours.iter().zip(others).map(|(ours, other)| ours / other).collect()
    };
    let (to_plain, to_limit, to_same) = (ratios(&plain), ratios(&limits), ratios(&same_load));
    println!("  engine / plain:{:>9.2} {to_plain:.2?}", median(&to_plain));
    println!("  engine / limit:{:>9.2} {to_limit:.2?}", median(&to_limit));
    println!(
        "  engine / limit, {TASKS} operations under way: {:.2} {to_same:.2?}",
        median(&to_same)
    );
    println!(
        "  {:.1} operations in a statement, {:.2} round trips per fresh operation",
        median(&batches),
        median(&round_trips)
    );
    println!("  {hot}");
}

/// The common first solution: a row that is inserted before the operation and updated after it.
struct Plain {
    clients: Vec<(Client, tokio_postgres::Statement, tokio_postgres::Statement)>,
    permits: tokio::sync::Semaphore,
    free: std::sync::Mutex<Vec<usize>>,
}

impl Plain {
    async fn connect(url: &str) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let table = "CREATE TABLE IF NOT EXISTS plain (
                key text PRIMARY KEY, status text NOT NULL, response bytea,
                created_at timestamptz NOT NULL DEFAULT now())";
            client.batch_execute(table).await.unwrap();
            let insert =
                "INSERT INTO plain (key, status) VALUES ($1, 'running') ON CONFLICT DO NOTHING";
            let update = "UPDATE plain SET status = 'completed', response = $2 WHERE key = $1";
            let statements =
                (client.prepare(insert).await.unwrap(), client.prepare(update).await.unwrap());
            clients.push((client, statements.0, statements.1));
        }
        let free = std::sync::Mutex::new((0..CONNECTIONS).collect());
        Self { clients, permits: tokio::sync::Semaphore::new(CONNECTIONS), free }
    }

    async fn operation(&self, key: &str, body: &Vec<u8>) {
        assert_eq!(
            self.with(async |(client, insert, _)| client.execute(insert, &[&key]).await.unwrap())
                .await,
            1
        );
        assert_eq!(
            self.with(async |(client, _, update)| client
                .execute(update, &[&key, body])
                .await
                .unwrap())
                .await,
            1
        );
    }

    /// A connection from the pool, for one statement.
    async fn with<T>(
        &self,
        statement: impl AsyncFnOnce(
            &(Client, tokio_postgres::Statement, tokio_postgres::Statement),
        ) -> T,
    ) -> T {
        let permit = self.permits.acquire().await.unwrap();
        let at = self.free.lock().unwrap().pop().unwrap();
        let answer = statement(self.clients.get(at).unwrap()).await;
        self.free.lock().unwrap().push(at);
        drop(permit);
        answer
    }
}

/// Operations a second with all tasks busy.
async fn measure<F>(
    round: Duration,
    operation: impl Fn(usize, u64) -> F + Clone + Send + 'static,
) -> f64
where
    F: Future<Output = ()> + Send,
{
    let clock = SystemClock;
    let done = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (operation, done, stop) = (operation.clone(), Arc::clone(&done), Arc::clone(&stop));
            tokio::spawn(async move {
                for at in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    operation(task, at).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    clock.sleep(round / 8).await;
    let (from, before) = (clock.monotonic(), done.load(Ordering::Relaxed));
    clock.sleep(round).await;
    let (to, after) = (clock.monotonic(), done.load(Ordering::Relaxed));
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    (after - before) as f64 / (to - from).as_secs_f64()
}

/// Claims at a steady rate, without a sweep and beside one.
async fn sweeping(server: &Postgres, round: Duration, expired: u64) {
    let url = server.database();
    let database = url.rsplit_once('/').unwrap().1.to_owned();
    let store = open(&url).await;
    // Packed as after claims and completions in the same pages.
    server.sql(&database, "ALTER TABLE onetake_records SET (fillfactor = 65)");
    server.sql(
        &database,
        &format!(
            "INSERT INTO onetake_records (id, attempt, fence, fingerprint, ttl, lease, grace, created_at,
                 claimed_at, state_at, sweep_at, expires_at, state, on_unknown, origin, head, body)
             SELECT substring(sha256(n::text::bytea) FROM 1 FOR 16), substring(sha256(n::text::bytea) FROM 17 FOR 16),
                    n, '\\x01'::bytea || sha256(n::text::bytea), 1000000, 30000000, 30000000, n, n, n, n, n, 1, 0, '', '', repeat('x', {BODY_BYTES})::bytea
               FROM generate_series(1, {expired}) AS n"
        ),
    );
    server.sql(&database, "ALTER TABLE onetake_records SET (fillfactor = 25)");
    server.sql(&database, "VACUUM ANALYZE onetake_records");
    server.sql(&database, "CHECKPOINT");
    let engine = engine(Arc::clone(&store) as Arc<dyn Store>);
    let (mut alone, mut beside, mut swept) = (Vec::new(), Vec::new(), 0);
    // Many short rounds, so that a stall of the disk affects few of them.
    let round = round / 2;
    for number in 0..SWEEP_ROUNDS {
        alone.push(latencies(&engine, &format!("alone-{number}"), round).await);
        let stop = AtomicBool::new(false);
        let sweep = async {
            let clock = SystemClock;
            let mut gone = 0;
            while !stop.load(Ordering::Relaxed) {
                let Swept { removed, more, .. } = store.sweep(SWEEP_BATCH).await.unwrap();
                gone += removed;
                if !more {
                    break;
                }
                clock.sleep(SWEEP_PAUSE).await;
            }
            gone
        };
        let traffic = async {
            let p99 = latencies(&engine, &format!("beside-{number}"), round).await;
            stop.store(true, Ordering::Relaxed);
            p99
        };
        let (gone, p99) = tokio::join!(sweep, traffic);
        swept += gone;
        beside.push(p99);
    }
    let clock = SystemClock;
    let from = clock.monotonic();
    while store.sweep(SWEEP_BATCH).await.unwrap().more {}
    println!(
        "PostgreSQL, {CLAIMS_A_SECOND} claims a second, {expired} expired rows, sweep of {SWEEP_BATCH} with pauses of {SWEEP_PAUSE:?}"
    );
    println!("  p99 of claims alone:            {:>7.2} ms {alone:.2?}", median(&alone));
    println!("  p99 of claims beside the sweep: {:>7.2} ms {beside:.2?}", median(&beside));
    let ratios: Vec<f64> =
        beside.iter().zip(&alone).map(|(beside, alone)| beside / alone).collect();
    println!("  ratio:                          {:>7.2} {ratios:.2?}", median(&ratios));
    println!(
        "  {swept} rows were swept meanwhile, the rest in {:?} without pauses",
        clock.monotonic() - from
    );
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
}

/// Returns the p99 of claims at a steady rate, in milliseconds.
async fn latencies(engine: &Engine, name: &str, round: Duration) -> f64 {
    let clock = SystemClock;
    let pause = Duration::from_secs(1) / CLAIMS_A_SECOND;
    let count = (round.as_secs_f64() * f64::from(CLAIMS_A_SECOND)) as u32;
    let begin = clock.monotonic();
    let claims = (0..count).map(|at| {
        let (engine, key) = (engine.clone(), Key::new(format!("{name}-{at}")).unwrap());
        tokio::spawn(async move {
            let clock = SystemClock;
            clock.sleep((begin + pause * at).saturating_sub(clock.monotonic())).await;
            let operation = Operation::new(&Scope::new("sweep"), &key, Fingerprint::of(b"pay"));
            let asked = clock.monotonic();
            let begun = engine.begin(&operation).await.unwrap();
            let took = clock.monotonic() - asked;
            if let onetake_core::Begin::Run(lease) = begun {
                lease.start().unwrap();
                lease.complete(Recording::new("done")).await;
            }
            took.as_secs_f64() * 1000.0
        })
    });
    let mut took: Vec<f64> =
        futures_util::future::join_all(claims).await.into_iter().map(Result::unwrap).collect();
    took.sort_by(f64::total_cmp);
    took.get(took.len() * 99 / 100).copied().expect("there were claims")
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
