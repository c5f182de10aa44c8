//! The command line: subcommands, flags and exit codes.
//!
//! Exit codes:
//!
//! - 0: success.
//! - 1: a failure at run time, `doctor` found a broken setting, or a check of `probe` failed.
//! - 2: wrong usage or configuration.
//! - 3: the store or a listener could not be opened, or the admin API or the target of `probe` could
//!   not be reached.
//! - 4: the key does not exist, or is not in the expected state.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use onetake_core::{Clock, ErrorChain, StoreError, SystemClock};
use onetake_stores::Weight;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config, ConfigError, Forwarder, Input, Overrides, StoreConfig};
use crate::demo::{self, DemoError, Screen};
use crate::doctor::{self, Format};
use crate::gateway::{self, Gateway, StartError};
use crate::keys::Keys;
use crate::logs::{self, LogFormat};
use crate::probe::Probe;
use crate::relay;
use crate::stores::{self, MigrationNaming};
use crate::traces::{self, Export};

/// Makes any HTTP API safe to retry: one key, one run, one recorded outcome.
#[derive(Debug, Parser)]
#[command(name = "onetake", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway in front of an HTTP API.
    Serve(Serve),
    /// Run as an external processor of Envoy, in place of the gateway.
    #[cfg(feature = "ext-proc")]
    ExtProc(ExtProc),
    /// Compare payments over a bad connection with and without onetake, in a few seconds.
    Demo(Demo),
    /// Check a configuration file and the certificates that it names, and report every error.
    Check {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Print the options of every route, and where each value comes from.
        #[arg(long)]
        explain: bool,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the JSON Schema of the configuration file, for editors and other tools.
    Schema,
    /// Create or update the tables and indexes of the store.
    Migrate {
        #[command(flatten)]
        store: StoreArguments,
        /// Write the PostgreSQL schema to this folder instead, one file for each version, for a
        /// migration tool.
        #[arg(long, value_name = "FOLDER", conflicts_with_all = ["config", "store"])]
        write: Option<PathBuf>,
        /// The migration tool that the files of --write are named for.
        #[arg(long, value_enum, default_value_t, requires = "write")]
        naming: MigrationNaming,
    },
    /// Inspect and change keys through the admin API of a running gateway.
    Keys(Keys),
    /// Deliver the messages of the outbox to NATS JetStream or to a webhook.
    Relay(relay::Arguments),
    /// Check whether an HTTP API is idempotent: send requests, retries and malformed keys to it.
    Probe(Box<Probe>),
    /// Check the store for settings that could lose or repeat operations.
    Doctor {
        #[command(flatten)]
        store: StoreArguments,
        /// The output format.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// Arguments of commands that need only a store.
#[derive(Debug, Args)]
struct StoreArguments {
    /// The configuration file that names the store.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store (default: the configured one, else embedded:./onetake-data).
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

#[derive(Debug, Args)]
struct Serve {
    /// The configuration file. Without it, only flags and environment variables apply.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The API that requests are forwarded to, such as http://127.0.0.1:3000.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// The address that clients connect to (default 127.0.0.1:8080).
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    /// The address for operators, probes and metrics (default 127.0.0.1:9091).
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    admin_listen: Option<SocketAddr>,
    /// The store for keys and outcomes (default embedded:./onetake-data).
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The log format.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// On shutdown, how many seconds to wait for running requests, in place of
    /// gateway.shutdown_limit.
    #[arg(long, value_name = "SECONDS")]
    drain_seconds: Option<u64>,
}

#[cfg(feature = "ext-proc")]
#[derive(Debug, Args)]
struct ExtProc {
    /// The configuration file. Without it, only environment variables apply.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The log format.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// On shutdown, how many seconds to wait for running requests, in place of
    /// gateway.shutdown_limit.
    #[arg(long, value_name = "SECONDS")]
    drain_seconds: Option<u64>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
struct Demo {
    #[command(subcommand)]
    part: Option<DemoPart>,
    /// How many seconds to tap "Pay", from 1 to 600.
    #[arg(long, value_name = "SECONDS", default_value_t = demo::SECONDS_DEFAULT)]
    seconds: u64,
    /// Taps per second, from 1 to 1000.
    #[arg(long, value_name = "TAPS", default_value_t = demo::RATE_DEFAULT)]
    rate: u64,
    /// The seed of taps and faults: the same seed repeats the same run.
    #[arg(long, value_name = "NUMBER", default_value_t = demo::SEED_DEFAULT)]
    seed: u64,
}

#[derive(Debug, Subcommand)]
enum DemoPart {
    /// Run a sample payment API, to try the gateway with. It ignores idempotency keys.
    Api {
        /// The address of the sample API.
        #[arg(long, value_name = "ADDRESS", default_value = demo::LISTEN_DEFAULT, value_parser = address)]
        listen: SocketAddr,
    },
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:8080".to_owned())
}

/// Parses the arguments and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Check { config, explain } => check(&config, explain),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "onetake", &mut script);
            say(&String::from_utf8_lossy(&script));
            ExitCode::SUCCESS
        }
        Command::Schema => {
            say(&format!("{:#}\n", config::schema()));
            ExitCode::SUCCESS
        }
        Command::Serve(serve) => serve.run(),
        #[cfg(feature = "ext-proc")]
        Command::ExtProc(ext_proc) => ext_proc.run(),
        Command::Demo(demo) => demo.run(),
        Command::Migrate { write: Some(folder), naming, .. } => {
            match stores::write_migrations(&folder, naming) {
                Ok(said) => {
                    say(&said);
                    ExitCode::SUCCESS
                }
                Err(error) => Failed(error, 3).into(),
            }
        }
        Command::Migrate { store, .. } => store.migrate(),
        Command::Keys(keys) => run_keys(keys),
        Command::Relay(arguments) => arguments.run(),
        Command::Probe(probe) => probe.run(),
        Command::Doctor { store, format } => store.doctor(format),
    }
}

/// Writes to standard output. A closed pipe is ignored: it is no reason to panic.
pub(crate) fn say(text: &str) {
    let _gone = std::io::stdout().write_all(text.as_bytes());
}

/// An error message for the user, and the exit code.
pub(crate) struct Failed(pub(crate) String, pub(crate) u8);

impl From<Failed> for ExitCode {
    fn from(Failed(message, code): Failed) -> Self {
        eprintln!("onetake: {message}");
        Self::from(code)
    }
}

fn check(path: &Path, explain: bool) -> ExitCode {
    match check_file(path, explain) {
        Ok(said) => {
            say(&said);
            ExitCode::SUCCESS
        }
        Err(failed) => failed.into(),
    }
}

/// Checks a file and returns the text to print. The file can configure a gateway, a relay, or both.
fn check_file(path: &Path, explain: bool) -> Result<String, Failed> {
    let (text, name) = read(Some(path))?;
    let input = || input(text.as_deref(), &name, Overrides::default());
    let purposes = config::purposes(text.as_deref().unwrap_or_default());
    let (mut said, mut found) = (String::new(), Vec::new());
    if purposes.gateway {
        let config = input().config(Forwarder::Gateway).map_err(invalid)?;
        let faults = gateway::check_files(&config);
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        if !faults.is_empty() {
            return Err(Failed(faults.join("\n\n"), 2));
        }
        said.extend(config.warnings().iter().map(|warning| format!("warning: {warning}\n")));
        said.push_str(&config.fall_through());
        found.push(routes(config.routes.len()));
        if explain {
            said.push_str(&input().explain(Forwarder::Gateway).map_err(invalid)?);
        }
    }
    if purposes.ext_proc {
        let config = input().config(Forwarder::Envoy).map_err(invalid)?;
        said.extend(config.warnings().iter().map(|warning| format!("warning: {warning}\n")));
        found.push(format!("{} for Envoy", routes(config.routes.len())));
        // The routes of a gateway in the same file are the same, and were explained.
        if explain && !purposes.gateway {
            said.push_str(&input().explain(Forwarder::Envoy).map_err(invalid)?);
        }
    }
    if purposes.relay {
        let relay = relay::check(text.as_deref(), &name)?;
        found.push(format!("a relay to {relay}"));
    }
    Ok(format!("{said}{name}: fine, {}\n", found.join(" and ")))
}

fn routes(count: usize) -> String {
    if count == 1 { "1 route".to_owned() } else { format!("{count} routes") }
}

fn load(path: Option<&Path>, overrides: Overrides, by: Forwarder) -> Result<Config, Failed> {
    let (text, name) = read(path)?;
    input(text.as_deref(), &name, overrides).config(by).map_err(invalid)
}

/// A file, the environment of this process, and flags.
pub(crate) fn input<'a>(
    text: Option<&'a str>,
    file_name: &'a str,
    overrides: Overrides,
) -> Input<'a> {
    Input { text, file_name, env: std::env::vars().collect(), overrides }
}

