//! Tests of the DynamoDB store on a failing network.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onetake_core::store::Due;
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Fingerprint, Key, ManualClock, RecordId, Recording, Scope,
    Settled, Settlement, Store, StoreError, StoreErrorKind, Terms, Transition,
};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Dynamo, free_port, until};
use onetake_stores::{DynamoOptions, DynamoStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn claim(key: &str, attempt: u8) -> Claim {
    Claim {
        id: RecordId::derive(&Scope::new("t"), &Key::new(key).unwrap()),
        attempt: AttemptId::from_bytes([attempt; 16]),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

async fn ask(store: &DynamoStore, claim: &Claim) -> Result<Claimed, StoreError> {
    store.claim(vec![claim.clone()]).await.remove(0)
}

async fn complete(store: &DynamoStore, claim: &Claim) -> Result<Settled, StoreError> {
    let transition = Transition::Complete(Recording::new("paid"));
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    store.settle(vec![settlement]).await.remove(0)
}

/// Asks until there is an answer: with a short timeout, a short pause of the machine is too long.
async fn answer<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let mut answer = None;
    until("the store answers", async || {
        answer = ask().await.ok();
        answer.is_some()
    })
    .await;
    answer.unwrap()
}

async fn state(store: &DynamoStore, claim: &Claim) -> Option<(AttemptId, &'static str)> {
    let record = answer(async || store.load(vec![claim.id]).await.remove(0)).await?;
    Some((record.attempt, record.state.name()))
}

fn impatient() -> DynamoOptions {
    DynamoOptions {
        connect_timeout: Duration::from_millis(300),
        command_timeout: Duration::from_millis(300),
        ..DynamoOptions::default()
    }
}

/// Starts a server and creates its table.
async fn server() -> Dynamo {
    let server = Dynamo::start().await;
    DynamoStore::migrate(&server.table(), DynamoOptions::default()).await.unwrap();
    server
}

/// The URL of the server's table through another address.
fn through(server: &Dynamo, address: SocketAddr) -> String {
    server.url_at(address, "onetake_0")
}

#[tokio::test]
async fn an_answer_that_is_lost_leaves_it_open_and_the_own_attempt_tells() {
    let server = server().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = through(&server, proxy.address());
    let store = answer(async || DynamoStore::open(&url, impatient()).await).await;
    let key = claim("a", 1);
    proxy.set(Weather::CutBack);
    let error = ask(&store, &key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Indeterminate, "{error}");
    proxy.set(Weather::Fair);
    until("the store is back", async || store.ready().await.is_ok()).await;
    assert_eq!(state(&store, &key).await, Some((key.attempt, "running")), "it landed");
    let again = answer(async || ask(&store, &key).await).await;
    assert!(matches!(again, Claimed::Granted { .. }), "its own success: {again:?}");
    let other = answer(async || ask(&store, &claim("a", 2)).await).await;
    assert!(matches!(other, Claimed::Found { .. }), "and nobody else's");

    proxy.set(Weather::CutBack);
    let error = complete(&store, &key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Indeterminate, "{error}");
    // A read writes nothing, so its failure leaves no write in doubt.
    let unread = store.load(vec![key.id]).await.remove(0).unwrap_err();
    assert_eq!(unread.kind(), StoreErrorKind::Unavailable, "{unread}");
    proxy.set(Weather::Fair);
    until("the store is back", async || complete(&store, &key).await.is_ok()).await;
    assert_eq!(state(&store, &key).await, Some((key.attempt, "completed")));
}

/// A proxy that passes each answer to `look`, which may change it. If `look` returns false, the
/// connection is closed.
async fn proxy<L>(server: SocketAddr, look: L) -> SocketAddr
where
    L: Fn(&mut [u8]) -> bool + Clone + Send + Sync + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(carry(client, server, look.clone()));
        }
    });
    address
}

