//! Diagnosis: the settings of the connection, and the filesystem of the file.

use std::path::Path;
use std::time::Duration;

use onetake_core::StoreError;

use super::committer::{ConnectionSettings, SqliteJob};
use super::{SqliteStore, schema};
use crate::{Diagnosis, Finding};

/// The number of round trips that are measured.
const ROUND_TRIPS: usize = 5;

/// Filesystems on which SQLite's locks and shared memory do not work.
const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
];
/// Filesystems whose content is lost with the machine's power.
const VOLATILE: &[&str] = &["tmpfs", "ramfs"];

pub(super) async fn diagnose(store: &SqliteStore) -> Result<Diagnosis, StoreError> {
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    let settings = loop {
        let asked_at = store.clock.monotonic();
        let settings = store.ask(SqliteJob::Settings).await??;
        trips.push(store.clock.monotonic().saturating_sub(asked_at));
        if trips.len() == ROUND_TRIPS {
            break settings;
        }
    };
    trips.sort();
    let round_trip = trips.get(ROUND_TRIPS / 2).copied().unwrap_or(Duration::ZERO);
    let mut findings = judge(&settings);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    findings.extend(filesystem(&mounts, &store.file).map(judge_filesystem));
    let server = format!("SQLite {}, {}", rusqlite::version(), store.file.display());
    Ok(Diagnosis::new(server, round_trip, None, findings))
}

fn judge(settings: &ConnectionSettings) -> Vec<Finding> {
    let ConnectionSettings { journal_mode, synchronous, schema_version } = settings;
    let durable = if journal_mode == "wal" && *synchronous >= 2 {
        Finding::fine("WAL with synchronous=FULL: a commit is on disk when it is answered")
    } else {
        Finding::broken(
            format!("journal_mode={journal_mode}, synchronous={synchronous}"),
            "another program changed the settings of the file: let only onetake write to it",
        )
    };
    let current = schema::version();
    let version = if *schema_version == current {
        Finding::fine(format!("schema version {current}"))
    } else {
        Finding::weak(
            format!("schema version {schema_version}, and this onetake writes version {current}"),
            "a newer onetake migrated the file: use the same version in all processes",
        )
    };
    vec![durable, version]
}

fn judge_filesystem(kind: &str) -> Finding {
    if NETWORK.contains(&kind) {
        let fix = "move it to a local disk, or use PostgreSQL for several nodes";
        Finding::broken(format!("the file is on a network filesystem ({kind})"), fix)
    } else if VOLATILE.contains(&kind) {
        let fix = "move it to a disk";
        Finding::broken(format!("the file is in memory ({kind}): a reboot deletes it"), fix)
    } else {
        Finding::fine(format!("the file is on a local filesystem ({kind})"))
    }
}

/// Returns the type of the filesystem that a file is on, by the kernel's table of mounts.
fn filesystem<'a>(mounts: &'a str, file: &Path) -> Option<&'a str> {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, kind) = (fields.next()?, fields.next()?);
            // The kernel writes a space as \040.
            let at = at.replace("\\040", " ");
            file.starts_with(&at).then_some((at.len(), kind))
        })
        // If two mounts have the same path, the later one counts.
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weight;

    #[test]
    fn the_nearest_mount_counts() {
        let mounts = "/dev/vda / ext4 rw 0 0\nserver:/x /mnt/a\\040b nfs4 rw 0 0\n\
                      tmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp ext4 rw 0 0\n";
        let kind = |file: &str| filesystem(mounts, Path::new(file)).unwrap();
        assert_eq!(kind("/mnt/a b/onetake.db"), "nfs4");
        assert_eq!(kind("/mnt/a/onetake.db"), "ext4");
        assert_eq!(kind("/tmp/onetake.db"), "ext4");
        assert_eq!(judge_filesystem("nfs4").weight, Weight::Broken);
        assert_eq!(judge_filesystem("tmpfs").weight, Weight::Broken);
        assert_eq!(judge_filesystem("ext4").weight, Weight::Fine);
    }

    #[test]
    fn weak_settings_are_named() {
        let settings = |mode: &str, synchronous, schema_version| ConnectionSettings {
            journal_mode: mode.to_owned(),
            synchronous,
            schema_version,
        };
        let worst = |settings| judge(&settings).iter().map(|finding| finding.weight).max();
        assert_eq!(worst(settings("wal", 2, schema::version())), Some(Weight::Fine));
        assert_eq!(worst(settings("wal", 1, schema::version())), Some(Weight::Broken));
        assert_eq!(worst(settings("delete", 2, schema::version())), Some(Weight::Broken));
        assert_eq!(worst(settings("wal", 2, 9)), Some(Weight::Weak));
    }
}
