//! A folder on this machine for settlements that the store did not accept before shutdown.
//!
//! Each call of `keep` writes one file, or several if there is much to keep. A file is complete or
//! absent: it is written under another name, made durable, and renamed. A file that cannot be read
//! stays where it is, and an error in the log names it.

mod codec;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::codec::DecodeError;
use onetake_core::engine::{Journal, JournalBatch};
use onetake_core::{Fingerprint, Rng, Settlement, Store, StoreError, StoreErrorKind, SystemRng};

use codec::{StoreDigest, TITLE, decode, encode};

use crate::folders;

/// The file extension of journal files.
const ENDING: &str = "settlements";
/// The file extension of a file that is being written.
const UNFINISHED: &str = "unfinished";
/// A file takes no more settlements after this many bytes, because it is written and read as a
/// whole.
const FILE_BYTES: usize = 64 << 20;
/// The largest file that is read: a full file plus the largest settlement that can follow.
const FILE_BYTES_MAX: u64 = (5 << 30) + FILE_BYTES as u64;

/// A journal in the files of one folder. Several processes may share the folder.
#[derive(Debug)]
pub struct FileJournal {
    folder: Arc<Path>,
    store: StoreDigest,
    foreign: Arc<Mutex<ForeignFiles>>,
}

/// The whole files of other stores, by name. They are not read again while they stay the same.
type ForeignFiles = HashMap<String, FileVersion>;

/// The length of a file, and the time of its last change.
#[derive(Debug, PartialEq, Eq)]
struct FileVersion(u64, Option<SystemTime>);

impl FileVersion {
    fn of(file: &Metadata) -> Self {
        Self(file.len(), file.modified().ok())
    }
}

impl FileJournal {
    /// The name of the secret by which a store recognises its own journals.
    pub const SECRET: &str = "journal";

    /// Opens the journal of `store` in this folder: see [`open`](Self::open).
    ///
    /// # Errors
    /// If the store does not answer, or the folder cannot be used.
    pub async fn of(store: &dyn Store, folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let mut fresh = [0; 32];
        SystemRng.fill(&mut fresh);
        let (folder, secret) = (folder.into(), store.secret(Self::SECRET, fresh).await?);
        blocking(move || {
            Self::open(&folder, &secret).map_err(|error| failed("write to", &folder, error))
        })
        .await
    }

    /// Opens a journal in this folder. The folder is created when there is something to keep.
    ///
    /// `secret` is the secret that the store keeps as [`SECRET`](Self::SECRET), see
    /// [`SharedSecrets::secret`](onetake_core::store::SharedSecrets::secret). Files of other stores
    /// in the same folder are ignored.
    ///
    /// # Errors
    /// If the folder cannot be created or written to. This is found out here, before there is
    /// something to lose.
    pub fn open(folder: impl Into<PathBuf>, secret: &[u8; 32]) -> io::Result<Self> {
        let folder = folder.into();
        let is_new = !folder.try_exists()?;
        make_folder(&folder)?;
        let probe = folder.join(format!("{}.{UNFINISHED}", random_name()));
        File::create_new(&probe)?.sync_all()?;
        fs::remove_file(&probe)?;
        if is_new {
            // The removal fails if another process uses the folder. An empty folder does no harm.
            let _best_effort = fs::remove_dir(&folder);
        }
        let named = [b"onetake journal of", &secret[..]].concat();
        let store = *Fingerprint::of(&named).digest();
        Ok(Self { folder: folder.into(), store, foreign: Arc::default() })
    }
}

impl Journal for FileJournal {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        let (folder, store) = (Arc::clone(&self.folder), self.store);
        blocking(move || {
            let mut wrong = None;
            for bytes in encode(&store, &settlements, FILE_BYTES) {
                // A file that cannot be written does not stop the attempt to write the others.
                if let Err(error) = write(&folder, &bytes) {
                    wrong.get_or_insert(error);
                }
            }
            wrong.map_or(Ok(()), |error| Err(failed("write to", &folder, error)))
        })
        .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let (folder, store) = (Arc::clone(&self.folder), self.store);
        let foreign = Arc::clone(&self.foreign);
        blocking(move || {
            let mut foreign = foreign.lock().unwrap_or_else(PoisonError::into_inner);
            names(&folder, &store, &mut foreign).map_err(|error| failed("read", &folder, error))
        })
        .boxed()
    }

    fn read(&self, name: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>> {
        let (folder, store) = (Arc::clone(&self.folder), self.store);
        blocking(move || {
            let file = folder.join(name);
            read(&file, &store).map_err(|error| failed("read a file of", &file, error))
        })
        .boxed()
    }

    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>> {
        let folder = Arc::clone(&self.folder);
        blocking(move || match fs::remove_file(folder.join(name)) {
            // Another process of this folder has settled the same file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| failed("delete from", &folder, error)),
        })
        .boxed()
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        let what = "the thread of the journal ended without a result";
        Err(StoreError::new(StoreErrorKind::Unavailable, what))
    })
}