fn invalid(error: ConfigError) -> Failed {
    Failed(ErrorChain(&error).to_string(), 2)
}

/// Returns the file's text, if there is a file, and its name for error messages.
pub(crate) fn read(path: Option<&Path>) -> Result<(Option<String>, String), Failed> {
    let Some(path) = path else {
        return Ok((None, "configuration".to_owned()));
    };
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((Some(text), name)),
        Err(error) => Err(Failed(format!("cannot read the configuration file {name}: {error}"), 2)),
    }
}

fn run_keys(keys: Keys) -> ExitCode {
    let ran = runtime().and_then(|runtime| runtime.block_on(keys.run()));
    ran.unwrap_or_else(ExitCode::from)
}

pub(crate) fn runtime() -> Result<Runtime, Failed> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| Failed(format!("cannot start: {error}"), 1))
}

impl StoreArguments {
    fn load(self) -> Result<StoreConfig, Failed> {
        let (text, name) = read(self.config.as_deref())?;
        let overrides = Overrides { store: self.store, ..Overrides::default() };
        input(text.as_deref(), &name, overrides).store().map_err(invalid)
    }

    fn migrate(self) -> ExitCode {
        logs::init(LogFormat::Text);
        let migrate = || {
            let config = self.load()?;
            let migrated = runtime()?.block_on(stores::migrate(&config));
            let what = migrated.map_err(|error| Failed(ErrorChain(&error).to_string(), 3))?;
            println!("{}: {what}", config.url);
            Ok::<_, Failed>(ExitCode::SUCCESS)
        };
        migrate().unwrap_or_else(ExitCode::from)
    }

