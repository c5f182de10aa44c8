//! Tests of the embedded store whose log cannot begin its next segment.

use std::fs;
use std::sync::Arc;

use onetake_core::{Recording, Settlement, Store, StoreErrorKind, Transition};
use onetake_sim::servers::until;
use onetake_stores::EmbeddedStore;

use crate::space::SHORT_SEGMENTS;
use crate::store_folder::{claim, load};

/// Without a next segment, the log and the entries in memory grow in the current one, up to a limit.
/// Nothing is lost, and the store goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_cannot_be_made_stops_writes_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let clock = Arc::new(onetake_core::SystemClock);
        EmbeddedStore::open_as(folder.path(), SHORT_SEGMENTS, clock).unwrap()
    };
    let store = open();
    let log = folder.path().join("log");
    let next = log.join("0000000000000002.log");
    fs::create_dir(&next).unwrap();
    let mut acknowledged = Vec::new();
    let refused = loop {
        let claim = claim(&format!("key {}", acknowledged.len()), 1);
        if let Err(error) = store.claim(vec![claim.clone()]).await.remove(0) {
            break error;
        }
        let transition = Transition::Complete(Recording::new(vec![b'x'; 100_000]));
        let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
        match store.settle(vec![settlement]).await.remove(0) {
            Ok(_) => acknowledged.push(claim),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 200, "nothing stops writes");
    };
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");
    until("the store goes on", async || {
        // An attempt of the store may have renamed it.
        for path in [&next, &log.join("spare")] {
            let _absent_or_a_file = fs::remove_dir(path);
        }
        store.ready().await.is_ok()
    })
    .await;
    store.close().await.unwrap();
    let store = open();
    for claim in &acknowledged {
        assert_eq!(load(&store, claim).await.unwrap().state.name(), "completed");
    }
    store.close().await.unwrap();
}