fn failed(action: &str, folder: &Path, error: io::Error) -> StoreError {
    let what = format!("cannot {action} the journal {}: {error}", folder.display());
    StoreError::new(StoreErrorKind::Unavailable, what).with_source(error)
}

/// Creates the folder durably. Only its owner may read the outcomes in it.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    folders::create(folder, &mut builder)
}

fn random_name() -> String {
    let mut bytes = [0; 16];
    SystemRng.fill(&mut bytes);
    onetake_core::hex::encode(&bytes)
}

fn write(folder: &Path, bytes: &[u8]) -> io::Result<()> {
    match write_once(folder, bytes) {
        // Another process had just created the folder, found it empty and removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => write_once(folder, bytes),
        written => written,
    }
}

fn write_once(folder: &Path, bytes: &[u8]) -> io::Result<()> {
    make_folder(folder)?;
    let name = random_name();
    let unfinished = folder.join(format!("{name}.{UNFINISHED}"));
    let written = write_to(&unfinished, bytes);
    if written.is_err() {
        let _nobody_reads_it = fs::remove_file(&unfinished);
    }
    written?;
    fs::rename(&unfinished, folder.join(format!("{name}.{ENDING}")))?;
    folders::sync(folder)
}

fn write_to(unfinished: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Lists the files that belong to this store, or are too damaged to tell. `foreign` has the files
/// that the last call found to belong to others.
fn names(
    folder: &Path,
    store: &StoreDigest,
    foreign: &mut ForeignFiles,
) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(names),
        entries => entries?,
    };
    let known = std::mem::take(foreign);
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let verdict = fs::metadata(&path).and_then(|file| {
            let version = FileVersion::of(&file);
            let is_known = known.get(name) == Some(&version);
            Ok((is_known || is_of_another(&path, store)?, version))
        });
        match verdict {
            Ok((false, _)) => names.push(name.to_owned()),
            Ok((true, version)) => {
                tracing::debug!(
                    file = name,
                    "a file of the journal is skipped: its outcomes belong to another store"
                );
                foreign.insert(name.to_owned(), version);
            }
            // Another process of this folder was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A later read reports why the file cannot be read.
            Err(_) => names.push(name.to_owned()),
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns true if a file belongs to another store. A damaged file may belong to any store.
fn is_of_another(path: &Path, store: &StoreDigest) -> io::Result<bool> {
    let mut head = Vec::new();
    let length = TITLE.len() + store.len();
    File::open(path)?.take(length as u64).read_to_end(&mut head)?;
    let is_named_so =
        head.strip_prefix(TITLE).is_some_and(|of| of.len() == store.len() && of != store);
    Ok(is_named_so && is_whole(path)?)
}

/// Returns true if a file ends with the digest of its bytes.
fn is_whole(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.len() <= FILE_BYTES_MAX && decode(fs::read(path)?.into()).is_ok())
}

