//! The system calls of a request through the gateway, and the wake-ups of an idle gateway, have a
//! ceiling. Times are not tested.
//!
//! The gateway is this program itself, started again, with the allocator of the binary. The
//! upstream and the client are in the process of the test, so their calls are not counted.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests may panic, and wait for processes in real time"
)]

#[path = "../common/mod.rs"]
mod common;
mod gateway;

use std::ffi::OsString;
use std::time::Duration;

use common::{Client, RequestKey};
use gateway::Gateway;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Requests before the first that counts: buffers grow, connections are opened.
const WARM_UP: usize = 200;
const REQUESTS: usize = 300;
/// The most rounds until the count is below the ceiling: calls of timers, and of threads that other
/// work delayed, are in some rounds only.
const ROUNDS: usize = 5;

/// The most system calls of one request. Counted in November 2026, with one connection: 6, 27 and 3.
/// Each wait for a socket is one of them. Under load, one wait is for many requests. A fresh request
/// asks whether its connection to the upstream is still open: one call.
const PASS_THROUGH_MAX: f64 = 6.5;
const FRESH_MAX: f64 = 28.5;
const REPLAY_MAX: f64 = 3.5;

/// The most wake-ups of an idle gateway, per second. Counted in November 2026: 2.
const WAKE_UPS_MAX: f64 = 4.0;
/// Idle connections, each after one request.
const IDLE: usize = 20;
/// The time in which wake-ups are counted, and the most times.
const WATCHED: Duration = Duration::from_secs(3);
const WATCHES: usize = 5;

#[test]
fn the_system_calls_of_a_request_have_a_ceiling() {
    let gateway = Gateway::start_counted();
    let mut client = Client::connect(gateway.address);
    for (key, max) in [
        (RequestKey::None, PASS_THROUGH_MAX),
        (RequestKey::Fresh, FRESH_MAX),
        (RequestKey::Repeated, REPLAY_MAX),
    ] {
        for _ in 0..WARM_UP {
            client.send(key);
        }
        let mut rounds = (0..ROUNDS).map(|_| round(&gateway, &mut client, key));
        let least = rounds.find(|calls| *calls <= max);
        assert!(least.is_some(), "{key:?}: more than {max} system calls in each round");
    }
}

/// Returns the mean number of system calls of a request.
fn round(gateway: &Gateway, client: &mut Client, key: RequestKey) -> f64 {
    let before = gateway.system_calls();
    for _ in 0..REQUESTS {
        client.send(key);
    }
    let after = gateway.system_calls();
    let calls: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| (after - before) as f64 / REQUESTS as f64)
        .collect();
    let sum = calls.iter().sum();
    let by_number: Vec<_> = calls.iter().enumerate().filter(|(_, calls)| **calls > 0.0).collect();
    println!("{key:?}: {sum:.2} system calls, by number: {by_number:.2?}");
    sum
}

#[test]
fn the_wake_ups_of_an_idle_gateway_have_a_ceiling() {
    let gateway = Gateway::start();
    let mut open = Vec::new();
    for _ in 0..IDLE {
        let mut client = Client::connect(gateway.address);
        client.send(RequestKey::Fresh);
        open.push(client);
    }
    let mut rates = (0..WATCHES).map(|_| {
        let before = gateway.wake_ups();
        std::thread::sleep(WATCHED);
        // A thread that has ended since does not count, and a new one counts from its start.
        let since = |(thread, count): (OsString, u64)| count - before.get(&thread).unwrap_or(&0);
        let count: u64 = gateway.wake_ups().into_iter().map(since).sum();
        let rate = count as f64 / WATCHED.as_secs_f64();
        println!("{rate:.1} wake-ups per second");
        rate
    });
    let least = rates.find(|rate| *rate <= WAKE_UPS_MAX);
    assert!(least.is_some(), "more than {WAKE_UPS_MAX} wake-ups per second each time");
    drop(open);
}
