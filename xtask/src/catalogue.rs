//! The test programs, their subjects and the servers that they need.

/// A test program of a crate: `crates/CRATE/tests/NAME`.
#[derive(Debug)]
pub(crate) struct TestProgram {
    /// The crate.
    pub(crate) package: &'static str,
    /// The program's name, as for `cargo test --test`.
    pub(crate) name: &'static str,
    /// The subject, for the table in CONTRIBUTING.md.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test writes and compares the table"))]
    about: &'static str,
    /// The servers and tools that it needs, or nothing.
    pub(crate) needs: &'static str,
    /// The number of its tests that run at once, if it is not the number of cores.
    pub(crate) tests_at_once: Option<usize>,
}

impl TestProgram {
    /// A program whose tests wait for servers, disks and clocks for most of their time.
    const fn mostly_waits(self) -> Self {
        Self { tests_at_once: Some(4), ..self }
    }
}

const fn program(
    package: &'static str,
    name: &'static str,
    about: &'static str,
    needs: &'static str,
) -> TestProgram {
    TestProgram { package, name, about, needs, tests_at_once: None }
}

/// Every test program. `cargo xtask test` starts them in this order, so long ones come first.
pub(crate) const PROGRAMS: &[TestProgram] = &[
    program(
        "onetake-cli",
        "histories",
        "Histories of concurrent clients on real servers, while processes are killed and networks \
         fail",
        "PostgreSQL, Redis, DynamoDB",
    ),
    program(
        "onetake-stores",
        "postgres",
        "PostgreSQL: conformance, migrations, transactions, outbox, locks, outages",
        "PostgreSQL, PgBouncer",
    )
    .mostly_waits(),
    program(
        "onetake-cli",
        "servers",
        "The gateway on real servers: black-box suite, two nodes on one store, outcomes that are \
         unsaved at shutdown, secrets on disks and in logs, Schemathesis",
        "PostgreSQL, PgBouncer, Redis, DynamoDB, Schemathesis",
    )
    .mostly_waits(),
    program(
        "onetake-cli",
        "gateway",
        "The gateway without servers: commands, kills and signals, admin API, tenants, TLS, \
         reconciliation, traces, log secrecy, black-box suite",
        "",
    )
    .mostly_waits(),
    program(
        "onetake-stores",
        "redis_filter",
        "Redis as a filter in front of another store, in any condition",
        "Redis, PostgreSQL",
    )
    .mostly_waits(),
    program(
        "onetake-stores",
        "redis",
        "Redis: conformance, records, cluster, replicas, outages, velocity limits",
        "Redis, Valkey",
    )
    .mostly_waits(),
    program(
        "onetake-stores",
        "embedded",
        "The embedded store: conformance, its folder, failed commits, encryption",
        "",
    )
    .mostly_waits(),
    program(
        "onetake-stores",
        "differential",
        "Random steps on every store, each answer compared with `decide`",
        "PostgreSQL, Redis, DynamoDB",
    ),
    program("onetake-stores", "dynamodb", "DynamoDB: conformance, network faults", "DynamoDB")
        .mostly_waits(),
    program(
        "onetake-bench",
        "cost_per_request",
        "Ceilings of the allocations of a request through the gateway, and of the memory of an idle connection",
        "",
    ),
    program(
        "onetake-bench",
        "system_calls",
        "Ceilings of the system calls of a request through the gateway, and of the wake-ups of an idle gateway",
        "a C compiler",
    ),
    program(
        "onetake-bench",
        "store_memory",
        "The memory of the embedded store stays near its bound",
        "",
    ),
    program(
        "onetake-sim",
        "model",
        "The exhaustive model: invariants in every state, wrong decisions, deliberate bugs",
        "",
    ),
    program(
        "onetake-stores",
        "power_loss",
        "Power loss, kills, disk faults and bit flips under the embedded store, SQLite and the \
         journal",
        "a C compiler",
    ),
    program(
        "onetake",
        "kill_points",
        "A service that is killed before and after every durable step",
        "PostgreSQL",
    ),
    program(
        "onetake-cli",
        "relay",
        "`onetake relay` as processes: killed, cut off from the broker, operated",
        "PostgreSQL, NATS",
    ),
    program(
        "onetake-cli",
        "peers",
        "`onetake probe` finds the known failures of idempotency middleware from package registries",
        "asgi-idempotency-header, express-idempotency",
    ),
    program(
        "onetake-cli",
        "edge",
        "The gateway with real clients and load balancers: rolling restarts under load, responses \
         that are sent before an upload has ended",
        "PostgreSQL, nginx, HAProxy, Python, Node",
    ),
    program(
        "onetake-cli",
        "proxies",
        "Real proxies: onetake inside Envoy (black-box suite, faults, kills), and the example files of \
         proxies in front of gateways",
        "Envoy, nginx, HAProxy, Caddy, PostgreSQL",
    )
    .mostly_waits(),
    program(
        "onetake-cli",
        "spellings",
        "Spellings of a path that frameworks take for a route: nothing runs without its key. Raw HTTP/1 \
         and HTTP/2, compared with other proxies",
        "Express, Flask, FastAPI, Django, nginx, HAProxy",
    ),
    program(
        "onetake-cli",
        "grpc_clients",
        "gRPC clients of others with their own retries, behind a proxy that loses responses",
        "gRPC for Python and Node",
    ),
    program(
        "onetake-cli",
        "stripe",
        "Stripe's own SDKs with their own retries",
        "Stripe for this machine, Stripe's SDKs for Python and Node",
    ),
    program(
        "onetake-http",
        "layer",
        "The HTTP layer: requests, fingerprints, tenants, policies, 202, unknown outcomes, attacks, \
         every policy in every state",
        "",
    ),
    program(
        "onetake-http",
        "postgres",
        "Every policy in every state of a key, on PostgreSQL",
        "PostgreSQL",
    ),
    program(
        "onetake-client",
        "client",
        "The client for Rust: tower, reqwest, and services with axum",
        "",
    ),
    program("onetake-sim", "simulation", "The simulation: seeds that must pass", ""),
    program(
        "onetake-stores",
        "sqlite",
        "SQLite: conformance, transactions, outbox, shared and full files",
        "",
    ),
    program(
        "onetake-relay",
        "relay",
        "Relays to NATS and to webhooks, several of them, and receivers that misbehave",
        "PostgreSQL, NATS",
    ),
    program(
        "onetake",
        "postgres",
        "The examples `service` and `transfers`, as users run them",
        "PostgreSQL",
    ),
    program(
        "onetake",
        "service",
        "The lifecycle of a service, and the other examples, as users run them",
        "",
    ),
    program(
        "onetake-core",
        "engine",
        "The engine: leases, waiting, journal, limits, unknown outcomes, operators, late claims",
        "",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::PROGRAMS;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn every_test_program_is_in_the_table() {
        let mut found = BTreeSet::new();
        for package in names(&root().join("crates")) {
            let tests = root().join("crates").join(&package).join("tests");
            for name in names(&tests) {
                if let Some(name) = name.strip_suffix(".rs") {
                    found.insert(format!("{package} {name}"));
                } else if tests.join(&name).join("main.rs").is_file() {
                    found.insert(format!("{package} {name}"));
                }
            }
        }
        let listed = PROGRAMS.iter().map(|listed| format!("{} {}", listed.package, listed.name));
        assert_eq!(listed.collect::<BTreeSet<_>>(), found);
    }

    const BEGIN: &str = "<!-- test programs: generated -->\n";
    const END: &str = "<!-- end -->\n";

    #[test]
    fn the_table_is_in_contributing() {
        let file = root().join("CONTRIBUTING.md");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut lines = BTreeSet::new();
        for listed in PROGRAMS {
            let needs = if listed.needs.is_empty() { "none" } else { listed.needs };
            let (package, name) = (listed.package, listed.name);
            lines.insert(format!("| `{package}` | `{name}` | {} | {needs} |\n", listed.about));
        }
        let head = "| crate | program | subject | servers and tools |\n| --- | --- | --- | --- |\n";
        let table = format!("{BEGIN}{head}{}{END}", lines.into_iter().collect::<String>());
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let right = format!("{before}{table}{after}");
        if std::env::var_os("ONETAKE_WRITE_DOCS").is_some() {
            std::fs::write(&file, right).unwrap();
        } else {
            let fix = "write it with ONETAKE_WRITE_DOCS=1 cargo test -p xtask catalogue";
            assert!(text == right, "the table in CONTRIBUTING.md is old: {fix}");
        }
    }
}
