//! Set-up, run and clean-up of the demo.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use onetake_core::Clock;

use super::api::Api;
use super::phone::Phone;
use super::random::Random;
use super::report::{DemoReport, PhoneTraffic, Summary};
use super::screen::Show;
use super::table::Figures;
use super::tap::Tap;
use super::verdict::SideVerdict;
use super::{DemoError, Options};
use crate::config::{self, Overrides};
use crate::gateway::Gateway;

/// The gateway's whole configuration for the payment API.
const CONFIGURATION: &str = r#"
[[route]]
match        = "POST /charges"
preset       = "payment"
tenant       = { header = "X-Account" }
in_flight    = "wait"
wait_timeout = "4s"
"#;

/// Maximum number of taps that are being paid. Beyond it, the next tap waits.
const TAPS_MAX: usize = 512;
/// How late the last tap may be made.
const LATE_MAX: Duration = Duration::from_millis(500);
/// Limits for the final retries of unconfirmed taps: tries per tap, concurrent taps, total time.
const FINISH_TRIES_MAX: u32 = 20;
const FINISH_AT_ONCE: usize = 32;
const FINISH_PATIENCE: Duration = Duration::from_secs(30);
/// How long the gateway may take to drain.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// One payment API, and the phones that pay there.
#[derive(Debug)]
struct Side {
    api: Api,
    phone: Phone,
}

/// The two sides, and the gateway in front of one of them.
#[derive(Debug)]
pub(super) struct Stage {
    options: Options,
    clock: Arc<dyn Clock>,
    folder: TempDir,
    gateway: Gateway,
    without: Arc<Side>,
    with: Arc<Side>,
}

impl Stage {
    pub(super) async fn set(options: Options, clock: Arc<dyn Clock>) -> Result<Self, DemoError> {
        let folder = tempfile::Builder::new()
            .prefix("onetake-demo-")
            .tempdir()
            .map_err(DemoError::io("make a temporary folder"))?;
        let api = async |part| {
            let random = Random::of_part(options.seed, part);
            let api = Api::start(random, Arc::clone(&clock)).await;
            api.map_err(DemoError::io("start the payment API"))
        };
        // Parts counted from the end never collide with those of taps.
        let (exposed, protected) = (api(u64::MAX).await?, api(u64::MAX - 1).await?);
        let gateway = Gateway::start(configuration(&folder, &protected)?).await?;
        let phone = async |server| {
            let phone = Phone::new(server, Arc::clone(&clock)).await;
            phone.map_err(DemoError::io("start the flaky network"))
        };
        let without = Arc::new(Side { phone: phone(exposed.address()).await?, api: exposed });
        let with = Arc::new(Side { phone: phone(gateway.address()).await?, api: protected });
        Ok(Self { options, clock, folder, gateway, without, with })
    }

    /// Lets customers tap until the time is up or the run is stopped. Returns how long that was.
    pub(super) async fn play(
        &self,
        show: &Show,
        stop: &CancellationToken,
    ) -> Result<Duration, DemoError> {
        let began = self.clock.monotonic();
        let play = async {
            let tasks = TaskTracker::new();
            self.tap(began, &tasks, stop).await;
            let elapsed = self.clock.monotonic() - began;
            tasks.close();
            tasks.wait().await;
            stop.run_until_cancelled(self.finish()).await;
            elapsed
        };
        tokio::select! {
            elapsed = play => Ok(elapsed),
            never = self.watch(began, show) => match never {},
            error = self.gateway.fatal() => Err(error.into()),
        }
    }

