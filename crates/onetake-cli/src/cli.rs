//! What `onetake` does when it is called.
//!
//! Exit codes: 0 done; 1 something failed while it ran, or the doctor found what breaks the promise; 2
//! wrong usage or configuration; 3 the store or a listener could not be opened, or the admin API not be asked; 4
//! the key is not there, or not as it would have to be.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use onetake_core::{Clock, SystemClock};
use onetake_stores::Weight;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config, Overrides, StoreConfig};
use crate::demo::{self, DemoError, Screen};
use crate::doctor::{self, Format};
use crate::gateway::{self, Gateway, StartError};
use crate::keys::Keys;
use crate::logs::{self, LogFormat};
use crate::relay;
use crate::stores::{self, MigrationNaming};
use crate::traces::{self, Export};

/// How long shutdown waits for what is running, unless told otherwise.
const DRAIN_SECONDS: u64 = 60;

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
    /// Show in a few seconds what happens to payments over a bad connection, without onetake and
    /// with it.
    Demo(Demo),
    /// Check a configuration file and the certificates that it names, and say what is wrong with them.
    Check {
        /// The file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Print the options of every route, and the layer that each value comes from.
        #[arg(long)]
        explain: bool,
    },
    /// Print the completions of a shell, to be loaded by it.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the JSON Schema of the configuration file, for editors and other tools.
    Schema,
    /// Create or update what the store needs: tables, indexes.
    Migrate {
        #[command(flatten)]
        store: Stored,
        /// Write the PostgreSQL schema into this folder instead, as one file for each version, for a migration tool.
        #[arg(long, value_name = "FOLDER", conflicts_with_all = ["config", "store"])]
        write: Option<PathBuf>,
        /// The migration tool that the files of --write are named for.
        #[arg(long, value_enum, default_value_t, requires = "write")]
        naming: MigrationNaming,
    },
    /// Look at keys and change them, over the admin API of a running gateway.
    Keys(Keys),
    /// Deliver what operations wrote into the outbox, to NATS JetStream or to a webhook.
    Relay(relay::Arguments),
    /// Look at the store, and name what breaks the promise.
    Doctor {
        #[command(flatten)]
        store: Stored,
        /// How to write what was found.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// What works on a store alone.
#[derive(Debug, Args)]
struct Stored {
    /// The configuration file that names the store.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store (default: the configured one, else embedded:./onetake-data).
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

#[derive(Debug, Args)]
struct Serve {
    /// The configuration file; without one, flags and variables are all there is.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where requests go, such as http://127.0.0.1:3000.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where clients connect (default 127.0.0.1:8080).
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Where operators, probes and metrics are (default 127.0.0.1:9091).
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    admin_listen: Option<SocketAddr>,
    /// Where keys are remembered (default embedded:./onetake-data).
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How to write logs.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// How long to wait for what is running when told to stop, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_SECONDS)]
    drain_seconds: u64,
}

#[derive(Debug, Args)]
struct Demo {
    /// For how long to tap "Pay", from 1 to 600.
    #[arg(long, value_name = "SECONDS", default_value_t = demo::SECONDS_DEFAULT)]
    seconds: u64,
    /// Taps a second, from 1 to 1000.
    #[arg(long, value_name = "TAPS", default_value_t = demo::RATE_DEFAULT)]
    rate: u64,
    /// Which taps and which faults: the same seed, the same ones.
    #[arg(long, value_name = "NUMBER", default_value_t = demo::SEED_DEFAULT)]
    seed: u64,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:8080".to_owned())
}

/// Runs the command that was asked for.
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
        Command::Doctor { store, format } => store.doctor(format),
    }
}

/// Writes to standard output. Whoever listened there may be gone, which is no reason to panic.
pub(crate) fn say(text: &str) {
    let _gone = std::io::stdout().write_all(text.as_bytes());
}

/// Something to tell the user, and how to end.
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

/// What is to be said of a file without a fault: for whatever it is for, a gateway or a relay.
fn check_file(path: &Path, explain: bool) -> Result<String, Failed> {
    let (text, name) = read(Some(path))?;
    let purposes = config::purposes(text.as_deref().unwrap_or_default());
    let (mut said, mut found) = (String::new(), Vec::new());
    if purposes.gateway {
        let config = load(Some(path), Overrides::default())?;
        let faults = gateway::check_files(&config);
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        if !faults.is_empty() {
            return Err(Failed(faults.join("\n\n"), 2));
        }
        said.extend(config.warnings().iter().map(|warning| format!("warning: {warning}\n")));
        found.push(format!("{} routes", config.routes.len()));
        if explain {
            let explained = config::explain(text.as_deref(), &name, std::env::vars());
            said.push_str(&explained.map_err(|error| Failed(error.to_string(), 2))?);
        }
    }
    if purposes.relay {
        let relay = relay::check(text.as_deref(), &name)?;
        found.push(format!("a relay to {relay}"));
    }
    Ok(format!("{said}{name}: fine, {}\n", found.join(" and ")))
}