    fn doctor(self, format: Format) -> ExitCode {
        let examine = || {
            let config = self.load()?;
            let examined = runtime()?.block_on(stores::examine(&config));
            examined.map_err(|error| {
                say(&doctor::unreachable(&ErrorChain(&error).to_string(), format)
                    .unwrap_or_default());
                Failed(ErrorChain(&error).to_string(), 3)
            })
        };
        match examine() {
            Ok(all) => {
                say(&doctor::report(&all, format));
                let is_broken = doctor::worst(&all) == Weight::Broken;
                if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
            }
            Err(failed) => failed.into(),
        }
    }
}

impl Serve {
    /// Configures, builds, announces, waits, drains.
    fn run(self) -> ExitCode {
        let (spans, export) = traces::from_environment();
        logs::init_with(self.log_format, spans);
        let overrides = Overrides {
            listen: self.listen,
            upstream: self.upstream,
            admin_listen: self.admin_listen,
            store: self.store,
            sink: None,
        };
        let config = load(self.config.as_deref(), overrides, Forwarder::Gateway);
        let served = config.and_then(|config| {
            let upstream = config.gateway.upstream.as_ref();
            let upstream = upstream.map_or("by route".into(), ToString::to_string);
            let store = config.store.url.to_string();
            let ending = Ending::of(&config, self.drain_seconds);
            warn_of_unused_token(&config);
            let starting = async {
                let gateway = Gateway::start(config).await.map_err(not_started)?;
                Ok((gateway, upstream, store))
            };
            runtime()?.block_on(traced(export, starting, ending))
        });
        served.map_or_else(ExitCode::from, |()| ExitCode::SUCCESS)
    }
}

#[cfg(feature = "ext-proc")]
impl ExtProc {
    /// Configures, builds, announces, waits, drains.
    fn run(self) -> ExitCode {
        let (spans, export) = traces::from_environment();
        logs::init_with(self.log_format, spans);
        let config = load(self.config.as_deref(), Overrides::default(), Forwarder::Envoy);
        let served = config.and_then(|config| {
            let store = config.store.url.to_string();
            let ending = Ending::of(&config, self.drain_seconds);
            warn_of_unused_token(&config);
            let starting = async {
                let gateway = Gateway::start_ext_proc(config, |store| store).await;
                Ok((gateway.map_err(not_started)?, "by Envoy".to_owned(), store))
            };
            runtime()?.block_on(traced(export, starting, ending))
        });
        served.map_or_else(ExitCode::from, |()| ExitCode::SUCCESS)
    }
}

impl Demo {
    /// Exits with a failure if onetake charged a payment twice or lost one.
    fn run(self) -> ExitCode {
        if let Some(DemoPart::Api { listen }) = self.part {
            return run_sample_api(listen);
        }
        let options = match demo::Options::new(self.seconds, self.rate, self.seed) {
            Ok(options) => options,
            Err(error) => return Failed(ErrorChain(&error).to_string(), 2).into(),
        };
        // Logs would garble the live picture, so they are off unless `ONETAKE_LOG` is set.
        if std::env::var_os("ONETAKE_LOG").is_some() {
            logs::init(LogFormat::Text);
        }
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(failed) => return failed.into(),
        };
        let shown = runtime.block_on(async {
            let stop = CancellationToken::new();
            let stopping = stop.clone();
            tokio::spawn(async move {
                stop_signal().await;
                stopping.cancel();
            });
            demo::run(options, Arc::new(SystemClock), Screen::detect(), stop).await
        });
        match shown {
            Ok(report) if report.failures().is_empty() => ExitCode::SUCCESS,
            // The last lines on the screen explain the failure.
            Ok(_) => ExitCode::FAILURE,
            Err(error @ (DemoError::Start(_) | DemoError::Io { .. })) => {
                Failed(ErrorChain(&error).to_string(), 3).into()
            }
            Err(error) => Failed(ErrorChain(&error).to_string(), 1).into(),
        }
    }
}

