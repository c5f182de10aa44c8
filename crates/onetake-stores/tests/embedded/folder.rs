//! Tests of the embedded store's folder: shared, closed, of another program, damaged.

use std::fs;
use std::path::Path;

use onetake_core::store::SharedSecrets;
use onetake_core::{Store, StoreErrorKind};
use onetake_stores::{EmbeddedStore, OpenError};

use crate::store_folder::{claim, contents, copy, copy_open, crashed, filled, load, log_of, used};

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

/// A sync of the list of tables can fail shortly before a clean stop. The system still shows the list,
/// so the next start writes its name again.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_tables_is_named_again_after_a_clean_stop() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let file = || fs::metadata(folder.path().join("tables/current")).unwrap().ino();
    for _ in 0..2 {
        let before = file();
        let store = EmbeddedStore::open(folder.path()).unwrap();
        assert_ne!(file(), before, "the file is another one");
        store.close().await.unwrap();
    }
}