async fn carry(mut client: TcpStream, server: SocketAddr, look: impl Fn(&mut [u8]) -> bool) {
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut there, mut back) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            Ok(count @ 1..) = client.read(&mut there) => {
                server.write_all(&there[..count]).await.unwrap();
            }
            Ok(count @ 1..) = server.read(&mut back) => {
                if !look(&mut back[..count]) || client.write_all(&back[..count]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}

/// A proxy that drops `left` answers: the request arrives, then the connection is closed.
async fn swallow(server: SocketAddr, left: &Arc<AtomicUsize>) -> SocketAddr {
    let left = Arc::clone(left);
    let take = |left: usize| left.checked_sub(1);
    proxy(server, move |_| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err())
        .await
}

/// A server that reports only that a condition failed, without the current item.
async fn silent(server: SocketAddr, hidden: &Arc<AtomicUsize>) -> SocketAddr {
    let hidden = Arc::clone(hidden);
    proxy(server, move |answer| {
        let item = b"\"Item\":";
        let at = answer.windows(item.len()).position(|bytes| bytes == item);
        let failed = String::from_utf8_lossy(answer).contains("ConditionalCheckFailed");
        if let Some(at) = at.filter(|_| failed) {
            answer[at + 1] = b'X';
            hidden.fetch_add(1, Ordering::SeqCst);
        }
        true
    })
    .await
}

#[tokio::test]
async fn a_failed_condition_alone_does_not_mean_that_nothing_is_there() {
    let server = server().await;
    let hidden = Arc::default();
    let url = through(&server, silent(server.address(), &hidden).await);
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    let other = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    let key = claim("a", 1);
    ask(&store, &key).await.unwrap();
    let Claimed::Found { record, .. } = ask(&other, &claim("a", 2)).await.unwrap() else {
        panic!("granted twice");
    };
    assert_eq!(record.attempt, key.attempt);
    assert_eq!(hidden.load(Ordering::SeqCst), 1, "what is there was not sent along");
    // The first store's item in memory is out of date now.
    let renewal = Settlement { id: key.id, attempt: key.attempt, transition: Transition::Renew };
    other.settle(vec![renewal]).await.remove(0).unwrap();
    let completed = complete(&store, &key).await.unwrap();
    assert!(matches!(completed, Settled::Done { .. }), "{completed:?}");
    assert_eq!(hidden.load(Ordering::SeqCst), 2, "nor now");
}

#[tokio::test]
async fn a_write_that_landed_and_is_sent_again_is_its_own_success() {
    let server = server().await;
    let left = Arc::default();
    let url = through(&server, swallow(server.address(), &left).await);
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    let key = claim("a", 1);
    left.store(1, Ordering::SeqCst);
    assert!(matches!(ask(&store, &key).await.unwrap(), Claimed::Granted { .. }));
    assert_eq!(left.load(Ordering::SeqCst), 0, "an answer was lost");
    left.store(1, Ordering::SeqCst);
    let renewal = Settlement { id: key.id, attempt: key.attempt, transition: Transition::Renew };
    let renewed = store.settle(vec![renewal]).await.remove(0).unwrap();
    assert!(matches!(renewed, Settled::Done { .. }), "{renewed:?}");
    left.store(1, Ordering::SeqCst);
    let completed = complete(&store, &key).await.unwrap();
    assert!(matches!(completed, Settled::Done { .. }), "{completed:?}");
    assert_eq!(left.load(Ordering::SeqCst), 0);

    // The answer is lost each time: the write may have been executed, and was.
    left.store(3, Ordering::SeqCst);
    let error = ask(&store, &claim("b", 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Indeterminate, "{error}");
    until("the store is back", async || store.ready().await.is_ok()).await;
    assert_eq!(state(&store, &claim("b", 1)).await.unwrap().1, "running");
}

#[tokio::test]
async fn a_forgetting_that_landed_and_is_sent_again_is_its_own_success() {
    let server = server().await;
    let left = Arc::new(AtomicUsize::new(0));
    let swallowed = Arc::clone(&left);
    // Answers to reads arrive; answers to writes are lost.
    let address = proxy(server.address(), move |answer| {
        let read = String::from_utf8_lossy(answer).contains("\"Item\"");
        read || swallowed.swap(0, Ordering::SeqCst) == 0
    });
    let url = through(&server, address.await);
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    let key = claim("a", 1);
    ask(&store, &key).await.unwrap();
    complete(&store, &key).await.unwrap();
    left.store(1, Ordering::SeqCst);
    let forget = Settlement { id: key.id, attempt: key.attempt, transition: Transition::Forget };
    let forgotten = store.settle(vec![forget]).await.remove(0).unwrap();
    assert_eq!(left.load(Ordering::SeqCst), 0, "an answer was lost");
    assert!(matches!(forgotten, Settled::Done { .. }), "{forgotten:?}");
    assert_eq!(state(&store, &key).await, None);
}

#[tokio::test]
async fn a_server_that_is_not_there_has_written_nothing() {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let url = format!("dynamodb://eu-central-1/onetake?endpoint=http://{nobody}");
    let error = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");

    let mut server = Some(server().await);
    let url = server.as_ref().unwrap().url_at(server.as_ref().unwrap().address(), "onetake_0");
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    drop(server.take());
    let mut kinds = Vec::new();
    for _ in 0..5 {
        kinds.push(ask(&store, &claim("a", 1)).await.unwrap_err().kind());
    }
    // The first request may have used a connection that was just being closed.
    assert!(kinds[1..].iter().all(|kind| *kind == StoreErrorKind::Unavailable), "{kinds:?}");
}

#[tokio::test]
async fn a_store_that_was_away_comes_back_by_itself() {
    let server = server().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = through(&server, proxy.address());
    let store = DynamoStore::open(&url, DynamoOptions::default()).await.unwrap();
    let key = claim("a", 1);
    assert!(matches!(ask(&store, &key).await.unwrap(), Claimed::Granted { .. }));
    proxy.set(Weather::Dead);
    for _ in 0..10 {
        ask(&store, &claim("b", 2)).await.unwrap_err();
        store.ready().await.unwrap_err();
    }
    // One caller tries now and then, and gets the cause.
    let asked = proxy.connections();
    let mut tried = Vec::new();
    for _ in 0..50 {
        let error = ask(&store, &claim("b", 2)).await.unwrap_err().to_string();
        if !error.contains("reconnects automatically") {
            tried.push(error);
        }
    }
    assert!(tried.len() <= 3, "a dead store is left alone: {tried:?}");
    assert!(proxy.connections() <= asked + 3, "a dead store is left alone");
    proxy.set(Weather::Fair);
    until("the store is back", async || complete(&store, &key).await.is_ok()).await;
    assert_eq!(state(&store, &key).await, Some((key.attempt, "completed")));
}

/// Lets a clock run during a future.
async fn while_time_passes<T>(clock: &ManualClock, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = onetake_core::SystemClock.sleep(Duration::from_millis(1)) => {
                clock.advance(Duration::from_millis(10));
            }
        }
    }
}

