//! Tests of the SQLite store: the suite that every store passes, and tests of its own properties: a
//! file that several processes share, that may belong to another program, or that is on a full
//! disk.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use onetake_conformance::{Capabilities, Simulated, many, run, run_engine};
use onetake_core::store::{Due, DueAttempt, RecordIndex, SharedSecrets};
use onetake_core::{
    AttemptId, Cause, Claim, Claimed, Clock, Fence, Fingerprint, Key, ManualClock, OnUnknown,
    Record, RecordId, Recording, Scope, Settled, Settlement, State, Store, StoreError,
    StoreErrorKind, Terms, Transition,
};
use onetake_stores::{SqliteStore, Weight};

async fn fresh() -> Simulated {
    let (folder, file) = place();
    let open = move |clock| SqliteStore::open_with(&file, clock).unwrap();
    Simulated::new(|clock| (open(clock), Box::new(folder))).reopened_by(open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_store() {
    run(fresh, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_sqlite_store() {
    run_engine(fresh, Capabilities::default()).await.assert_passed();
}

fn claim(key: &str, attempt: u64) -> Claim {
    Claim {
        id: RecordId::derive(&Scope::new("t"), &Key::new(key).unwrap()),
        attempt: AttemptId::from_bytes(u128::from(attempt).to_be_bytes()),
        fingerprint: Fingerprint::of(b"pay"),
        terms: Terms::default(),
        origin: onetake_core::Origin::default(),
    }
}

async fn ask(store: &SqliteStore, claim: &Claim) -> Result<Claimed, StoreError> {
    store.claim(vec![claim.clone()]).await.remove(0)
}

fn is_busy<T>(answer: &Result<T, StoreError>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Busy)
}

/// The number of tries for a locked file, each of about two seconds.
const TRIES: usize = 30;

/// Tries again while another store has the file locked.
async fn until_free<T, F>(ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for _ in 0..TRIES {
        let answer = ask().await;
        if !is_busy(&answer) {
            return answer;
        }
    }
    ask().await
}

async fn granted(store: &SqliteStore, claim: &Claim) -> Fence {
    match ask(store, claim).await.unwrap() {
        Claimed::Granted { fence } => fence,
        Claimed::Found { record, .. } => panic!("found {}", record.state.name()),
    }
}

async fn complete(store: &SqliteStore, claim: &Claim, body: Vec<u8>) -> Result<(), StoreError> {
    let transition = Transition::Complete(Recording::new(body));
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    match store.settle(vec![settlement]).await.remove(0)? {
        Settled::Done { .. } => Ok(()),
        Settled::Stale { current } => panic!("stale: {current:?}"),
    }
}

async fn load(store: &SqliteStore, claim: &Claim) -> Option<Arc<Record>> {
    store.load(vec![claim.id]).await.remove(0).unwrap()
}

fn body(record: &Record) -> &[u8] {
    match &record.state {
        State::Completed { recording, .. } => recording.body.as_deref().unwrap(),
        other => panic!("{}", other.name()),
    }
}

/// Returns a file in its own folder.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.db");
    (folder, file)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_on_one_file_never_both_run() {
    let (_folder, file) = place();
    let stores: Vec<Arc<SqliteStore>> =
        (0..2).map(|_| Arc::new(SqliteStore::open(&file).unwrap())).collect();
    let (keys, grants) = (20, Arc::new(AtomicUsize::new(0)));
    let tasks = (0..32).map(|task| {
        let (store, grants) = (Arc::clone(&stores[task % 2]), Arc::clone(&grants));
        tokio::spawn(async move {
            for key in 0..keys {
                let claim = claim(&format!("key {key}"), 1 + task as u64);
                let claimed = until_free(|| ask(&store, &claim)).await.unwrap();
                if let Claimed::Granted { .. } = claimed {
                    grants.fetch_add(1, Ordering::Relaxed);
                    let said = format!("{task}").into_bytes();
                    until_free(|| complete(&store, &claim, said.clone())).await.unwrap();
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(grants.load(Ordering::Relaxed), keys, "one run for each key (S1)");
    for key in 0..keys {
        let claim = claim(&format!("key {key}"), 0);
        let (one, other) = (load(&stores[0], &claim).await, load(&stores[1], &claim).await);
        assert_eq!(one, other);
        assert!(!body(&one.unwrap()).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_from_four_stores_on_one_file() {
    let (_folder, file) = place();
    let store = |_| Arc::new(SqliteStore::open(&file).unwrap()) as Arc<dyn Store>;
    let nodes = (0..4).map(store).collect();
    many::overlapping_batches(nodes, 64, Duration::from_secs(3), 100).await;
}

#[tokio::test]
async fn many_open_a_fresh_file_at_once() {
    for _ in 0..20 {
        let (_folder, file) = place();
        let open = |file: &Path| {
            (0..TRIES).map(|_| SqliteStore::open(file)).find(|opened| !is_busy(opened))
        };
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let file = file.clone();
                std::thread::spawn(move || open(&file))
            })
            .collect();
        let stores: Vec<SqliteStore> =
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap().unwrap()).collect();
        granted(&stores[0], &claim("a", 1)).await;
        assert!(load(&stores[7], &claim("a", 1)).await.is_some());
    }
}

#[tokio::test]
async fn a_file_is_reopened_as_it_was_closed() {
    let (_folder, file) = place();
    let clock = ManualClock::default();
    let store = SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
    let (done, runs) = (claim("done", 1), claim("runs", 2));
    granted(&store, &done).await;
    complete(&store, &done, b"paid".to_vec()).await.unwrap();
    granted(&store, &runs).await;
    store.close().await.unwrap();
    assert_eq!(ask(&store, &runs).await.unwrap_err().kind(), StoreErrorKind::Unavailable);

    let store = SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
    assert_eq!(body(&load(&store, &done).await.unwrap()), b"paid");
    // Another process may run it, so its lease has to end first.
    assert_eq!(load(&store, &runs).await.unwrap().state.name(), "running");
    clock.advance(Duration::from_secs(60));
    let found = ask(&store, &claim("runs", 3)).await.unwrap();
    assert!(matches!(found, Claimed::Found { record, .. } if record.state.name() == "unknown"));
}

/// The owner could not renew its lease while the machine was down. A process that opens the file
/// afterwards respects the owner's whole grace, counted from its own start.
#[tokio::test]
async fn a_store_that_was_just_opened_respects_a_whole_grace() {
    let (_folder, file) = place();
    let clock = ManualClock::default();
    let open = || SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
    let store = open();
    let runs = claim("runs", 1);
    granted(&store, &runs).await;
    store.close().await.unwrap();
    let Terms { lease, grace, .. } = runs.terms;
    clock.advance(lease + grace);

    let store = open();
    clock.advance(grace - Duration::from_micros(1));
    let Claimed::Found { record, .. } = ask(&store, &claim("runs", 2)).await.unwrap() else {
        panic!("a claim took the key from its owner");
    };
    assert_eq!(record.state.name(), "running");
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap(), []);
    let abandon =
        Settlement { id: runs.id, attempt: runs.attempt, transition: Transition::ExpireLease };
    let answer = store.settle(vec![abandon.clone()]).await.remove(0).unwrap();
    assert!(matches!(answer, Settled::Stale { .. }), "{answer:?}");

    clock.advance(Duration::from_micros(1));
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap().len(), 1);
    let answer = store.settle(vec![abandon]).await.remove(0).unwrap();
    assert!(matches!(answer, Settled::Done { .. }), "{answer:?}");
}

#[tokio::test]
async fn fences_rise_although_everything_was_swept_and_the_clock_went_back() {
    let (_folder, file) = place();
    let clock = ManualClock::default();
    let start = clock.now();
    let store = SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
    let fence = granted(&store, &claim("a", 1)).await;
    complete(&store, &claim("a", 1), b"x".to_vec()).await.unwrap();
    clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(store.sweep(10).await.unwrap().removed, 1);
    store.close().await.unwrap();
    clock.set_wall(start);
    let store = SqliteStore::open_with(&file, Arc::new(clock)).unwrap();
    assert!(granted(&store, &claim("a", 2)).await > fence, "S2");
}

/// A record with a low fence may be swept after one with a higher fence. The higher fence counts.
#[tokio::test]
async fn the_highest_swept_fence_counts_whatever_is_swept_last() {
    let (_folder, file) = place();
    let clock = ManualClock::default();
    let start = clock.now();
    let store = SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
    let day = Duration::from_secs(24 * 3_600);
    let lasting = Claim { terms: Terms { ttl: 2 * day, ..Terms::default() }, ..claim("low", 1) };
    granted(&store, &lasting).await;
    complete(&store, &lasting, vec![1]).await.unwrap();
    clock.advance(Duration::from_secs(1));
    let brief = claim("high", 2);
    let before = granted(&store, &brief).await;
    complete(&store, &brief, vec![2]).await.unwrap();
    for _ in 0..2 {
        clock.advance(day + Duration::from_secs(1));
        assert_eq!(store.sweep(10).await.unwrap().removed, 1);
    }
    clock.set_wall(start);
    assert!(granted(&store, &claim("high", 3)).await > before, "the clock went back");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_its_own_keys_trouble_alone() {
    let (_folder, file) = place();
    let clock = ManualClock::default();
    let store = SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
    let (good, bad) = (claim("good", 1), claim("bad", 2));
    granted(&store, &good).await;
    granted(&store, &bad).await;
    let other = rusqlite::Connection::open(&file).unwrap();
    other
        .execute("UPDATE onetake_records SET record = x'ff' WHERE id = ?1", [bad.id.as_bytes()])
        .unwrap();
    let answers = store.claim(vec![bad.clone(), claim("new", 3), claim("good", 4)]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), StoreErrorKind::Invalid);
    assert!(matches!(answers[1], Ok(Claimed::Granted { .. })));
    assert!(matches!(answers[2], Ok(Claimed::Found { .. })));
    clock.advance(Duration::from_secs(61));
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap().len(), 2, "the others are found");
}

#[tokio::test]
async fn a_lock_that_is_held_for_too_long_is_busy_and_not_away() {
    let (_folder, file) = place();
    let store = SqliteStore::open(&file).unwrap();
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = ask(&store, &claim("a", 1)).await.unwrap_err();
    // A fail-open route may run without an unavailable store, but not without a busy one.
    assert_eq!(error.kind(), StoreErrorKind::Busy);
    assert!(error.to_string().contains("another process holds"), "{error}");
    other.execute_batch("COMMIT").unwrap();
    granted(&store, &claim("a", 1)).await;
}

fn refused(file: &Path) -> (StoreErrorKind, String) {
    let error = SqliteStore::open(file).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn what_cannot_be_opened_is_named_and_left_alone() {
    let (folder, file) = place();
    let (kind, said) = refused(folder.path());
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(said.contains("is a folder"), "{said}");

    let (kind, said) = refused(&folder.path().join("missing/onetake.db"));
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(said.contains("missing does not exist; create it"), "{said}");

    let (kind, said) = refused(Path::new(""));
    assert_eq!((kind, said.contains("not a path")), (StoreErrorKind::Invalid, true), "{said}");

    let text = "this is a letter to my aunt, and not a database at all. ".repeat(20);
    std::fs::write(&file, &text).unwrap();
    let (kind, said) = refused(&file);
    assert_eq!(kind, StoreErrorKind::Corrupt);
    assert!(said.contains("onetake.db") && said.contains("is it a SQLite database?"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn another_programs_database_is_refused() {
    let (_folder, file) = place();
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("CREATE TABLE songs (title TEXT); PRAGMA user_version = 1").unwrap();
    let (kind, said) = refused(&file);
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(said.contains("a database of another program"), "{said}");
    let mode: String = other.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete", "nothing was changed");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_an_older_one_migrated() {
    let (_folder, file) = place();
    SqliteStore::open(&file).unwrap().close().await.unwrap();
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("PRAGMA user_version = 7").unwrap();
    let (kind, said) = refused(&file);
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(said.contains("schema version 7") && said.contains("up to 6"), "{said}");
    // The oldest possible file: onetake's, and empty.
    let nothing = "DROP TABLE onetake_records; DROP TABLE onetake_meta; DROP TABLE onetake_secrets; DROP TABLE onetake_notes; DROP TABLE onetake_outbox; DROP TABLE onetake_lanes; PRAGMA user_version = 0";
    other.execute_batch(nothing).unwrap();
    let store = SqliteStore::open(&file).unwrap();
    granted(&store, &claim("a", 1)).await;
}

#[tokio::test]
async fn a_file_without_secrets_gets_some_and_keeps_its_records() {
    let (_folder, file) = place();
    let store = SqliteStore::open(&file).unwrap();
    let (first, secret) = (claim("a", 1), [7; 32]);
    granted(&store, &first).await;
    complete(&store, &first, b"paid".to_vec()).await.unwrap();
    store.close().await.unwrap();
    // Version 1 had no secrets and no audit, and unknown attempts were not reconciled.
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch(WITHOUT_ASKS).unwrap();
    other
        .execute_batch(
            "DROP TABLE onetake_secrets; DROP TABLE onetake_notes; PRAGMA user_version = 1",
        )
        .unwrap();
    // Two processes of the new version open it at once. One of them migrates.
    let stores = [(); 2].map(|()| SqliteStore::open(&file).unwrap());
    assert_eq!(body(&load(&stores[0], &first).await.unwrap()), b"paid");
    assert_eq!(stores[0].secret("one", secret).await.unwrap(), secret);
    assert_eq!(stores[1].secret("one", [8; 32]).await.unwrap(), secret, "one for all processes");
    let version: i64 = other.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 6);
    other.execute_batch("UPDATE onetake_secrets SET value = x'00'").unwrap();
    let error = stores[0].secret("one", [9; 32]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert!(error.to_string().contains("`one`"), "{error}");
    stores[0].ready().await.unwrap();
}

/// Takes a file back to version 3.
const WITHOUT_ASKS: &str = "DROP TRIGGER onetake_records_unchecked; DROP TRIGGER onetake_meta_unchecked; ALTER TABLE onetake_records DROP COLUMN checksum; ALTER TABLE onetake_meta DROP COLUMN checksum; ALTER TABLE onetake_secrets DROP COLUMN checksum; ALTER TABLE onetake_notes DROP COLUMN checksum; DROP TABLE onetake_outbox; DROP TABLE onetake_lanes; DROP INDEX onetake_records_ask; ALTER TABLE onetake_records DROP COLUMN ask_at; PRAGMA user_version = 3";

#[tokio::test]
async fn what_was_unknown_in_an_older_file_is_asked_for() {
    let (_folder, file) = place();
    let store = SqliteStore::open(&file).unwrap();
    let mut claims = Vec::new();
    for (at, on_unknown) in
        [OnUnknown::Fail, OnUnknown::Reconcile, OnUnknown::Retry].into_iter().enumerate()
    {
        let mut claim = claim(&format!("key {at}"), 1);
        claim.terms.on_unknown = on_unknown;
        granted(&store, &claim).await;
        let transition = Transition::Unknown(Cause::TimedOut);
        let lost = Settlement { id: claim.id, attempt: claim.attempt, transition };
        let settled = store.settle(vec![lost]).await.remove(0).unwrap();
        assert!(matches!(settled, Settled::Done { .. }));
        claims.push(claim);
    }
    store.close().await.unwrap();
    rusqlite::Connection::open(&file).unwrap().execute_batch(WITHOUT_ASKS).unwrap();
    let store = SqliteStore::open(&file).unwrap();
    let asked = DueAttempt { id: claims[1].id, attempt: claims[1].attempt };
    assert_eq!(store.due(Due::Reconcile, 10).await.unwrap(), [asked]);
}

#[tokio::test]
async fn the_doctor_finds_it_durable() {
    // Not in /tmp, which may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = SqliteStore::open(&folder.path().join("onetake.db")).unwrap();
    store.ready().await.unwrap();
    let diagnosis = store.diagnose().await.unwrap();
    assert!(diagnosis.server.starts_with("SQLite 3."), "{}", diagnosis.server);
    assert_eq!(diagnosis.worst(), Weight::Fine, "{:?}", diagnosis.findings);
    assert!(diagnosis.findings.iter().any(|finding| finding.what.contains("synchronous=FULL")));
}

#[tokio::test]
async fn what_is_forgotten_is_not_in_its_row() {
    let (_folder, file) = place();
    let store = SqliteStore::open(&file).unwrap();
    let done = claim("a", 1);
    granted(&store, &done).await;
    complete(&store, &done, b"a secret".to_vec()).await.unwrap();
    let reader = rusqlite::Connection::open(&file).unwrap();
    let row = || -> (Vec<u8>, String) {
        let asked = "SELECT record, state FROM onetake_records";
        reader.query_row(asked, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let holds = |record: &[u8]| record.windows(8).any(|part| part == b"a secret");
    assert!(holds(&row().0));
    let forget = Settlement { id: done.id, attempt: done.attempt, transition: Transition::Forget };
    let answer = store.settle(vec![forget]).await.remove(0).unwrap();
    assert!(matches!(answer, Settled::Done { .. }), "{answer:?}");
    let (record, state) = row();
    assert!(!holds(&record), "before any sweep");
    assert_eq!(state, "released");
}

#[tokio::test]
async fn a_reference_has_ids_from_its_first_to_its_last() {
    let (_folder, file) = place();
    let store = SqliteStore::open(&file).unwrap();
    let reference = claim("a", 1).id.reference();
    let (first, last) = reference.ids().into_inner();
    let number = |id: RecordId| u128::from_be_bytes(*id.as_bytes());
    let ids = [number(first) - 1, number(first), number(last), number(last) + 1]
        .map(|number| RecordId::from_bytes(number.to_be_bytes()));
    for id in ids {
        granted(&store, &Claim { id, ..claim("a", 1) }).await;
    }
    assert_eq!(store.find(reference).await.unwrap(), [first, last]);
}

/// The variable with the file for a part of a test that runs in its own process.
const FILE: &str = "ONETAKE_TEST_SQLITE_FILE";

/// Starts this test program, to run one of its own tests alone.
fn part(name: &str, file: &Path) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let file = format!("{FILE}={}", file.display());
    let words = [&file, program.to_str().unwrap(), "--exact", name, "--nocapture"];
    words.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9() {
    let (_folder, file) = place();
    let mut child = Command::new("env")
        .args(part("store::a_part_that_writes_until_it_is_killed", &file))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = |line: String| line.strip_prefix("acknowledged ").map(ToOwned::to_owned);
    let mut acknowledged: Vec<String> = Vec::new();
    for key in lines.filter_map(said) {
        acknowledged.push(key);
        if acknowledged.len() == 150 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged.len() >= 150, "{}", acknowledged.len());
    let store = SqliteStore::open(&file).unwrap();
    for key in &acknowledged {
        let record = load(&store, &claim(key, 1)).await.expect("acknowledged, and gone (S6)");
        assert_eq!(body(&record), key.as_bytes());
    }
}

/// A part of [`what_was_acknowledged_survives_kill_9`], which starts it. It is not a test by
/// itself.
#[tokio::test]
async fn a_part_that_writes_until_it_is_killed() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let store = SqliteStore::open(Path::new(&file)).unwrap();
    println!();
    for number in 0.. {
        let key = format!("key {number}");
        granted(&store, &claim(&key, 1)).await;
        complete(&store, &claim(&key, 1), key.clone().into_bytes()).await.unwrap();
        println!("acknowledged {key}");
    }
}

#[test]
fn a_full_disk_loses_nothing_and_is_over_when_there_is_room() {
    let namespace = ["--map-root-user", "--mount", "--"];
    let can = Command::new("unshare").args(namespace).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: without `unshare --mount` there is no small disk to fill");
        return;
    }
    let (folder, file) = place();
    let mount = "mount -t tmpfs -o size=3m tmpfs \"$0\" && exec env \"$@\"";
    let output = Command::new("unshare")
        .args(namespace)
        .args(["sh", "-c", mount])
        .arg(folder.path())
        .args(part("store::a_part_on_a_small_disk", &file))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A part of [`a_full_disk_loses_nothing_and_is_over_when_there_is_room`], which starts it on a
/// disk of three megabytes. It is not a test by itself.
#[tokio::test]
async fn a_part_on_a_small_disk() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let clock = ManualClock::default();
    let store = SqliteStore::open_with(&file, Arc::new(clock.clone())).unwrap();
    let runs = claim("runs", 1);
    granted(&store, &runs).await;
    let mut kept = Vec::new();
    let error = loop {
        match claim_and_complete(&store, &format!("key {}", kept.len())).await {
            Ok(next) => kept.push(next),
            Err(error) => break error,
        }
        if kept.len() == 5 {
            fill(&file.with_extension("filler"));
        }
        assert!(kept.len() < 100, "three megabytes are never full");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(kept.len() >= 5);
    for claim in &kept {
        assert_eq!(body(&load(&store, claim).await.unwrap()).len(), 50_000, "still to be read");
    }
    let replay = ask(&store, &kept[0]).await.unwrap();
    assert!(matches!(replay, Claimed::Found { .. }), "and to be replayed");
    claim_and_complete(&store, "another").await.unwrap_err();

    // No owner could renew for longer than lease and grace, so the owner gets its whole grace
    // again.
    clock.advance(Duration::from_secs(100));
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap(), []);
    std::fs::remove_file(file.with_extension("filler")).unwrap();
    let Claimed::Found { record, .. } = ask(&store, &claim("runs", 3)).await.unwrap() else {
        panic!("it was taken from its owner");
    };
    assert!(matches!(record.state, State::Running { .. }), "it is left to its owner");
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap(), []);
    let late = claim_and_complete(&store, "another").await.expect("there is free space");
    clock.advance(Duration::from_secs(30));
    assert_eq!(store.due(Due::LeaseEnd, 10).await.unwrap().len(), 1);
    let found = ask(&store, &claim("runs", 4)).await.unwrap();
    assert!(matches!(found, Claimed::Found { record, .. } if record.state.name() == "unknown"));
    for claim in kept.iter().chain([&late]) {
        assert_eq!(body(&load(&store, claim).await.unwrap()).len(), 50_000, "nothing is lost");
    }
}

async fn claim_and_complete(store: &SqliteStore, key: &str) -> Result<Claim, StoreError> {
    let claim = claim(key, 2);
    ask(store, &claim).await?;
    complete(store, &claim, vec![b'x'; 50_000]).await?;
    Ok(claim)
}

/// Uses up the free space.
fn fill(file: &Path) {
    let mut filler = std::fs::File::create(file).unwrap();
    while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
}

/// A row that changed on disk is refused. A row that a process of an earlier version changed is
/// accepted.
#[tokio::test]
async fn a_row_is_refused_if_its_bytes_changed() {
    let (_folder, file) = place();
    let store = SqliteStore::open(&file).unwrap();
    let claims = ["damaged", "from an earlier version", "whole"].map(|key| claim(key, 1));
    for claim in &claims {
        granted(&store, claim).await;
        complete(&store, claim, b"paid".to_vec()).await.unwrap();
    }
    let [damaged, earlier, whole] = &claims;
    let other = rusqlite::Connection::open(&file).unwrap();
    let paid = "CAST(replace(hex(record), hex('paid'), hex('PAID')) AS TEXT)";
    let as_on_disk = format!(
        "DROP TRIGGER onetake_records_unchecked; UPDATE onetake_records SET record = unhex({paid}) WHERE id = ?1"
    );
    let statement = as_on_disk.split_once("; ").unwrap();
    // As an earlier version writes it: the trigger exists.
    other.execute(statement.1, [earlier.id.as_bytes()]).unwrap();
    other.execute(statement.0, []).unwrap();
    other.execute(statement.1, [damaged.id.as_bytes()]).unwrap();
    let error = store.load(vec![damaged.id]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert!(error.to_string().contains("checksum"), "{error}");
    let error = ask(&store, &Claim { attempt: whole.attempt, ..damaged.clone() }).await;
    assert!(error.is_err(), "it must not run again");
    assert_eq!(body(&load(&store, earlier).await.unwrap()), b"PAID");
    assert_eq!(body(&load(&store, whole).await.unwrap()), b"paid");
}