fn run_sample_api(listen: SocketAddr) -> ExitCode {
    let stop = async {
        stop_signal().await;
    };
    let served = runtime().and_then(|runtime| {
        let served = runtime.block_on(demo::serve_sample(listen, Arc::new(SystemClock), stop));
        served.map_err(|error| Failed(ErrorChain(&error).to_string(), 3))
    });
    served.map_or_else(ExitCode::from, |()| ExitCode::SUCCESS)
}

/// The times of a shutdown.
#[derive(Clone, Copy, Debug)]
struct Ending {
    /// How long new connections are still accepted.
    delay: Duration,
    /// How long requests may take to end after that.
    limit: Duration,
}

impl Ending {
    fn of(config: &Config, drain_seconds: Option<u64>) -> Self {
        let limit = drain_seconds.map(Duration::from_secs);
        Self {
            delay: config.gateway.shutdown_delay,
            limit: limit.unwrap_or(config.gateway.shutdown_limit),
        }
    }
}

fn warn_of_unused_token(config: &Config) {
    if config.admin.token.is_none() && std::env::var_os("ONETAKE_ADMIN_TOKEN").is_some() {
        tracing::warn!(
            "ONETAKE_ADMIN_TOKEN is set, but admin.token is not configured, so the admin API \
             requires no token. Write token = {{ env = \"ONETAKE_ADMIN_TOKEN\" }} below [admin]"
        );
    }
}

fn not_started(error: StartError) -> Failed {
    Failed(ErrorChain(&error).to_string(), 3)
}

/// Exports traces while a gateway starts, serves and drains.
async fn traced(
    mut export: Export,
    starting: impl Future<Output = Result<(Gateway, String, String), Failed>>,
    ending: Ending,
) -> Result<(), Failed> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    export.start(&clock).map_err(|error| Failed(error, 2))?;
    gateway::raise_limit();
    let (gateway, upstream, store) = starting.await?;
    export.register_metrics();
    tracing::info!(
        listen = %gateway.address(), admin = %gateway.admin_address(), upstream, store, "onetake is ready"
    );
    serve(gateway, &clock, ending).await?;
    // After a failure or a second signal, the process ends without waiting for the last spans.
    export.finish(&clock).await;
    Ok(())
}

/// Waits for a signal, and drains.
async fn serve(gateway: Gateway, clock: &Arc<dyn Clock>, ending: Ending) -> Result<(), Failed> {
    let Ending { delay, limit } = ending;
    let stop = tokio::select! {
        signal = stop_signal() => signal,
        error = gateway.fatal() => return Err(abort(gateway, &error).await),
    };
    gateway.leave();
    tracing::info!(
        signal = stop, delay = ?delay,
        "leaving: not ready any more, and clients are asked to close their connections"
    );
    tokio::select! {
        biased;
        () = clock.sleep(delay) => {}
        signal = stop_signal() => tracing::info!(signal, "a second signal ends the delay"),
        error = gateway.fatal() => return Err(abort(gateway, &error).await),
    }
    tracing::info!(limit = ?limit, "draining: no new connections are accepted");
    let drained = tokio::select! {
        biased;
        drained = gateway.shutdown(limit) => drained,
        signal = stop_signal() => {
            return Err(Failed(format!("stopped immediately by another {signal}"), 1));
        }
    };
    match drained {
        Ok(true) => tracing::info!("drained"),
        Ok(false) => tracing::warn!(
            "drain timeout: operations that were still running have an unknown outcome; outcomes that the store did not accept are in the journal"
        ),
        Err(error) => {
            return Err(Failed(
                format!("the store could not be closed: {}", ErrorChain(&error)),
                1,
            ));
        }
    }
    Ok(())
}

/// Ends the gateway after a failure of the store. The state on disk is uncertain. Only a restart may
/// read it; this process must not go on.
async fn abort(gateway: Gateway, error: &StoreError) -> Failed {
    gateway.abort().await;
    Failed(format!("the store failed and must not be used any more: {}", ErrorChain(error)), 1)
}

/// Waits for SIGTERM or SIGINT, and returns its name.
pub(crate) async fn stop_signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
