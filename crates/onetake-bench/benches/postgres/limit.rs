//! The limit of the server: the engine's two statements, prepared, one after the other on each
//! connection, with as many operations in each as the engine sent. The arguments need no work of
//! the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onetake_core::{AttemptId, Clock, SystemClock, SystemRng};
use tokio_postgres::{Client, NoTls, Statement};

use crate::BODY_BYTES;

const CLAIM: &str =
    "SELECT * FROM onetake_claim_3($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
const SETTLE: &str =
    "SELECT * FROM onetake_settle_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
/// The longest wait for a lock.
const LOCK_WAIT: &str = "50ms";
const TTL_MICROS: i64 = 86_400_000_000;
const LEASE_MICROS: i64 = 30_000_000;

/// Connections, each with both statements.
pub(crate) struct Limit {
    connections: Vec<(Client, Statement, Statement)>,
    batch: usize,
}

impl Limit {
    pub(crate) async fn connect(url: &str, connections: usize, batch: usize) -> Self {
        let mut open = Vec::new();
        for _ in 0..connections {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let claim = client.prepare(CLAIM).await.unwrap();
            let settle = client.prepare(SETTLE).await.unwrap();
            open.push((client, claim, settle));
        }
        Self { connections: open, batch }
    }

    /// Returns operations per second with all connections busy.
    pub(crate) async fn rate(self, round: Duration) -> f64 {
        let done = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let batch = self.batch;
        let run = |connection| {
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            tokio::spawn(async move {
                let arguments = Arguments::new(batch);
                while !stop.load(Ordering::Relaxed) {
                    arguments.run(&connection).await;
                    done.fetch_add(batch as u64, Ordering::Relaxed);
                }
            })
        };
        let tasks: Vec<_> = self.connections.into_iter().map(run).collect();
        let clock = SystemClock;
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
}

/// The arguments that are the same in all statements.
struct Arguments {
    fingerprints: Vec<Vec<u8>>,
    ttls: Vec<i64>,
    leases: Vec<i64>,
    numbers: Vec<i16>,
    completes: Vec<i16>,
    empty: Vec<Vec<u8>>,
    bodies: Vec<Vec<u8>>,
    no_bytes: Vec<Option<Vec<u8>>>,
    no_numbers: Vec<Option<i64>>,
}

impl Arguments {
    fn new(batch: usize) -> Self {
        Self {
            fingerprints: vec![vec![1; 33]; batch],
            ttls: vec![TTL_MICROS; batch],
            leases: vec![LEASE_MICROS; batch],
            numbers: vec![0; batch],
            completes: vec![1; batch],
            empty: vec![Vec::new(); batch],
            bodies: vec![vec![b'x'; BODY_BYTES]; batch],
            no_bytes: vec![None; batch],
            no_numbers: vec![None; batch],
        }
    }

    /// Claims and completes a batch of new keys.
    async fn run(&self, (client, claim, settle): &(Client, Statement, Statement)) {
        let random = || AttemptId::random(&SystemRng).as_bytes().to_vec();
        let batch = self.numbers.len();
        let mut ids: Vec<Vec<u8>> = (0..batch).map(|_| random()).collect();
        ids.sort();
        let attempts: Vec<Vec<u8>> = (0..batch).map(|_| random()).collect();
        let (shift, manner, until) = (0_i64, 0_i16, i64::MAX);
        let claimed = client
            .query(
                claim,
                &[
                    &shift,
                    &LOCK_WAIT,
                    &0_i64,
                    &until,
                    &manner,
                    &ids,
                    &attempts,
                    &self.fingerprints,
                    &self.ttls,
                    &self.leases,
                    &self.leases,
                    &self.numbers,
                    &self.empty,
                ],
            )
            .await;
        assert_eq!(claimed.unwrap().len(), 1, "all are granted");
        let settled = client
            .query(
                settle,
                &[
                    &shift,
                    &LOCK_WAIT,
                    &0_i64,
                    &until,
                    &ids,
                    &attempts,
                    &self.completes,
                    &self.empty,
                    &self.bodies,
                    &self.no_bytes,
                    &self.no_bytes,
                    &self.no_numbers,
                ],
            )
            .await;
        assert_eq!(settled.unwrap().len(), batch, "all are settled");
    }
}
