//! Runs the cases: contenders in turn, in rounds.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::case::{Case, Contender, Keys, Measure, Traffic};
use crate::flame;
use crate::load::Load;
use crate::options::Options;
use crate::report::{Report, Round, Section};
use crate::special;
use crate::target::{Stage, Target};
use crate::usage::SystemCalls;

/// The length of the run in which system calls are counted.
const COUNTED: Duration = Duration::from_millis(500);

/// Runs the cases, prints their results, and writes them to the file of `--json`.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    let mut stage = Stage::new(options.binary.clone(), options.compare.clone())?;
    let mut report = Report::default();
    for case in &options.cases {
        for section in sections(case, options, &mut stage)? {
            report.add(section);
        }
    }
    options.json.as_ref().map_or(Ok(()), |path| report.write(path))
}

fn sections(case: &Case, options: &Options, stage: &mut Stage) -> io::Result<Vec<Section>> {
    match &case.measure {
        Measure::Load(traffic, contenders) => {
            compare(case.name, *traffic, contenders, options, stage)
        }
        Measure::HotKey => Ok(vec![special::hot_key(case.name, options, stage)?]),
        Measure::Idle => Ok(vec![special::idle(case.name, options, stage)?]),
        Measure::Growth => Ok(vec![special::growth(case.name, options, stage)?]),
        Measure::Sweep => Ok(vec![special::sweep(case.name, options, stage)?]),
    }
}

/// Runs contenders in turn, at each number of connections.
fn compare(
    case: &'static str,
    traffic: Traffic,
    contenders: &[Contender],
    options: &Options,
    stage: &mut Stage,
) -> io::Result<Vec<Section>> {
    let mut targets = Vec::new();
    for contender in contenders {
        let started = stage.start(contender.name, contender.program, traffic)?;
        if started.is_empty() {
            println!("{} is left out: a program is not installed", contender.name);
        }
        targets.extend(started.into_iter().map(|target| (target, contender.keys)));
    }
    let connections = options.connections.clone();
    let connections = connections.unwrap_or_else(|| traffic.connections.to_vec());
    let of_connections = |connections| {
        let rounds = Rounds { case, traffic, connections, options, stage };
        rounds.run(&targets)
    };
    connections.into_iter().map(of_connections).collect()
}

/// The rounds of a case at one number of connections.
pub(crate) struct Rounds<'a> {
    pub(crate) case: &'static str,
    pub(crate) traffic: Traffic,
    pub(crate) connections: usize,
    pub(crate) options: &'a Options,
    pub(crate) stage: &'a Stage,
}

impl Rounds<'_> {
    pub(crate) fn run(&self, targets: &[(Target, Keys)]) -> io::Result<Section> {
        let (connections, rate) = (self.connections, self.options.rate);
        let mut section = Section { case: self.case, connections, rate, ..Section::default() };
        for round in 0..self.options.rounds {
            for (target, keys) in targets {
                let load = self.load(target, *keys, &round.to_string());
                section.rounds.push(measure(target, load, &self.stage.upstream)?);
            }
        }
        for (target, keys) in targets {
            let load = Load { lasts: COUNTED, ..self.load(target, *keys, "counted") };
            let calls = system_calls(target, load)?;
            section.system_calls.extend(calls.map(|calls| (target.name.clone(), calls)));
        }
        if let Some(file) = &self.options.flame {
            // The last one: before it may be that of `--compare`.
            let gateway = targets.iter().rfind(|(target, _)| target.admin.is_some());
            let (target, keys) =
                gateway.ok_or_else(|| io::Error::other("the case of --flame has no gateway"))?;
            let title = format!("{}, case {}, {connections} connections", target.name, self.case);
            let mut load = self.load(target, *keys, "flame");
            if !self.options.is_quick {
                load.lasts = load.lasts.max(flame::LASTS);
            }
            flame::draw(target, load, &title, file)?;
        }
        Ok(section)
    }

    /// Returns the load of one run. `round` is a part of its keys.
    pub(crate) fn load(&self, target: &Target, keys: Keys, round: &str) -> Load {
        Load {
            to: target.address,
            wire: self.traffic.wire,
            certificate: Some(Arc::clone(&self.stage.certificate)),
            body: self.traffic.body,
            path: target.path,
            keys,
            answers: target.answers,
            connections: self.connections,
            rate: self.options.rate,
            lasts: self.options.lasts,
            run: format!("{}-{}-{round}", self.case, self.connections),
        }
    }
}

/// Runs a load on a target, and checks the number of runs at the upstream.
pub(crate) fn measure(target: &Target, load: Load, upstream: &Target) -> io::Result<Round> {
    let counts_at = target.counts_at.unwrap_or(upstream.address);
    let (runs, before) = (runs_at(counts_at)?, target.usage());
    let measured = load.run().map_err(|error| target.explain(&error))?;
    let (runs, after) = (runs_at(counts_at)? - runs, target.usage());
    if runs != measured.runs {
        let what = format!("{}: {runs} runs for {} requests", target.name, measured.runs);
        return Err(io::Error::other(what));
    }
    let responses = measured.responses as f64;
    Ok(Round {
        program: target.name.clone(),
        throughput: measured.throughput(),
        p50_ms: measured.quantile(0.5),
        p99_ms: measured.quantile(0.99),
        cpu_micros: (after.cpu_seconds - before.cpu_seconds) * 1e6 / responses,
        written_bytes: (after.written_bytes - before.written_bytes) as f64 / responses,
        peak_mib: after.peak_kib as f64 / 1024.0,
    })
}

/// Returns the number of system calls per request, if it can be counted.
fn system_calls(target: &Target, load: Load) -> io::Result<Option<f64>> {
    let Some(counter) = SystemCalls::count(&target.processes) else { return Ok(None) };
    let measured = load.run().map_err(|error| target.explain(&error))?;
    Ok(counter.stop().map(|calls| calls / measured.responses as f64))
}

/// Asks a program for the number of its runs.
pub(crate) fn runs_at(address: SocketAddr) -> io::Result<u64> {
    get(address, "/runs")?.parse().map_err(io::Error::other)
}

/// Returns the body of a response whose length is known to the server.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!("GET {path} of {address}: {response}"))),
    }
}
