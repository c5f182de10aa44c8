//! A gateway in a process of its own, whose system calls can be counted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use onetake_cli::gateway;
use onetake_core::{Clock, SystemClock};
use onetake_sim::servers::Child;
use tempfile::TempDir;

use crate::common;

/// The variables that make this program a gateway: the address of its upstream, and its folder.
const UPSTREAM: &str = "ONETAKE_TEST_UPSTREAM";
const FOLDER: &str = "ONETAKE_TEST_FOLDER";
/// The longest start of a gateway.
const START_MAX: Duration = Duration::from_secs(60);

/// A gateway that runs. It ends when this is dropped.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Gateway {
    /// Starts a gateway.
    pub(crate) fn start() -> Self {
        Self::start_with(&[], tempfile::tempdir().unwrap())
    }

    /// Starts a gateway whose system calls are counted.
    pub(crate) fn start_counted() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let counts = shown(&folder.path().join("counts"));
        Self::start_with(&[shown(counter()), counts], folder)
    }

    fn start_with(prefix: &[String], folder: TempDir) -> Self {
        let mut command = vec![
            "env".to_owned(),
            format!("{UPSTREAM}={}", common::upstream()),
            format!("{FOLDER}={}", shown(folder.path())),
        ];
        command.extend_from_slice(prefix);
        command.push(shown(&std::env::current_exe().unwrap()));
        command.extend(["--exact", "gateway::process", "--nocapture"].map(str::to_owned));
        let log = folder.path().join("log");
        let child = Child::start(&command, &log, None);
        let until = SystemClock.monotonic() + START_MAX;
        let address = loop {
            let written = std::fs::read_to_string(folder.path().join("address"));
            if let Ok(address) = written {
                break address.parse().unwrap();
            }
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!child.is_gone(), "the gateway ended: {log}");
            assert!(SystemClock.monotonic() < until, "the gateway does not start: {log}");
            std::thread::sleep(Duration::from_millis(5));
        };
        Self { address, child, folder }
    }

    /// Returns the number of system calls so far, by their numbers.
    pub(crate) fn system_calls(&self) -> Vec<u64> {
        let counts = std::fs::read(self.folder.path().join("counts")).unwrap();
        counts.chunks_exact(8).map(|one| u64::from_ne_bytes(one.try_into().unwrap())).collect()
    }

    /// Returns how often each thread waited and was woken, by the number of the thread.
    pub(crate) fn wake_ups(&self) -> BTreeMap<OsString, u64> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.pid())).unwrap();
        let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
            let thread = thread.unwrap();
            let status = std::fs::read_to_string(thread.path().join("status"));
            let status = status.unwrap_or_default();
            let mut lines = status.lines();
            let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            Some((thread.file_name(), count.trim().parse::<u64>().unwrap()))
        };
        threads.filter_map(of_thread).collect()
    }
}

/// The gateway, in the process that a test starts. In any other process it does nothing.
#[test]
fn process() {
    let [Ok(upstream), Ok(folder)] = [UPSTREAM, FOLDER].map(std::env::var) else { return };
    let folder = PathBuf::from(folder);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = common::config(&upstream, &folder.join("store"));
        let gateway = gateway::Gateway::start(config).await.unwrap();
        let draft = folder.join("address-draft");
        std::fs::write(&draft, gateway.address().to_string()).unwrap();
        std::fs::rename(draft, folder.join("address")).unwrap();
        std::future::pending::<()>().await;
        drop(gateway);
    });
}

/// The program that counts, compiled once.
fn counter() -> &'static Path {
    static COUNTER: OnceLock<PathBuf> = OnceLock::new();
    COUNTER.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system_calls/counter.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("system-call-counter");
        let draft = program.with_extension(std::process::id().to_string());
        let compiled = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&draft, &source])
            .status()
            .expect("a C compiler (cc) is needed to build the counter");
        assert!(compiled.success(), "cc {}", source.display());
        std::fs::rename(draft, &program).unwrap();
        program
    })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
