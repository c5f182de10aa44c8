//! Tests of delivery to NATS JetStream.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{Config, Stream};
use futures_util::StreamExt;
use onetake_core::SystemClock;
use onetake_relay::{NatsOptions, NatsSink, Sink};
use onetake_sim::servers::{Nats, until};

use super::{World, hurried, parse};

async fn sink(nats: &Nats) -> Arc<dyn Sink> {
    let options = NatsOptions {
        subject_prefix: "test.".to_owned(),
        ack_timeout: Duration::from_millis(500),
        ..NatsOptions::default()
    };
    Arc::new(NatsSink::connect([nats.url()], options, Arc::new(SystemClock)).await.unwrap())
}

async fn stream(nats: &Nats, config: Config) -> Stream {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let config = Config { name: "T".to_owned(), subjects: vec!["test.>".to_owned()], ..config };
    async_nats::jetstream::new(client).create_stream(config).await.unwrap()
}

/// Returns everything in a stream, after checking that no id exists twice and that each key is in
/// order.
async fn kept(stream: &Stream) -> HashMap<u32, Vec<u32>> {
    let count = stream.get_info().await.unwrap().state.messages;
    let consumer = stream.create_consumer(OrderedConfig::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap().take(usize::try_from(count).unwrap());
    let (mut seen, mut kept) = (HashSet::new(), HashMap::<u32, Vec<u32>>::new());
    while let Some(message) = messages.next().await {
        let message = message.unwrap();
        let id = message.headers.as_ref().unwrap().get("Nats-Msg-Id").unwrap().to_string();
        assert!(id.parse::<onetake_core::MessageId>().is_ok(), "{id}");
        if seen.insert(id) {
            let (key, number) = parse(&message.payload);
            kept.entry(key).or_default().push(number);
        }
    }
    kept
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_an_outage_and_a_missing_stream() {
    let (world, mut nats) = (World::start().await, Nats::start().await);
    world.write("paid", 0..20, 0..10, 0);
    let relay = world.relay(sink(&nats).await, hurried());
    let told =
        "SELECT count(*) FROM onetake_outbox WHERE error LIKE '%create one%test.>%' AND tries > 0";
    until("an operator is told what to create", async || world.sql(told) != "0").await;
    assert_eq!(world.sql("SELECT count(*) FROM onetake_outbox WHERE state = 1"), "0");
    let kept_by = stream(&nats, Config::default()).await;
    world.drained().await;
    nats.kill();
    // A writer never uses NATS.
    world.write("paid", 0..20, 10..20, 0);
    world.tried_meanwhile().await;
    nats.restart().await;
    world.drained().await;
    let kept = kept(&kept_by).await;
    assert_eq!(kept.len(), 20);
    for (key, numbers) in kept {
        assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "key {key}");
    }
    assert!(world.parked().await.is_empty(), "a broker that is away is nobody's poison");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_or_has_no_subject_parks_and_the_rest_goes_on() {
    let world = World::start().await;
    let nats = Nats::start_with(&["max_payload: 10000"]).await;
    let kept_by = stream(&nats, Config { max_message_size: 5000, ..Config::default() }).await;
    world.write("paid", 1..2, 0..1, 20_000);
    world.write("paid", 2..3, 0..1, 7_000);
    world.write("no topic", 3..4, 0..1, 0);
    world.write("paid", 1..5, 1..3, 0);
    let relay = world.relay(sink(&nats).await, hurried());
    world.drained().await;
    let parked = world.parked().await;
    assert_eq!(parked.len(), 3, "{parked:?}");
    for parked in &parked {
        let expected = match parse(&parked.waiting.message.payload).0 {
            1 => "max_payload of the NATS server (10000 bytes)",
            2 => "maximum allowed",
            _ => "\"test.no topic\" is not a valid NATS subject",
        };
        assert!(parked.error.contains(expected), "{}", parked.error);
    }
    let kept = kept(&kept_by).await;
    assert!((1..5).all(|key| kept[&key] == [1, 2]), "{kept:?}");
    relay.stop().await;
}

/// An account's limit is lower than the server's, and only the server knows it: it closes the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_for_the_account_parks_and_the_rest_goes_on() {
    let world = World::start().await;
    let account = "accounts { A { jetstream: enabled, users: [ { user: a, password: a } ], limits { max_payload: 3000 } } }";
    let nats = Nats::start_with(&[account, "no_auth_user: a"]).await;
    let kept_by = stream(&nats, Config::default()).await;
    world.write("paid", 1..3, 0..1, 20_000);
    world.write("paid", 3..4, 0..1, 5_000);
    world.write("paid", 0..10, 1..5, 0);
    let relay = world.relay(sink(&nats).await, hurried());
    world.drained().await;
    let parked = world.parked().await;
    let keys: Vec<u32> = parked.iter().map(|one| parse(&one.waiting.message.payload).0).collect();
    assert_eq!(keys, [1, 2, 3]);
    assert!(
        parked.iter().all(|one| one.error.contains("max_payload of the NATS account")),
        "{parked:?}"
    );
    let kept = kept(&kept_by).await;
    assert!((0..10).all(|key| kept[&key] == [1, 2, 3, 4]), "{kept:?}");
    relay.stop().await;
}
