//! The parts of the program that are mutated, and the tests that guard each of them.

use super::text::Language;

/// One part of the program.
#[derive(Debug)]
pub(crate) struct Scope {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// True if a survivor that nobody argued fails the run.
    pub(crate) is_strict: bool,
    /// How its mutants are made and tested.
    pub(crate) kind: Kind,
}

/// A way of making and testing mutants.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Rust, by cargo-mutants.
    Rust {
        /// The files, as globs from the root.
        files: &'static [&'static str],
        /// Files among them that another scope has.
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
}

/// Unit tests and conformance on the memory store.
const CORE: Stage = Stage { packages: &["onetake-core"], arguments: &["--lib", "--tests"] };

/// Tests of the layers above the engine.
const ABOVE: Stage =
    Stage { packages: &["onetake-http", "onetake-sim"], arguments: &["--lib", "--tests"] };

/// Every scope, in the order in which they run.
pub(crate) const SCOPES: &[Scope] = &[
    Scope {
        name: "decide",
        is_strict: true,
        kind: Kind::Rust {
            files: &["crates/onetake-core/src/decide.rs"],
            except: &[],
            stages: &[CORE],
        },
    },
    Scope {
        name: "journal",
        is_strict: true,
        kind: Kind::Rust {
            files: &[
                "crates/onetake-core/src/engine/journal.rs",
                "crates/onetake-stores/src/journal/*.rs",
            ],
            except: &[],
            stages: &[
                Stage { packages: &["onetake-core", "onetake-stores"], arguments: &["--lib"] },
                CORE,
                Stage {
                    packages: &["onetake-cli"],
                    arguments: &["--test", "journal", "--test", "process"],
                },
            ],
        },
    },
    Scope {
        name: "engine",
        is_strict: true,
        kind: Kind::Rust {
            files: &["crates/onetake-core/src/engine/*.rs"],
            except: &["crates/onetake-core/src/engine/journal.rs"],
            stages: &[CORE, ABOVE],
        },
    },
    Scope {
        name: "http",
        is_strict: false,
        kind: Kind::Rust {
            files: &["crates/onetake-http/src/**/*.rs"],
            except: &[],
            stages: &[Stage { packages: &["onetake-http"], arguments: &["--lib", "--tests"] }],
        },
    },
    Scope {
        name: "stores",
        is_strict: false,
        kind: Kind::Rust {
            files: &["crates/onetake-stores/src/**/*.rs"],
            except: &["crates/onetake-stores/src/journal/*.rs"],
            stages: &[
                Stage { packages: &["onetake-stores"], arguments: &["--lib"] },
                Stage { packages: &["onetake-stores"], arguments: &["--tests"] },
            ],
        },
    },
    Scope {
        name: "sql",
        is_strict: false,
        kind: Kind::Text { languages: &[Language::Sqlite, Language::Postgres] },
    },
    Scope { name: "lua", is_strict: false, kind: Kind::Text { languages: &[Language::Lua] } },
];
