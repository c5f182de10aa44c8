//! The load generator, with one thread per core.
//!
//! Each connection sends one request at a time: the next one at once (closed loop), or at a fixed
//! rate (open loop). In an open loop, latency counts from the intended time of a request. So a
//! program that stalls is charged for the requests that waited meanwhile. Every response is
//! checked, and a wrong one ends the benchmark.

mod channel;
mod http1;
mod http2;
mod request;
mod schedule;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};

use crate::case::{Body, Keys, Wire};
use channel::{Channel, Channels};
pub(crate) use http1::Http1;
use request::Head;
pub(crate) use request::{Request, Template, grpc_message};
use schedule::Schedule;
pub(crate) use tls::Certificate;

/// The load of one run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) to: SocketAddr,
    pub(crate) wire: Wire,
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) body: Body,
    /// The path, if it is not that of the upstream.
    pub(crate) path: Option<&'static str>,
    pub(crate) keys: Keys,
    pub(crate) answers: Answers,
    pub(crate) connections: usize,
    /// Requests per second of all connections together; `None` for a closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) lasts: Duration,
    /// A part of every key, so that runs do not share keys.
    pub(crate) run: String,
}

/// The behaviour of a program, which decides which responses are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// It forwards every request.
    Forwards,
    /// It answers every request itself.
    Alone,
    /// It records outcomes, and marks replays in a header.
    Records,
    /// It records outcomes, and replays look like the first response.
    RecordsUnmarked,
}

impl Answers {
    fn has_records(self) -> bool {
        matches!(self, Self::Records | Self::RecordsUnmarked)
    }
}

/// The result of one run.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Duration of each request, sorted. In an open loop this includes requests that were due and
    /// could not be sent.
    pub(crate) latencies: Vec<Duration>,
    /// The number of responses.
    pub(crate) responses: u64,
    pub(crate) seconds: f64,
    /// The number of requests that should have run.
    pub(crate) runs: u64,
}

impl Measured {
    pub(crate) fn throughput(&self) -> f64 {
        self.responses as f64 / self.seconds
    }

    /// Returns a quantile of the latency, in milliseconds.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let place = (self.latencies.len() as f64 * part) as usize;
        let found = self.latencies.get(place).or(self.latencies.last());
        found.copied().unwrap_or_default().as_secs_f64() * 1e3
    }

    fn add(&mut self, part: Self) {
        self.latencies.extend(part.latencies);
        self.responses += part.responses;
        self.runs += part.runs;
    }
}

/// Runs a function on a thread for each core, and returns the results.
pub(crate) fn on_cores<T: Send + 'static>(
    cores: usize,
    of_core: impl Fn(usize) -> io::Result<T> + Send + Sync + 'static,
) -> io::Result<Vec<T>> {
    let of_core = Arc::new(of_core);
    let start = |core| {
        let of_core = Arc::clone(&of_core);
        std::thread::spawn(move || of_core(core))
    };
    let threads: Vec<_> = (0..cores).map(start).collect();
    let join = |thread: std::thread::JoinHandle<io::Result<T>>| {
        thread.join().map_err(|_| io::Error::other("the load panicked"))?
    };
    threads.into_iter().map(join).collect()
}

/// Runs a future on a runtime of this thread's own.
pub(crate) fn block_on<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl Load {
    /// Runs the load to its end.
    pub(crate) fn run(self) -> io::Result<Measured> {
        let cores = cores().min(self.connections.max(1));
        let mut all = Measured { seconds: self.lasts.as_secs_f64(), ..Measured::default() };
        for part in on_cores(cores, move |core| block_on(self.core(core, cores)))? {
            all.add(part);
        }
        all.latencies.sort_unstable();
        Ok(all)
    }

    async fn core(&self, core: usize, cores: usize) -> io::Result<Measured> {
        let mut channels = Channels::new(self);
        let mut open = Vec::new();
        for number in (core..self.connections).step_by(cores) {
            open.push((number, channels.open().await?));
        }
        let begin = SystemClock.monotonic();
        let load = Arc::new(self.clone());
        let clients: Vec<_> = open
            .into_iter()
            .map(|(number, channel)| {
                let load = Arc::clone(&load);
                tokio::task::spawn_local(client(load, channel, number, begin))
            })
            .collect();
        let mut all = Measured::default();
        for client in clients {
            all.add(client.await.map_err(io::Error::other)??);
        }
        Ok(all)
    }
}

/// Sends requests on one connection until the time is over.
async fn client(
    load: Arc<Load>,
    mut channel: Channel,
    connection: usize,
    begin: Duration,
) -> io::Result<Measured> {
    let template = Template::new(load.to, load.wire, load.body).at(load.path);
    let until = begin + load.lasts;
    let mut schedule = Schedule::new(&load, connection, begin)?;
    let mut measured = Measured::default();
    let (mut key, mut body, mut earlier) = (String::new(), Vec::new(), Vec::new());
    for number in 0_u64.. {
        let Some(from) = schedule.next(number).await? else { break };
        let sent = load.keys.of_request(number);
        if let Some((sent, _)) = sent {
            use std::fmt::Write;
            key.clear();
            let _infallible = write!(key, "{}-{connection}-{sent}-benchmark", load.run);
        }
        let request = Request { template: &template, key: sent.is_some().then_some(key.as_str()) };
        let head = channel.exchange(&request, &mut body).await?;
        let now = SystemClock.monotonic();
        measured.latencies.push(now - from);
        measured.responses += 1;
        let is_repeated = sent.is_some_and(|(_, is_repeated)| is_repeated);
        let is_replay = is_repeated && load.answers.has_records();
        measured.runs += u64::from(!is_replay && load.answers != Answers::Alone);
        check(&load, &template, &head, &body, is_replay.then_some(&earlier))?;
        if !is_repeated {
            std::mem::swap(&mut earlier, &mut body);
        }
    }
    measured.latencies.extend(schedule.unsent(until));
    Ok(measured)
}

/// Checks a response. `earlier` is the body that a replay must have.
fn check(
    load: &Load,
    template: &Template,
    head: &Head,
    body: &[u8],
    earlier: Option<&Vec<u8>>,
) -> io::Result<()> {
    let is_marked = load.answers == Answers::Records && earlier.is_some();
    let is_of_others = load.answers == Answers::RecordsUnmarked && head.status == 200;
    let is_right = (head.status == template.status() || is_of_others)
        && head.is_replay == is_marked
        && body.len() == template.response_bytes()
        && earlier.is_none_or(|earlier| earlier == body);
    if is_right {
        return Ok(());
    }
    let body = String::from_utf8_lossy(body.get(..200).unwrap_or(body));
    Err(io::Error::other(format!("a wrong response: {head:?} {body}")))
}
