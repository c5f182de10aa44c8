//! `onetake probe`: is an HTTP API idempotent?
//!
//! The probe sends first requests, retries and malformed keys to an API, and judges the responses
//! by [`report::CHECKS`]. Runs are seen by a counter that the owner names, else by responses that
//! differ from one operation to the next.

mod arguments;
mod checks;
mod client;
mod counter;
mod junit;
mod report;
mod session;

use std::process::ExitCode;
use std::sync::Arc;

use onetake_core::{Clock, SystemClock, SystemRng};

use crate::cli::{Failed, runtime, say};

pub(crate) use arguments::Probe;
use client::ProbeClient;
use report::{Report, Verdict};
use session::Session;

impl Probe {
    /// Probes the API and prints the report. The exit code is 1 if a check failed.
    pub(crate) fn run(&self) -> ExitCode {
        let report = runtime().and_then(|runtime| runtime.block_on(self.probe()));
        match report {
            Ok(report) => {
                let text = match self.json {
                    true => format!("{:#}\n", report.json()),
                    false => report.table(),
                };
                say(&text);
                let has_failed = report.count(Verdict::Fail) > 0;
                if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
            }
            Err(failed) => failed.into(),
        }
    }

    async fn probe(&self) -> Result<Report, Failed> {
        let settings = self.settings().map_err(|error| Failed(error, 2))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let start = clock.monotonic();
        let limits = (settings.timeout, settings.limit);
        let client =
            ProbeClient::new(Arc::clone(&clock), limits.0, limits.1, settings.is_encrypted())
                .map_err(|error| Failed(error, 2))?;
        let session = Session { settings: &settings, client, rng: Arc::new(SystemRng) };
        let target = format!("{} {}", settings.method, settings.url);
        let findings = checks::run(&session).await;
        let findings = findings.map_err(|error| Failed(format!("{target}: {error}"), 3))?;
        let requests = session.client.requests();
        let took = clock.monotonic().saturating_sub(start);
        let report = Report { target, findings, requests, took };
        if let Some(file) = &self.junit {
            std::fs::write(file, junit::junit(&report)).map_err(|error| {
                Failed(format!("--junit {}: cannot be written: {error}", file.display()), 2)
            })?;
        }
        Ok(report)
    }
}
