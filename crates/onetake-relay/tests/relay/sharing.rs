//! Tests of several relays, some of which die or stall.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::outbox::PendingMessage;
use onetake_core::{Clock, MessageId, SystemClock};
use onetake_relay::sink::in_order;
use onetake_relay::{RelayOptions, Sink, SinkError};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, until};

use super::{World, hurried, parse};

/// The destination of all relays of a test.
#[derive(Debug, Default)]
struct Receiver {
    /// The received numbers by key, without repetitions.
    first: Mutex<HashMap<u32, Vec<u32>>>,
    ids: Mutex<HashMap<MessageId, usize>>,
    /// The number of relays that are delivering a key now.
    busy: Mutex<HashMap<u32, usize>>,
    met: AtomicUsize,
    held_most: AtomicUsize,
    /// The duration of each delivery.
    pause: Duration,
}

/// One relay's sink to the receiver.
#[derive(Debug)]
struct Way(Arc<Receiver>);

/// A delivery of a key in progress.
struct At<'a>(&'a Receiver, u32);

impl Drop for At<'_> {
    fn drop(&mut self) {
        *self.0.busy.lock().unwrap().get_mut(&self.1).unwrap() -= 1;
    }
}

impl Way {
    async fn send(&self, waiting: &PendingMessage) -> Result<(), SinkError> {
        let receiver = &*self.0;
        let (key, number) = parse(&waiting.message.payload);
        {
            let mut busy = receiver.busy.lock().unwrap();
            let busy = busy.entry(key).or_default();
            *busy += 1;
            if *busy > 1 {
                receiver.met.fetch_add(1, Ordering::Relaxed);
            }
        }
        let at = At(receiver, key);
        SystemClock.sleep(receiver.pause).await;
        let mut ids = receiver.ids.lock().unwrap();
        let count = ids.entry(waiting.id).or_default();
        *count += 1;
        if *count == 1 {
            receiver.first.lock().unwrap().entry(key).or_default().push(number);
        }
        drop(at);
        Ok(())
    }
}

impl Sink for Way {
    fn name(&self) -> &'static str {
        "test"
    }

    fn deliver<'a>(
        &'a self,
        batch: &'a [PendingMessage],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        self.0.held_most.fetch_max(batch.len(), Ordering::Relaxed);
        let patience = self.0.pause * 2;
        in_order(batch, 8, &SystemClock, (within, patience), |waiting| self.send(waiting)).boxed()
    }
}

fn assert_all(receiver: &Receiver, keys: u32, numbers: u32) {
    let first = receiver.first.lock().unwrap();
    assert_eq!(first.len(), keys as usize);
    for (key, found) in &*first {
        assert_eq!(*found, (0..numbers).collect::<Vec<_>>(), "key {key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_relays_are_never_at_one_key_at_once() {
    let world = World::start().await;
    let receiver = Arc::new(Receiver { pause: Duration::from_millis(1), ..Receiver::default() });
    let options = RelayOptions { batch_items: 20, ..hurried() };
    let relays = [0; 4].map(|_| world.relay(Arc::new(Way(Arc::clone(&receiver))), options.clone()));
    for part in 0..5 {
        world.write("t", 0..100, part * 4..part * 4 + 4, 0);
    }
    world.drained().await;
    for relay in relays {
        relay.stop().await;
    }
    assert_all(&receiver, 100, 20);
    assert_eq!(receiver.met.load(Ordering::Relaxed), 0);
    assert!(
        receiver.ids.lock().unwrap().values().all(|count| *count == 1),
        "nobody died: no repeats"
    );
    assert!(receiver.held_most.load(Ordering::Relaxed) <= 20);
    let lanes = "SELECT count(*) FROM onetake_lanes
        WHERE taken_until > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    assert_eq!(world.sql(lanes), "0", "who stops gives its lanes back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_die_lose_nothing_and_keep_the_order() {
    let world = World::start().await;
    let receiver = Arc::new(Receiver { pause: Duration::from_millis(1), ..Receiver::default() });
    let options = RelayOptions { hold: Duration::from_secs(2), batch_items: 20, ..hurried() };
    let start = || world.relay(Arc::new(Way(Arc::clone(&receiver))), options.clone());
    let delivered = || receiver.ids.lock().unwrap().len();
    for number in 0..20 {
        world.write("t", 0..50, number..number + 1, 0);
        let before = delivered();
        let dying = start();
        // Relays that died before still hold their lanes for a while.
        until("it is at work", async || delivered() > before).await;
        dying.kill();
    }
    let relay = start();
    world.drained().await;
    relay.stop().await;
    assert_all(&receiver, 50, 20);
}

/// A sink that refuses everything.
#[derive(Debug)]
struct Refusing;

impl Sink for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn deliver<'a>(
        &'a self,
        batch: &'a [PendingMessage],
        _: Duration,
    ) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        let refused = batch.iter().map(|_| Err(SinkError::retry("not now"))).collect();
        std::future::ready(refused).boxed()
    }
}

