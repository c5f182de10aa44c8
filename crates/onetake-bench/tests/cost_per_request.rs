//! The allocations of a request through the gateway, and the memory of an idle connection, have a
//! ceiling. Times are not tested.
//!
//! Gateway, upstream and client are in this process. The upstream and the client allocate nothing
//! for a request or a connection, so all that is counted is the gateway's.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod common;

use std::alloc::System;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::{Client, RequestKey};
use onetake_cli::gateway::Gateway;
use onetake_core::{Clock, SystemClock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Requests before the first that counts: buffers grow, connections are opened.
const WARM_UP: usize = 300;
const REQUESTS: usize = 1_000;

/// The most allocations of one request. Counted in November 2026: 17, 116 and 30.
const PASS_THROUGH_MAX: f64 = 20.0;
const FRESH_MAX: f64 = 130.0;
const REPLAY_MAX: f64 = 34.0;

/// Connections that are idle after one request each.
const IDLE: usize = 500;
/// The most memory of an idle connection, in bytes. Counted in November 2026: 3,059.
const IDLE_BYTES_MAX: usize = 4_000;
/// How often the memory is counted until the connections count as idle, and the pause between.
const COUNTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(100);

/// One test, because the allocator counts for the whole process.
#[test]
fn allocations_and_idle_memory_have_a_ceiling() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = common::config(&common::upstream().to_string(), folder.path());
    let gateway = runtime.block_on(Gateway::start(config)).unwrap();
    let mut client = Client::connect(gateway.address());
    let pass_through = allocations(&mut client, RequestKey::None);
    let fresh = allocations(&mut client, RequestKey::Fresh);
    let replay = allocations(&mut client, RequestKey::Repeated);
    println!("allocations: pass-through {pass_through}, fresh {fresh}, replay {replay}");
    let pause = || runtime.block_on(async { SystemClock.sleep(PAUSE).await });
    let idle = idle_bytes(&mut client, gateway.address(), pause);
    println!("idle connection: {idle} bytes");
    runtime.block_on(gateway.shutdown(Duration::from_secs(10))).unwrap();
    assert!(pass_through <= PASS_THROUGH_MAX, "{pass_through} for a pass-through");
    assert!(fresh <= FRESH_MAX, "{fresh} for a fresh key");
    assert!(replay <= REPLAY_MAX, "{replay} for a replay");
    assert!(idle <= IDLE_BYTES_MAX, "{idle} bytes for an idle connection");
}

/// Returns the mean number of allocations of a request.
fn allocations(client: &mut Client, key: RequestKey) -> f64 {
    for _ in 0..WARM_UP {
        client.send(key);
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..REQUESTS {
        client.send(key);
    }
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / REQUESTS as f64
}

/// Opens connections, sends a request on each, and returns the mean memory of one of them. It is
/// counted again until it is below the ceiling.
fn idle_bytes(client: &mut Client, address: SocketAddr, pause: impl Fn()) -> usize {
    let mut open = Vec::with_capacity(IDLE);
    let region = Region::new(ALLOCATOR);
    for _ in 0..IDLE {
        let stream = TcpStream::connect(address).unwrap();
        open.push(std::mem::replace(&mut client.stream, stream));
        client.send(RequestKey::None);
    }
    let bytes = || {
        let change = region.change();
        change.bytes_allocated.saturating_sub(change.bytes_deallocated) / IDLE
    };
    for _ in 0..COUNTS {
        if bytes() <= IDLE_BYTES_MAX {
            break;
        }
        pause();
    }
    bytes()
}
