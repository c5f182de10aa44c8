//! Structured logs. They never hold a key, a credential or a body: log statements pass references
//! only.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::traces::SpanLayer;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// The filter that applies if `ONETAKE_LOG` is not set. A [`Targets`] filter needs no regular
/// expressions, unlike an `EnvFilter`: it is smaller and builds faster.
fn default_filter() -> Targets {
    Targets::new().with_default(LevelFilter::INFO).with_target("lsm_tree", LevelFilter::WARN)
}

/// Writes logs to standard error, at level `info` unless `ONETAKE_LOG` sets another filter.
pub fn init(format: LogFormat) {
    init_with(format, None);
}

/// Like [`init`], with a layer that receives the spans of requests.
pub(crate) fn init_with(format: LogFormat, spans: Option<SpanLayer>) {
    let asked = std::env::var("ONETAKE_LOG").ok().filter(|text| !text.is_empty());
    let filter = asked.and_then(|text| {
        let invalid = |error| {
            eprintln!("onetake: ONETAKE_LOG is not a valid filter ({error}) and is ignored; write for example info or onetake=debug");
        };
        ours(&text).parse::<Targets>().map_err(invalid).ok()
    });
    let filter = filter.unwrap_or_else(default_filter);
    let logs = fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    let logs = match format {
        LogFormat::Text => logs.with_filter(filter).boxed(),
        LogFormat::Json => logs.json().with_filter(filter).boxed(),
    };
    let layers: Vec<SpanLayer> = spans.into_iter().chain([logs]).collect();
    // A second call, as in tests, leaves the first one in place.
    let _already = registry().with(layers).try_init();
}

/// Applies a bare level below `info` (`debug`, `trace`) to onetake's own logs only, which never
/// hold a secret. Libraries may log secrets at these levels: parameters of a statement, headers of
/// a request. Their logs at these levels appear only if `ONETAKE_LOG` names the library.
fn ours(text: &str) -> String {
    let is_detailed = |part: &&str| {
        part.trim().parse::<LevelFilter>().is_ok_and(|level| level > LevelFilter::INFO)
    };
    let parts: Vec<&str> = text.split(',').collect();
    let mut all: Vec<String> = Vec::new();
    if let Some(level) = parts.iter().copied().rfind(is_detailed) {
        all.push(format!("info,onetake={}", level.trim()));
    }
    all.extend(parts.iter().filter(|part| !is_detailed(part)).map(|&part| part.to_owned()));
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_level_is_meant_for_our_own_logs() {
        for (asked, meant) in [
            ("info", "info"),
            ("warn,onetake::access=debug", "warn,onetake::access=debug"),
            ("trace", "info,onetake=trace"),
            (" DEBUG ", "info,onetake=DEBUG"),
            ("5", "info,onetake=5"),
            ("onetake=warn,trace", "info,onetake=trace,onetake=warn"),
            ("debug,hyper=trace", "info,onetake=debug,hyper=trace"),
            ("off", "off"),
            ("hyper", "hyper"),
        ] {
            assert_eq!(ours(asked), meant);
            assert!(meant.parse::<Targets>().is_ok(), "{meant}");
        }
        // A named target wins over the bare level, in any order.
        let filter = ours("onetake=warn,trace").parse::<Targets>().unwrap().to_string();
        assert!(filter.contains("onetake=warn") && !filter.contains("onetake=trace"), "{filter}");
    }
}
