//! Folders of an embedded store for tests: filled, crashed, copied.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onetake_core::{
    AttemptId, Claim, Claimed, Fence, Fingerprint, Key, Record, RecordId, Recording, Scope,
    Settled, Settlement, Store, Terms, Transition,
};
use onetake_sim::servers::until;
use onetake_stores::EmbeddedStore;

pub(crate) fn claim(key: &str, attempt: u8) -> Claim {
    Claim {
        id: RecordId::derive(&Scope::new("t"), &Key::new(key).unwrap()),
        attempt: AttemptId::from_bytes([attempt; 16]),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

pub(crate) async fn run(store: &EmbeddedStore, claim: &Claim) -> Claimed {
    store.claim(vec![claim.clone()]).await.remove(0).unwrap()
}

pub(crate) async fn granted(store: &EmbeddedStore, claim: &Claim) -> Fence {
    match run(store, claim).await {
        Claimed::Granted { fence } => fence,
        Claimed::Found { record, .. } => panic!("found {}", record.state.name()),
    }
}

pub(crate) async fn settle(
    store: &EmbeddedStore,
    claim: &Claim,
    transition: Transition,
) -> Settled {
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    store.settle(vec![settlement]).await.remove(0).unwrap()
}

pub(crate) async fn complete(store: &EmbeddedStore, claim: &Claim, body: impl Into<Vec<u8>>) {
    let settled = settle(store, claim, Transition::Complete(Recording::new(body.into()))).await;
    assert!(matches!(settled, Settled::Done { .. }));
}

pub(crate) async fn load(store: &EmbeddedStore, claim: &Claim) -> Option<Arc<Record>> {
    store.load(vec![claim.id]).await.remove(0).unwrap()
}

/// Creates a folder with a hundred completed keys and a running one, and closes it.
pub(crate) async fn filled(path: &Path) {
    open_and_filled(path).await.close().await.unwrap();
}

/// Creates such a folder as a crash would leave it.
pub(crate) async fn crashed(path: &Path) {
    let live = tempfile::tempdir().unwrap();
    let store = open_and_filled(live.path()).await;
    copy_open(live.path(), path).await;
    store.close().await.unwrap();
}

pub(crate) async fn open_and_filled(path: &Path) -> EmbeddedStore {
    let store = EmbeddedStore::open(path).unwrap();
    for number in 0..100_u32 {
        let claim = claim(&format!("key {number}"), 1);
        granted(&store, &claim).await;
        complete(&store, &claim, format!("outcome {number}")).await;
    }
    granted(&store, &claim("runs", 1)).await;
    store
}

/// Copies an open folder, as a crash would leave it: at a moment between two changes of the store's
/// own threads.
pub(crate) async fn copy_open(from: &Path, to: &Path) {
    let mut copied = Vec::new();
    until("the folder stays the same for a moment", async || {
        let Ok(before) = contents(from) else { return false };
        copied = before;
        contents(from).is_ok_and(|after| copied == after)
    })
    .await;
    write(from, &copied, to);
}

/// Copies a closed folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    write(from, &contents(from).unwrap(), to);
}

/// Writes the files of one folder to another one.
pub(crate) fn write(from: &Path, files: &[(PathBuf, Vec<u8>)], to: &Path) {
    for (path, bytes) in files {
        let path = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Returns every file of the folder except the lock, with its bytes.
pub(crate) fn contents(path: &Path) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all.extend(contents(&entry.path())?);
        } else if entry.file_name() != "LOCK" {
            all.push((entry.path(), fs::read(entry.path())?));
        }
    }
    all.sort();
    Ok(all)
}
/// The path of the newest segment of the log.
pub(crate) fn log_of(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join("log")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap()
}

/// The used bytes of a segment. The rest of it is zeros in these tests.
pub(crate) fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
}
