//! Tests of the embedded store's folder: reopened, crashed, shared, damaged, and compacted.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use onetake_core::clock::ManualClock;
use onetake_core::store::{AuditLog, Due, DueAttempt, SharedSecrets};
use onetake_core::{
    AttemptId, Cause, Claim, Claimed, Clock, Fence, Fingerprint, Key, OnUnknown, Record, RecordId,
    Recording, Scope, Settled, Settlement, State, Store, StoreErrorKind, Terms, Transition,
};
use onetake_sim::servers::until;
use onetake_stores::embedded::EmbeddedOptions;
use onetake_stores::{EmbeddedStore, OpenError};

fn claim(key: &str, attempt: u8) -> Claim {
    Claim {
        id: RecordId::derive(&Scope::new("t"), &Key::new(key).unwrap()),
        attempt: AttemptId::from_bytes([attempt; 16]),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

async fn run(store: &EmbeddedStore, claim: &Claim) -> Claimed {
    store.claim(vec![claim.clone()]).await.remove(0).unwrap()
}

async fn granted(store: &EmbeddedStore, claim: &Claim) -> Fence {
    match run(store, claim).await {
        Claimed::Granted { fence } => fence,
        Claimed::Found { record, .. } => panic!("found {}", record.state.name()),
    }
}

async fn settle(store: &EmbeddedStore, claim: &Claim, transition: Transition) -> Settled {
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    store.settle(vec![settlement]).await.remove(0).unwrap()
}

async fn complete(store: &EmbeddedStore, claim: &Claim, body: impl Into<Vec<u8>>) {
    let settled = settle(store, claim, Transition::Complete(Recording::new(body.into()))).await;
    assert!(matches!(settled, Settled::Done { .. }));
}

async fn load(store: &EmbeddedStore, claim: &Claim) -> Option<Arc<Record>> {
    store.load(vec![claim.id]).await.remove(0).unwrap()
}

/// Creates a folder with a hundred completed keys and a running one, and closes it.
async fn filled(path: &Path) {
    open_and_filled(path).await.close().await.unwrap();
}

/// Creates such a folder as a crash would leave it.
async fn crashed(path: &Path) {
    let live = tempfile::tempdir().unwrap();
    let store = open_and_filled(live.path()).await;
    copy_open(live.path(), path).await;
    store.close().await.unwrap();
}

async fn open_and_filled(path: &Path) -> EmbeddedStore {
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
async fn copy_open(from: &Path, to: &Path) {
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
fn copy(from: &Path, to: &Path) {
    write(from, &contents(from).unwrap(), to);
}

/// Writes the files of one folder to another one.
fn write(from: &Path, files: &[(PathBuf, Vec<u8>)], to: &Path) {
    for (path, bytes) in files {
        let path = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Returns every file of the folder except the lock, with its bytes.
fn contents(path: &Path) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
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

/// The path of the newest segment of the log.
fn log_of(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join("log")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap()
}

/// The used bytes of a segment. The rest of it is zeros in these tests.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
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

#[tokio::test(flavor = "multi_thread")]
async fn retry_terms_run_again_after_a_crash_with_a_higher_fence() {
    let folder = tempfile::tempdir().unwrap();
    let mut claims = Vec::new();
    let mut last = Fence::default();
    for round in 1..=3_u8 {
        let store = EmbeddedStore::open(folder.path()).unwrap();
        let mut claim = claim("retry", round);
        claim.terms.on_unknown = OnUnknown::Retry;
        let fence = granted(&store, &claim).await;
        assert!(fence > last, "fences rise across restarts");
        last = fence;
        for earlier in &claims {
            let settled = settle(&store, earlier, Transition::Release).await;
            assert!(matches!(settled, Settled::Stale { .. }));
        }
        claims.push(claim);
        store.close().await.unwrap();
    }
}

fn under(on_unknown: OnUnknown, key: &str) -> Claim {
    let mut claim = claim(key, 1);
    claim.terms.on_unknown = on_unknown;
    claim
}

fn named(claims: &[&Claim]) -> Vec<DueAttempt> {
    claims.iter().map(|claim| DueAttempt { id: claim.id, attempt: claim.attempt }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_to_be_asked_for_is_known_after_a_crash() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (live, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clock = ManualClock::default();
    let open = |path: &Path| EmbeddedStore::open_with(path, Arc::new(clock.clone())).unwrap();
    let [said, put_off, ran] =
        ["said", "put off", "ran"].map(|key| under(OnUnknown::Reconcile, key));
    let (settled, rolled) =
        (under(OnUnknown::Reconcile, "settled"), under(OnUnknown::Rollback, "rolled"));
    let store = open(live.path());
    for claim in [&said, &put_off, &settled] {
        granted(&store, claim).await;
        settle(&store, claim, Transition::Unknown(Cause::TimedOut)).await;
        clock.advance(Duration::from_secs(1));
    }
    settle(&store, &put_off, Transition::PostponeReconcile(HOUR)).await;
    complete(&store, &settled, "found").await;
    let mut last = Fence::default();
    for claim in [&ran, &rolled] {
        last = granted(&store, claim).await;
    }
    copy_open(live.path(), folder.path()).await;
    store.close().await.unwrap();

    let store = open(folder.path());
    assert_eq!(store.interrupted(), 1, "what rolled back is not unknown");
    let noted = store.audit_entries(None, None, 10).await.unwrap().entries;
    let mut noted: Vec<_> = noted.iter().map(|entry| (entry.id, &*entry.by)).collect();
    let mut lost = [(ran.id, "restart"), (rolled.id, "restart")];
    noted.sort_unstable();
    lost.sort_unstable();
    assert_eq!(noted, lost, "the audit has each");
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap(), named(&[&said, &ran]));
    assert_eq!(load(&store, &rolled).await.unwrap().state, State::Released { at: clock.now() });
    let again = Claim { attempt: AttemptId::from_bytes([2; 16]), ..rolled.clone() };
    assert!(granted(&store, &again).await > last);
    assert!(matches!(settle(&store, &rolled, Transition::Release).await, Settled::Stale { .. }));
    complete(&store, &said, "found").await;
    clock.advance(HOUR);
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap(), named(&[&ran, &put_off]));
    settle(&store, &ran, Transition::Forget).await;
    store.close().await.unwrap();
    let store = open(folder.path());
    assert_eq!(
        store.due(Due::Reconcile, 10).await.unwrap(),
        named(&[&put_off]),
        "also after a clean close"
    );
    store.close().await.unwrap();
}

/// One call reads at most a thousand entries, and the entries that it discards are not read again.
#[tokio::test(flavor = "multi_thread")]
async fn what_expired_hides_nothing_that_is_to_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let store = EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap();
    let lost = async |names: std::ops::Range<u32>| {
        let claims: Vec<Claim> =
            names.map(|name| under(OnUnknown::Reconcile, &format!("key {name}"))).collect();
        store.claim(claims.clone()).await;
        let transition = || Transition::Unknown(Cause::TimedOut);
        let unknown = claims.iter().map(|claim| (claim.id, claim.attempt));
        let unknown =
            unknown.map(|(id, attempt)| Settlement { id, attempt, transition: transition() });
        store.settle(unknown.collect()).await;
        claims
    };
    let old = lost(0..1_100).await;
    assert_eq!(store.due(Due::Reconcile, 2_000).await.unwrap().len(), 1_000);
    clock.advance(old[0].terms.ttl);
    let fresh = lost(2_000..2_200).await;
    assert!(
        store.due(Due::Reconcile, 10).await.unwrap().is_empty(),
        "of a thousand each is expired"
    );
    assert_eq!(store.due(Due::Reconcile, 200).await.unwrap().len(), 200);
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap().len(), 10);
    assert_eq!(store.sweep(2_000).await.unwrap().removed, 1_100);
    assert_eq!(store.due(Due::Reconcile, 2_000).await.unwrap().len(), fresh.len());
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_although_the_clock_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let start = clock.now();
    let open = || EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap();
    let mut last = Fence::default();
    for round in 0..4_u8 {
        let store = open();
        let claim = claim("a", round);
        let fence = granted(&store, &claim).await;
        assert!(fence > last, "round {round}");
        last = fence;
        settle(&store, &claim, Transition::Release).await;
        // The record is swept, and the clock is set back by a year.
        clock.advance(Duration::from_secs(100 * 86_400));
        assert_eq!(store.sweep(10).await.unwrap().removed, 1);
        clock.set_wall(onetake_core::Timestamp::from_micros(
            start.as_micros() - u64::from(round) * 31_536_000_000_000,
        ));
        store.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_is_told_who_holds_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    let error = EmbeddedStore::open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    let message = error.to_string();
    assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
    store.close().await.unwrap();
    EmbeddedStore::open(folder.path()).unwrap().close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    store.close().await.unwrap();
    store.close().await.unwrap();
    let error = store.claim(vec![claim("a", 1)]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn a_secret_is_durable_before_it_is_told() {
    let (live, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // A folder that was written without secrets.
    filled(live.path()).await;
    let store = EmbeddedStore::open(live.path()).unwrap();
    assert_eq!(store.secret("one", [1; 32]).await.unwrap(), [1; 32]);
    copy_open(live.path(), copied.path()).await;
    store.close().await.unwrap();
    for path in [live.path(), copied.path()] {
        let store = EmbeddedStore::open(path).unwrap();
        assert_eq!(store.secret("one", [2; 32]).await.unwrap(), [1; 32]);
        assert!(load(&store, &claim("key 7", 1)).await.is_some());
        store.close().await.unwrap();
        let error = store.secret("one", [3; 32]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
}

#[test]
fn a_folder_of_somebody_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.txt"), "important").unwrap();
    let error = EmbeddedStore::open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_creation_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    fs::remove_file(folder.path().join("FORMAT")).unwrap();
    fs::remove_file(folder.path().join("WITNESS")).unwrap();
    fs::write(folder.path().join("CREATING"), "").unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    assert!(load(&store, &claim("key 1", 1)).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    fs::write(folder.path().join("FORMAT"), "onetake embedded store\nformat 9\n").unwrap();
    let message = EmbeddedStore::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("format 9") && message.contains("reads format 3"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_folder_is_refused_and_not_changed() {
    let whole = tempfile::tempdir().unwrap();
    filled(whole.path()).await;
    let flip = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 0x20;
        fs::write(path, bytes).unwrap();
    };
    type Damage<'a> = (&'static str, Box<dyn Fn(&Path) + 'a>);
    let damages: Vec<Damage<'_>> = vec![
        ("FORMAT is garbage", Box::new(|f| fs::write(f.join("FORMAT"), "hello").unwrap())),
        ("FORMAT is not text", Box::new(|f| fs::write(f.join("FORMAT"), [0xff, 0xfe]).unwrap())),
        ("the log is gone", Box::new(|f| fs::remove_dir_all(f.join("log")).unwrap())),
        ("the segment is gone", Box::new(|f| fs::remove_file(log_of(f)).unwrap())),
        ("the first mark of the log", Box::new(|f| flip(&log_of(f), 0))),
        ("a length in the log", Box::new(|f| flip(&log_of(f), 33))),
        ("a value in the log", Box::new(|f| flip(&log_of(f), 5_000))),
        ("the tables are gone", Box::new(|f| fs::remove_dir_all(f.join("tables")).unwrap())),
        ("FORMAT is gone", Box::new(|f| fs::remove_file(f.join("FORMAT")).unwrap())),
        ("WITNESS is gone", Box::new(|f| fs::remove_file(f.join("WITNESS")).unwrap())),
        ("WITNESS is cut", Box::new(|f| fs::write(f.join("WITNESS"), "ceiling 1\n").unwrap())),
        ("the segment is empty", Box::new(|f| fs::write(log_of(f), "").unwrap())),
        ("the segment is zeros", Box::new(|f| fs::write(log_of(f), vec![0; 1 << 20]).unwrap())),
        (
            "the segment is cut",
            Box::new(|f| {
                let mut bytes = fs::read(log_of(f)).unwrap();
                let end = used(&bytes);
                bytes[end / 2..].fill(0);
                fs::write(log_of(f), bytes).unwrap();
            }),
        ),
        (
            "the last byte of the log",
            Box::new(|f| flip(&log_of(f), used(&fs::read(log_of(f)).unwrap()) - 1)),
        ),
        (
            "the number of levels of a table",
            Box::new(|f| {
                // The tree itself panics here. The section begins after the versions.
                let list = f.join("tables/v0");
                let bytes = fs::read(&list).unwrap();
                let at = bytes.windows(3).position(|part| part == [0, 7, 0]).unwrap();
                flip(&list, at + 1);
            }),
        ),
        (
            "all files of tables are gone",
            Box::new(|f| {
                fs::remove_dir_all(f.join("tables")).unwrap();
                fs::create_dir(f.join("tables")).unwrap();
            }),
        ),
        (
            "the list of files is gone",
            Box::new(|f| {
                fs::remove_file(f.join("tables/current")).unwrap();
            }),
        ),
    ];
    for (what, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        copy(whole.path(), folder.path());
        damage(folder.path());
        let before = contents(folder.path()).unwrap();
        let error = EmbeddedStore::open(folder.path()).err().unwrap_or_else(|| panic!("{what}"));
        assert!(matches!(error, OpenError::Damaged { .. }), "{what}: {error}");
        assert!(error.to_string().contains("damaged"), "{what}: {error}");
        assert!(contents(folder.path()).unwrap() == before, "{what}: something was changed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_a_crash_emptied_is_noticed() {
    // Without a clean close the last frame is unknown, but the first one is known.
    let folder = tempfile::tempdir().unwrap();
    crashed(folder.path()).await;
    fs::write(log_of(folder.path()), vec![0; 1 << 20]).unwrap();
    let error = EmbeddedStore::open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_end_is_what_a_crash_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("crashed");
    crashed(&whole).await;
    let bytes = fs::read(log_of(&whole)).unwrap();
    let end = used(&bytes) - 1;
    for cut in [1, 5, 20, 60] {
        let mut torn = bytes.clone();
        torn[end - cut..].fill(0);
        let torn_folder = folder.path().join(format!("torn {cut}"));
        copy(&whole, &torn_folder);
        fs::write(log_of(&torn_folder), torn).unwrap();
        let store = EmbeddedStore::open(&torn_folder).unwrap();
        assert!(load(&store, &claim("key 50", 9)).await.is_some());
        store.close().await.unwrap();
    }
}

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
        // As the reaper does every second.
        assert!(store.due(Due::LeaseEnd, 1).await.unwrap().is_empty());
        tables_bytes(folder.path()) < full * 2 / 3
    })
    .await;
    assert!(load(&store, &claim("key 1000400", 1)).await.is_some(), "live records are there");
    store.close().await.unwrap();
}

/// The engine looks for abandoned attempts every second. In an idle process, that wakes no thread.
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
const SHORT_SEGMENTS: EmbeddedOptions =
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

/// A damaged file of a table costs the records in it, which are refused. The others go on, although
/// files cannot be merged any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_of_a_table_does_not_stop_the_store() {
    const BODY: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(onetake_core::SystemClock);
    let store = EmbeddedStore::open_as(folder.path(), SHORT_SEGMENTS, clock).unwrap();
    // The log is needed from its second segment on once the tables are in files.
    let has_files = || {
        let witness = fs::read_to_string(folder.path().join("WITNESS")).unwrap();
        witness.contains("\nsegment 2\n")
    };
    let write = async |number: u32| {
        let claim = claim(&format!("key {number}"), 1);
        granted(&store, &claim).await;
        complete(&store, &claim, vec![b'x'; BODY]).await;
        claim
    };
    let mut written = Vec::new();
    while !has_files() {
        written.push(write(written.len() as u32).await);
    }
    let damaged = written.len();
    let file = fs::read_dir(folder.path().join("tables/tables")).unwrap().next();
    let file = file.unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    fs::write(&file, bytes).unwrap();
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
    store.close().await.unwrap();
}
