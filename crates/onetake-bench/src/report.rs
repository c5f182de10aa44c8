//! The result of a benchmark as a table and as JSON.

use serde_json::{Value, json};

use crate::load::Case;

/// The figures of one program in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) target: &'static str,
    /// Requests per second.
    pub(crate) throughput: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// CPU time per request.
    pub(crate) cpu_micros: f64,
    /// Bytes that reached the disk, per request.
    pub(crate) written_bytes: f64,
    /// Peak memory of the process so far.
    pub(crate) peak_mib: f64,
}

/// All rounds of all cases.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rounds: Vec<(Case, usize, Round)>,
}

/// The figures of one program in one case: medians, and ratios to the first program.
struct Row {
    target: &'static str,
    medians: [f64; 6],
    throughput: Ratio,
    p99: Ratio,
    cpu: Ratio,
}

/// A ratio in the same round: median, lowest and highest.
#[derive(Clone, Copy)]
struct Ratio {
    median: f64,
    low: f64,
    high: f64,
}

impl Report {
    pub(crate) fn add(&mut self, case: Case, connections: usize, round: Round) {
        self.rounds.push((case, connections, round));
    }

    /// Prints the table of one case.
    pub(crate) fn print(&self, case: Case, connections: usize) {
        println!("\n{}, {connections} connections", case.name());
        println!(
            "  {:<9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}   ratios to the first (lowest to highest)",
            "", "requests", "p50 ms", "p99 ms", "CPU µs", "bytes", "MiB"
        );
        for row in self.rows(case, connections) {
            let [throughput, p50, p99, cpu, bytes, mib] = row.medians;
            let show = |ratio: Ratio| {
                format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high)
            };
            println!(
                "  {:<9} {throughput:>7.0}/s {p50:>8.3} {p99:>8.3} {cpu:>8.1} {bytes:>8.0} {mib:>8.0}   \
                 requests {}, p99 {}, CPU {}",
                row.target,
                show(row.throughput),
                show(row.p99),
                show(row.cpu),
            );
        }
    }

    /// Returns the whole result, with the machine.
    pub(crate) fn json(&self) -> String {
        let mut cases = Vec::new();
        let mut seen = Vec::new();
        for (case, connections, _) in &self.rounds {
            if seen.contains(&(*case, *connections)) {
                continue;
            }
            seen.push((*case, *connections));
            let programs: Vec<Value> = self.rows(*case, *connections).iter().map(value).collect();
            let (case, programs) = (case.name(), Value::from(programs));
            cases.push(json!({"case": case, "connections": connections, "programs": programs}));
        }
        let result = json!({"machine": machine(), "cases": cases});
        format!("{result:#}\n")
    }

    fn rows(&self, case: Case, connections: usize) -> Vec<Row> {
        let of_case =
            self.rounds.iter().filter(|(of, with, _)| (*of, *with) == (case, connections));
        let rounds: Vec<&Round> = of_case.map(|(_, _, round)| round).collect();
        let mut targets: Vec<&'static str> = Vec::new();
        for round in &rounds {
            if !targets.contains(&round.target) {
                targets.push(round.target);
            }
        }
        let of = |target: &'static str| rounds.iter().filter(move |round| round.target == target);
        let first = targets.first().copied().unwrap_or_default();
        let row = |target| {
            let figure =
                |figure: fn(&Round) -> f64| sorted(of(target).map(|round| figure(round))).median;
            let ratio = |figure: fn(&Round) -> f64| {
                sorted(of(target).zip(of(first)).map(|(one, other)| figure(one) / figure(other)))
            };
            Row {
                target,
                medians: [
                    figure(|round| round.throughput),
                    figure(|round| round.p50_ms),
                    figure(|round| round.p99_ms),
                    figure(|round| round.cpu_micros),
                    figure(|round| round.written_bytes),
                    figure(|round| round.peak_mib),
                ],
                throughput: ratio(|round| round.throughput),
                p99: ratio(|round| round.p99_ms),
                cpu: ratio(|round| round.cpu_micros),
            }
        };
        targets.iter().copied().map(row).collect()
    }
}

fn value(row: &Row) -> Value {
    let [throughput, p50, p99, cpu, bytes, mib] = row.medians;
    let ratio = |ratio: Ratio| json!([ratio.median, ratio.low, ratio.high]);
    json!({
        "program": row.target,
        "requests_per_second": throughput,
        "p50_ms": p50,
        "p99_ms": p99,
        "cpu_micros_per_request": cpu,
        "written_bytes_per_request": bytes,
        "peak_mib": mib,
        "ratio_to_first": {
            "requests": ratio(row.throughput),
            "p99": ratio(row.p99),
            "cpu": ratio(row.cpu),
        },
    })
}

fn sorted(values: impl Iterator<Item = f64>) -> Ratio {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    Ratio { median: at(values.len() / 2), low: at(0), high: at(values.len().saturating_sub(1)) }
}

/// Names the machine: its processor and the number of cores.
fn machine() -> Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    json!({"processor": model, "cores": cores, "kernel": kernel.trim()})
}