/// A sink that refuses some keys and accepts the others.
#[derive(Debug)]
struct Picky(Way);

impl Sink for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn deliver<'a>(
        &'a self,
        batch: &'a [PendingMessage],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        let send = async |waiting: &'a PendingMessage| match parse(&waiting.message.payload).0 {
            0..8 => Err(SinkError::retry("not from you")),
            _ => self.0.send(waiting).await,
        };
        in_order(batch, 8, &SystemClock, (within, within), send).boxed()
    }
}

/// However long failed messages have to wait, other messages do not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_fails_keeps_nobody_else_waiting() {
    let world = World::start().await;
    let receiver = Arc::new(Receiver::default());
    let hour = Duration::from_hours(1);
    let pauses = RelayOptions { backoff_min: hour, backoff_max: hour, ..hurried() };
    let options = RelayOptions { fruitless_max: Duration::from_millis(50), ..pauses };
    let relay = world.relay(Arc::new(Picky(Way(Arc::clone(&receiver)))), options);
    world.write("t", 0..8, 0..2, 0);
    until("all of them failed", async || {
        world.sql("SELECT count(*) FROM onetake_outbox WHERE tries = 1") == "8"
    })
    .await;
    world.write("t", 8..20, 0..2, 0);
    until("the others are there", async || receiver.ids.lock().unwrap().len() == 24).await;
    relay.stop().await;
}

/// Messages that failed often, and a relay that starts while the receiver refuses everything. The
/// relay cannot know whose fault that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_delivered_nothing_yet_parks_nothing() {
    let world = World::start().await;
    let options = RelayOptions { tries_max: Some(2), ..hurried() };
    world.write("t", 0..20, 0..2, 0);
    world.sql("UPDATE onetake_outbox SET tries = 5");
    let relay = world.relay(Arc::new(Refusing), options.clone());
    world.tried_meanwhile().await;
    relay.stop().await;
    assert!(world.parked().await.is_empty());
    let receiver = Arc::new(Receiver::default());
    let relay = world.relay(Arc::new(Way(Arc::clone(&receiver))), options);
    world.drained().await;
    relay.stop().await;
    assert_all(&receiver, 20, 2);
}

/// A slow receiver and a short hold for the messages of a turn: every turn makes progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_turn_has_no_time_for_is_left_for_the_next() {
    let world = World::start().await;
    let receiver = Arc::new(Receiver { pause: Duration::from_millis(200), ..Receiver::default() });
    let options = RelayOptions { hold: Duration::from_secs(4), ..hurried() };
    // Six seconds for all of them.
    world.write("t", 0..1, 0..30, 0);
    let relays = [0; 2].map(|_| world.relay(Arc::new(Way(Arc::clone(&receiver))), options.clone()));
    world.drained().await;
    for relay in relays {
        relay.stop().await;
    }
    assert_all(&receiver, 1, 30);
    assert_eq!(receiver.met.load(Ordering::Relaxed), 0, "a turn ends before its hold");
    assert_eq!(world.sql("SELECT count(*) FROM onetake_outbox WHERE tries > 3"), "0");
}

/// The store becomes unreachable in the middle, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_store_ends_no_relay() {
    let server = Postgres::shared().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let way = proxy.address().to_string();
    let world = World::start_behind(|url| url.replace(&server.address().to_string(), &way)).await;
    let receiver = Arc::new(Receiver { pause: Duration::from_millis(1), ..Receiver::default() });
    // A lane whose answer is lost stays taken for this long.
    let options = RelayOptions { hold: Duration::from_secs(3), ..hurried() };
    let relay = world.relay(Arc::new(Way(Arc::clone(&receiver))), options);
    world.write("t", 0..20, 0..10, 0);
    until("some are delivered", async || receiver.ids.lock().unwrap().len() > 5).await;
    for weather in [Weather::Dead, Weather::CutBack, Weather::Cut] {
        proxy.set(weather);
        SystemClock.sleep(Duration::from_millis(200)).await;
        proxy.set(Weather::Fair);
    }
    world.write("t", 0..20, 10..20, 0);
    until("it comes back", async || receiver.ids.lock().unwrap().len() == 400).await;
    until("it is noted", async || {
        world.sql("SELECT count(*) FROM onetake_outbox WHERE state <> 1") == "0"
    })
    .await;
    assert_all(&receiver, 20, 20);
    relay.stop().await;
}

/// Delivered messages are kept for a while, and then deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_delivered_is_deleted_in_time() {
    let world = World::start().await;
    let receiver = Arc::new(Receiver::default());
    let options = RelayOptions {
        kept: Duration::from_millis(200),
        prune_interval: Duration::from_millis(50),
        prune_batch: 7,
        count_interval: Duration::from_millis(50),
        ..hurried()
    };
    world.write("t", 0..20, 0..5, 0);
    let relay = world.relay(Arc::new(Way(Arc::clone(&receiver))), options);
    until("they are gone", async || world.sql("SELECT count(*) FROM onetake_outbox") == "0").await;
    assert_all(&receiver, 20, 5);
    relay.stop().await;
}
