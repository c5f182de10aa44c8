//! Memory and wake-ups of programs with idle connections.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use super::fact;
use crate::case::{Body, Program, Setup, Traffic, Wire};
use crate::load::{Http1, Request, Template, block_on};
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::target::{Stage, Target};
use crate::usage::sleep;

/// The number of idle connections.
const CONNECTIONS: usize = 10_000;
const CONNECTIONS_QUICK: usize = 200;
/// The time for which wake-ups are counted.
const WATCHED: Duration = Duration::from_secs(10);
const WATCHED_QUICK: Duration = Duration::from_secs(1);
/// The time after the start, and after the last request, until a program counts as idle. The gateway
/// parks a connection after a second, and returns memory for some seconds after that.
const SETTLING: Duration = Duration::from_secs(2);
const SETTLING_HELD: Duration = Duration::from_secs(12);

/// Measures the gateway and nginx.
pub(crate) fn idle(
    case: &'static str,
    options: &Options,
    stage: &mut Stage,
) -> io::Result<Section> {
    let connections = if options.is_quick { CONNECTIONS_QUICK } else { CONNECTIONS };
    let watched = if options.is_quick { WATCHED_QUICK } else { WATCHED };
    let mut section = Section { case, connections, ..Section::default() };
    for (name, program) in
        [("nginx", Program::Nginx), ("onetake", Program::Onetake(Setup::Embedded))]
    {
        for target in stage.start(name, program, Traffic::SMALL)? {
            section.facts.extend(watch(&target, connections, watched)?);
        }
    }
    Ok(section)
}

fn watch(target: &Target, connections: usize, watched: Duration) -> io::Result<Vec<Fact>> {
    let mib = || target.usage().resident_kib as f64 / 1024.0;
    sleep(SETTLING);
    let (without, quiet) = (mib(), wake_ups_per_second(target, watched));
    let open = block_on(open(target, connections))?;
    sleep(SETTLING_HELD);
    let (with, held) = (mib(), wake_ups_per_second(target, watched));
    drop(open);
    Ok(vec![
        fact(&target.name, "MiB of memory without connections", without),
        fact(&target.name, "MiB of memory with idle connections", with),
        fact(
            &target.name,
            "KiB per idle connection",
            (with - without) * 1024.0 / connections as f64,
        ),
        fact(&target.name, "wake-ups per second without connections", quiet),
        fact(&target.name, "wake-ups per second with idle connections", held),
    ])
}

fn wake_ups_per_second(target: &Target, watched: Duration) -> f64 {
    let before = target.usage().wake_ups;
    sleep(watched);
    // A thread that ends takes its count with it.
    target.usage().wake_ups.saturating_sub(before) as f64 / watched.as_secs_f64()
}

/// Opens connections, and sends one request on each.
async fn open(target: &Target, connections: usize) -> io::Result<Vec<std::net::TcpStream>> {
    let template = Template::new(target.address, Wire::Http1, Body::Small);
    let (mut open, mut body) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let stream = TcpStream::connect(target.address).await?;
        stream.set_nodelay(true)?;
        let mut channel = Http1::new(stream);
        let head = channel.exchange(&Request { template: &template, key: None }, &mut body).await?;
        if head.status != template.status() {
            return Err(io::Error::other(format!("{}: {head:?}", target.name)));
        }
        open.push(channel.into_stream().into_std()?);
    }
    Ok(open)
}
