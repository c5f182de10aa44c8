//! Gateways, their upstream and their clients: a history from the first request to the final read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onetake_conformance::StoreBug;
use onetake_core::{Clock, SystemClock};
use onetake_sim::history::{CheckReport, Event, Policy, RecordedUpstream, Recorder, check};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use super::gateway::Gateway;
use super::load::{Dice, Load};

/// The lease and the grace of all routes.
const LEASE: Duration = Duration::from_secs(1);
/// Clients in each history.
const CLIENTS: u64 = 12;

/// A store, and its possible faults.
pub(crate) trait Setup {
    /// The name that figures are printed under.
    const NAME: &'static str;
    /// The number of gateways that share the store.
    const GATEWAYS: usize = 2;
    /// The policies of its routes.
    const POLICIES: &'static [Policy] = &[Policy::Fail, Policy::Retry, Policy::Reconcile];

    /// The `[store]` section of the gateways' configuration, with `JOURNAL` for the journal.
    fn section(&self) -> String;

    /// The section for the final read.
    fn final_section(&self) -> String {
        self.section()
    }

    /// Causes one fault, the `number`th, and heals it.
    async fn disturb(&mut self, number: u64, dice: &mut Dice, recorder: &Recorder);
}

/// The end of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// After this time.
    Time(Duration),
    /// After this many faults of the store and kills of gateways.
    Cycles(u64),
}

/// The plan of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// How long clients send requests.
    pub(crate) lasts: Lasts,
    pub(crate) clients: u64,
    /// The bug of the gateways' store.
    pub(crate) bug: Option<StoreBug>,
    /// True if violations print the gateways' logs.
    pub(crate) prints_logs: bool,
}

impl Plan {
    /// A plan as long as the environment asks for, and `short` otherwise.
    pub(crate) fn new(short: Duration) -> Self {
        let seconds = number_from("ONETAKE_HISTORIES_SECONDS").map(Duration::from_secs);
        let seed = number_from("ONETAKE_HISTORIES_SEED");
        Self {
            seed: seed.unwrap_or(1),
            lasts: Lasts::Time(seconds.unwrap_or(short)),
            clients: CLIENTS,
            bug: None,
            prints_logs: true,
        }
    }
}

/// The progress of a history.
struct Progress {
    lasts: Lasts,
    began: Duration,
    cycles: AtomicU64,
    /// Held while a gateway starts, and while the server is down, in histories that count cycles: a
    /// gateway that starts without its store ends again, and could do so for ever.
    starting: Mutex<()>,
}

impl Progress {
    fn goes_on(&self) -> bool {
        match self.lasts {
            Lasts::Time(time) => SystemClock.monotonic() < self.began + time,
            Lasts::Cycles(cycles) => self.cycles.load(Ordering::Relaxed) < cycles,
        }
    }

    /// Waits for its turn to start a gateway or to disturb the store.
    async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.lasts {
            Lasts::Time(_) => None,
            Lasts::Cycles(_) => Some(self.starting.lock().await),
        }
    }

    fn count(&self) {
        let cycles = self.cycles.fetch_add(1, Ordering::Relaxed) + 1;
        if matches!(self.lasts, Lasts::Cycles(_)) && cycles.is_multiple_of(50) {
            let seconds = (SystemClock.monotonic() - self.began).as_secs();
            eprintln!("{cycles} cycles in {seconds} s");
        }
    }
}

/// A number from the environment.
pub(crate) fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: this is not a number")))
}

