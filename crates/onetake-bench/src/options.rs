//! The options of the benchmark.

use std::path::PathBuf;
use std::time::Duration;

use crate::case::{Case, Group, Measure, Traffic};
use crate::cases::CASES;

pub(crate) const USAGE: &str = "\
cargo xtask bench [options]
cargo xtask bench --parts [--quick] [NAME…]

  --parts               parts of the gateway by themselves, one after the other (default: all)
  --list                the cases and the parts
  --quick               one short round of each case, to see that it runs
  --binary FILE         the onetake binary (default: beside this program)
  --compare FILE        another onetake binary, measured beside it as `base`
  --case NAME           a case or a group of cases; may be repeated (default: all but peers)
  --peers               programs of others too; they are installed with npm, or built
  --connections N,N…    (default: those of each case)
  --rate N              requests per second of all connections, in an open loop
  --rounds N            (default: 5)
  --seconds N           the length of one run, in seconds (default: 2)
  --keys N,N…           live keys of the case growth (default: 100000,1000000)
  --flame FILE.svg      a flame graph of the gateway, with one --case and one number of --connections
  --json FILE           write the result as JSON, and a plot beside it";

/// The settings of a benchmark.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) binary: PathBuf,
    pub(crate) compare: Option<PathBuf>,
    pub(crate) cases: Vec<&'static Case>,
    pub(crate) connections: Option<Vec<usize>>,
    pub(crate) rate: Option<f64>,
    pub(crate) rounds: usize,
    pub(crate) lasts: Duration,
    pub(crate) is_quick: bool,
    pub(crate) keys: Vec<usize>,
    pub(crate) flame: Option<PathBuf>,
    pub(crate) json: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let beside = std::env::current_exe().unwrap_or_default().with_file_name("onetake");
        let mut options = Self {
            binary: beside,
            compare: None,
            cases: Vec::new(),
            connections: None,
            rate: None,
            rounds: 5,
            lasts: Duration::from_secs(2),
            is_quick: false,
            keys: Vec::new(),
            flame: None,
            json: None,
        };
        let mut peers = Vec::new();
        let mut arguments = arguments.iter().copied();
        while let Some(name) = arguments.next() {
            if name == "--quick" {
                (options.rounds, options.lasts) = (1, Duration::from_millis(300));
                options.is_quick = true;
                continue;
            }
            if name == "--peers" {
                peers.extend(CASES.iter().filter(|case| case.group == Group::Peers));
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            options.set(name, value)?;
        }
        if options.cases.is_empty() {
            let is_ours = |case: &&Case| case.group != Group::Peers;
            options.cases = CASES.iter().filter(is_ours).collect();
        }
        options.cases.extend(peers);
        if options.keys.is_empty() {
            options.keys =
                if options.is_quick { vec![1_000, 10_000] } else { vec![100_000, 1_000_000] };
        }
        if options.flame.is_some() && !options.is_one_load() {
            return Err("--flame needs one --case with --connections N, such as \
                        --case fresh --connections 256"
                .to_owned());
        }
        Ok(options)
    }

    /// Returns true if there is one case, which measures a load at one number of connections.
    fn is_one_load(&self) -> bool {
        let is_load = |case: &&Case| matches!(case.measure, Measure::Load(..));
        let has_one = self.connections.as_ref().is_some_and(|numbers| numbers.len() == 1);
        has_one && self.cases.len() == 1 && self.cases.iter().all(is_load)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = || format!("{name} cannot be {value:?}");
        let numbers = || value.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
        match name {
            "--binary" => self.binary = value.into(),
            "--compare" => self.compare = Some(value.into()),
            "--flame" => self.flame = Some(value.into()),
            "--json" => self.json = Some(value.into()),
            "--rounds" => self.rounds = value.parse().map_err(|_| wrong())?,
            "--keys" => self.keys = numbers().map_err(|_| wrong())?,
            "--connections" => self.connections = Some(numbers().map_err(|_| wrong())?),
            "--seconds" => {
                let seconds = value.parse().map_err(|_| wrong())?;
                self.lasts = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
            }
            "--rate" => {
                let rate = value.parse().ok().filter(|rate: &f64| *rate > 0.0);
                self.rate = Some(rate.ok_or_else(wrong)?);
            }
            "--case" => {
                let is_meant = |case: &&Case| case.name == value || case.group.name() == value;
                let cases: Vec<&Case> = CASES.iter().filter(is_meant).collect();
                if cases.is_empty() {
                    return Err(format!("{}. `--list` prints the cases", wrong()));
                }
                self.cases.extend(cases);
            }
            _ => return Err(format!("{name} is not an option")),
        }
        Ok(())
    }

    /// Returns the number of connections of a case that has only one.
    pub(crate) fn connections_of(&self, traffic: &Traffic) -> usize {
        let connections = self.connections.as_deref().unwrap_or(traffic.connections);
        connections.first().copied().unwrap_or(1)
    }
}

/// The parts of the gateway that are measured by themselves: the benches of this package.
const PARTS: &[(&str, &str)] = &[
    ("engine", "the engine on the embedded store, beside a raw log"),
    ("fingerprint", "the fingerprint of one body"),
    ("gateway", "requests through the gateway with clients in one process"),
    ("keys", "pages of the admin API among many keys"),
    ("layer", "the layer inside axum, beside the plain handler"),
    ("memory", "the memory of the embedded store while keys are added"),
    ("outbox", "transactions that write messages, while the broker is killed"),
    ("postgres", "the engine on PostgreSQL, beside the plain SQL pattern and the server's limit"),
];

/// Prints the cases and the parts.
pub(crate) fn list() {
    println!("cases and their groups (--case):");
    for case in CASES {
        println!("  {:<14} {:<8} {}", case.name, case.group.name(), case.about);
    }
    println!("parts (--parts):");
    for (name, about) in PARTS {
        println!("  {name:<23} {about}");
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, PARTS};

    #[test]
    fn a_case_or_a_group_is_named() {
        let names = |arguments: &[&str]| {
            let options = Options::parse(arguments).unwrap();
            options.cases.iter().map(|case| case.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&["--case", "fresh", "--case", "tls"]), ["fresh", "tls"]);
        assert_eq!(names(&["--case", "grpc"]), ["grpc", "grpc-keyed"]);
        assert!(names(&[]).len() > 10);
        assert!(!names(&[]).contains(&"peers-fresh"));
        assert!(names(&["--peers"]).contains(&"peers-fresh"));
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [["--case", "fest"], ["--rate", "0"], ["--rounds", "x"], ["--colour", "red"]] {
            assert!(Options::parse(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn all_benches_are_listed() {
        let benches = include_str!("../Cargo.toml").split("[[bench]]\nname = \"").skip(1);
        let benches: Vec<&str> = benches.filter_map(|rest| rest.split('"').next()).collect();
        let parts: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(parts, benches);
    }

    #[test]
    fn a_flame_graph_is_of_one_load() {
        let parse = |arguments: &str| {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            Options::parse(&arguments).map(|options| options.flame)
        };
        let graph = parse("--flame a.svg --case fresh --connections 256").unwrap();
        assert_eq!(graph, Some("a.svg".into()));
        for wrong in [
            "--flame a.svg",
            "--flame a.svg --case fresh",
            "--flame a.svg --case fresh --connections 64,256",
            "--flame a.svg --case fresh --case replay --connections 64",
            "--flame a.svg --case idle --connections 64",
        ] {
            parse(wrong).unwrap_err();
        }
    }
}
