//! The allocations of a request through the gateway, and the memory of an idle connection, have a
//! ceiling. Times are not tested.
//!
//! Gateway, upstream and client are in this process. The upstream and the client allocate nothing
//! for a request or a connection, so all that is counted is the gateway's.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::alloc::System;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_core::{Clock, SystemClock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const BODY: &str = "{\"amount\":100,\"currency\":\"eur\"}";
const RESPONSE: &[u8] = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n\
                          content-length: 11\r\n\r\n{\"paid\":10}";
/// Requests before the first that counts: buffers grow, connections are opened.
const WARM_UP: usize = 300;
const REQUESTS: usize = 1_000;

/// The most allocations of one request. Counted in November 2026: 40, 163 and 61.
const PASS_THROUGH_MAX: f64 = 46.0;
const FRESH_MAX: f64 = 185.0;
const REPLAY_MAX: f64 = 70.0;

/// Connections that are idle after one request each.
const IDLE: usize = 500;
/// The most memory of an idle connection, in bytes. Counted in November 2026: 2,915.
const IDLE_BYTES_MAX: usize = 4_000;
/// How often the memory is counted until the connections count as idle, and the pause between.
const COUNTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(100);

/// One test, because the allocator counts for the whole process.
#[test]
fn allocations_and_idle_memory_have_a_ceiling() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let any = Some("127.0.0.1:0".parse().unwrap());
    let overrides = Overrides {
        listen: any,
        admin_listen: any,
        upstream: Some(format!("http://{}", upstream())),
        store: Some(format!("embedded:{}", folder.path().display())),
        ..Overrides::default()
    };
    let config = config::load(None, "flags", std::iter::empty(), overrides);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let gateway = runtime.block_on(Gateway::start(config)).unwrap();
    let mut client = Client::connect(gateway.address());
    let pass_through = client.allocations(|_, _| {});
    let fresh = client.allocations(|head, number| {
        write!(head, "idempotency-key: fresh-key-number-{number:08}\r\n").unwrap();
    });
    let replay = client.allocations(|head, _| {
        head.extend_from_slice(b"idempotency-key: repeated-key-00000001\r\n");
    });
    println!("allocations: pass-through {pass_through}, fresh {fresh}, replay {replay}");
    let pause = || runtime.block_on(async { SystemClock.sleep(PAUSE).await });
    let idle = client.idle_bytes(gateway.address(), pause);
    println!("idle connection: {idle} bytes");
    runtime.block_on(gateway.shutdown(Duration::from_secs(10))).unwrap();
    assert!(pass_through <= PASS_THROUGH_MAX, "{pass_through} for a pass-through");
    assert!(fresh <= FRESH_MAX, "{fresh} for a fresh key");
    assert!(replay <= REPLAY_MAX, "{replay} for a replay");
    assert!(idle <= IDLE_BYTES_MAX, "{idle} bytes for an idle connection");
}

/// A client that reuses its buffers.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, request: Vec::with_capacity(4096), response: vec![0; 4096] }
    }

    /// Returns the mean number of allocations of a request. `key` writes the line with its key.
    fn allocations(&mut self, key: impl Fn(&mut Vec<u8>, usize)) -> f64 {
        for number in 0..WARM_UP {
            self.send(|head| key(head, number));
        }
        let region = Region::new(ALLOCATOR);
        for number in WARM_UP..WARM_UP + REQUESTS {
            self.send(|head| key(head, number));
        }
        let change = region.change();
        (change.allocations + change.reallocations) as f64 / REQUESTS as f64
    }

    /// Opens connections, sends a request on each, and returns the mean memory of one of them. It
    /// is counted again until it is below the ceiling.
    fn idle_bytes(&mut self, address: SocketAddr, pause: impl Fn()) -> usize {
        let mut open = Vec::with_capacity(IDLE);
        let region = Region::new(ALLOCATOR);
        for _ in 0..IDLE {
            let stream = TcpStream::connect(address).unwrap();
            open.push(std::mem::replace(&mut self.stream, stream));
            self.send(|_| {});
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

    fn send(&mut self, key: impl Fn(&mut Vec<u8>)) {
        self.request.clear();
        self.request.extend_from_slice(
            b"POST /v1/charges HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer tests\r\n\
              content-type: application/json\r\n",
        );
        key(&mut self.request);
        write!(self.request, "content-length: {}\r\n\r\n{BODY}", BODY.len()).unwrap();
        self.stream.write_all(&self.request).unwrap();
        let mut read = 0;
        while !self.response.get(..read).unwrap().ends_with(b"{\"paid\":10}") {
            let more = self.stream.read(self.response.get_mut(read..).unwrap()).unwrap();
            assert!(more > 0, "the connection was closed");
            read += more;
        }
        assert!(self.response.starts_with(b"HTTP/1.1 201"));
    }
}

/// Starts an upstream that answers every request with the same bytes.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || serve(&mut stream));
        }
    });
    address
}

fn serve(stream: &mut TcpStream) {
    let mut buffer = [0; 8192];
    let mut read = 0;
    while let Ok(more @ 1..) = stream.read(buffer.get_mut(read..).unwrap()) {
        read += more;
        if buffer.get(..read).unwrap().ends_with(BODY.as_bytes()) {
            read = 0;
            stream.write_all(RESPONSE).unwrap();
        }
    }
}
