//! Test programs that are run once for each mutant.

#![expect(clippy::disallowed_methods, reason = "real programs take real time")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::super::scope::Stage;
use super::{VARIABLE, process};

/// A program hangs if it takes this many times as long as without a mutant, plus
/// [`HANGS_AFTER_MIN`].
const HANGS_AFTER_TIMES: u32 = 4;
const HANGS_AFTER_MIN: Duration = Duration::from_secs(15);

/// The longest time of a program whose time is not known yet.
const MEASURED_MAX: Duration = Duration::from_secs(600);

/// The interval at which a running program is checked.
const LOOK: Duration = Duration::from_millis(20);

/// One test program.
#[derive(Debug)]
pub(super) struct Program {
    file: PathBuf,
    folder: PathBuf,
    tools: PathBuf,
    tests: &'static [&'static str],
    starts_servers: bool,
    takes: Duration,
}

/// The end of a program's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Passed,
    Failed,
    Hung,
}

impl Program {
    /// Returns the test program that a line of cargo's output names, if any.
    pub(super) fn read(line: &str, tools: &Path, stage: &Stage) -> Option<Self> {
        let said: Value = serde_json::from_str(line).ok()?;
        let is_test = said.pointer("/profile/test")?.as_bool()?;
        let file = PathBuf::from(said.get("executable")?.as_str()?);
        let folder = Path::new(said.get("manifest_path")?.as_str()?).parent()?.to_owned();
        let (tools, takes) = (tools.to_owned(), Duration::ZERO);
        let &Stage { tests, starts_servers, .. } = stage;
        // The selection has more packages than the stage.
        let package = folder.file_name()?.to_str()?;
        let is_wanted = is_test && stage.packages.contains(&package);
        is_wanted.then_some(Self { file, folder, tools, tests, starts_servers, takes })
    }

    /// The name without folder and hash.
    pub(super) fn name(&self) -> String {
        let name = self.file.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_default()
            .rsplit_once('-')
            .map(|(name, _)| name.to_owned())
            .unwrap_or_default()
    }

    /// Sets the duration without a mutant, if it is not measured.
    pub(super) fn expect(&mut self, takes: Duration) {
        self.takes = takes;
    }

    /// The duration without a mutant.
    pub(super) fn takes(&self) -> Duration {
        self.takes
    }

    /// Runs the program without a mutant, to measure its time. It must pass.
    pub(super) fn measure(&mut self) -> Result<(), String> {
        let (ended, takes) = self.run_within(0, MEASURED_MAX);
        self.takes = takes;
        eprintln!("{} takes {:.1} s", self.name(), self.takes.as_secs_f64());
        match ended {
            Ended::Passed => Ok(()),
            Ended::Failed => Err(format!("{} fails without a mutant", self.file.display())),
            Ended::Hung => Err(format!("{} hangs without a mutant", self.file.display())),
        }
    }

    /// Runs the program with a mutant. It is ended at its first failure, unless it has servers to
    /// stop.
    pub(super) fn run(&self, mutant: u32) -> Ended {
        self.run_within(mutant, self.takes * HANGS_AFTER_TIMES + HANGS_AFTER_MIN).0
    }

    /// The same with the time after which it hangs. Returns its duration as well.
    fn run_within(&self, mutant: u32, hangs_after: Duration) -> (Ended, Duration) {
        let mut command = Command::new(&self.file);
        command.args(self.tests);
        command.current_dir(&self.folder).env(VARIABLE, mutant.to_string());
        command.env("ONETAKE_TOOLS", &self.tools).env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return (Ended::Failed, Duration::ZERO) };
        let (tell, told) = std::sync::mpsc::channel();
        let reader = child.stdout.take().map(|said| {
            std::thread::spawn(move || {
                for line in BufReader::new(said).lines().map_while(Result::ok) {
                    if line.starts_with("test ") && line.ends_with("FAILED") {
                        let _nobody_waits = tell.send(());
                    }
                }
            })
        });
        let is_failing = || !self.starts_servers && told.try_recv().is_ok();
        let ended = wait(&mut child, hangs_after, is_failing);
        if let Some(reader) = reader {
            let _the_thread_returns_nothing = reader.join();
        }
        ended
    }
}

/// Waits for the end of a program, and ends it if it fails or hangs. Returns its duration as well:
/// the time of the processors that it used, and the time in which it waited for something else. The
/// time in which it waited for a processor does not count, so a busy machine makes nothing hang.
fn wait(
    child: &mut Child,
    hangs_after: Duration,
    is_failing: impl Fn() -> bool,
) -> (Ended, Duration) {
    let (mut asleep, mut takes) = (Duration::ZERO, Duration::ZERO);
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return (Ended::Passed, takes),
            Ok(Some(_)) | Err(_) => return (Ended::Failed, takes),
            Ok(None) => {}
        }
        takes = asleep + process::used_processor(child.id());
        let ended = match (is_failing(), takes > hangs_after) {
            (true, _) => Some(Ended::Failed),
            (_, true) => Some(Ended::Hung),
            _ => None,
        };
        if let Some(ended) = ended {
            let _it_may_have_ended = child.kill();
            let _as_above = child.wait();
            return (ended, takes);
        }
        std::thread::sleep(LOOK);
        if process::is_asleep(child.id()) {
            asleep += LOOK;
        }
    }
}
