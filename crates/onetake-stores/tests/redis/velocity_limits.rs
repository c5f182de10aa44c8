//! Velocity limits that many nodes count together.

use std::time::Duration;

use onetake_core::{Rate, SharedVelocity, Shift, StoreError, VelocityDecision};
use onetake_sim::servers::{Redis, RedisCluster, until};
use onetake_stores::{RedisOptions, RedisVelocity};

use super::prefix;

const CARD: [u8; 32] = [7; 32];

async fn open(url: &str, prefix: &str, shift: &Shift) -> RedisVelocity {
    let (prefix, shift) = (prefix.to_owned(), shift.clone());
    let options = RedisOptions { prefix, shift, ..RedisOptions::default() };
    RedisVelocity::open(url, options).await.unwrap()
}

/// Repeats a test under a new prefix until every request is answered in time. A request without an
/// answer may have been counted, and a busy machine may be slower than the timeout.
async fn until_all_is_answered(play: impl AsyncFn(&str) -> Result<(), StoreError>) {
    until("Redis answers in time", async || play(&prefix()).await.is_ok()).await;
}

async fn wait(velocity: &RedisVelocity, key: [u8; 32], rate: Rate) -> Result<Duration, StoreError> {
    Ok(match velocity.take(key, rate).await? {
        VelocityDecision::Allowed => Duration::ZERO,
        VelocityDecision::Refused { retry_after } => retry_after,
    })
}

#[tokio::test]
async fn nodes_count_together_by_the_servers_clock() {
    let server = Redis::start().await;
    until_all_is_answered(async |prefix| {
        let shift = Shift::default();
        let nodes =
            [open(&server.url(), prefix, &shift).await, open(&server.url(), prefix, &shift).await];
        for (key, text) in [([1; 32], "5/h"), ([2; 32], "3/d"), ([3; 32], "7/h"), ([4; 32], "1/h")]
        {
            let rate: Rate = text.parse().unwrap();
            for turn in 0..rate.count().get() as usize {
                let decision = nodes[turn % 2].take(key, rate).await?;
                assert_eq!(decision, VelocityDecision::Allowed, "{text} {turn}");
            }
            for node in &nodes {
                let wait = wait(node, key, rate).await?;
                assert!(wait <= rate.interval() && wait > rate.interval() / 2, "{text}: {wait:?}");
            }
            shift.advance(rate.interval());
            assert_eq!(nodes[0].take(key, rate).await?, VelocityDecision::Allowed, "{text}");
            assert!(!wait(&nodes[1], key, rate).await?.is_zero(), "{text}");
            nodes[1].give_back(key, rate).await?;
            assert_eq!(
                nodes[0].take(key, rate).await?,
                VelocityDecision::Allowed,
                "{text}: given back"
            );
            assert!(!wait(&nodes[1], key, rate).await?.is_zero(), "{text}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn what_owes_nothing_is_gone() {
    let server = Redis::start().await;
    until_all_is_answered(async |prefix| {
        server.cli(&["FLUSHALL"]);
        let velocity = open(&server.url(), prefix, &Shift::default()).await;
        velocity.take(CARD, "1000/s".parse().unwrap()).await?;
        until("it is deleted", async || server.cli(&["DBSIZE"]) == "0").await;
        let rate = "5/h".parse().unwrap();
        velocity.take(CARD, rate).await?;
        let key = server.cli(&["KEYS", "*"]);
        let left: i64 = server.cli(&["PTTL", &key]).parse().unwrap();
        assert!((600_000..=720_000).contains(&left), "{left}");
        velocity.give_back(CARD, rate).await?;
        assert_eq!(server.cli(&["DBSIZE"]), "0");
        velocity.give_back(CARD, rate).await?;
        assert_eq!(server.cli(&["DBSIZE"]), "0", "nobody has credit");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_goes_back_forgives_nothing_and_blocks_nobody() {
    let server = Redis::start().await;
    until_all_is_answered(async |prefix| {
        let ahead = Shift::default();
        ahead.advance(Duration::from_secs(86_400));
        let rate = "2/h".parse().unwrap();
        let ahead = open(&server.url(), prefix, &ahead).await;
        let back = open(&server.url(), prefix, &Shift::default()).await;
        assert_eq!(ahead.take(CARD, rate).await?, VelocityDecision::Allowed);
        assert_eq!(back.take(CARD, rate).await?, VelocityDecision::Allowed);
        let wait = wait(&back, CARD, rate).await?;
        assert!(wait > Duration::from_secs(900) && wait <= Duration::from_secs(1_800), "{wait:?}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn on_a_cluster() {
    let cluster = RedisCluster::start().await;
    let rate = "2/h".parse().unwrap();
    for value in 0..20 {
        until_all_is_answered(async |prefix| {
            let velocity = open(&cluster.url(), prefix, &Shift::default()).await;
            for _ in 0..2 {
                assert_eq!(velocity.take([value; 32], rate).await?, VelocityDecision::Allowed);
            }
            assert!(!wait(&velocity, [value; 32], rate).await?.is_zero());
            Ok(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_at_once_and_found_later() {
    let mut server = Redis::start().await;
    server.kill();
    let (url, rate) = (server.url(), "1/h".parse().unwrap());
    let velocity = open(&url, &prefix(), &Shift::default()).await;
    assert!(velocity.take(CARD, rate).await.is_err());
    server.restart().await;
    until("Redis is found", async || velocity.take(CARD, rate).await.is_ok()).await;
    assert!(RedisVelocity::open("http://nowhere", RedisOptions::default()).await.is_err());
}
