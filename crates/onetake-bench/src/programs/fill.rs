//! Fills an embedded store with completed keys.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use onetake_core::{
    AttemptId, Claim, Fingerprint, Key, Origin, RecordId, Recording, Scope, Settlement, Store,
    SystemRng, Terms, Transition, codec,
};
use onetake_stores::EmbeddedStore;

/// The number of keys that are written at once.
const BATCH: usize = 2_000;
/// The size of a recording.
const RECORDING_BYTES: usize = 300;
/// The file that the user of a folder locks.
const LOCK: &str = "LOCK";
/// The size of an id.
const ID_BYTES: usize = 16;

/// The result of a fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    /// The size of one encoded record, with its id.
    pub(crate) record_bytes: usize,
}

/// Writes this many keys with these terms to a new store in a folder. The folder is free for another
/// process then.
pub(crate) fn fill(folder: &Path, keys: usize, terms: Terms) -> io::Result<Filled> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let filled = runtime.block_on(async {
        let store: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(folder).map_err(io::Error::other)?);
        for first in (0..keys).step_by(BATCH) {
            write(store.as_ref(), first..keys.min(first + BATCH), terms).await?;
        }
        let mut loaded = store.load(vec![id(0)?]).await;
        let record = loaded.pop().transpose().map_err(io::Error::other)?.flatten();
        let record_bytes = record.map_or(0, |record| codec::encode(&record).len() + ID_BYTES);
        store.close().await.map_err(io::Error::other)?;
        io::Result::Ok(Filled { record_bytes })
    })?;
    wait_for_lock(folder)?;
    Ok(filled)
}

/// Waits until no thread uses the folder. A merge of large files goes on after the store is closed,
/// and keeps the folder locked. Until it ends, a gateway cannot open the folder.
fn wait_for_lock(folder: &Path) -> io::Result<()> {
    // Closing the file unlocks it.
    File::open(folder.join(LOCK))?.lock()
}

fn id(number: usize) -> io::Result<RecordId> {
    let key = Key::new(format!("fill-{number}")).map_err(io::Error::other)?;
    Ok(RecordId::derive(&Scope::new("fill"), &key))
}

async fn write(store: &dyn Store, numbers: Range<usize>, terms: Terms) -> io::Result<()> {
    let mut claims = Vec::new();
    for number in numbers {
        claims.push(Claim {
            id: id(number)?,
            attempt: AttemptId::random(&SystemRng),
            fingerprint: Fingerprint::of(b"pay"),
            terms,
            origin: Origin::default(),
        });
    }
    let body = Bytes::from(vec![b'x'; RECORDING_BYTES]);
    let settle = |claim: &Claim| Settlement {
        id: claim.id,
        attempt: claim.attempt,
        transition: Transition::Complete(Recording::new(body.clone())),
    };
    let settlements: Vec<Settlement> = claims.iter().map(settle).collect();
    for claimed in store.claim(claims).await {
        claimed.map_err(io::Error::other)?;
    }
    for settled in store.settle(settlements).await {
        settled.map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{File, LOCK, Terms, fill, wait_for_lock};

    #[test]
    fn a_filled_folder_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        fill(&store, 10, Terms::default()).unwrap();
        File::open(store.join(LOCK)).unwrap().try_lock().unwrap();
    }

    #[test]
    fn a_folder_is_waited_for_until_it_is_unlocked() {
        let folder = tempfile::tempdir().unwrap();
        let lock = File::create(folder.path().join(LOCK)).unwrap();
        lock.lock().unwrap();
        let path = folder.path().to_owned();
        let (ended, has_ended) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            let waited = wait_for_lock(&path);
            ended.send(()).unwrap();
            waited
        });
        has_ended.recv_timeout(Duration::from_millis(50)).unwrap_err();
        drop(lock);
        waiting.join().unwrap().unwrap();
    }
}