    async fn tap(&self, began: Duration, tasks: &TaskTracker, stop: &CancellationToken) {
        let places = Arc::new(Semaphore::new(TAPS_MAX));
        for number in 0..self.options.taps() {
            let next = async {
                self.sleep_until(began + self.options.due(number)).await;
                Arc::clone(&places).acquire_owned().await
            };
            let Some(Ok(place)) = stop.run_until_cancelled(next).await else {
                return;
            };
            let late = self.clock.monotonic() - began;
            if late >= self.options.length() + LATE_MAX {
                return;
            }
            let tap = Arc::new(Tap::plan(self.options.seed, number));
            let place = Arc::new(place);
            for side in [&self.without, &self.with] {
                side.phone.note(&tap);
                let (side, tap, place) = (Arc::clone(side), Arc::clone(&tap), Arc::clone(&place));
                tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                    side.phone.pay(&tap).await;
                    drop(place);
                }));
            }
        }
        let end = self.sleep_until(began + self.options.length());
        stop.run_until_cancelled(end).await;
    }

    async fn sleep_until(&self, monotonic: Duration) {
        let left = monotonic.saturating_sub(self.clock.monotonic());
        if !left.is_zero() {
            self.clock.sleep(left).await;
        }
    }

    /// Retries unconfirmed taps on both sides until they are answered.
    async fn finish(&self) {
        let finish = async |side: &Side| {
            let left = side.phone.unfinished();
            stream::iter(left)
                .for_each_concurrent(FINISH_AT_ONCE, async |number| {
                    let tap = Tap::plan(self.options.seed, number);
                    side.phone.finish(&tap, FINISH_TRIES_MAX).await;
                })
                .await;
        };
        tokio::select! {
            _ = async { tokio::join!(finish(&self.without), finish(&self.with)) } => {}
            () = self.clock.sleep(FINISH_PATIENCE) => {}
        }
    }

    async fn watch(&self, began: Duration, show: &Show) -> std::convert::Infallible {
        loop {
            self.clock.sleep(show.interval()).await;
            let elapsed = self.clock.monotonic() - began;
            show.update(elapsed, &self.without.figures(), &self.with.figures());
        }
    }

    /// Stops the gateway, waits until both ledgers are complete, and reads them.
    ///
    /// The temporary folder is returned, so that it is removed last, after the output.
    pub(super) async fn clear(
        self,
        elapsed: Duration,
        interrupted: bool,
    ) -> Result<(DemoReport, TempDir), DemoError> {
        self.gateway.shutdown(DRAIN_PATIENCE).await?;
        tokio::join!(self.without.api.quiet(), self.with.api.quiet());
        let report = DemoReport {
            planned: self.options.taps(),
            elapsed,
            interrupted,
            without: self.without.summary(),
            with: self.with.summary(),
        };
        Ok((report, self.folder))
    }
}

impl Side {
    fn traffic(&self) -> PhoneTraffic {
        let counts = self.phone.counts();
        PhoneTraffic {
            requests: counts.requests.load(Ordering::Relaxed),
            unheard: counts.unheard.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
            replayed: counts.replayed.load(Ordering::Relaxed),
        }
    }

    fn figures(&self) -> Figures {
        let totals = self.api.ledger().totals();
        Figures {
            taps: self.phone.taps(),
            charges: totals.charges,
            doubled: totals.doubled,
            overcharged_cents: totals.overcharged_cents,
            traffic: self.traffic(),
        }
    }

    fn summary(&self) -> Summary {
        Summary {
            verdict: SideVerdict::judge(&self.phone.receipts(), &self.api.ledger().charges()),
            traffic: self.traffic(),
        }
    }
}

/// The gateway's configuration. It ignores the environment, so that the demo is the same
/// everywhere.
fn configuration(folder: &TempDir, api: &Api) -> Result<config::Config, DemoError> {
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let overrides = Overrides {
        listen: Some(any_port),
        admin_listen: Some(any_port),
        upstream: Some(format!("http://{}", api.address())),
        store: Some(format!("embedded:{}", folder.path().display())),
        sink: None,
    };
    let no_variables = std::iter::empty();
    Ok(config::load(Some(CONFIGURATION), "the demo's configuration", no_variables, overrides)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::Screen;
    use onetake_core::SystemClock;

    /// The verdict is not a constant: it detects a gateway that protects nothing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_side_that_is_not_protected_fails() {
        let options = Options::new(1, 60, 11).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut stage = Stage::set(options, Arc::clone(&clock)).await.unwrap();
        let side = Arc::into_inner(stage.with).unwrap();
        let around_the_gateway = Phone::new(side.api.address(), clock).await.unwrap();
        stage.with = Arc::new(Side { api: side.api, phone: around_the_gateway });
        let show = Screen::Silent.begin(options);
        let elapsed = stage.play(&show, &CancellationToken::new()).await.unwrap();
        let (report, _folder) = stage.clear(elapsed, false).await.unwrap();
        assert!(report.with.verdict.doubled > 0, "{report:?}");
        assert_eq!(report.failures().len(), 1, "{report:?}");
    }
}
