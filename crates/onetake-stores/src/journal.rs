//! A folder of this machine for settlements that the store did not take before the end.
//!
//! Each hand-over is one file, which is there whole or not at all: it is written under another name, made
//! durable, and renamed. A file that cannot be read is left where it is, and an error in the log names it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::codec::{DecodeError, Reader, put_slice};
use onetake_core::engine::{Journal, Kept};
use onetake_core::{
    AttemptId, Cause, Failure, Fingerprint, RecordId, Recording, Rng, Settlement, StoreError,
    StoreErrorKind, SystemRng, Verb,
};

/// How files begin.
const TITLE: &[u8] = b"onetake journal 1\n";
/// How files of the journal are called.
const ENDING: &str = "settlements";
/// How a file is called while it is written.
const UNFINISHED: &str = "unfinished";
/// The largest file that is read: more than a node could have in hand.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Settlements in files of one folder. Several processes may share it.
#[derive(Debug)]
pub struct FileJournal {
    folder: Arc<Path>,
    store: Identity,
}

/// Tells the files of one store from those of another.
type Identity = [u8; 32];

impl FileJournal {
    /// A journal in this folder, which is made when there is something to keep. `secret` is one that the store keeps
    /// ([`Store::secret`](onetake_core::Store::secret)): the files of other stores in the same folder are left alone.
    ///
    /// # Errors
    /// If it could not be made, or not be written to: better now than when there is something to lose.
    pub fn open(folder: impl Into<PathBuf>, secret: &[u8; 32]) -> io::Result<Self> {
        let folder = folder.into();
        let is_new = !folder.try_exists()?;
        make_folder(&folder)?;
        let probe = folder.join(format!("{}.{UNFINISHED}", random_name()));
        File::create_new(&probe)?.sync_all()?;
        fs::remove_file(&probe)?;
        if is_new {
            // Nobody minds an empty folder that is left because another process looks at it too.
            let _best_effort = fs::remove_dir(&folder);
        }
        let named = [b"onetake journal of", &secret[..]].concat();
        Ok(Self { folder: folder.into(), store: *Fingerprint::of(&named).digest() })
    }
}

impl Journal for FileJournal {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        let (folder, store) = (Arc::clone(&self.folder), self.store);
        blocking(move || {
            write(&folder, &encode(&store, &settlements))
                .map_err(|error| failed("write to", &folder, error))
        })
        .boxed()
    }

    fn kept(&self) -> BoxFuture<'_, Result<Vec<Kept>, StoreError>> {
        let (folder, store) = (Arc::clone(&self.folder), self.store);
        blocking(move || read_all(&folder, &store).map_err(|error| failed("read", &folder, error)))
            .boxed()
    }

    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>> {
        let folder = Arc::clone(&self.folder);
        blocking(move || match fs::remove_file(folder.join(name)) {
            // Another process of this folder has settled the same.
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
        let what = "the journal's thread ended before it answered";
        Err(StoreError::new(StoreErrorKind::Unavailable, what))
    })
}

fn failed(action: &str, folder: &Path, error: io::Error) -> StoreError {
    let what = format!("cannot {action} the journal {}: {error}", folder.display());
    StoreError::new(StoreErrorKind::Unavailable, what).with_source(error)
}

/// What is kept may be an outcome: nobody else's to read.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn random_name() -> String {
    let mut bytes = [0; 16];
    SystemRng.fill(&mut bytes);
    onetake_core::hex::encode(&bytes)
}