#[tokio::test]
async fn an_owner_gets_its_grace_anew_after_an_outage() {
    let server = server().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let clock = ManualClock::default();
    let options = DynamoOptions {
        clock: Arc::new(clock.clone()),
        skew_margin: Duration::ZERO,
        connect_timeout: Duration::from_secs(1 << 30),
        command_timeout: Duration::from_secs(1 << 30),
        ..DynamoOptions::default()
    };
    let store = DynamoStore::open(&through(&server, proxy.address()), options).await.unwrap();
    let key = claim("a", 1);
    ask(&store, &key).await.unwrap();
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap(), []);
    clock.advance(Duration::from_secs(58));
    // For a moment the store is unreachable, also for the owner's renewals.
    proxy.set(Weather::Dead);
    while_time_passes(&clock, store.ready()).await.unwrap_err();
    proxy.set(Weather::Fair);
    while_time_passes(&clock, async {
        while store.ready().await.is_err() {
            clock.sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    clock.advance(Duration::from_secs(58));
    assert_eq!(
        store.due(Due::LeaseEnd, 10).await.unwrap(),
        [],
        "it was watched for too short a time"
    );
    let Claimed::Found { record, .. } = ask(&store, &claim("a", 2)).await.unwrap() else {
        panic!("granted");
    };
    assert_eq!(record.state.name(), "running");
    clock.advance(Duration::from_secs(2));
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap().len(), 1);
}
