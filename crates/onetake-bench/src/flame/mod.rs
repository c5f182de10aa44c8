//! A flame graph of the gateway under load: samples of `perf record`, drawn as an SVG file.
//!
//! The crate `inferno` draws such graphs too, but its licence (CDDL-1.0) is a copyleft one.

mod graph;
mod stacks;

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::load::Load;
use crate::target::Target;
use crate::usage::{PERF_START, sleep};
use stacks::Frame;

/// Samples per second of each processor. The rate is not a multiple of usual timers, so that samples
/// do not fall on their ticks.
const FREQUENCY: &str = "499";
/// The way to find the callers of a function, and the bytes of the stack that a sample has. The
/// binary has no frame pointers.
const CALL_GRAPH: &str = "dwarf,65528";
/// The highest stack that is read.
const FRAMES_MAX: &str = "512";
/// The least length of a run. With fewer samples, narrow frames are chance.
pub(crate) const LASTS: Duration = Duration::from_secs(5);
const NOT_INSTALLED: &str =
    "no flame graph: `perf` is not installed (the package `linux-perf` on Debian)";

/// Runs a load on a gateway, and writes a flame graph of the gateway's CPU time to a file.
pub(crate) fn draw(target: &Target, load: Load, title: &str, file: &Path) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("perf.data");
    let perf = match Recorder::start(&target.processes, data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("{NOT_INSTALLED}");
            return Ok(());
        }
        perf => perf?,
    };
    let loaded = load.run();
    let root = perf.stop()?;
    loaded.map_err(|error| target.explain(&error))?;
    std::fs::write(file, graph::text(&root, title))?;
    println!("{}: a flame graph of {} samples", file.display(), root.samples);
    Ok(())
}

/// A running `perf record`.
struct Recorder {
    perf: Child,
    data: PathBuf,
}

impl Recorder {
    fn start(processes: &[u32], data: PathBuf) -> io::Result<Self> {
        let processes: Vec<String> = processes.iter().map(ToString::to_string).collect();
        let perf = Command::new("perf")
            .args(["record", "-F", FREQUENCY, "--call-graph", CALL_GRAPH])
            .args(["-p", &processes.join(","), "-o"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        sleep(PERF_START);
        Ok(Self { perf, data })
    }

    /// Stops, and returns the samples.
    fn stop(self) -> io::Result<Frame> {
        Command::new("kill").arg("-INT").arg(self.perf.id().to_string()).status()?;
        let recorded = self.perf.wait_with_output()?;
        // Names of functions come from the symbols: lines of inlined functions would need debug info.
        let mut script = Command::new("perf")
            .args(["script", "--no-inline", "--max-stack", FRAMES_MAX])
            .args(["-F", "comm,ip,sym,dso", "-i"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = script.stdout.take().ok_or_else(|| io::Error::other("perf has no output"))?;
        let root = stacks::read(BufReader::new(output))?;
        let _status = script.wait()?;
        if root.samples == 0 {
            let said = String::from_utf8_lossy(&recorded.stderr);
            return Err(io::Error::other(format!("`perf record` took no samples: {said}")));
        }
        Ok(root)
    }
}