fn write(folder: &Path, bytes: &[u8]) -> io::Result<()> {
    match write_once(folder, bytes) {
        // Another process that had just made the folder found it empty, and took it away again.
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
    File::open(folder)?.sync_all()?;
    // It may be new itself.
    match folder.parent() {
        Some(above) if !above.as_os_str().is_empty() => File::open(above)?.sync_all(),
        _ => Ok(()),
    }
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

fn read_all(folder: &Path, store: &Identity) -> io::Result<Vec<Kept>> {
    let mut all = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        match read_one(&path) {
            Ok(Ok((of, settlements))) if of == *store => {
                all.push(Kept { name: name.to_owned(), settlements });
            }
            Ok(Ok(_)) => {
                tracing::debug!(file = %path.display(), "these are outcomes of another store")
            }
            Ok(Err(error)) => tracing::error!(
                file = %path.display(), %error,
                "a file of the journal is damaged: the outcomes in it are unknown; move it away to end this message"
            ),
            // Another process of this folder was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

type Read = Result<(Identity, Vec<Settlement>), DecodeError>;

fn read_one(path: &Path) -> io::Result<Read> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Ok(Err(DecodeError::new("it is larger than a journal can be")));
    }
    Ok(decode(fs::read(path)?.into()))
}

/// The title, the store, the settlements behind their lengths, and a digest of it all.
fn encode(store: &Identity, settlements: &[Settlement]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(TITLE);
    out.put_slice(store);
    for settlement in settlements {
        put_slice(&mut out, &encode_one(settlement));
    }
    let digest = Fingerprint::of(&out);
    out.put_slice(digest.digest());
    out.freeze()
}

fn decode(mut bytes: Bytes) -> Read {
    let cut = DecodeError::new("it is cut");
    let end = bytes.len().checked_sub(32).ok_or(cut.clone())?;
    let digest = bytes.split_off(end);
    if Fingerprint::of(&bytes).digest().as_slice() != digest.as_ref() {
        return Err(DecodeError::new("it is not as it was written"));
    }
    let entries = bytes.strip_prefix(TITLE).ok_or(cut)?;
    let mut from = Reader(Bytes::copy_from_slice(entries));
    let store = from.array("the store")?;
    let mut settlements = Vec::new();
    while !from.0.is_empty() {
        settlements.push(decode_one(from.slice("a settlement")?)?);
    }
    Ok((store, settlements))
}

fn encode_one(settlement: &Settlement) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(settlement.id.as_bytes());
    out.put_slice(settlement.attempt.as_bytes());
    match &settlement.verb {
        Verb::Complete(recording) => {
            out.put_u8(1);
            put_slice(&mut out, &recording.head);
            out.put_u8(u8::from(recording.body.is_some()));
            put_slice(&mut out, recording.body.as_deref().unwrap_or_default());
        }
        Verb::Fail(failure) => {
            out.put_u8(2);
            put_slice(&mut out, failure.code.as_bytes());
            put_slice(&mut out, failure.detail.as_bytes());
        }
        Verb::Release => out.put_u8(3),
        // Only the store's own words are left, and nothing is lost by saying that nobody knows.
        Verb::Unknown(cause) => {
            out.put_u8(4);
            put_slice(&mut out, cause.to_string().as_bytes());
        }
        Verb::Renew | Verb::Abandon | Verb::Defer(_) | Verb::Forget => out.put_u8(0),
    }
    out.freeze()
}

fn decode_one(bytes: Bytes) -> Result<Settlement, DecodeError> {
    let mut from = Reader(bytes);
    let id = RecordId::from_bytes(from.array("id")?);
    let attempt = AttemptId::from_bytes(from.array("attempt")?);
    let verb = match from.u8("verb")? {
        // What only mattered while it ran.
        0 => Verb::Renew,
        1 => {
            let head = from.slice("head")?;
            let kept = from.u8("body flag")? == 1;
            let body = from.slice("body")?;
            Verb::Complete(Recording { head, body: kept.then_some(body) })
        }
        2 => Verb::Fail(Failure { code: from.text("code")?, detail: from.text("detail")? }),
        3 => Verb::Release,
        4 => Verb::Unknown(Cause::Reported(from.text("cause")?)),
        _ => return Err(DecodeError::new("verb")),
    };
    from.end()?;
    Ok(Settlement { id, attempt, verb })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settlements() -> Vec<Settlement> {
        let of = |number, verb| Settlement {
            id: RecordId::from_bytes([number; 16]),
            attempt: AttemptId::from_bytes([number + 1; 16]),
            verb,
        };
        vec![
            of(1, Verb::Complete(Recording::new("paid"))),
            of(2, Verb::Complete(Recording { head: "201".into(), body: None })),
            of(3, Verb::Fail(Failure { code: "c".into(), detail: "d".into() })),
            of(4, Verb::Release),
            of(5, Verb::Unknown(Cause::Reported("odd".into()))),
        ]
    }

    #[tokio::test]
    async fn what_is_kept_is_there_until_it_is_let_go_of() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("below/journal");
        let journal = FileJournal::open(&place, &[1; 32]).unwrap();
        assert_eq!(journal.kept().await.unwrap(), []);
        journal.keep(settlements()).await.unwrap();
        journal.keep(settlements()).await.unwrap();
        let kept = FileJournal::open(&place, &[1; 32]).unwrap().kept().await.unwrap();
        assert_eq!(kept.len(), 2);
        assert!(kept.iter().all(|kept| kept.settlements == settlements()));
        journal.let_go(kept[0].name.clone()).await.unwrap();
        journal.let_go(kept[0].name.clone()).await.unwrap();
        assert_eq!(journal.kept().await.unwrap(), kept[1..]);
        let other = FileJournal::open(&place, &[2; 32]).unwrap();
        assert_eq!(other.kept().await.unwrap(), [], "another store's are not its own");
    }

    #[tokio::test]
    async fn a_damaged_file_is_left_and_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(folder.path(), &[1; 32]).unwrap();
        journal.keep(settlements()).await.unwrap();
        let bytes = encode(&[1; 32], &settlements());
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(decode(damaged.into()).is_err(), "byte {at}");
            assert!(decode(bytes.slice(..at)).is_err(), "cut at {at}");
        }
        fs::write(folder.path().join("x.settlements"), &bytes[..40]).unwrap();
        fs::write(folder.path().join("y.unfinished"), &bytes).unwrap();
        assert_eq!(journal.kept().await.unwrap().len(), 1);
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
