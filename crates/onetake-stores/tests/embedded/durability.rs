//! Tests that answers follow the disk: acknowledged writes are there after a crash.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onetake_core::clock::ManualClock;
use onetake_core::{
    Cause, Claim, Claimed, OnUnknown, RecordId, Recording, Settled, Settlement, State, Store,
    Terms, Transition,
};
use onetake_stores::EmbeddedStore;

use crate::store_folder::{claim, complete, crashed, granted, load, log_of, run};

#[tokio::test(flavor = "multi_thread")]
async fn everything_acknowledged_is_there_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    crashed(folder.path()).await;
    let store = EmbeddedStore::open(folder.path()).unwrap();
    for number in 0..100_u32 {
        let record = load(&store, &claim(&format!("key {number}"), 9)).await.unwrap();
        let State::Completed { recording, .. } = &record.state else { panic!("{number}") };
        assert_eq!(*recording, Recording::new(format!("outcome {number}")));
    }
    let record = load(&store, &claim("runs", 9)).await.unwrap();
    let State::Unknown { cause, .. } = &record.state else { panic!("{}", record.state.name()) };
    assert_eq!(*cause, Cause::Restarted, "what was running is unknown at once");
    assert!(matches!(run(&store, &claim("runs", 9)).await, Claimed::Found { .. }), "not run again");
    // An outcome of its own attempt is still accepted.
    complete(&store, &claim("runs", 1), "late").await;
}

/// A record that was taken over has one running entry. An entry of the earlier attempt would make
/// the outcome of the later one unknown at the next start.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_leaves_nothing_of_the_earlier_attempt() {
    for completes in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let open = || EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap();
        let terms = Terms { on_unknown: OnUnknown::Retry, ..Terms::default() };
        let [first, second] = [1, 2].map(|attempt| Claim { terms, ..claim("key", attempt) });
        let store = open();
        let fence = granted(&store, &first).await;
        clock.advance(terms.lease + terms.grace);
        assert!(granted(&store, &second).await > fence);
        if completes {
            complete(&store, &second, "paid").await;
        }
        store.close().await.unwrap();
        let store = open();
        assert_eq!(store.interrupted(), usize::from(!completes));
        let record = load(&store, &second).await.unwrap();
        let expected = if completes { "completed" } else { "unknown" };
        assert_eq!((record.attempt, record.state.name()), (second.attempt, expected));
        store.close().await.unwrap();
    }
}

/// Counts the entries of a record in the log at the moment of an answer, on the thread that
/// sends it.
struct Look {
    log: PathBuf,
    id: RecordId,
    seen: std::sync::mpsc::Sender<usize>,
}

impl Look {
    fn count(&self) -> usize {
        // The file is allocated far ahead, and this test's writes are at its beginning.
        let mut bytes = Vec::new();
        let file = fs::File::open(&self.log).unwrap();
        file.take(1 << 16).read_to_end(&mut bytes).unwrap();
        let id = self.id.as_bytes();
        bytes.windows(id.len()).filter(|at| at == id).count()
    }
}

impl std::task::Wake for Look {
    fn wake(self: Arc<Self>) {
        let _over = self.seen.send(self.count());
    }
}

/// Returns the number of the record's entries in the log before the request and at its answer.
fn at_the_answer<T>(
    folder: &Path,
    id: RecordId,
    mut asked: futures_util::future::BoxFuture<'_, T>,
) -> (T, usize, usize) {
    use std::task::{Context, Poll, Waker};
    let (seen, look) = std::sync::mpsc::channel();
    let log = log_of(folder);
    let look_now = Arc::new(Look { log, id, seen });
    let before = look_now.count();
    let waker = Waker::from(Arc::clone(&look_now));
    let mut context = Context::from_waker(&waker);
    if let Poll::Ready(answer) = asked.as_mut().poll(&mut context) {
        // The answer came before the first wait.
        return (answer, before, look_now.count());
    }
    let after = look.recv_timeout(Duration::from_secs(30)).unwrap();
    match asked.as_mut().poll(&mut context) {
        Poll::Ready(answer) => (answer, before, after),
        Poll::Pending => panic!("woken without an answer"),
    }
}

#[test]
fn nothing_is_answered_before_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    for number in 0..30_u32 {
        let claim = claim(&format!("key {number}"), 1);
        let asked = store.claim(vec![claim.clone()]);
        let (answers, before, after) = at_the_answer(folder.path(), claim.id, asked);
        assert!(matches!(answers[..], [Ok(Claimed::Granted { .. })]));
        assert!(after > before, "a claim was granted before it was written (S5)");
        let settlement = Settlement {
            id: claim.id,
            attempt: claim.attempt,
            transition: Transition::Complete(Recording::new("outcome")),
        };
        let asked = store.settle(vec![settlement]);
        let (answers, before, after) = at_the_answer(folder.path(), claim.id, asked);
        assert!(matches!(answers[..], [Ok(Settled::Done { .. })]));
        assert!(after > before, "an outcome was shown before it was written (S6)");
    }
}

/// The number of bytes that this thread discarded before they were on disk, by the kernel's count.
#[cfg(target_os = "linux")]
fn thrown_away() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("cancelled_write_bytes: "));
    line.map_or(0, |count| count.parse().unwrap())
}

/// Truncates a file. Returns how many of its bytes were not on disk yet.
#[cfg(target_os = "linux")]
fn not_on_disk(path: &Path) -> u64 {
    let before = thrown_away();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(0).unwrap();
    thrown_away() - before
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let probe = folder.path().join("probe");
    fs::write(&probe, vec![b'x'; 1 << 16]).unwrap();
    if not_on_disk(&probe) == 0 {
        eprintln!("skipped: this filesystem does not tell what is on disk");
        return;
    }
    for settled in [false, true] {
        let path = folder.path().join(format!("settled {settled}"));
        let store = EmbeddedStore::open(&path).unwrap();
        for number in 0..20_u32 {
            let claim = claim(&format!("key {number}"), 1);
            granted(&store, &claim).await;
            if settled {
                complete(&store, &claim, vec![b'x'; 5_000]).await;
            }
        }
        assert_eq!(
            not_on_disk(&log_of(&path)),
            0,
            "bytes of answered writes that a power cut would lose (S5, S6)"
        );
    }
}
