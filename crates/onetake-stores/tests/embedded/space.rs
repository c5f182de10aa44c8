//! Tests of the embedded store's space: expired records, the length of the log, tables that fail.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use onetake_core::clock::ManualClock;
use onetake_core::store::{Due, DueAttempt};
use onetake_core::{
    Claim, Claimed, Engine, Recording, Settled, Settlement, Store, StoreError, StoreErrorKind,
    Transition,
};
use onetake_sim::servers::until;
use onetake_stores::EmbeddedStore;
use onetake_stores::embedded::EmbeddedOptions;

use crate::store_folder::{claim, complete, copy_open, granted, load, log_of, run, settle};

#[tokio::test(flavor = "multi_thread")]
async fn the_space_of_expired_records_is_given_back_beside_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let store = Arc::new(EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap());
    let noise = |number: u32| -> Vec<u8> {
        (0..700_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(number) >> 13) as u8)
            .collect()
    };
    let write = async |from: u32, to: u32| {
        for start in (from..to).step_by(500) {
            let claims: Vec<Claim> =
                (start..start + 500).map(|n| claim(&format!("key {n}"), 1)).collect();
            let granted = store.claim(claims.clone()).await;
            assert!(granted.iter().all(|answer| matches!(answer, Ok(Claimed::Granted { .. }))));
            let settlements = claims.iter().zip(start..).map(|(claim, n)| Settlement {
                id: claim.id,
                attempt: claim.attempt,
                transition: Transition::Complete(Recording::new(noise(n))),
            });
            let settled = store.settle(settlements.collect()).await;
            assert!(settled.iter().all(|answer| matches!(answer, Ok(Settled::Done { .. }))));
        }
    };
    write(0, 60_000).await;
    clock.advance(Duration::from_secs(2 * 86_400));
    assert!(load(&store, &claim("key 7", 1)).await.is_none(), "invisible at once");
    // The store's own threads write it to tables.
    let mut full = 0;
    until("something was written to tables", async || {
        full = tables_bytes(folder.path());
        full > 20_000_000
    })
    .await;
    let mut removed = 0;
    for at in (1_000_000..).step_by(500) {
        let swept = store.sweep(5_000).await.unwrap();
        removed += swept.removed;
        // Traffic goes on between two steps.
        write(at, at + 500).await;
        if !swept.more {
            break;
        }
    }
    assert_eq!(removed, 60_000);
    // Compaction runs in its own threads, so the test waits for its effect. Records that were
    // deleted since the last compaction wait for the next one.
    until("a third of it is gone", async || {
        // As the reaper does.
        assert!(store.due(Due::LeaseEnd, 1).await.unwrap().is_empty());
        tables_bytes(folder.path()) < full * 2 / 3
    })
    .await;
    assert!(load(&store, &claim("key 1000400", 1)).await.is_some(), "live records are there");
    store.close().await.unwrap();
}

/// The engine looks for abandoned attempts all the time. In an idle process, that wakes no thread.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_store_answers_without_its_thread() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let store = EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap();
    let at_once = || store.due(Due::LeaseEnd, 10).now_or_never();
    assert!(store.due(Due::LeaseEnd, 10).await.unwrap().is_empty());
    assert!(at_once().is_some_and(|found| found.unwrap().is_empty()));
    for attempt in 1..=20 {
        let claim = claim(&format!("key {attempt}"), attempt);
        granted(&store, &claim).await;
        clock.advance(claim.terms.lease + claim.terms.grace);
        let found = store.due(Due::LeaseEnd, 10).await.unwrap();
        assert_eq!(found, [DueAttempt { id: claim.id, attempt: claim.attempt }]);
        assert!(matches!(
            settle(&store, &claim, Transition::ExpireLease).await,
            Settled::Done { .. }
        ));
        assert!(at_once().is_some_and(|found| found.unwrap().is_empty()), "{attempt}");
    }
    store.close().await.unwrap();
    let closed = store.due(Due::LeaseEnd, 10).await.unwrap_err();
    assert_eq!(closed.kind(), StoreErrorKind::Unavailable, "{closed}");
}

/// The size of all tables. The log is allocated ahead and does not count.
fn tables_bytes(path: &Path) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(path).unwrap().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            sum += tables_bytes(&entry.path());
        } else if entry.path().components().any(|part| part.as_os_str() == "tables") {
            sum += meta.len();
        }
    }
    sum
}

/// The least memory, so that the log has short segments.
pub(crate) const SHORT_SEGMENTS: EmbeddedOptions =
    EmbeddedOptions { memory_bytes: EmbeddedOptions::MEMORY_BYTES_MIN };

