//! Structured logs. They never hold a key, a credential or a body: whoever logs passes references.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// What is written unless `ONETAKE_LOG` says otherwise.
const DEFAULT: &str = "info,fjall=warn,lsm_tree=warn";

/// Writes logs to standard error, at `info` unless `ONETAKE_LOG` says otherwise.
pub fn init(format: LogFormat) {
    let asked = std::env::var("ONETAKE_LOG").ok().filter(|text| !text.is_empty());
    let filter = asked.map(|text| EnvFilter::try_new(&text));
    let filter = filter.unwrap_or_else(|| Ok(EnvFilter::new(DEFAULT))).unwrap_or_else(|error| {
        eprintln!("onetake: ONETAKE_LOG is not a filter ({error}); it is ignored");
        EnvFilter::new(DEFAULT)
    });
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // A second call, as in tests, leaves the first one in place.
    let _already = match format {
        LogFormat::Text => logs.try_init(),
        LogFormat::Json => logs.json().try_init(),
    };
}
