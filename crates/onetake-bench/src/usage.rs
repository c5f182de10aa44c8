//! The cost of processes, as `/proc` and `perf` count it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onetake_core::{Clock, SystemClock};

/// The unit of CPU times in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;
/// The time that perf gets to attach to a process. An idle process calls next to nothing meanwhile.
pub(crate) const PERF_START: Duration = Duration::from_millis(500);

/// CPU time and memory of processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) written_bytes: u64,
    pub(crate) peak_kib: u64,
    pub(crate) resident_kib: u64,
    /// The number of times that a thread waited and was woken.
    pub(crate) wake_ups: u64,
}

/// Returns the usage of processes and their children so far.
pub(crate) fn usage(processes: &[u32]) -> Usage {
    let all = with_children(processes).into_iter().map(usage_of);
    all.fold(Usage::default(), |sum, one| Usage {
        cpu_seconds: sum.cpu_seconds + one.cpu_seconds,
        written_bytes: sum.written_bytes + one.written_bytes,
        peak_kib: sum.peak_kib + one.peak_kib,
        resident_kib: sum.resident_kib + one.resident_kib,
        wake_ups: sum.wake_ups + one.wake_ups,
    })
}

fn with_children(processes: &[u32]) -> Vec<u32> {
    let mut all = processes.to_vec();
    for process in processes {
        let children = read(*process, &format!("task/{process}/children"));
        all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    all
}

fn read(process: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default()
}

/// Returns the number behind a name in a file of `/proc`.
fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

fn usage_of(process: u32) -> Usage {
    let stat = read(process, "stat");
    // The second field is the program's name, in parentheses. It may contain spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    let status = read(process, "status");
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let switches = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        number(&status, "voluntary_ctxt_switches:")
    };
    Usage {
        cpu_seconds: ticks / TICKS_PER_SECOND,
        written_bytes: number(&read(process, "io"), "write_bytes:"),
        peak_kib: number(&status, "VmHWM:"),
        resident_kib: number(&status, "VmRSS:"),
        wake_ups: threads.into_iter().flatten().flatten().map(switches).sum(),
    }
}

/// Counts the system calls of processes with `perf stat`.
pub(crate) struct SystemCalls {
    perf: Child,
    output: PathBuf,
    _folder: tempfile::TempDir,
}

impl SystemCalls {
    /// Starts to count. Returns `None` if perf is not there.
    pub(crate) fn count(processes: &[u32]) -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let output = folder.path().join("perf");
        let all: Vec<String> = with_children(processes).iter().map(ToString::to_string).collect();
        let perf = Command::new("perf")
            .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &all.join(","), "-o"])
            .arg(&output)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        sleep(PERF_START);
        Some(Self { perf, output, _folder: folder })
    }

    /// Stops, and returns the number. Returns `None` if perf may not count.
    pub(crate) fn stop(mut self) -> Option<f64> {
        Command::new("kill").arg("-INT").arg(self.perf.id().to_string()).status().ok()?;
        let _status = self.perf.wait().ok()?;
        let output = std::fs::read_to_string(&self.output).ok()?;
        let line = output.lines().find(|line| line.contains("sys_enter"))?;
        line.split(',').next()?.parse().ok()
    }
}

/// Waits on this thread.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Waits until a condition holds. Returns false if it does not within `limit`.
pub(crate) fn wait_until(limit: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    let until = SystemClock.monotonic() + limit;
    while !is_true() {
        if SystemClock.monotonic() > until {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    true
}
