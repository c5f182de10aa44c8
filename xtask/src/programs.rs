//! Runs test programs, some at once, because they mostly wait for servers and clocks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// The number of programs that run at once.
const AT_ONCE: usize = 2;

/// The cargo arguments that build the tests.
pub(crate) const BUILD: [&str; 4] = ["test", "--workspace", "--all-features", "--no-run"];

/// A test program, and the folder in which it runs, as with `cargo test`.
struct Program {
    file: PathBuf,
    folder: PathBuf,
}

/// Builds all test programs and runs them. The error names those that failed.
pub(crate) fn run() -> Result<(), String> {
    let programs = build()?;
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !passes(program)
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(program.file.display().to_string());
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(failed) if failed.is_empty() => Ok(()),
        Ok(failed) => Err(format!("tests failed in\n  {}", failed.join("\n  "))),
        Err(_) => Err("a thread that ran tests panicked".to_owned()),
    }
}

fn build() -> Result<Vec<Program>, String> {
    eprintln!("$ cargo {}", BUILD.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(BUILD)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !built.status.success() {
        return Err("the tests could not be built".to_owned());
    }
    let text = String::from_utf8_lossy(&built.stdout);
    let programs: Vec<Program> = text.lines().filter_map(program).collect();
    if programs.is_empty() {
        return Err("cargo built no tests".to_owned());
    }
    Ok(programs)
}

/// Returns the test program that a line of cargo's output names, if any.
fn program(line: &str) -> Option<Program> {
    let said: Value = serde_json::from_str(line).ok()?;
    let is_test = said.pointer("/profile/test")?.as_bool()?;
    let file = PathBuf::from(said.get("executable")?.as_str()?);
    let folder = Path::new(said.get("manifest_path")?.as_str()?).parent()?.to_owned();
    is_test.then_some(Program { file, folder })
}

/// Runs one program, and prints its output after it has ended.
fn passes(program: &Program) -> bool {
    let ran = Command::new(&program.file).current_dir(&program.folder).output();
    let (said, passed) = match ran {
        Ok(ran) => {
            let said = [ran.stdout, ran.stderr].concat();
            (String::from_utf8_lossy(&said).into_owned(), ran.status.success())
        }
        Err(error) => (format!("it could not be started: {error}\n"), false),
    };
    println!("     Running {}\n{said}", program.file.display());
    passed
}
