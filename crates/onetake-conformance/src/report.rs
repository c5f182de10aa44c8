//! The report of a suite.

use std::fmt;
use std::future::Future;

/// The results of all cases.
#[derive(Clone, Debug, Default)]
pub struct ConformanceReport {
    /// The names of the cases and, for failed ones, their messages.
    pub cases: Vec<(&'static str, Result<(), String>)>,
}

impl ConformanceReport {
    /// Returns the names of the failed cases.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static str> {
        self.cases.iter().filter(|(_, result)| result.is_err()).map(|(name, _)| *name).collect()
    }

    /// Runs a case, and keeps its panic message.
    pub async fn add(
        &mut self,
        name: &'static str,
        case: impl Future<Output = ()> + Send + 'static,
    ) {
        let result = tokio::spawn(case).await;
        self.cases.push((name, result.map_err(said)));
    }

    /// Panics with all failures.
    ///
    /// # Panics
    /// If a case failed, or if there was none.
    pub fn assert_passed(&self) {
        assert!(!self.cases.is_empty(), "no case ran");
        assert!(self.failed().is_empty(), "{self}");
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} cases failed", self.failed().len(), self.cases.len())?;
        for (name, result) in &self.cases {
            if let Err(what) = result {
                writeln!(f, "- {name}: {what}")?;
            }
        }
        Ok(())
    }
}

fn said(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_else(|| "panicked".to_owned()),
        Err(error) => error.to_string(),
    }
}
