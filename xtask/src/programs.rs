//! Runs test programs, some at once, because they mostly wait for servers and clocks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::catalogue::{PROGRAMS, TestProgram};

/// The number of programs that run at once.
const AT_ONCE: usize = 2;

/// The cargo arguments that build the tests.
pub(crate) const BUILD: [&str; 4] = ["test", "--workspace", "--all-features", "--no-run"];

/// The folder for temporary files of fast tests: in memory, where a write to disk takes no time.
const MEMORY: &str = "/dev/shm";

/// The programs that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// The programs that need no servers and no tools. Their temporary files are in memory.
    Fast,
}

/// A test program, and the folder in which it runs, as with `cargo test`.
#[derive(Debug)]
struct Program {
    /// The crate and the program's name.
    name: (String, String),
    file: PathBuf,
    folder: PathBuf,
}

/// The result of a program.
struct Ran {
    passed: bool,
    tests: usize,
    said: String,
    took: Duration,
}

/// Builds the test programs and runs them. Prints the number of tests and the time that they took.
/// The error names the programs that failed.
pub(crate) fn run(which: Which) -> Result<(), String> {
    let programs = build(which)?;
    let began = now();
    let (next, tests, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ran = program.run(which);
                    let seconds = ran.took.as_secs_f64();
                    let (package, name) = &program.name;
                    println!("     Ran {package} {name} in {seconds:.1} s\n{}", ran.said);
                    tests.fetch_add(ran.tests, Ordering::Relaxed);
                    if !ran.passed
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(program.file.display().to_string());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().map_err(|_| "a thread that ran tests panicked")?;
    if failed.is_empty() {
        let (tests, seconds) = (tests.into_inner(), began.elapsed().as_secs());
        println!("{tests} tests in {} programs passed in {seconds} s", programs.len());
        return Ok(());
    }
    Err(format!("tests failed in\n  {}", failed.join("\n  ")))
}

fn build(which: Which) -> Result<Vec<Program>, String> {
    let mut arguments = BUILD.to_vec();
    if which == Which::Fast {
        arguments.extend(["--lib", "--bins"]);
        let fast = PROGRAMS.iter().filter(|program| program.needs.is_empty());
        arguments.extend(fast.flat_map(|program| ["--test", program.name]));
    }
    eprintln!("$ cargo {}", arguments.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !built.status.success() {
        return Err("the tests could not be built".to_owned());
    }
    let text = String::from_utf8_lossy(&built.stdout);
    let mut programs: Vec<Program> = text.lines().filter_map(Program::read).collect();
    if programs.is_empty() {
        return Err("cargo built no tests".to_owned());
    }
    // The unit tests, which are not in the table, come last.
    programs.sort_by_key(|program| {
        PROGRAMS.iter().position(|listed| program.is(listed)).unwrap_or(PROGRAMS.len())
    });
    Ok(programs)
}

impl Program {
    /// Returns the test program that a line of cargo's output names, if any.
    fn read(line: &str) -> Option<Self> {
        let said: Value = serde_json::from_str(line).ok()?;
        let is_test = said.pointer("/profile/test")?.as_bool()?;
        let file = PathBuf::from(said.get("executable")?.as_str()?);
        let folder = Path::new(said.get("manifest_path")?.as_str()?).parent()?.to_owned();
        let package = folder.file_name()?.to_str()?.to_owned();
        let name = said.pointer("/target/name")?.as_str()?.to_owned();
        is_test.then_some(Self { name: (package, name), file, folder })
    }

    fn is(&self, listed: &TestProgram) -> bool {
        let (package, name) = &self.name;
        listed.package == package && listed.name == name
    }

    /// Runs it, and returns its output after it has ended.
    fn run(&self, which: Which) -> Ran {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder);
        let listed = PROGRAMS.iter().find(|listed| self.is(listed));
        if let Some(tests_at_once) = listed.and_then(|listed| listed.tests_at_once) {
            command.env("RUST_TEST_THREADS", tests_at_once.to_string());
        }
        if which == Which::Fast {
            command.env("ONETAKE_NO_SERVERS", "1");
            if Path::new(MEMORY).is_dir() {
                command.env("TMPDIR", MEMORY);
            }
        }
        let began = now();
        let (said, passed) = match command.output() {
            Ok(ran) => {
                let said = [ran.stdout, ran.stderr].concat();
                (String::from_utf8_lossy(&said).into_owned(), ran.status.success())
            }
            Err(error) => (format!("it could not be started: {error}\n"), false),
        };
        Ran { passed, tests: passed_tests(&said), said, took: began.elapsed() }
    }
}

/// Returns the number of tests that passed, by the last line of a program's output.
fn passed_tests(said: &str) -> usize {
    let result = said.lines().rev().find_map(|line| line.strip_prefix("test result: ok. "));
    let count = result.and_then(|result| result.split(' ').next());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[expect(clippy::disallowed_methods, reason = "real programs take real time")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::passed_tests;

    #[test]
    fn passed_tests_are_counted() {
        let said = "running 2 tests\n\ntest result: ok. 12 passed; 0 failed; 0 ignored\n\n";
        assert_eq!(passed_tests(said), 12);
        assert_eq!(passed_tests("test result: FAILED. 3 passed; 1 failed"), 0);
    }
}
