//! `onetake probe` as a process.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

/// The result of `onetake probe --json`.
#[derive(Debug)]
pub(crate) struct Probed {
    pub(crate) code: i32,
    pub(crate) report: Value,
    pub(crate) errors: String,
}

impl Probed {
    /// Runs the command. A retry in flight needs an overlap of two requests, which a machine that
    /// stalls can prevent: then the run is repeated.
    pub(crate) async fn run(arguments: &[&str]) -> Self {
        let mut probed = Self::once(arguments).await;
        for _ in 0..4 {
            if !probed.with("not_shown").contains(&"in-flight".to_owned()) {
                break;
            }
            probed = Self::once(arguments).await;
        }
        probed
    }

    /// Runs the command once.
    pub(crate) async fn once(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.arg("probe").args(arguments).args(["--json", "--timeout", "60"]);
        command.args(["--limit", "600"]).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.unwrap();
        Self {
            code: output.status.code().unwrap(),
            report: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            errors: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The names of the checks with a verdict.
    pub(crate) fn with(&self, verdict: &str) -> Vec<String> {
        let checks = self.report["checks"].as_array().into_iter().flatten();
        let checks = checks.filter(|check| check["verdict"] == verdict);
        checks.map(|check| check["name"].as_str().unwrap().to_owned()).collect()
    }
}
