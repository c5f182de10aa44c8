//! The trace that `tracer.c` writes: every change below a folder, in order.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};

use crate::script::Script;

/// The time limit of a worker: far longer than it needs.
const PATIENCE: Duration = Duration::from_secs(120);
/// The exit code for a worker that never ends.
pub(crate) const HANGS: i32 = -2;
/// The exit code of a worker that was killed.
pub(crate) const KILLED: i32 = 137;

/// One record of the trace. Paths are relative to the traced folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A file that was not there is opened.
    Create(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    SetLength(PathBuf, u64),
    /// A file or folder is synced. `false`: the sync failed.
    Sync(PathBuf, bool),
    CreateFolder(PathBuf),
    Rename(PathBuf, PathBuf),
    /// A file or folder is deleted.
    Delete(PathBuf),
    /// A file or folder is opened and not changed by that.
    Open(PathBuf),
    /// A file or folder is read.
    Read(PathBuf),
    /// The worker reports something.
    Mark(String),
    /// A call that the fault refused: nothing happened.
    Refused,
}

impl Event {
    /// The class of calls that faults count, see `tracer.c`.
    pub(crate) fn class(&self) -> Option<char> {
        match self {
            Self::Write(..) | Self::SetLength(..) => Some('w'),
            Self::Sync(..) => Some('s'),
            Self::Create(_) | Self::Open(_) => Some('o'),
            Self::CreateFolder(_) | Self::Rename(..) | Self::Delete(_) => Some('n'),
            Self::Read(_) => Some('r'),
            Self::Mark(_) | Self::Refused => None,
        }
    }
}

/// The result of a traced worker.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) events: Vec<Event>,
    /// The exit code, [`KILLED`] or [`HANGS`].
    pub(crate) code: i32,
    /// Standard error of the worker.
    pub(crate) said: String,
}

impl Traced {
    /// The number of calls of these classes.
    pub(crate) fn count(&self, classes: &str) -> usize {
        let classes = |event: &&Event| event.class().is_some_and(|class| classes.contains(class));
        self.events.iter().filter(classes).count()
    }
}

/// Runs a worker on `root` under the tracer, with a fault as `tracer.c` takes it.
pub(crate) fn run(root: &Path, script: Script, fault: &str) -> Traced {
    let beside = tempfile::tempdir().unwrap();
    let (trace, marks) = (beside.path().join("trace"), beside.path().join("marks"));
    let said = beside.path().join("said");
    let mut tracer = Command::new(tracer())
        .args([root, &trace, &marks])
        .args([fault, "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["worker::worker_process", "--exact", "--nocapture", "--test-threads=1"])
        .env("ONETAKE_POWER_WORKER", script.to_string())
        .env("ONETAKE_POWER_ROOT", root)
        .env("ONETAKE_POWER_MARKS", &marks)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let code = ends(&mut tracer).unwrap_or_else(|| {
        // The worker ends with its tracer.
        tracer.kill().unwrap();
        tracer.wait().unwrap();
        HANGS
    });
    let said = String::from_utf8_lossy(&fs::read(said).unwrap()).into_owned();
    assert_ne!(code, 125, "the tracer failed: {said}");
    Traced { events: parse(&fs::read(&trace).unwrap()), code, said }
}

/// Returns the exit code of a program, or `None` if it takes too long.
fn ends(program: &mut Child) -> Option<i32> {
    let end = SystemClock.monotonic() + PATIENCE;
    loop {
        if let Some(status) = program.try_wait().unwrap() {
            return Some(status.code().unwrap_or(-1));
        }
        if SystemClock.monotonic() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The tracer, compiled once.
fn tracer() -> &'static Path {
    static TRACER: OnceLock<PathBuf> = OnceLock::new();
    TRACER.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power_loss/tracer.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("power-loss-tracer");
        let draft = program.with_extension(std::process::id().to_string());
        let compiled = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&draft, &source])
            .status()
            .expect("a C compiler (cc) is needed to build the tracer");
        assert!(compiled.success(), "cc {}", source.display());
        fs::rename(draft, &program).unwrap();
        program
    })
}

fn parse(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(2) {
        bytes = rest;
        let path = PathBuf::from(text(take(&mut bytes)));
        let second = PathBuf::from(text(take(&mut bytes)));
        let (number, rest) = bytes.split_at(8);
        let number = u64::from_le_bytes(number.try_into().unwrap());
        bytes = rest;
        let data = take(&mut bytes);
        let failed = head[1] != 0;
        events.push(match head[0] {
            b'S' => Event::Sync(path, !failed),
            b'X' => panic!("a trace cannot show this: {} of {}", text(data), path.display()),
            _ if failed => Event::Refused,
            b'C' => Event::Create(path),
            b'W' => Event::Write(path, number, data.to_vec()),
            b'L' => Event::SetLength(path, number),
            b'D' => Event::CreateFolder(path),
            b'R' => Event::Rename(path, second),
            b'U' => Event::Delete(path),
            b'O' => Event::Open(path),
            b'I' => Event::Read(path),
            b'M' => Event::Mark(text(data)),
            kind => panic!("not a record: {kind}"),
        });
    }
    events
}

fn take<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let (length, rest) = bytes.split_at(4);
    let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
    let (taken, rest) = rest.split_at(length);
    *bytes = rest;
    taken
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
