//! The benchmark of the gateway: `cargo xtask bench`.
//!
//! It starts an upstream, the gateway and the programs beside it, each as a process. The programs
//! run in turn, in several rounds, because machines are noisy. Ratios between programs in the same
//! round are the result. CPU time per request is the steadiest of the figures.

mod load;
mod programs;
mod report;
mod target;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use load::{Case, Load, Measured};
use programs::{Log, Program};
use report::{Report, Round};
use target::Target;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
cargo xtask bench [options]

  --quick               one short round of each case, to see that it runs
  --binary FILE         the onetake binary (default: beside this program)
  --compare FILE        another onetake binary, measured beside it as `base`
  --case NAME           pass-through, fresh or replay; may be repeated (default: all)
  --connections N,N…    (default: 2,64,256)
  --rounds N            (default: 5)
  --seconds N           the length of one run, in seconds (default: 2)
  --json FILE           write the result as JSON";

/// The settings of a benchmark.
#[derive(Debug)]
struct Options {
    binary: PathBuf,
    compare: Option<PathBuf>,
    cases: Vec<Case>,
    connections: Vec<usize>,
    rounds: usize,
    lasts: Duration,
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = match arguments.as_slice() {
        ["serve", name, folder, rest @ ..] => serve(name, folder, rest.first().copied()),
        options => match Options::parse(options) {
            Ok(options) => run(&options),
            Err(error) => {
                eprintln!("{error}\n\n{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the benchmark failed: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let beside = std::env::current_exe().unwrap_or_default().with_file_name("onetake");
        let mut options = Self {
            binary: beside,
            compare: None,
            cases: Vec::new(),
            connections: vec![2, 64, 256],
            rounds: 5,
            lasts: Duration::from_secs(2),
            json: None,
        };
        let mut arguments = arguments.iter().copied();
        while let Some(name) = arguments.next() {
            if name == "--quick" {
                (options.rounds, options.lasts) = (1, Duration::from_millis(300));
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let wrong = || format!("{name} cannot be {value:?}");
            match name {
                "--binary" => options.binary = value.into(),
                "--compare" => options.compare = Some(value.into()),
                "--json" => options.json = Some(value.into()),
                "--rounds" => options.rounds = value.parse().map_err(|_| wrong())?,
                "--seconds" => {
                    let seconds = value.parse().map_err(|_| wrong())?;
                    options.lasts = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
                }
                "--connections" => {
                    let numbers = value.split(',').map(str::parse).collect::<Result<_, _>>();
                    options.connections = numbers.map_err(|_| wrong())?;
                }
                "--case" => {
                    let case = Case::ALL.into_iter().find(|case| case.name() == value);
                    options.cases.push(case.ok_or_else(wrong)?);
                }
                _ => return Err(format!("{name} is not an option")),
            }
        }
        if options.cases.is_empty() {
            options.cases = Case::ALL.to_vec();
        }
        Ok(options)
    }
}

/// Runs one of the programs beside the gateway.
fn serve(name: &str, folder: &str, upstream: Option<&str>) -> io::Result<()> {
    let upstream = upstream.and_then(|address| address.parse().ok());
    let program = match (name, upstream) {
        ("upstream", _) => Program::Upstream(Arc::default()),
        ("proxy", Some(upstream)) => Program::Proxy(upstream),
        ("limit", Some(upstream)) => Program::Limit(upstream, Log::create(folder.as_ref())?),
        _ => return Err(io::Error::other(format!("there is no program {name}"))),
    };
    program.serve()
}

fn run(options: &Options) -> io::Result<()> {
    let upstream = Target::own("upstream", None)?;
    let proxy = Target::own("proxy", Some(upstream.address))?;
    let limit = Target::own("limit", Some(upstream.address))?;
    let nginx = Target::nginx(upstream.address)?;
    if nginx.is_none() {
        println!("nginx is not installed: it is missing in the tables");
    }
    let onetake = Target::onetake("onetake", &options.binary, upstream.address)?;
    let base = options.compare.as_ref();
    let base = base.map(|binary| Target::onetake("base", binary, upstream.address)).transpose()?;
    let mut report = Report::default();
    for case in options.cases.iter().copied() {
        // The first is the one that the others are compared with.
        let first = if case == Case::Fresh { Some(&limit) } else { nginx.as_ref() };
        let beside = (case == Case::PassThrough).then_some(&proxy);
        let targets: Vec<&Target> =
            first.into_iter().chain(beside).chain(&base).chain([&onetake]).collect();
        for connections in options.connections.iter().copied() {
            for round in 0..options.rounds {
                for target in &targets {
                    let load = Load {
                        to: target.address,
                        case,
                        records: target.records,
                        connections,
                        lasts: options.lasts,
                        run: format!("{}-{connections}-{round}", case.name()),
                    };
                    report.add(case, connections, measure(target, load, &upstream)?);
                }
            }
            report.print(case, connections);
        }
    }
    options.json.as_ref().map_or(Ok(()), |path| std::fs::write(path, report.json()))
}

/// Runs a load on a target, and checks the number of runs at the upstream.
fn measure(target: &Target, load: Load, upstream: &Target) -> io::Result<Round> {
    let (runs, before) = (runs_of(upstream)?, target.usage());
    let measured: Measured = load.run()?;
    let (runs, after) = (runs_of(upstream)? - runs, target.usage());
    if runs != measured.runs {
        let what = format!("{}: {runs} runs for {} requests", target.name, measured.runs);
        return Err(io::Error::other(what));
    }
    let requests = measured.requests() as f64;
    Ok(Round {
        target: target.name,
        throughput: measured.throughput(),
        p50_ms: measured.quantile(0.5),
        p99_ms: measured.quantile(0.99),
        cpu_micros: (after.cpu_seconds - before.cpu_seconds) * 1e6 / requests,
        written_bytes: (after.written_bytes - before.written_bytes) as f64 / requests,
        peak_mib: after.peak_kib as f64 / 1024.0,
    })
}

/// Asks the upstream for the number of its runs.
fn runs_of(upstream: &Target) -> io::Result<u64> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(upstream.address)?;
    stream.write_all(b"GET /runs HTTP/1.1\r\nhost: upstream\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let body = response.rsplit("\r\n").next().unwrap_or_default();
    body.parse().map_err(io::Error::other)
}
