//! The parts of the program that are mutated, and the tests of each part.

use super::text::Language;

/// One part of the program.
#[derive(Debug)]
pub(crate) struct Scope {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// True if a survivor without an argument fails the run.
    pub(crate) is_strict: bool,
    /// The way in which its mutants are created and tested.
    pub(crate) kind: MutantKind,
}

/// A way of creating and testing mutants.
#[derive(Debug)]
pub(crate) enum MutantKind {
    /// Rust, by cargo-mutants.
    Rust {
        /// The files, as globs from the root.
        files: &'static [&'static str],
        /// Files among them that belong to another scope, or that are test code.
        except: &'static [&'static str],
        /// Test runs, the fastest first. A run gets the survivors of the run before it.
        stages: &'static [Stage],
    },
    /// Statements and scripts inside the test programs of `onetake-stores`.
    Text {
        /// The languages of this scope.
        languages: &'static [Language],
    },
}

/// Arguments of one `cargo test`.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The packages whose tests run.
    pub(crate) packages: &'static [&'static str],
    /// Further arguments, such as `--lib` and `--test NAME`.
    pub(crate) arguments: &'static [&'static str],
    /// The parts of the names of the tests that run. If there are none, all tests run.
    pub(crate) tests: &'static [&'static str],
    /// True if the tests start servers. Such tests are not ended before they have stopped their
    /// servers.
    pub(crate) starts_servers: bool,
}

impl Stage {
    const fn of(packages: &'static [&'static str], arguments: &'static [&'static str]) -> Self {
        Self { packages, arguments, tests: &[], starts_servers: false }
    }

    const fn only(self, tests: &'static [&'static str]) -> Self {
        Self { tests, ..self }
    }

    const fn with_servers(self) -> Self {
        Self { starts_servers: true, ..self }
    }
}

/// Unit tests and conformance on the memory store.
const CORE: Stage = Stage::of(&["onetake-core"], &["--lib", "--test", "engine"]);

/// The simulation.
const SIMULATION: Stage = Stage::of(&["onetake-sim"], &["--test", "simulation"]);

/// Tests of the HTTP layer.
const HTTP: Stage = Stage::of(&["onetake-http"], &["--lib", "--test", "layer"]);

/// The test programs of the stores.
const STORES_PROGRAMS: &[&str] = &[
    "--test=differential",
    "--test=dynamodb",
    "--test=embedded",
    "--test=postgres",
    "--test=power_loss",
    "--test=redis",
    "--test=redis_filter",
    "--test=sqlite",
];

/// Every scope, in the order in which they run.
pub(crate) const SCOPES: &[Scope] = &[
    Scope {
        name: "decide",
        is_strict: true,
        kind: MutantKind::Rust {
            files: &["crates/onetake-core/src/decide.rs"],
            except: &[],
            stages: &[CORE, SIMULATION],
        },
    },
    Scope {
        name: "journal",
        is_strict: true,
        kind: MutantKind::Rust {
            files: &[
                "crates/onetake-core/src/engine/journal.rs",
                "crates/onetake-stores/src/journal/*.rs",
            ],
            except: &["crates/onetake-stores/src/journal/fuzzing.rs"],
            stages: &[
                Stage::of(&["onetake-core", "onetake-stores"], &["--lib"]),
                CORE,
                SIMULATION,
                Stage::of(&["onetake-cli"], &["--test", "gateway", "--test", "servers"])
                    .only(&["kills_and_signals::", "unsaved_outcomes::"])
                    .with_servers(),
            ],
        },
    },
    Scope {
        name: "engine",
        is_strict: true,
        kind: MutantKind::Rust {
            files: &["crates/onetake-core/src/engine/*.rs"],
            except: &["crates/onetake-core/src/engine/journal.rs"],
            stages: &[CORE, SIMULATION, HTTP],
        },
    },
    Scope {
        name: "jobs",
        is_strict: false,
        kind: MutantKind::Rust {
            files: &["crates/onetake-core/src/job.rs", "crates/onetake-core/src/inbox.rs"],
            except: &[],
            stages: &[CORE],
        },
    },
    Scope {
        name: "http",
        is_strict: false,
        kind: MutantKind::Rust {
            files: &["crates/onetake-http/src/**/*.rs"],
            except: &["crates/onetake-http/src/fuzzing/**/*.rs"],
            stages: &[HTTP],
        },
    },
    Scope {
        name: "stores",
        is_strict: false,
        kind: MutantKind::Rust {
            files: &["crates/onetake-stores/src/**/*.rs"],
            except: &[
                "crates/onetake-stores/src/journal/*.rs",
                "crates/onetake-stores/src/**/fuzzing.rs",
            ],
            stages: &[
                Stage::of(&["onetake-stores"], &["--lib"]),
                Stage::of(&["onetake-stores"], STORES_PROGRAMS).with_servers(),
            ],
        },
    },
    Scope {
        name: "sql",
        is_strict: false,
        kind: MutantKind::Text { languages: &[Language::Sqlite, Language::Postgres] },
    },
    Scope { name: "lua", is_strict: false, kind: MutantKind::Text { languages: &[Language::Lua] } },
];
