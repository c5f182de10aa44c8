//! Health checks for the folder of the embedded store.
//!
//! The store is not opened, so the check can run while a gateway uses the folder.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onetake_core::Clock;
use onetake_stores::{Diagnosis, Finding};

/// Number of writes that are measured.
const WRITES: usize = 9;
/// Bytes of each write: a typical group of claims.
const WRITE_BYTES: usize = 4096;
/// A durable write that takes less has hardly reached a disk.
const UNBELIEVABLE: Duration = Duration::from_micros(15);
/// A durable write that takes longer slows down every request.
const SLOW: Duration = Duration::from_millis(50);
/// The report warns if less space is free.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Checks the folder. If it does not exist yet, checks the nearest existing folder above it.
pub(super) fn diagnose(folder: &Path, clock: &dyn Clock) -> io::Result<Diagnosis> {
    let there = existing(folder)?;
    let mut findings = Vec::new();
    if there != std::path::absolute(folder)? {
        let what =
            format!("the folder does not exist yet; it will be created below {}", there.display());
        findings.push(Finding::fine(what));
    }
    let kind = filesystem(&there, &mut findings)?;
    let took = measure(&there, clock)?;
    let micros = took.as_micros();
    findings.push(if took < UNBELIEVABLE {
        Finding::weak(
            format!("a durable write takes only {micros} µs, which is faster than a disk can be"),
            "make sure that the disk, or the disk of the virtual machine, does not ignore flushes",
        )
    } else if took > SLOW {
        Finding::weak(
            format!("a durable write takes {micros} µs"),
            "use a local disk: every first request waits for two such writes",
        )
    } else {
        Finding::fine(format!("a durable write takes {micros} µs"))
    });
    let server = format!("{} on {kind}", folder.display());
    Ok(Diagnosis::new(server, took, None, findings))
}

/// The folder, or the nearest existing folder above it.
fn existing(folder: &Path) -> io::Result<PathBuf> {
    let mut folder = std::path::absolute(folder)?;
    loop {
        match fs::metadata(&folder) {
            Ok(found) if found.is_dir() => return Ok(folder),
            Ok(_) => {
                let what = format!("{} is not a folder", folder.display());
                return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder.pop() => {}
            Err(error) => return Err(error),
        }
    }
}

/// The median duration of a few durable writes.
fn measure(folder: &Path, clock: &dyn Clock) -> io::Result<Duration> {
    let mut file = tempfile::tempfile_in(folder)?;
    let bytes = [0x5a; WRITE_BYTES];
    let mut took = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let from = clock.monotonic();
        file.write_all(&bytes)?;
        file.sync_data()?;
        took.push(clock.monotonic().saturating_sub(from));
    }
    took.sort();
    Ok(took.get(WRITES / 2).copied().unwrap_or_default())
}

/// Returns the kind of filesystem, and adds findings about it and its free space.
fn filesystem(folder: &Path, findings: &mut Vec<Finding>) -> io::Result<&'static str> {
    let space = rustix::fs::statvfs(folder)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let mib = free >> 20;
    findings.push(if free < FREE_BYTES_MIN {
        let fix = "free some space: with a full disk, every first request is refused";
        Finding::weak(format!("{mib} MiB are free"), fix)
    } else {
        Finding::fine(format!("{mib} MiB are free"))
    });
    let (name, finding) = judge(folder)?;
    findings.extend(finding);
    Ok(name)
}

#[cfg(target_os = "linux")]
fn judge(folder: &Path) -> io::Result<(&'static str, Option<Finding>)> {
    const TO_DISK: &str = "use a folder on a local disk";
    let kind = rustix::fs::statfs(folder)?.f_type;
    // Magic numbers of statfs(2).
    Ok(match u64::try_from(kind).unwrap_or_default() & 0xffff_ffff {
        0x0102_1994 | 0x8584_58f6 => {
            let what = "the filesystem is in memory: a reboot deletes its contents";
            ("tmpfs", Some(Finding::broken(what, TO_DISK)))
        }
        0x6969 => ("NFS", Some(Finding::weak(REMOTE, TO_DISK))),
        0xff53_4d42 | 0xfe53_4d42 => ("SMB", Some(Finding::weak(REMOTE, TO_DISK))),
        0x794c_7630 => {
            let what = "the folder is in the writable layer of a container: it is deleted with the container";
            ("overlayfs", Some(Finding::weak(what, "mount a volume there")))
        }
        0xef53 => ("ext4", None),
        0x5846_5342 => ("XFS", None),
        0x9123_683e => ("Btrfs", None),
        0x2fc1_2fc1 => ("ZFS", None),
        _ => ("another filesystem", None),
    })
}

#[cfg(target_os = "linux")]
const REMOTE: &str =
    "the filesystem is a network filesystem: locks and durable writes depend on another machine";

#[cfg(not(target_os = "linux"))]
fn judge(_: &Path) -> io::Result<(&'static str, Option<Finding>)> {
    Ok(("this system's filesystem", None))
}

#[cfg(test)]
mod tests {
    use onetake_core::SystemClock;
    use onetake_stores::Weight;

    use super::*;

    #[test]
    fn a_folder_is_looked_at_and_left_as_it_was() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("not/there/yet");
        let found = diagnose(&folder, &SystemClock).unwrap();
        assert!(found.server.contains("not/there/yet"), "{found:?}");
        assert!(found.findings.iter().any(|finding| finding.what.contains("does not exist yet")));
        assert!(found.findings.iter().any(|finding| finding.what.contains("MiB are free")));
        assert!(found.round_trip > Duration::ZERO);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0, "nothing was made");
        fs::write(parent.path().join("file"), "").unwrap();
        let error = diagnose(&parent.path().join("file/below"), &SystemClock).unwrap_err();
        let error = onetake_core::ErrorChain(&error).to_string();
        assert!(
            error.to_lowercase().contains("director") || error.contains("not a folder"),
            "{error}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_no_place_for_it() {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() {
            let found = diagnose(shm, &SystemClock).unwrap();
            assert_eq!(found.worst(), Weight::Broken, "{found:?}");
            assert!(found.findings[0].what.contains("a reboot deletes"), "{found:?}");
        }
    }
}
