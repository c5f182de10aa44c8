//! Fills an embedded store with completed keys.

use std::io;
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

/// The size of an id.
const ID_BYTES: usize = 16;

/// The result of a fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    /// The size of one encoded record, with its id.
    pub(crate) record_bytes: usize,
}

/// Writes this many keys to a new store in a folder.
pub(crate) fn fill(folder: &Path, keys: usize) -> io::Result<Filled> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let store: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(folder).map_err(io::Error::other)?);
        for first in (0..keys).step_by(BATCH) {
            write(store.as_ref(), first, keys.min(first + BATCH)).await?;
        }
        let mut loaded = store.load(vec![id(0)?]).await;
        let record = loaded.pop().transpose().map_err(io::Error::other)?.flatten();
        let record_bytes = record.map_or(0, |record| codec::encode(&record).len() + ID_BYTES);
        store.close().await.map_err(io::Error::other)?;
        Ok(Filled { record_bytes })
    })
}

fn id(number: usize) -> io::Result<RecordId> {
    let key = Key::new(format!("fill-{number}")).map_err(io::Error::other)?;
    Ok(RecordId::derive(&Scope::new("fill"), &key))
}

async fn write(store: &dyn Store, first: usize, end: usize) -> io::Result<()> {
    let mut claims = Vec::new();
    for number in first..end {
        claims.push(Claim {
            id: id(number)?,
            attempt: AttemptId::random(&SystemRng),
            fingerprint: Fingerprint::of(b"pay"),
            terms: Terms::default(),
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
