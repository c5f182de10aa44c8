//! Fresh keys on stores with different numbers of live keys, in one run.

use std::io;
use std::path::Path;

use onetake_core::{Clock, SystemClock, Terms};

use super::fact;
use crate::case::{Keys, Traffic};
use crate::options::Options;
use crate::programs::fill;
use crate::report::Section;
use crate::run::{Rounds, runs_at};
use crate::target::Stage;

/// Fills a store with each number of keys, starts a gateway on each, and compares them.
pub(crate) fn growth(
    case: &'static str,
    options: &Options,
    stage: &mut Stage,
) -> io::Result<Section> {
    let (mut targets, mut facts) = (Vec::new(), Vec::new());
    for keys in options.keys.iter().copied() {
        let name = format!("{keys} keys");
        let folder = tempfile::tempdir()?;
        let store = folder.path().join("store");
        let began = SystemClock.monotonic();
        let filled = fill(&store, keys, Terms::default())?;
        let took = SystemClock.monotonic() - began;
        let on_disk = bytes_on_disk(&store)? as f64 / keys as f64;
        let gateway = stage.on_folder(folder, "")?;
        let began = SystemClock.monotonic();
        let target = stage.start_gateway(&name, gateway)?;
        // Any request that passes through.
        let _runs = runs_at(target.address).map_err(|error| target.explain(&error))?;
        let start = SystemClock.monotonic() - began;
        let record = filled.record_bytes as f64;
        facts.extend([
            fact(&name, "seconds to fill", took.as_secs_f64()),
            fact(&name, "seconds until the gateway answers", start.as_secs_f64()),
            fact(&name, "bytes of a record", record),
            fact(&name, "bytes on disk per key", on_disk),
            fact(&name, "bytes on disk per byte of a record", on_disk / record),
            fact(&name, "MiB of memory after the start", resident_mib(&target)),
        ]);
        targets.push((target, Keys::Fresh));
    }
    let connections = options.connections_of(&Traffic::SMALL);
    let rounds = Rounds { case, traffic: Traffic::SMALL, connections, options, stage };
    let mut section = rounds.run(&targets)?;
    for (target, _) in &targets {
        facts.push(fact(&target.name, "MiB of memory after the load", resident_mib(target)));
    }
    section.facts = facts;
    Ok(section)
}

fn resident_mib(target: &crate::target::Target) -> f64 {
    target.usage().resident_kib as f64 / 1024.0
}

/// Returns the space that the files of a folder take on disk.
fn bytes_on_disk(folder: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    /// The unit of `st_blocks`.
    const BLOCK_BYTES: u64 = 512;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // The store merges files, and removes them, in the background.
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        bytes += if metadata.is_dir() {
            bytes_on_disk(&entry.path())?
        } else {
            metadata.blocks() * BLOCK_BYTES
        };
    }
    Ok(bytes)
}
