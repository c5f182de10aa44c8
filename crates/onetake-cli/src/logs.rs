//! Structured logs. They never hold a key, a credential or a body: whoever logs passes references.

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

/// Writes logs to standard error, at `info` unless `ONETAKE_LOG` says otherwise.
pub fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_env("ONETAKE_LOG")
        .unwrap_or_else(|_| EnvFilter::new("info,fjall=warn,lsm_tree=warn"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call, as in tests, leaves the first one in place.
    let _already = match format {
        LogFormat::Text => logs.try_init(),
        LogFormat::Json => logs.json().try_init(),
    };
}