/// Runs a history on a store, prints its figures, and returns the checker's report.
pub(crate) async fn run<S: Setup>(setup: &mut S, plan: Plan) -> CheckReport {
    let began = SystemClock.monotonic();
    let folder = TempDir::new().unwrap();
    let recorder = Arc::new(Recorder::default());
    let upstream = RecordedUpstream::start(Arc::clone(&recorder), plan.seed).await.unwrap();
    let gateways = (0..S::GATEWAYS).map(|node| {
        let own = folder.path().join(format!("gateway-{node}"));
        Gateway::new(node, own, Arc::clone(&recorder))
    });
    let mut gateways: Vec<Gateway> = gateways.collect();
    let routes = routes(S::POLICIES, &upstream.url());
    for gateway in &mut gateways {
        gateway.set_bug(plan.bug);
        gateway.configure(&upstream.url(), &(setup.section() + &routes));
        gateway.start().await;
    }
    let addresses: Vec<_> = gateways.iter().map(Gateway::address).collect();
    let admins: Vec<_> = gateways.iter().map(Gateway::admin).collect();
    // A long history uses each key more often, because the final read goes through all keys.
    let requests_per_key = if matches!(plan.lasts, Lasts::Cycles(_)) { 8 } else { 3 };
    let recorder_of_load = Arc::clone(&recorder);
    let load = Load::new(recorder_of_load, &addresses, S::POLICIES, plan.seed, requests_per_key);
    let began_load = SystemClock.monotonic();
    let (cycles, starting) = (AtomicU64::new(0), Mutex::new(()));
    let progress = Progress { lasts: plan.lasts, began: began_load, cycles, starting };
    let faults = async {
        tokio::join!(
            disturb_store(setup, &plan, &progress, &recorder),
            disturb_gateways(&mut gateways, &plan, &progress)
        );
        load.stop();
    };
    tokio::join!(load.run(plan.clients), load.operate(&admins), faults);
    let loaded = SystemClock.monotonic();
    // A new process knows only what the store holds.
    for gateway in &mut gateways {
        gateway.kill().await;
    }
    for gateway in &mut gateways {
        gateway.configure(&upstream.url(), &(setup.final_section() + &routes));
        gateway.start().await;
    }
    let longest = load.read_all().await;
    let report = check(&recorder.history(LEASE, LEASE));
    let ended = SystemClock.monotonic();
    eprintln!(
        "{}: seed {}, {report}, {:.1} s ({:.1} s load, {:.1} s final read, a key at most {longest:.1?})",
        S::NAME,
        plan.seed,
        (ended - began).as_secs_f64(),
        (loaded - began_load).as_secs_f64(),
        (ended - loaded).as_secs_f64(),
    );
    if !report.violations.is_empty() && plan.prints_logs {
        for gateway in &gateways {
            eprintln!("{}\n", gateway.log());
        }
    }
    report
}

/// Fails with the first broken rules, if there are any.
pub(crate) fn assert_clean(report: &CheckReport) {
    let first: Vec<String> = report.violations.iter().take(3).map(ToString::to_string).collect();
    assert!(first.is_empty(), "{} violations\n{}", report.violations.len(), first.join("\n"));
    assert!(report.recorded > 0 && report.runs > 0, "nothing happened: {report}");
}

async fn disturb_store<S: Setup>(
    setup: &mut S,
    plan: &Plan,
    progress: &Progress,
    recorder: &Recorder,
) {
    let mut dice = Dice::new(plan.seed ^ 0x0073_746f_7265);
    let mut number = 0;
    SystemClock.sleep(dice.millis(500, 900)).await;
    while progress.goes_on() {
        number += 1;
        let turn = progress.turn().await;
        setup.disturb(number, &mut dice, recorder).await;
        drop(turn);
        progress.count();
        SystemClock.sleep(dice.millis(50, 500)).await;
    }
}

async fn disturb_gateways(gateways: &mut [Gateway], plan: &Plan, progress: &Progress) {
    let mut dice = Dice::new(plan.seed ^ 0x6e6f_6465);
    let only_kills = matches!(plan.lasts, Lasts::Cycles(_));
    while progress.goes_on() {
        SystemClock.sleep(dice.millis(150, 900)).await;
        let node = usize::try_from(dice.roll(gateways.len() as u64)).unwrap();
        let gateway = gateways.get_mut(node).unwrap();
        match dice.roll(6) {
            0 if !only_kills => {
                gateway.terminate().await;
                gateway.start().await;
            }
            1 | 2 if !only_kills => {
                gateway.suspend();
                SystemClock.sleep(dice.millis(50, 2_600)).await;
                gateway.resume();
            }
            _ => {
                gateway.kill().await;
                SystemClock.sleep(dice.millis(0, 200)).await;
                let _turn = progress.turn().await;
                gateway.start().await;
            }
        }
        progress.count();
    }
}

/// Records the begin and the end of a fault around the code that causes it.
pub(crate) async fn during(recorder: &Recorder, name: &'static str, fault: impl Future) {
    recorder.record(Event::Fault(name));
    fault.await;
    recorder.record(Event::Healed(name));
}

/// Two routes for each policy: one that waits for a running attempt, one that refuses.
fn routes(policies: &[Policy], upstream: &str) -> String {
    let mut text = String::new();
    for policy in policies {
        for manner in ["wait", "reject"] {
            let word = policy.word();
            let reconcile = format!("reconcile = \"GET {upstream}/by-key/{{key}}\"\n");
            let reconcile = if *policy == Policy::Reconcile { reconcile } else { String::new() };
            text += &format!(
                "[[route]]\nmatch = \"POST /{word}/{manner}\"\ntenant = \"public\"\nlease = \
                 \"1s\"\ngrace = \"1s\"\nupstream_timeout = \"1500ms\"\nin_flight = \
                 \"{manner}\"\nwait_timeout = \"800ms\"\non_unknown = \"{word}\"\n{reconcile}"
            );
        }
    }
    text
}
