//! Deliberate bugs: a history with one of them must not pass.

use std::sync::Arc;
use std::time::Duration;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_conformance::{BuggyStore, StoreBug};
use onetake_core::{Clock, SystemClock};
use onetake_sim::fault_proxy::Weather;
use onetake_sim::history::Recorder;
use onetake_sim::history::check::Rule;

use super::failover::OnStandby;
use super::gateway::{BUG, CONFIGURATION};
use super::load::Dice;
use super::setups::{OnPostgres, OnSqlite};
use super::turn;
use super::world::{Lasts, Plan, Setup, during, run};

/// The process of a gateway with a deliberate bug. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_with_a_deliberate_bug() {
    let Ok(file) = std::env::var(CONFIGURATION) else { return };
    let name = std::env::var(BUG).unwrap();
    let bug = StoreBug::ALL.into_iter().find(|bug| format!("{bug:?}") == name).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let config = config::load(Some(&text), &file, std::iter::empty(), Overrides::default());
    let buggy = |store| Arc::new(BuggyStore::new(store, bug, Arc::new(SystemClock))) as _;
    let _gateway = Gateway::start_with(config.unwrap(), buggy).await.unwrap();
    std::future::pending::<()>().await;
}

/// A PostgreSQL that is cut off for most of the time, while gateways are killed.
struct Cutting(OnPostgres);

impl Setup for Cutting {
    const NAME: &'static str = "postgres that is cut off";

    fn section(&self) -> String {
        self.0.section()
    }

    async fn disturb(&mut self, _: u64, dice: &mut Dice, recorder: &Recorder) {
        during(recorder, "requests cut", async {
            self.0.proxy.set(Weather::CutThere);
            SystemClock.sleep(dice.millis(600, 1_400)).await;
            self.0.proxy.set(Weather::Fair);
        })
        .await;
    }
}

/// Runs histories with a bug until the checker finds it, and checks that it names one of `rules`.
async fn is_found<S: Setup>(setup: &mut S, bug: Option<StoreBug>, seconds: u64, rules: &[Rule]) {
    let plan = Plan { bug, prints_logs: false, ..Plan::new(Duration::ZERO) };
    let mut found = Vec::new();
    // The rarest bug is found in one of three histories.
    for seed in 1..21 {
        let lasts = Lasts::Time(Duration::from_secs(seconds));
        found = run(setup, Plan { seed, lasts, ..plan }).await.rules();
        eprintln!("{}: {bug:?} is found: {found:?}", S::NAME);
        if rules.iter().any(|rule| found.contains(rule)) {
            return;
        }
    }
    panic!("{bug:?} is not found by any of {rules:?}, only {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_payload_that_runs_is_found() {
    let _turn = turn().await;
    let bug = Some(StoreBug::FingerprintInId);
    is_found(&mut OnSqlite::new(), bug, 2, &[Rule::OnePayload]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_that_does_not_rise_is_found() {
    let _turn = turn().await;
    let bug = Some(StoreBug::FenceNotRaised);
    is_found(&mut OnSqlite::new(), bug, 2, &[Rule::FencesRise]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_is_shown_before_it_is_durable_is_found() {
    let _turn = turn().await;
    let rules = [Rule::RecordingStays, Rule::NoRunAfterRecording, Rule::OneRecording];
    let bug = Some(StoreBug::AnswerBeforeCommit);
    is_found(&mut Cutting(OnPostgres::start().await), bug, 4, &rules).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_promoted_without_the_latest_commits_is_found() {
    let _turn = turn().await;
    let rules = [Rule::OneRun, Rule::NoRunAfterRecording, Rule::OneRecording];
    is_found(&mut OnStandby::start(false).await, None, 3, &rules).await;
}
