//! Real servers, started by the tests that need them.
//!
//! Each listens on a free loopback port, keeps its data in a temporary folder, and ends when it is
//! dropped, or when the test's process ends in any way. A server that is not installed fails the
//! test: `cargo xtask test` installs missing ones.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test without its server fails, and says so by panicking"
)]

mod balancers;
mod child;
mod dynamo;
mod frameworks;
mod grpc;
mod interpreters;
mod nats;
mod peers;
mod postgres;
mod proxies;
mod redis;
mod schemathesis;
mod stripe;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onetake_core::{Clock, SystemClock};

pub use balancers::{BalancedNode, Balancer, BalancerServer};
pub use child::Child;
pub use dynamo::Dynamo;
pub use frameworks::{Framework, FrameworkServer};
pub use grpc::GrpcRuntime;
pub use interpreters::{Interpreter, interpreter};
pub use nats::Nats;
pub use peers::{Peer, PeerServer};
pub use postgres::{PgBouncer, Postgres};
pub use proxies::{ProxyProgram, ProxyServer};
pub use redis::{Flavour, Redis, RedisCluster};
pub use schemathesis::schemathesis;
pub use stripe::{LocalStripe, StripeSdk};

/// The maximum time for the start of a server, and for any condition. Only a test that fails waits
/// that long, so it is generous: other tests may take all cores meanwhile.
const START_MAX: Duration = Duration::from_secs(180);
/// The pause between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The ports for servers. Operating systems choose ports for outgoing connections and for port 0
/// from a higher range. So no other program gets one of these between the check and the server's
/// start, nor while a server is stopped and starts again later.
const PORTS: std::ops::Range<u16> = 10_000..30_000;
/// About the number of ports that the tests of one process need.
const PORTS_OF_A_PROCESS: u32 = 251;

/// Returns a loopback port that was free a moment ago, and that no other test gets.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(PORTS_OF_A_PROCESS);
    let count = u32::from(PORTS.end - PORTS.start);
    let ports = (0..count).filter_map(|_| {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        u16::try_from(number).ok().map(|number| PORTS.start + number)
    });
    let mut free = ports.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().expect("there is a free port")
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Waits until `ready` returns true; panics with `what` if it takes too long.
pub async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let clock = SystemClock;
    let abort = clock.monotonic() + START_MAX;
    while !ready().await {
        assert!(clock.monotonic() < abort, "{what}: not within {START_MAX:?}");
        clock.sleep(LOOK_EVERY).await;
    }
}

/// Returns the folder in which `cargo xtask test` installs tools that the system's package manager
/// does not have.
#[must_use]
pub fn tools() -> PathBuf {
    std::env::var_os("ONETAKE_TOOLS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools")),
        PathBuf::from,
    )
}

/// Returns the path of a program, from one of these folders or `PATH`.
fn program(name: &str, folders: &[PathBuf]) -> PathBuf {
    may_start(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = folders
        .iter()
        .cloned()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    found.unwrap_or_else(|| not_installed(name))
}

/// Returns a folder that `cargo xtask test` fills.
fn tool_folder(name: &str) -> PathBuf {
    may_start(name);
    let folder = tools().join(name);
    if folder.is_dir() { folder } else { not_installed(name) }
}

/// Panics if this program is one of `cargo xtask test --fast`, which must not need servers.
fn may_start(name: &str) {
    let is_fast = std::env::var_os("ONETAKE_NO_SERVERS").is_some();
    assert!(!is_fast, "`{name}` is needed: move this test to a program that needs servers");
}

fn not_installed(name: &str) -> ! {
    panic!("`{name}` is not installed; `cargo xtask test` installs what the tests need")
}
