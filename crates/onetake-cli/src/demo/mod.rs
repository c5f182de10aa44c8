//! `onetake demo`: shows in a terminal, in a few seconds, why onetake exists.
//!
//! ```text
//! taps ─┬─ phone ─ flaky network ───────────── payment API ─ ledger     without onetake
//!       └─ phone ─ flaky network ─ gateway ─── payment API ─ ledger     with onetake
//! ```
//!
//! Everything is real: every request is HTTP over loopback, the gateway is the one of `onetake
//! serve` with the embedded store, and the figures are read from the two ledgers. Both sides get
//! the same taps and the same faults, planned from a seed.

mod api;
mod ledger;
mod phone;
mod random;
mod relay;
mod report;
mod sample;
mod screen;
mod stage;
mod table;
mod tap;
mod verdict;

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use onetake_core::{Clock, StoreError};

use crate::config::ConfigError;
use crate::gateway::StartError;

pub use report::{DemoReport, PhoneTraffic, Summary};
pub use sample::{LISTEN_DEFAULT, serve_sample};
pub use screen::Screen;
pub use verdict::SideVerdict;

use stage::Stage;

/// Default of `--seconds`.
pub const SECONDS_DEFAULT: u64 = 15;
/// Default of `--rate`, in taps per second.
pub const RATE_DEFAULT: u64 = 40;
/// Default of `--seed`: every default run is the same.
pub const SEED_DEFAULT: u64 = 1;

const SECONDS: RangeInclusive<u64> = 1..=600;
const RATE: RangeInclusive<u64> = 1..=1_000;

/// The reason why the demo could not be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// An option is out of its range.
    #[error("{flag} {value} is out of range: choose a number from {} to {}", .range.start(), .range.end())]
    OutOfRange {
        /// The flag.
        flag: &'static str,
        /// The given value.
        value: u64,
        /// The allowed values.
        range: RangeInclusive<u64>,
    },
    /// The operating system did not give a port or a folder.
    #[error("cannot {what}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The temporary folder could not be removed.
    #[error("cannot remove the demo's temporary folder")]
    Leftover(#[source] io::Error),
    /// The gateway refused the demo's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The gateway could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The gateway's store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DemoError {
    fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// The options of a run. The same options give the same taps and faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    seconds: u64,
    rate: u64,
    seed: u64,
}

impl Options {
    /// Options for `seconds` (1 to 600) with `rate` taps per second (1 to 1000), planned from
    /// `seed`.
    ///
    /// # Errors
    /// If a number is out of its range.
    pub fn new(seconds: u64, rate: u64, seed: u64) -> Result<Self, DemoError> {
        for (flag, value, range) in [("--seconds", seconds, SECONDS), ("--rate", rate, RATE)] {
            if !range.contains(&value) {
                return Err(DemoError::OutOfRange { flag, value, range });
            }
        }
        Ok(Self { seconds, rate, seed })
    }

    /// Number of taps, if the machine keeps up.
    fn taps(&self) -> u64 {
        self.seconds * self.rate
    }

    fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Time of a tap, counted from the first one.
    fn due(&self, number: u64) -> Duration {
        Duration::from_micros(number.saturating_mul(1_000_000) / self.rate)
    }
}

/// Runs the demo until it is over or `stop` is cancelled, and returns what the ledgers show.
///
/// # Errors
/// If it could not be run. A failure of onetake itself is no error: it is in the [`DemoReport`].
pub async fn run(
    options: Options,
    clock: Arc<dyn Clock>,
    screen: Screen,
    stop: CancellationToken,
) -> Result<DemoReport, DemoError> {
    let stage = Stage::set(options, clock).await?;
    let show = screen.begin(options);
    let elapsed = stage.play(&show, &stop).await?;
    let (report, folder) = stage.clear(elapsed, stop.is_cancelled()).await?;
    show.end(&report);
    folder.close().map_err(DemoError::Leftover)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_refused_with_the_range() {
        let message = |seconds, rate| Options::new(seconds, rate, 1).unwrap_err().to_string();
        assert_eq!(message(0, 40), "--seconds 0 is out of range: choose a number from 1 to 600");
        assert_eq!(
            message(15, 1_001),
            "--rate 1001 is out of range: choose a number from 1 to 1000"
        );
        assert!(Options::new(600, 1_000, 1).is_ok());
    }

    #[test]
    fn taps_are_spread_evenly() {
        let options = Options::new(2, 40, 1).unwrap();
        assert_eq!(options.taps(), 80);
        assert_eq!(options.due(0), Duration::ZERO);
        assert_eq!(options.due(40), Duration::from_secs(1));
    }
}
