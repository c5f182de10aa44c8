//! Tests of the embedded store on a full disk, which is a limit on the size of files.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use onetake_core::{Claim, Recording, Settled, Settlement, Store, StoreErrorKind, Transition};
use onetake_sim::servers::until;
use onetake_stores::EmbeddedStore;
use onetake_stores::embedded::EmbeddedOptions;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::store_folder::{claim, load};

const OPTIONS: EmbeddedOptions =
    EmbeddedOptions { memory_bytes: EmbeddedOptions::MEMORY_BYTES_MIN };
/// The size of a segment of the log.
const SEGMENT_BYTES: u64 = OPTIONS.memory_bytes as u64 / 4;
/// The variable with the folder of the process that has a full disk.
const FOLDER: &str = "ONETAKE_FULL_DISK";

/// With a full disk, writes are refused, and nothing ends. They go on once there is space.
#[test]
fn a_full_disk_refuses_writes_until_there_is_space() {
    run_in_a_process("full_disk::process_with_a_full_disk");
}

/// A start that has no space for a file of the log leaves none.
#[test]
fn starts_on_a_full_disk_leave_no_files() {
    run_in_a_process("full_disk::process_that_starts_on_a_full_disk");
}

/// Runs a test in a process of its own, with a folder.
fn run_in_a_process(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    // A write beyond the limit sends a signal, which would end the process.
    let ran = Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(fs::exists(folder.path().join("passed")).unwrap(), "the process did nothing");
}

/// The body of that process. Without its variable it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn process_with_a_full_disk() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let data = folder.join("data");
    let open = || {
        let clock = Arc::new(onetake_core::SystemClock);
        EmbeddedStore::open_as(&data, OPTIONS, clock).unwrap()
    };
    let store = open();
    let limit = getrlimit(Resource::Fsize);
    let mut full = limit;
    full.current = Some(SEGMENT_BYTES);
    setrlimit(Resource::Fsize, full).unwrap();
    // No tables can be written either.
    let (files, hidden) = (data.join("tables/tables"), data.join("hidden"));
    fs::rename(&files, &hidden).unwrap();

    let mut acknowledged = Vec::new();
    let refused = loop {
        let claim = claim(&format!("key {}", acknowledged.len()), 1);
        match write(&store, &claim).await {
            Ok(()) => acknowledged.push(claim),
            Err(kind) => break kind,
        }
        assert!(acknowledged.len() < 1_000, "nothing stops writes");
    };
    assert_eq!(refused, StoreErrorKind::Unavailable);
    // It stays like that.
    for _ in 0..3 {
        let refused = write(&store, &claim("another", 1)).await;
        assert_eq!(refused, Err(StoreErrorKind::Unavailable));
    }
    fs::rename(&hidden, &files).unwrap();
    setrlimit(Resource::Fsize, limit).unwrap();
    until("the store goes on", async || store.ready().await.is_ok()).await;
    let later = claim("later", 1);
    write(&store, &later).await.unwrap();
    acknowledged.push(later);
    store.close().await.unwrap();
    let store = open();
    for claim in &acknowledged {
        assert_eq!(load(&store, claim).await.unwrap().state.name(), "completed");
    }
    let another = load(&store, &claim("another", 1)).await;
    assert!(another.is_none_or(|record| record.state.name() == "unknown"), "it was refused");
    store.close().await.unwrap();
    fs::write(folder.join("passed"), "").unwrap();
}

/// The body of the other process. Without its variable it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn process_that_starts_on_a_full_disk() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let data = folder.join("data");
    let open = || {
        let clock = Arc::new(onetake_core::SystemClock);
        EmbeddedStore::open_as(&data, OPTIONS, clock)
    };
    let store = open().unwrap();
    let done = claim("done", 1);
    write(&store, &done).await.unwrap();
    store.close().await.unwrap();
    let log = data.join("log");
    let _absent = fs::remove_file(log.join("spare"));
    let files = || fs::read_dir(&log).unwrap().count();
    let before = files();
    let limit = getrlimit(Resource::Fsize);
    let mut full = limit;
    full.current = Some(SEGMENT_BYTES / 2);
    setrlimit(Resource::Fsize, full).unwrap();
    for _ in 0..3 {
        open().unwrap_err();
        assert_eq!(files(), before);
    }
    setrlimit(Resource::Fsize, limit).unwrap();
    let store = open().unwrap();
    assert_eq!(load(&store, &done).await.unwrap().state.name(), "completed");
    store.close().await.unwrap();
    fs::write(folder.join("passed"), "").unwrap();
}

async fn write(store: &EmbeddedStore, claim: &Claim) -> Result<(), StoreErrorKind> {
    store.claim(vec![claim.clone()]).await.remove(0).map_err(|error| error.kind())?;
    let transition = Transition::Complete(Recording::new(vec![b'x'; 20_000]));
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    let settled = store.settle(vec![settlement]).await.remove(0).map_err(|error| error.kind())?;
    assert!(matches!(settled, Settled::Done { .. }));
    Ok(())
}