/// Tables that cannot be written stop writes when the log has grown to its limit. Nothing is lost,
/// and the store goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_cannot_be_written_stop_writes_until_they_can() {
    const BODY: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let clock = Arc::new(onetake_core::SystemClock);
        EmbeddedStore::open_as(folder.path(), SHORT_SEGMENTS, clock).unwrap()
    };
    let store = open();
    let files = folder.path().join("tables/tables");
    let hidden = folder.path().join("hidden");
    fs::rename(&files, &hidden).unwrap();
    let mut acknowledged = Vec::new();
    let refused = loop {
        let claim = claim(&format!("key {}", acknowledged.len()), 1);
        match store.claim(vec![claim.clone()]).await.remove(0) {
            Ok(_) => {}
            Err(error) => break error,
        }
        let transition = Transition::Complete(Recording::new(vec![b'x'; BODY]));
        let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
        match store.settle(vec![settlement]).await.remove(0) {
            Ok(_) => acknowledged.push(claim),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 1_000, "nothing stops writes");
    };
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");
    assert!(acknowledged.len() * BODY > 4 << 20, "one segment and two more");
    fs::rename(&hidden, &files).unwrap();
    until("the store goes on", async || {
        store.claim(vec![claim("again", 1)]).await.remove(0).is_ok()
    })
    .await;
    store.close().await.unwrap();
    let store = open();
    for claim in &acknowledged {
        assert_eq!(load(&store, claim).await.unwrap().state.name(), "completed");
    }
    store.close().await.unwrap();
}

/// While writes are refused no owner can renew its lease. So each gets its whole grace afterwards, and
/// the reaper does not come before the renewals.
#[tokio::test(flavor = "multi_thread")]
async fn grace_is_counted_anew_after_refused_writes() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let store =
        EmbeddedStore::open_as(folder.path(), SHORT_SEGMENTS, Arc::new(clock.clone())).unwrap();
    let runs = claim("runs", 1);
    granted(&store, &runs).await;
    let files = folder.path().join("tables/tables");
    let hidden = folder.path().join("hidden");
    fs::rename(&files, &hidden).unwrap();
    for number in 0.. {
        assert!(number < 1_000, "nothing stops writes");
        let filler = claim(&format!("key {number}"), 1);
        if store.claim(vec![filler.clone()]).await.remove(0).is_err() {
            break;
        }
        let transition = Transition::Complete(Recording::new(vec![b'x'; 100_000]));
        let settlement = Settlement { id: filler.id, attempt: filler.attempt, transition };
        let _may_be_refused = store.settle(vec![settlement]).await;
    }
    let over = runs.terms.lease + runs.terms.grace + Duration::from_secs(30);
    clock.advance(over);
    fs::rename(&hidden, &files).unwrap();
    until("the store goes on", async || store.ready().await.is_ok()).await;
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap(), []);
    let found = run(&store, &claim("runs", 2)).await;
    assert!(matches!(&found, Claimed::Found { record, .. } if record.state.name() == "running"));
    assert!(matches!(settle(&store, &runs, Transition::Renew).await, Settled::Done { .. }));
    // From then on the lease counts as always.
    clock.advance(over);
    let lost = store.due(Due::LeaseEnd, 10).await.unwrap();
    assert!(lost.contains(&DueAttempt { id: runs.id, attempt: runs.attempt }));
    store.close().await.unwrap();
}

/// Segments are used again, so the log does not grow with the number of records. Everything is
/// there after a crash at any time.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_stays_short_and_has_what_the_tables_lack() {
    let (live, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clock = Arc::new(onetake_core::SystemClock);
    let open = |path: &Path| EmbeddedStore::open_as(path, SHORT_SEGMENTS, clock.clone()).unwrap();
    let store = open(live.path());
    let runs = claim("runs", 1);
    granted(&store, &runs).await;
    for round in 0..20_u32 {
        let keys = |round: u32| (0..50).map(move |at| claim(&format!("key {round} {at}"), 1));
        for claim in keys(round) {
            granted(&store, &claim).await;
            complete(&store, &claim, vec![round as u8; 20_000]).await;
        }
        let segments = fs::read_dir(live.path().join("log")).unwrap().count();
        assert!(segments <= 4, "{segments} files");
        if round % 5 < 4 {
            continue;
        }
        let path = copies.path().join(round.to_string());
        copy_open(live.path(), &path).await;
        let crashed = open(&path);
        assert_eq!(crashed.interrupted(), 1, "the running attempt is known after many segments");
        for claim in (0..=round).flat_map(keys) {
            assert_eq!(load(&crashed, &claim).await.unwrap().state.name(), "completed");
        }
        assert_eq!(load(&crashed, &runs).await.unwrap().state.name(), "unknown");
        crashed.close().await.unwrap();
    }
    store.close().await.unwrap();
}

