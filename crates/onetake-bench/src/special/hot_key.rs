//! Many duplicates of one running key, beside new keys at a steady rate.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use tokio::net::TcpStream;

use super::{fact, median};
use crate::case::{Body, Keys, Wire};
use crate::load::{Answers, Http1, Load, Measured, Request, Template, block_on, cores, on_cores};
use crate::options::Options;
use crate::report::Section;
use crate::run::runs_at;
use crate::target::{Stage, Target};

/// The number of duplicates.
const DUPLICATES: usize = 10_000;
const DUPLICATES_QUICK: usize = 200;
/// The other traffic, in requests per second, and its connections.
const RATE: f64 = 1_000.0;
const CONNECTIONS: usize = 16;
/// Duplicates arrive in this part of a round. Then the operation ends, and all are answered.
const ARRIVING: f64 = 0.5;
/// A route whose duplicates wait for the outcome.
const SECTIONS: &str = "[[route]]\nmatch = \"POST /v1/slow\"\nin_flight = \"wait\"\n\
                        wait_timeout = \"60s\"\n";
/// The least length of a round: with less, the duplicates alone would use all cores.
const ROUND: Duration = Duration::from_secs(4);

/// Measures the other traffic without and with the hot key, in turn.
pub(crate) fn hot_key(
    case: &'static str,
    options: &Options,
    stage: &mut Stage,
) -> io::Result<Section> {
    let duplicates = if options.is_quick { DUPLICATES_QUICK } else { DUPLICATES };
    let lasts = if options.is_quick { options.lasts } else { options.lasts.max(ROUND) };
    let gateway = stage.with_sections(SECTIONS)?;
    let target = stage.start_gateway("onetake", gateway)?;
    let hot = HotKey { to: target.address, duplicates, lasts };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let explain = |error: io::Error| target.explain(&error);
        let others = hot.others(format!("alone-{round}")).run().map_err(explain)?;
        alone.push(others.quantile(0.99));
        let others = hot.round(round, &stage.upstream).map_err(explain)?;
        beside.push(others.quantile(0.99));
    }
    let ratios = alone.iter().zip(&beside).map(|(alone, beside)| beside / alone).collect();
    let mut section = Section { case, connections: CONNECTIONS, ..Section::default() };
    section.rate = Some(RATE);
    let name = "onetake";
    section.facts = vec![
        fact(name, "duplicates, all answered with the outcome of one run", duplicates as f64),
        fact(name, "ms, p99 of other keys without the hot key", median(alone)),
        fact(name, "ms, p99 of other keys beside the hot key", median(beside)),
        fact(name, "times the p99 without it", median(ratios)),
        fact(name, "MiB of peak memory", target.usage().peak_kib as f64 / 1024.0),
    ];
    Ok(section)
}

#[derive(Clone, Copy)]
struct HotKey {
    to: SocketAddr,
    duplicates: usize,
    lasts: Duration,
}

impl HotKey {
    /// Returns the other traffic.
    fn others(&self, run: String) -> Load {
        Load {
            to: self.to,
            wire: Wire::Http1,
            certificate: None,
            body: Body::Small,
            path: None,
            keys: Keys::Fresh,
            answers: Answers::Records,
            connections: CONNECTIONS,
            rate: Some(RATE),
            lasts: self.lasts,
            run,
        }
    }

    /// Runs the other traffic beside the hot key. Checks that the hot key ran once.
    fn round(self, round: usize, upstream: &Target) -> io::Result<Measured> {
        let before = runs_at(upstream.address)?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let duplicates = std::thread::spawn(move || {
            let cores = cores();
            on_cores(cores, move |core| {
                let ready = ready.clone();
                block_on(self.duplicates(round, core, cores, ready))
            })
        });
        // The connections are open before the clock starts.
        for _ in 0..cores() {
            let _failed = is_ready.recv();
        }
        let measured = self.others(format!("beside-{round}")).run()?;
        let bodies =
            duplicates.join().map_err(|_| io::Error::other("the duplicates panicked"))??;
        let bodies: Vec<Vec<u8>> = bodies.into_iter().flatten().collect();
        let runs = runs_at(upstream.address)? - before - measured.runs;
        let same = bodies.first().is_some_and(|first| bodies.iter().all(|body| body == first));
        if runs != 1 || !same || bodies.len() != self.duplicates {
            let count = bodies.len();
            return Err(io::Error::other(format!("{runs} runs, {count} responses")));
        }
        Ok(measured)
    }

    /// Sends this core's duplicates, and returns the bodies of their responses.
    async fn duplicates(
        self,
        round: usize,
        core: usize,
        cores: usize,
        ready: std::sync::mpsc::Sender<()>,
    ) -> io::Result<Vec<Vec<u8>>> {
        let arriving = self.lasts.mul_f64(ARRIVING);
        let mut open = Vec::new();
        for number in (core..self.duplicates).step_by(cores) {
            let stream = TcpStream::connect(self.to).await?;
            stream.set_nodelay(true)?;
            open.push((number, Http1::new(stream)));
        }
        let _gone = ready.send(());
        let begin = SystemClock.monotonic();
        let send = |(number, mut channel): (usize, Http1<TcpStream>)| {
            tokio::task::spawn_local(async move {
                let due = begin + arriving.mul_f64(number as f64 / self.duplicates as f64);
                SystemClock.sleep(due.saturating_sub(SystemClock.monotonic())).await;
                // The operation ends a moment after the last duplicate has arrived.
                let template = Template::slow(self.to, arriving.as_millis() * 11 / 10);
                let key = format!("the-hot-key-of-round-{round}");
                let mut body = Vec::new();
                let request = Request { template: &template, key: Some(&key) };
                let head = channel.exchange(&request, &mut body).await?;
                if head.status == template.status() {
                    return Ok(body);
                }
                Err(io::Error::other(format!("{head:?} {}", String::from_utf8_lossy(&body))))
            })
        };
        let sent: Vec<_> = open.into_iter().map(send).collect();
        let mut bodies = Vec::new();
        for response in sent {
            bodies.push(response.await.map_err(io::Error::other)??);
        }
        Ok(bodies)
    }
}