fn read(path: &Path, store: &StoreDigest) -> io::Result<Option<JournalBatch>> {
    let found = match fs::metadata(path) {
        Ok(found) if found.len() > FILE_BYTES_MAX => {
            Ok(Err(DecodeError::new("the file is too large for a journal")))
        }
        Ok(_) => fs::read(path).map(|bytes| decode(bytes.into())),
        Err(error) => Err(error),
    };
    match found {
        Ok(Ok((of, settlements))) => {
            Ok((of == *store).then_some(JournalBatch { settlements, is_whole: true }))
        }
        Ok(Err(error)) => {
            tracing::error!(
                file = %path.display(), %error,
                "a file of the journal is damaged: its outcomes are lost, and their keys become unknown. Move the file away to stop this message"
            );
            Ok(Some(JournalBatch::default()))
        }
        // Another process of this folder was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onetake_core::{AttemptId, Cause, Failure, RecordId, Recording, Transition};

    use super::*;

    fn settlements() -> Vec<Settlement> {
        let of = |number, transition| Settlement {
            id: RecordId::from_bytes([number; 16]),
            attempt: AttemptId::from_bytes([number + 1; 16]),
            transition,
        };
        vec![
            of(1, Transition::Complete(Recording::new("paid"))),
            of(2, Transition::Complete(Recording { head: "201".into(), body: None })),
            of(3, Transition::Fail(Failure { code: "c".into(), detail: "d".into() })),
            of(4, Transition::Release),
            of(5, Transition::Unknown(Cause::Reported("odd".into()))),
            of(6, Transition::Unknown(Cause::TimedOut)),
            of(7, Transition::Unknown(Cause::Status(502))),
            of(8, Transition::Unknown(Cause::Reported(Cause::Status(502).to_string()))),
        ]
    }

    async fn all(journal: &FileJournal) -> Vec<JournalBatch> {
        let mut all = Vec::new();
        for name in journal.names().await.unwrap() {
            all.extend(journal.read(name).await.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn what_is_kept_is_there_until_it_is_let_go_of() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("below/journal");
        let journal = FileJournal::open(&place, &[1; 32]).unwrap();
        assert_eq!(all(&journal).await, []);
        journal.keep(settlements()).await.unwrap();
        journal.keep(settlements()).await.unwrap();
        let again = FileJournal::open(&place, &[1; 32]).unwrap();
        let kept = JournalBatch { settlements: settlements(), is_whole: true };
        assert_eq!(all(&again).await, [kept.clone(), kept.clone()]);
        let first = again.names().await.unwrap()[0].clone();
        journal.let_go(first.clone()).await.unwrap();
        journal.let_go(first.clone()).await.unwrap();
        assert_eq!(journal.read(first).await.unwrap(), None, "another process was faster");
        assert_eq!(all(&journal).await, [kept]);
        let other = FileJournal::open(&place, &[2; 32]).unwrap();
        assert_eq!(other.names().await.unwrap(), [""; 0], "another store's are not its own");
    }

    /// A flipped bit may have changed the identity in the file, so its own store must list it too.
    #[tokio::test]
    async fn a_damaged_file_that_names_another_store_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let other = FileJournal::open(folder.path(), &[2; 32]).unwrap();
        other.keep(settlements()).await.unwrap();
        let journal = FileJournal::open(folder.path(), &[1; 32]).unwrap();
        assert_eq!(journal.names().await.unwrap(), [""; 0]);
        let file = folder.path().join(&other.names().await.unwrap()[0]);
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        let journal = FileJournal::open(folder.path(), &[1; 32]).unwrap();
        assert_eq!(journal.names().await.unwrap().len(), 1);
        assert_eq!(all(&journal).await, [JournalBatch::default()], "nobody knows what was in it");
    }

    /// The engine lists the journal all the time, and files can be large.
    #[tokio::test]
    async fn a_file_of_another_store_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let other = FileJournal::open(folder.path(), &[2; 32]).unwrap();
        other.keep(settlements()).await.unwrap();
        let journal = FileJournal::open(folder.path(), &[1; 32]).unwrap();
        assert_eq!(journal.names().await.unwrap(), [""; 0]);
        let name = other.names().await.unwrap().remove(0);
        let file = folder.path().join(&name);
        let changed = fs::metadata(&file).unwrap().modified().unwrap();
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        let set_changed = |at| File::options().write(true).open(&file).unwrap().set_modified(at);
        set_changed(changed).unwrap();
        assert_eq!(journal.names().await.unwrap(), [""; 0], "it was not read");
        set_changed(changed + std::time::Duration::from_secs(1)).unwrap();
        assert_eq!(journal.names().await.unwrap(), [name], "a change is seen");
    }

    #[tokio::test]
    async fn an_unused_journal_leaves_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        fs::create_dir(&old).unwrap();
        FileJournal::open(&new, &[1; 32]).unwrap();
        FileJournal::open(&old, &[1; 32]).unwrap();
        assert!(!new.exists(), "opening only checks that the folder can be made");
        assert!(old.is_dir(), "a folder that somebody else made stays");
    }

    #[test]
    fn a_relative_folder_is_made() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let name = folder.path().file_name().unwrap();
        make_folder(&Path::new(name).join("below/journal")).unwrap();
        assert!(folder.path().join("below/journal").is_dir());
    }

    #[tokio::test]
    async fn a_file_larger_than_the_others_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(folder.path(), &[1; 32]).unwrap();
        let body = Bytes::from(vec![7; 65 << 20]);
        let large = Transition::Complete(Recording { head: Bytes::new(), body: Some(body) });
        let large = Settlement { transition: large, ..settlements().remove(0) };
        journal.keep(vec![large.clone()]).await.unwrap();
        let kept = JournalBatch { settlements: vec![large], is_whole: true };
        assert!(all(&journal).await == [kept], "the largest settlement fits into a file");
    }

    #[tokio::test]
    async fn errors_of_the_folder_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("journal");
        let journal = FileJournal::open(&place, &[1; 32]).unwrap();
        let odd = "a folder.settlements";
        fs::create_dir_all(place.join(odd)).unwrap();
        assert!(journal.let_go(odd.to_owned()).await.is_err(), "it is still there");
        fs::remove_dir_all(&place).unwrap();
        fs::write(&place, "").unwrap();
        assert!(journal.names().await.is_err(), "there may be files that cannot be seen");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_file_that_is_gone_is_not_listed() {
        let folder = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(folder.path(), &[1; 32]).unwrap();
        let gone = folder.path().join("gone.settlements");
        std::os::unix::fs::symlink(folder.path().join("nothing"), gone).unwrap();
        assert_eq!(journal.names().await.unwrap(), [""; 0]);
    }

    #[test]
    fn a_full_file_takes_no_more() {
        let two = [settlements().remove(0), settlements().remove(3)];
        let digest_bytes = 32;
        let first = encode(&[1; 32], &two[..1], usize::MAX).next().unwrap().len() - digest_bytes;
        assert_eq!(encode(&[1; 32], &two, first).count(), 2);
        assert_eq!(encode(&[1; 32], &two, first + 1).count(), 1);
    }

    #[test]
    fn a_verb_that_mattered_only_while_it_ran_is_read() {
        let renewed = Settlement { transition: Transition::Renew, ..settlements().remove(0) };
        let written = encode(&[1; 32], std::slice::from_ref(&renewed), 100).next().unwrap();
        assert_eq!(decode(written).unwrap(), ([1; 32], vec![renewed]));
    }

    #[tokio::test]
    async fn a_stores_journal_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (onetake_core::MemoryStore::new(), onetake_core::MemoryStore::new());
        let journal = FileJournal::of(&one, folder.path()).await.unwrap();
        journal.keep(settlements()).await.unwrap();
        let again = FileJournal::of(&one, folder.path()).await.unwrap();
        assert_eq!(all(&again).await.len(), 1);
        let foreign = FileJournal::of(&other, folder.path()).await.unwrap();
        assert_eq!(all(&foreign).await, []);
        assert!(FileJournal::of(&one, folder.path().join("\0")).await.is_err());
    }

    #[test]
    fn much_is_in_several_files() {
        let files: Vec<Bytes> = encode(&[1; 32], &settlements(), 100).collect();
        assert!(files.len() > 1);
        let read = files.into_iter().flat_map(|file| decode(file).unwrap().1);
        assert_eq!(read.collect::<Vec<_>>(), settlements());
        assert_eq!(encode(&[1; 32], &[], 100).count(), 0);
    }

    #[tokio::test]
    async fn a_damaged_file_is_left_and_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(folder.path(), &[1; 32]).unwrap();
        journal.keep(settlements()).await.unwrap();
        let bytes = encode(&[1; 32], &settlements(), FILE_BYTES).next().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(decode(damaged.into()).is_err(), "byte {at}");
            assert!(decode(bytes.slice(..at)).is_err(), "cut at {at}");
        }
        fs::write(folder.path().join("x.settlements"), &bytes[..40]).unwrap();
        fs::write(folder.path().join("y.unfinished"), &bytes).unwrap();
        let odd = "a folder.settlements";
        fs::create_dir(folder.path().join(odd)).unwrap();
        let (mut kept, mut errors) = (Vec::new(), Vec::new());
        for name in journal.names().await.unwrap() {
            match journal.read(name).await {
                Ok(read) => kept.extend(read),
                Err(error) => errors.push(error.to_string()),
            }
        }
        assert!(matches!(&*errors, [error] if error.contains(odd)), "{errors:?}");
        assert_eq!(kept.len(), 2);
        assert_eq!(kept.iter().filter(|kept| kept.is_whole).count(), 1);
        assert!(folder.path().join("x.settlements").exists());
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(FileJournal::open(file.join("below"), &[1; 32]).is_err());
    }
}
