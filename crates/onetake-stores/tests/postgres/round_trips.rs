//! The round trips to the server that an operation costs, counted between store and server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use onetake_core::{
    Engine, Fingerprint, Key, Operation, Outcome, Recording, Scope, Settling, Verdict,
};
use onetake_sim::servers::Postgres;
use onetake_stores::PostgresStore;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{migrated, patient};

/// Operations in a row. Their number makes room for the store's own questions, such as a probe of
/// the connection.
const OPERATIONS: usize = 50;
/// The most round trips of the store itself during one test.
const OWN_MAX: usize = 10;

/// A proxy that counts round trips: bytes of the client that follow bytes of the server.
struct CountingProxy {
    address: SocketAddr,
    trips: Arc<AtomicUsize>,
}

impl CountingProxy {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, trips) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&trips);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                let server = TcpStream::connect(server).await.unwrap();
                let (from_server, to_server) = server.into_split();
                let (count, has_answered) = (Arc::clone(&count), Arc::new(AtomicBool::new(true)));
                let answered = Arc::clone(&has_answered);
                tokio::spawn(carry(from_client, to_server, move || {
                    count.fetch_add(
                        usize::from(has_answered.swap(false, Ordering::SeqCst)),
                        Ordering::SeqCst,
                    );
                }));
                tokio::spawn(carry(from_server, to_client, move || {
                    answered.store(true, Ordering::SeqCst);
                }));
            }
        });
        Self { address, trips }
    }

    /// Returns the round trips of a future.
    async fn count<T>(&self, future: impl Future<Output = T>) -> usize {
        let before = self.trips.load(Ordering::SeqCst);
        future.await;
        self.trips.load(Ordering::SeqCst) - before
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    on_bytes: impl Fn(),
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        on_bytes();
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn engine(url: &str) -> Engine {
    let store = PostgresStore::open(url, patient()).await.unwrap();
    Engine::builder(Arc::new(store)).housekeeping(None).build()
}

/// Runs the operations, one after the other. Each must run, or each must be a replay.
async fn operations(engine: &Engine, runs: bool) {
    for number in 0..OPERATIONS {
        let key = Key::new(format!("counted-key-{number}")).unwrap();
        let operation = Operation::new(&Scope::new("tests"), &key, Fingerprint::of(b"pay"));
        let work = |_| async { Verdict::Complete(Recording::new("paid")) };
        let outcome = engine.run(operation, work).await.unwrap();
        assert_eq!(matches!(outcome, Outcome::Ran(Settling::Recorded(_))), runs, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_fresh_operation_takes_two_round_trips_and_a_replay_one_or_none() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let proxy = CountingProxy::start(server.address()).await;
    let through = server.url_at(proxy.address, url.rsplit('/').next().unwrap());
    let (first, second) = (engine(&through).await, engine(&through).await);
    let fresh = proxy.count(operations(&first, true)).await;
    let from_memory = proxy.count(operations(&first, false)).await;
    let elsewhere = proxy.count(operations(&second, false)).await;
    println!("{OPERATIONS} operations: {fresh} fresh, {from_memory} and {elsewhere} replayed");
    assert!((2 * OPERATIONS..=2 * OPERATIONS + OWN_MAX).contains(&fresh), "{fresh}");
    assert!(from_memory <= OWN_MAX, "{from_memory}");
    assert!((OPERATIONS..=OPERATIONS + OWN_MAX).contains(&elsewhere), "{elsewhere}");
}
