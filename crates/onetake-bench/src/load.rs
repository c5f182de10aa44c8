//! The load generator: a closed loop per connection, one thread per core.
//!
//! It checks every response. A wrong one ends the benchmark.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The body of every request.
const BODY: &str = "{\"amount\":100,\"currency\":\"eur\"}";
/// The length of the upstream's response body.
const RESPONSE_BYTES: usize = 58;

/// The kind of requests in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// No key: the gateway only forwards.
    PassThrough,
    /// A new key in every request.
    Fresh,
    /// Each connection repeats one key.
    Replay,
}

impl Case {
    pub(crate) const ALL: [Self; 3] = [Self::PassThrough, Self::Fresh, Self::Replay];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PassThrough => "pass-through",
            Self::Fresh => "fresh",
            Self::Replay => "replay",
        }
    }
}

/// The load of one run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) to: SocketAddr,
    pub(crate) case: Case,
    /// False if the program records nothing: its answers to a repeated key are not replays.
    pub(crate) records: bool,
    pub(crate) connections: usize,
    pub(crate) lasts: Duration,
    /// A part of every key, so that runs do not share keys.
    pub(crate) run: String,
}

/// The result of one run.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Duration of each request, sorted.
    pub(crate) latencies: Vec<Duration>,
    pub(crate) seconds: f64,
    /// The number of requests that the upstream should have run.
    pub(crate) runs: u64,
}

impl Measured {
    pub(crate) fn requests(&self) -> usize {
        self.latencies.len()
    }

    pub(crate) fn throughput(&self) -> f64 {
        self.requests() as f64 / self.seconds
    }

    /// Returns a quantile of the latency, in milliseconds.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let place = (self.latencies.len() as f64 * part) as usize;
        let found = self.latencies.get(place).or(self.latencies.last());
        found.copied().unwrap_or_default().as_secs_f64() * 1e3
    }
}

impl Load {
    /// Runs the load to its end.
    pub(crate) fn run(self) -> io::Result<Measured> {
        let cores = std::thread::available_parallelism()?.get().min(self.connections.max(1));
        let load = Arc::new(self);
        let threads: Vec<_> = (0..cores)
            .map(|core| {
                let load = Arc::clone(&load);
                std::thread::spawn(move || load.core(core, cores))
            })
            .collect();
        let mut all = Measured { seconds: load.lasts.as_secs_f64(), ..Measured::default() };
        for thread in threads {
            let part = thread.join().map_err(|_| io::Error::other("the load panicked"))??;
            all.latencies.extend(part.latencies);
            all.runs += part.runs;
        }
        all.latencies.sort_unstable();
        Ok(all)
    }

    fn core(&self, core: usize, cores: usize) -> io::Result<Measured> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let until = SystemClock.monotonic() + self.lasts;
            let connections = (core..self.connections).step_by(cores);
            let clients: Vec<_> = connections
                .map(|number| tokio::task::spawn_local(client(self.clone(), number, until)))
                .collect();
            let mut all = Measured::default();
            for client in clients {
                let part = client.await.map_err(io::Error::other)??;
                all.latencies.extend(part.latencies);
                all.runs += part.runs;
            }
            Ok(all)
        })
    }

    /// Writes one request. `number` makes its key unique.
    fn request(&self, into: &mut Vec<u8>, connection: usize, number: u64) {
        use std::io::Write;
        into.clear();
        let _infallible = write!(
            into,
            "POST /v1/charges HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer benchmark\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            self.to,
            BODY.len(),
        );
        let _infallible = match self.case {
            Case::PassThrough => write!(into, "\r\n{BODY}"),
            _ => write!(
                into,
                "idempotency-key: {}-{connection}-{number}-benchmark\r\n\r\n{BODY}",
                self.run
            ),
        };
    }
}

/// Sends requests on one connection until the time is over.
async fn client(load: Load, connection: usize, until: Duration) -> io::Result<Measured> {
    let mut stream = TcpStream::connect(load.to).await?;
    stream.set_nodelay(true)?;
    let (mut request, mut buffer) = (Vec::new(), Vec::new());
    let mut measured = Measured::default();
    let mut recorded: Option<Vec<u8>> = None;
    for number in 0.. {
        let number = if load.case == Case::Replay { 0 } else { number };
        load.request(&mut request, connection, number);
        let from = SystemClock.monotonic();
        if from >= until {
            break;
        }
        stream.write_all(&request).await?;
        let response = read_response(&mut stream, &mut buffer).await?;
        measured.latencies.push(SystemClock.monotonic() - from);
        let is_replay = load.case == Case::Replay && load.records && recorded.is_some();
        measured.runs += u64::from(!is_replay);
        check(&response, &buffer, is_replay, recorded.as_deref())?;
        if recorded.is_none() && load.case == Case::Replay {
            recorded = buffer.get(response.head..).map(<[u8]>::to_vec);
        }
    }
    Ok(measured)
}

/// A response in the buffer.
struct Received {
    status: u16,
    /// The length of the head.
    head: usize,
    is_replay: bool,
}

async fn read_response(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Received> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::Error::other("the connection was closed in place of a response"));
        }
        let Some(end) = buffer.windows(4).position(|found| found == b"\r\n\r\n") else { continue };
        let head = buffer.get(..end).unwrap_or_default();
        let head = std::str::from_utf8(head).map_err(io::Error::other)?;
        let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default();
        let field = |name: &str| {
            head.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let length: usize = field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let is_replay = field("idempotent-replayed") == Some("true");
        if buffer.len() >= end + 4 + length {
            return Ok(Received { status, head: end + 4, is_replay });
        }
    }
}

fn check(
    response: &Received,
    buffer: &[u8],
    is_replay: bool,
    recorded: Option<&[u8]>,
) -> io::Result<()> {
    let body = buffer.get(response.head..).unwrap_or_default();
    let is_right = response.status == 201
        && response.is_replay == is_replay
        && body.len() == RESPONSE_BYTES
        && (!is_replay || recorded == Some(body));
    if is_right {
        return Ok(());
    }
    Err(io::Error::other(format!("a wrong response: {}", String::from_utf8_lossy(buffer))))
}