fn load(path: Option<&Path>, overrides: Overrides) -> Result<Config, Failed> {
    let (text, name) = read(path)?;
    config::load(text.as_deref(), &name, std::env::vars(), overrides)
        .map_err(|error| Failed(error.to_string(), 2))
}

/// The file's text, if there is a file, and its name.
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

impl Stored {
    fn load(self) -> Result<StoreConfig, Failed> {
        let (text, name) = read(self.config.as_deref())?;
        let overrides = Overrides { store: self.store, ..Overrides::default() };
        config::load_store(text.as_deref(), &name, std::env::vars(), overrides)
            .map_err(|error| Failed(error.to_string(), 2))
    }

    fn migrate(self) -> ExitCode {
        logs::init(LogFormat::Text);
        let migrate = || {
            let config = self.load()?;
            let migrated = runtime()?.block_on(stores::migrate(&config));
            let what = migrated.map_err(|error| Failed(error.to_string(), 3))?;
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
                say(&doctor::unreachable(&error.to_string(), format).unwrap_or_default());
                Failed(error.to_string(), 3)
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
    /// Configure, build, announce, wait, drain.
    fn run(self) -> ExitCode {
        let (spans, mut export) = traces::from_environment();
        logs::init_with(self.log_format, spans);
        let overrides = Overrides {
            listen: self.listen,
            upstream: self.upstream,
            admin_listen: self.admin_listen,
            store: self.store,
            sink: None,
        };
        let config = match load(self.config.as_deref(), overrides) {
            Ok(config) => config,
            Err(failed) => return failed.into(),
        };
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(failed) => return failed.into(),
        };
        let served = runtime.block_on(async {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock);
            export.start(&clock).map_err(|error| Failed(error, 2))?;
            let served = serve(config, Duration::from_secs(self.drain_seconds), &export).await;
            // What has failed, or was told to end at once, ends at once.
            if served.is_ok() {
                export.finish(&clock).await;
            }
            served
        });
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(failed) => failed.into(),
        }
    }
}

impl Demo {
    /// Fails if onetake broke its promise before everybody's eyes.
    fn run(self) -> ExitCode {
        let options = match demo::Options::new(self.seconds, self.rate, self.seed) {
            Ok(options) => options,
            Err(error) => return Failed(error.to_string(), 2).into(),
        };
        // Logs would tear the picture apart; whoever asks for them gets them.
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
            // The last lines on the screen say why.
            Ok(_) => ExitCode::FAILURE,
            Err(error @ (DemoError::Start(_) | DemoError::Io { .. })) => {
                Failed(error.to_string(), 3).into()
            }
            Err(error) => Failed(error.to_string(), 1).into(),
        }
    }
}

async fn serve(config: Config, patience: Duration, export: &Export) -> Result<(), Failed> {
    let upstream = config.gateway.upstream.as_ref().map_or("by route".into(), ToString::to_string);
    let store = config.store.url.to_string();
    if config.admin.token.is_none() && std::env::var_os("ONETAKE_ADMIN_TOKEN").is_some() {
        tracing::warn!(
            "ONETAKE_ADMIN_TOKEN is set, and no token is configured: the admin API asks for none. Write \
             token = {{ env = \"ONETAKE_ADMIN_TOKEN\" }} below [admin]"
        );
    }
    let gateway =
        Gateway::start(config).await.map_err(|error: StartError| Failed(error.to_string(), 3))?;
    export.register_metrics();
    tracing::info!(
        listen = %gateway.address(), admin = %gateway.admin_address(), upstream, store, "onetake is ready"
    );
    let stop = tokio::select! {
        signal = stop_signal() => signal,
        error = gateway.fatal() => {
            // What is on disk is not known any more: a restart reads it again, this process must not.
            gateway.give_up().await;
            return Err(Failed(format!("the store failed and cannot be trusted any more: {error}"), 1));
        }
    };
    tracing::info!(signal = stop, "draining: nothing new is accepted");
    let drained = tokio::select! {
        biased;
        drained = gateway.shutdown(patience) => drained,
        signal = stop_signal() => {
            return Err(Failed(format!("stopped at once by a second {signal}"), 1));
        }
    };
    match drained {
        Ok(true) => tracing::info!("drained"),
        Ok(false) => tracing::warn!("gave up waiting: what was still running is unknown from now"),
        Err(error) => return Err(Failed(format!("the store could not be closed: {error}"), 1)),
    }
    Ok(())
}

/// Waits until somebody wants this process to stop.
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
