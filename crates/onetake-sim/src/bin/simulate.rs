//! Runs simulations: `onetake-simulate --seeds 10000`, or one seed again with `--seed N --trace`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::simulation::{Simulator, Violation, Without, shrink, simulate};

const USAGE: &str = "\
onetake-simulate --seeds N [--from SEED] [--minutes M] [--threads T] [--no-shrink]
    runs seeds from SEED on, until N are done, M minutes are over, or one fails
onetake-simulate --seed SEED [--without-operations LIST] [--without-clients LIST]
    [--without-faults LIST] [--without-noise] [--without-upstream-noise] [--trace]
    runs one seed again, with parts of its plan left out; a client is OPERATION:CLIENT";

/// The arguments of the command line.
#[derive(Debug, Default)]
struct Arguments {
    seeds: Option<u64>,
    from: u64,
    minutes: Option<u64>,
    threads: Option<usize>,
    seed: Option<u64>,
    without: Without,
    traces: bool,
    shrinks_not: bool,
}

fn main() -> ExitCode {
    match arguments() {
        Some(Arguments { seed: Some(seed), without, traces, .. }) => one(seed, &without, traces),
        Some(arguments) if arguments.seeds.is_some() || arguments.minutes.is_some() => {
            many(&arguments)
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn arguments() -> Option<Arguments> {
    let mut given = std::env::args().skip(1);
    let mut arguments = Arguments::default();
    while let Some(name) = given.next() {
        match &*name {
            "--trace" => arguments.traces = true,
            "--no-shrink" => arguments.shrinks_not = true,
            "--without-noise" => arguments.without.noise = true,
            "--without-upstream-noise" => arguments.without.upstream_noise = true,
            "--without-operations" => arguments.without.operations = list(&given.next()?, number)?,
            "--without-clients" => arguments.without.clients = list(&given.next()?, client)?,
            "--without-faults" => arguments.without.faults = list(&given.next()?, number)?,
            "--seeds" => arguments.seeds = Some(given.next()?.parse().ok()?),
            "--from" => arguments.from = given.next()?.parse().ok()?,
            "--minutes" => arguments.minutes = Some(given.next()?.parse().ok()?),
            "--threads" => arguments.threads = Some(given.next()?.parse().ok()?),
            "--seed" => arguments.seed = Some(given.next()?.parse().ok()?),
            _ => return None,
        }
    }
    Some(arguments)
}

fn list<T>(text: &str, part: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').map(part).collect()
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok()
}

/// Reads the numbers of an operation and of one of its clients.
fn client(text: &str) -> Option<(usize, usize)> {
    let (operation, client) = text.split_once(':')?;
    Some((number(operation)?, number(client)?))
}

fn one(seed: u64, without: &Without, traces: bool) -> ExitCode {
    let plan = without.plan(seed);
    if traces {
        println!("{plan:#?}");
    }
    let report = Simulator::run(plan, traces);
    for line in &report.trace {
        println!("{line}");
    }
    println!("seed {seed}: {} events, trace hash {:016x}", report.events, report.hash);
    match report.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

fn many(arguments: &Arguments) -> ExitCode {
    let (clock, from) = (SystemClock, arguments.from);
    let began = clock.monotonic();
    let end = arguments.minutes.map(|minutes| began + Duration::from_secs(60 * minutes));
    let count = arguments.seeds.unwrap_or(u64::MAX);
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let threads = arguments.threads.unwrap_or(available);
    let (next, done, events) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let hashes = AtomicU64::new(0);
    let (stop, failed) = (AtomicBool::new(false), Mutex::new(None::<(u64, Violation)>));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || end.is_some_and(|end| clock.monotonic() >= end) {
                        return;
                    }
                    let report = simulate(from + number);
                    done.fetch_add(1, Ordering::Relaxed);
                    events.fetch_add(report.events, Ordering::Relaxed);
                    hashes.fetch_xor(report.hash, Ordering::Relaxed);
                    if let Some(violation) = report.violation {
                        stop.store(true, Ordering::Relaxed);
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // The smallest seed of those that failed at the same time.
                        if failed.as_ref().is_none_or(|(seed, _)| *seed > from + number) {
                            *failed = Some((from + number, violation));
                        }
                    }
                }
            });
        }
    });
    let seconds = (clock.monotonic() - began).as_secs_f64();
    let (done, events) = (done.into_inner(), events.into_inner());
    println!(
        "{done} seeds from {from} on, {events} events, {seconds:.1} s, {:.0} seeds a second, trace hashes {:016x}",
        done as f64 / seconds.max(0.001),
        hashes.into_inner()
    );
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Some((seed, violation)) = failed else {
        println!("no invariant was broken");
        return ExitCode::SUCCESS;
    };
    println!("seed {seed}: {violation}\nrepeat it with: cargo xtask sim --seed {seed} --trace");
    if arguments.shrinks_not {
        return ExitCode::FAILURE;
    }
    let (without, violation) = shrink(seed, &violation);
    println!(
        "shrunk: {violation}\nrepeat it with: cargo xtask sim {} --trace",
        without.arguments(seed)
    );
    ExitCode::FAILURE
}
