//! The result of a benchmark: rounds, and what is computed from them.

mod json;
mod svg;
mod table;

use std::io;
use std::path::Path;

pub(crate) use svg::escaped;

/// The figures of one program in one round.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) program: String,
    /// Requests per second.
    pub(crate) throughput: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// CPU time per request.
    pub(crate) cpu_micros: f64,
    /// Bytes that reached the disk, per request.
    pub(crate) written_bytes: f64,
    /// Peak memory of the processes so far.
    pub(crate) peak_mib: f64,
}

/// A figure beside the rounds.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) program: String,
    /// The name of the figure, with its unit.
    pub(crate) what: String,
    pub(crate) value: f64,
}

/// The result of one case at one number of connections.
#[derive(Debug, Default)]
pub(crate) struct Section {
    pub(crate) case: &'static str,
    pub(crate) connections: usize,
    /// Requests per second that were asked for, in an open loop.
    pub(crate) rate: Option<f64>,
    pub(crate) rounds: Vec<Round>,
    /// System calls per request of each program that could be counted.
    pub(crate) system_calls: Vec<(String, f64)>,
    pub(crate) facts: Vec<Fact>,
}

/// All results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    sections: Vec<Section>,
}

/// The figures of one program in one case: medians, and ratios to the first program.
struct Row {
    program: String,
    medians: Medians,
    throughput: Ratio,
    p50: Ratio,
    p99: Ratio,
    cpu: Ratio,
}

struct Medians {
    throughput: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_micros: f64,
    written_bytes: f64,
    peak_mib: f64,
    system_calls: Option<f64>,
}

/// A ratio in the same round: median, lowest and highest.
#[derive(Clone, Copy)]
struct Ratio {
    median: f64,
    low: f64,
    high: f64,
}

impl Report {
    /// Adds a section, and prints it.
    pub(crate) fn add(&mut self, section: Section) {
        table::print(&section);
        self.sections.push(section);
    }

    /// Writes `FILE.json`, and a plot of the ratios as `FILE.svg`.
    pub(crate) fn write(&self, json: &Path) -> io::Result<()> {
        std::fs::write(json, json::text(&self.sections))?;
        std::fs::write(json.with_extension("svg"), svg::text(&self.sections))
    }
}

impl Section {
    fn programs(&self) -> Vec<&str> {
        let mut programs: Vec<&str> = Vec::new();
        for round in &self.rounds {
            if !programs.contains(&round.program.as_str()) {
                programs.push(&round.program);
            }
        }
        programs
    }

    fn rows(&self) -> Vec<Row> {
        let programs = self.programs();
        let first = programs.first().copied().unwrap_or_default();
        programs.iter().map(|program| self.row(program, first)).collect()
    }

    fn row(&self, program: &str, first: &str) -> Row {
        let of = |name: &str| {
            let name = name.to_owned();
            self.rounds.iter().filter(move |round| round.program == name)
        };
        let median = |figure: fn(&Round) -> f64| spread(of(program).map(figure)).median;
        let ratio = |figure: fn(&Round) -> f64| {
            spread(of(program).zip(of(first)).map(|(one, other)| figure(one) / figure(other)))
        };
        let calls = self.system_calls.iter().find(|(name, _)| name == program);
        Row {
            program: program.to_owned(),
            medians: Medians {
                throughput: median(|round| round.throughput),
                p50_ms: median(|round| round.p50_ms),
                p99_ms: median(|round| round.p99_ms),
                cpu_micros: median(|round| round.cpu_micros),
                written_bytes: median(|round| round.written_bytes),
                peak_mib: median(|round| round.peak_mib),
                system_calls: calls.map(|(_, calls)| *calls),
            },
            throughput: ratio(|round| round.throughput),
            p50: ratio(|round| round.p50_ms),
            p99: ratio(|round| round.p99_ms),
            cpu: ratio(|round| round.cpu_micros),
        }
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Ratio {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    Ratio { median: at(values.len() / 2), low: at(0), high: at(values.len().saturating_sub(1)) }
}

/// The machine: its processor, the number of cores, its kernel.
struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
}

impl Machine {
    fn this() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: model.unwrap_or("unknown processor").to_owned(),
            cores: crate::load::cores(),
            kernel: kernel.trim().to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} cores, Linux {}", self.processor, self.cores, self.kernel)
    }
}

/// Returns the name of the machine, for plots.
pub(crate) fn machine() -> String {
    Machine::this().to_string()
}

#[cfg(test)]
mod tests {
    use super::{Round, Section, svg};

    fn round(program: &str, throughput: f64) -> Round {
        Round {
            program: program.to_owned(),
            throughput,
            p50_ms: 1.0,
            p99_ms: 2.0,
            cpu_micros: 10.0,
            written_bytes: 0.0,
            peak_mib: 20.0,
        }
    }

    fn section() -> Section {
        let rounds = [("nginx", 100.0), ("onetake", 90.0), ("nginx", 200.0), ("onetake", 100.0)];
        let rounds = rounds.iter().chain(&[("nginx", 100.0), ("onetake", 80.0)]);
        let rounds = rounds.map(|(program, throughput)| round(program, *throughput)).collect();
        Section { case: "pass-through", connections: 64, rounds, ..Section::default() }
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let rows = section().rows();
        let [nginx, onetake] = rows.as_slice() else { panic!("{} rows", rows.len()) };
        assert_eq!((nginx.throughput.low, nginx.throughput.high), (1.0, 1.0));
        let ratio = onetake.throughput;
        assert_eq!((ratio.low, ratio.median, ratio.high), (0.5, 0.8, 0.9));
        assert_eq!(onetake.medians.throughput, 90.0);
    }

    #[test]
    fn the_plot_has_a_bar_for_each_program() {
        let plot = svg::text(&[section()]);
        assert_eq!(plot.matches("class=\"bar\"").count(), 2, "{plot}");
        assert!(plot.contains("0.80"), "{plot}");
    }
}