/// Each segment begins with the running records. If they nearly fill it, the next one does not begin
/// at once.
#[tokio::test(flavor = "multi_thread")]
async fn many_running_records_do_not_rotate_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(onetake_core::SystemClock);
    let store = EmbeddedStore::open_as(folder.path(), SHORT_SEGMENTS, clock).unwrap();
    for start in (0..16_000).step_by(1_000) {
        let claims = (start..start + 1_000).map(|number| claim(&format!("runs {number}"), 1));
        assert!(store.claim(claims.collect()).await.iter().all(Result::is_ok));
    }
    let segment = || -> u64 {
        let newest = log_of(folder.path());
        newest.file_stem().unwrap().to_str().unwrap().parse().unwrap()
    };
    let before = segment();
    for number in 0..200 {
        let claim = claim(&format!("key {number}"), 1);
        granted(&store, &claim).await;
        complete(&store, &claim, "done").await;
    }
    let begun = segment() - before;
    assert!(begun <= 2, "{begun} new segments");
    store.close().await.unwrap();
}

/// A damaged file of a table costs the records in it, which are refused. The others go on, although
/// files cannot be merged any more. Lists and sweeps that need the file fail, and do not end the
/// engine.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_of_a_table_does_not_stop_the_store() {
    const BODY: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let store =
        EmbeddedStore::open_as(folder.path(), SHORT_SEGMENTS, Arc::new(clock.clone())).unwrap();
    let store = Arc::new(store);
    let engine = Engine::builder(Arc::clone(&store) as Arc<dyn Store>).housekeeping(None).build();
    // The log is needed from its second segment on once the tables are in files.
    let has_files = || {
        let witness = fs::read_to_string(folder.path().join("WITNESS")).unwrap();
        witness.contains("\nsegment 2\n")
    };
    let write = async |number: u32| {
        let claim = claim(&format!("key {number}"), 1);
        clock.advance(Duration::from_millis(1));
        granted(&store, &claim).await;
        complete(&store, &claim, vec![b'x'; BODY]).await;
        claim
    };
    let mut written = Vec::new();
    while !has_files() {
        written.push(write(written.len() as u32).await);
    }
    let damaged = written.len();
    damage_a_table(folder.path());
    // More than enough for the files of many segments.
    for number in 0..500 {
        written.push(write(10_000 + number).await);
    }
    let (mut whole, mut refused) = (0, 0);
    for (at, claim) in written.iter().enumerate() {
        match store.load(vec![claim.id]).await.remove(0) {
            Ok(record) => {
                assert_eq!(record.unwrap().state.name(), "completed", "{at}");
                whole += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Invalid, "{at}: {error}");
                assert!(at < damaged, "{at} was written later");
                refused += 1;
            }
        }
    }
    assert!(whole >= 500 && refused > 0, "{whole} whole, {refused} refused");

    let is_refused =
        |error: StoreError| assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
    is_refused(engine.page(None, 1_000).await.unwrap_err());
    is_refused(engine.audit_entries(None, None, 10).await.unwrap_err());
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap(), []);
    for claim in &written {
        match engine.find(claim.id.reference()).await {
            Ok(found) => assert_eq!(found, [claim.id]),
            Err(error) => is_refused(error),
        }
    }
    clock.advance(Duration::from_secs(2 * 86_400));
    while engine.sweep(1_000).await.more {}
    write(99_999).await;
    assert!(engine.fatal().now_or_never().is_none(), "the engine goes on");
    store.close().await.unwrap();
}

/// A flush that fails is tried again, and its files do not fill the disk meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_flush_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let clock = Arc::new(onetake_core::SystemClock);
        EmbeddedStore::open_as(folder.path(), SHORT_SEGMENTS, clock).unwrap()
    };
    let store = open();
    // No list of files can be written in place of this folder.
    let list = folder.path().join("tables/v1");
    fs::create_dir(&list).unwrap();
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    // Each refusal takes two seconds, with several flushes.
    while refused < 3 {
        let claim = claim(&format!("key {}", acknowledged.len()), 1);
        let transition = Transition::Complete(Recording::new(vec![b'x'; 100_000]));
        let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
        let claimed = store.claim(vec![claim.clone()]).await.remove(0);
        let settled = store.settle(vec![settlement]).await.remove(0);
        match claimed.map(|_| settled) {
            Ok(Ok(Settled::Done { .. })) => acknowledged.push(claim),
            _ => refused += 1,
        }
        assert!(acknowledged.len() < 1_000, "nothing stops writes");
    }
    let files = fs::read_dir(folder.path().join("tables/tables")).unwrap().count();
    assert!(files <= 1, "{files} files: one of a flush in progress");
    fs::remove_dir(&list).unwrap();
    until("the store goes on", async || store.ready().await.is_ok()).await;
    store.close().await.unwrap();
    let store = open();
    for claim in &acknowledged {
        assert_eq!(load(&store, claim).await.unwrap().state.name(), "completed");
    }
    store.close().await.unwrap();
}

/// Changes two bits of a table: one in its first block, which has the entries of all indexes, and one
/// in the middle, where records are.
fn damage_a_table(folder: &Path) {
    let file = fs::read_dir(folder.join("tables/tables")).unwrap().next();
    let file = file.unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    for at in [200, bytes.len() / 2] {
        *bytes.get_mut(at).unwrap() ^= 0x20;
    }
    fs::write(&file, bytes).unwrap();
}
