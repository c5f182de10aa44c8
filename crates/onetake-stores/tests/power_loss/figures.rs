//! The figures of a test: the checks and their results.

use std::path::Path;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};

use crate::check::{Verdict, check};
use crate::expected::Expected;
use crate::image::{self, Image};

/// An empty folder, in memory where possible: no test depends on the disk of this machine.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.unwrap()
}

/// Returns true if the long form was requested.
pub(crate) fn is_long() -> bool {
    std::env::var("ONETAKE_POWER_LOSS").is_ok_and(|form| form == "long")
}

/// Opens an image and compares it.
pub(crate) fn check_image(image: &Image, expected: &Expected) -> Verdict {
    let folder = scratch();
    image::store(image, folder.path());
    check(folder.path(), expected)
}

/// The results of many checks.
#[derive(Debug)]
pub(crate) struct Figures {
    name: String,
    started: Duration,
    /// Moments, faults or flips.
    pub(crate) cases: usize,
    pub(crate) folders: usize,
    pub(crate) panics: usize,
    pub(crate) refused: Vec<String>,
    pub(crate) violations: Vec<String>,
}

impl Figures {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            started: SystemClock.monotonic(),
            cases: 0,
            folders: 0,
            panics: 0,
            refused: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Adds the result of one folder. `case` identifies it.
    pub(crate) fn add(&mut self, case: &str, verdict: Verdict) {
        self.folders += 1;
        self.panics += usize::from(verdict.panicked);
        if let Some(first) = verdict.refused.first() {
            self.refused.push(format!("{case}: {first}"));
        }
        let named = |text: String| format!("{case}: {text}");
        self.violations.extend(verdict.violations.into_iter().map(named));
    }

    /// Prints one line, and the first few violations.
    pub(crate) fn print(&self) {
        println!(
            "{}: {} cases, {} folders, {} refused, {} panics, {} violations, {:.1} s",
            self.name,
            self.cases,
            self.folders,
            self.refused.len(),
            self.panics,
            self.violations.len(),
            (SystemClock.monotonic() - self.started).as_secs_f64()
        );
        for (what, texts) in [("violation", &self.violations), ("refused", &self.refused)] {
            for text in texts.iter().take(3) {
                println!("  {what}: {}", text.chars().take(400).collect::<String>());
            }
        }
    }

    /// Asserts that nothing was lost.
    pub(crate) fn assert_nothing_lost(&self) {
        self.print();
        assert!(self.folders > 0, "{}: nothing was checked", self.name);
        let lost = self.violations.len();
        assert_eq!(lost, 0, "{}: something is lost, see above", self.name);
        assert_eq!(self.panics, 0, "{}: a refusal is an error, not a panic", self.name);
    }

    /// Asserts that nothing was lost or refused.
    pub(crate) fn assert_all_there(&self) {
        self.assert_nothing_lost();
        let refused = self.refused.len();
        assert_eq!(refused, 0, "{}: something is refused, see above", self.name);
    }
}
