//! The data folder: its lock, its format and its creation.
//!
//! ```text
//! CREATING   exists while the folder is being created for the first time
//! FORMAT     the format of this folder
//! WITNESS    the least that log and tables must contain; its first write ends the creation
//! LOCK       locked by the one process that uses the folder; contains its process id
//! log/       the write-ahead log
//! tables/    the files of the tables
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use onetake_core::StoreError;

use super::witness::{self, Witness};
use crate::folders;

/// The first line of FORMAT.
const TITLE: &str = "onetake embedded store";

/// The format that this version reads and writes.
pub(super) const FORMAT: u32 = 3;

/// The reason why a folder could not be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses the folder.
    #[error(
        "the data folder {path} is in use by another process{holder}: stop that process, or use another folder"
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// ` (process 123)`, if it is known.
        holder: String,
    },
    /// The folder contains something else.
    #[error(
        "{path} is neither empty nor an onetake data folder (it has no FORMAT file): use an empty or new folder"
    )]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
    /// The folder was written by another version.
    #[error(
        "the data folder {path} has format {found}, and this version of onetake reads format {FORMAT}: use the version that wrote the folder, or an empty folder"
    )]
    OtherFormat {
        /// The folder.
        path: PathBuf,
        /// The text of its FORMAT file.
        found: String,
    },
    /// Something in the folder differs from what was written.
    #[error(
        "the data folder {path} is damaged: {what}. Nothing in its tables was changed. Restore the folder from a backup. If you start with an empty folder, onetake no longer knows which operations have run"
    )]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// The damage.
        what: String,
        /// The cause.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The operating system refused.
    #[error("cannot {action} in the data folder {path}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into(), source: None }
    }
}

/// A folder that this process has locked.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    is_new: bool,
    lock: File,
}

impl Folder {
    /// Locks the folder for this process. Creates it if it does not exist.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        let io = |action| move |error| OpenError::io(path, action, error);
        folders::create(path, &mut fs::DirBuilder::new()).map_err(io("create the folder"))?;
        if is_foreign(path).map_err(io("read"))? {
            return Err(OpenError::NotOurs { path: path.to_owned() });
        }
        let lock = take_lock(path)?;
        let has = |name: &str| path.join(name).try_exists().map_err(io("read"));
        let (format, witness) = (has("FORMAT")?, has(witness::FILE)?);
        let is_new = !witness && (has("CREATING")? || !format);
        let folder = Self { path: path.to_owned(), is_new, lock };
        if is_new {
            folder.begin_creation().map_err(io("create the store"))?;
            return Ok(folder);
        }
        for (name, there) in [("FORMAT", format), (witness::FILE, witness)] {
            if !there {
                return Err(OpenError::damaged(path, format!("{name} is missing")));
            }
        }
        match fs::read_to_string(path.join("FORMAT")) {
            Ok(text) => check_format(path, &text)?,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(OpenError::damaged(path, "FORMAT is not text"));
            }
            Err(error) => return Err(OpenError::io(path, "read FORMAT", error)),
        }
        Ok(folder)
    }

    /// The least that log and tables must contain.
    pub(super) fn witness(&self) -> Result<Witness, OpenError> {
        Witness::read(&self.path)
            .map_err(|error| OpenError::io(&self.path, "read WITNESS", error))?
            .ok_or_else(|| OpenError::damaged(&self.path, "the contents of WITNESS have changed"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(super) fn tables(&self) -> PathBuf {
        self.path.join("tables")
    }

    /// Returns a function that opens one more descriptor, of the lock.
    pub(super) fn opener(&self) -> io::Result<impl FnMut() -> io::Result<File> + Send + use<>> {
        let lock = self.lock.try_clone()?;
        Ok(move || lock.try_clone())
    }

    /// The error for an unreadable part of the store.
    pub(super) fn unreadable(&self, error: StoreError) -> OpenError {
        let (path, what) = (self.path.clone(), error.to_string());
        OpenError::Damaged { path, what, source: Some(Box::new(error)) }
    }

    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Starts the creation again from an empty folder. An interrupted creation leaves nothing of
    /// value.
    fn begin_creation(&self) -> io::Result<()> {
        File::create(self.path.join("CREATING"))?.sync_all()?;
        for folder in [self.log(), self.tables()] {
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // CREATING is there before the folders are.
        folders::sync(&self.path)?;
        fs::create_dir(self.log())?;
        fs::create_dir(self.tables())?;
        folders::sync(&self.path)
    }

    /// Ends the creation of a new folder, and writes the WITNESS file.
    pub(super) fn begin_use(&self, witness: &Witness) -> Result<(), OpenError> {
        let write = || -> io::Result<()> {
            if self.is_new {
                // lsm-tree does not sync the folder that contains the tables.
                folders::sync_tree(&self.tables())?;
                let draft = self.path.join("FORMAT.new");
                let mut file = File::create(&draft)?;
                writeln!(file, "{TITLE}\nformat {FORMAT}")?;
                file.sync_all()?;
                fs::rename(draft, self.path.join("FORMAT"))?;
                folders::sync(&self.path)?;
            }
            witness.write(&self.path)?;
            match fs::remove_file(self.path.join("CREATING")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => folders::sync(&self.path),
            }
        };
        write().map_err(|error| OpenError::io(&self.path, "write WITNESS", error))
    }
}

/// Returns true if the folder contains files of something else.
fn is_foreign(path: &Path) -> io::Result<bool> {
    let ours = |name: &str| path.join(name).try_exists();
    if ours("FORMAT")? || ours("CREATING")? || ours(witness::FILE)? {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        // A second process may be creating the folder at this moment.
        if entry?.file_name() != "LOCK" {
            return Ok(!ours("FORMAT")? && !ours("CREATING")?);
        }
    }
    Ok(false)
}

fn take_lock(path: &Path) -> Result<File, OpenError> {
    let io = |action| move |error| OpenError::io(path, action, error);
    let mut lock = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path.join("LOCK"))
        .map_err(io("open LOCK"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let known = lock.read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
            let holder =
                if known { format!(" (process {})", holder.trim()) } else { String::new() };
            return Err(OpenError::InUse { path: path.to_owned(), holder });
        }
        Err(fs::TryLockError::Error(error)) => return Err(io("lock")(error)),
    }
    let entry = lock
        .set_len(0)
        .and_then(|()| lock.rewind())
        .and_then(|()| write!(lock, "{}", std::process::id()));
    entry.map_err(io("write LOCK"))?;
    Ok(lock)
}

fn check_format(path: &Path, text: &str) -> Result<(), OpenError> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return Err(OpenError::damaged(path, "FORMAT is not that of an onetake data folder"));
    }
    let found = lines.next().and_then(|line| line.strip_prefix("format ")).unwrap_or("?").trim();
    match found.parse::<u32>() {
        Ok(FORMAT) => Ok(()),
        _ => Err(OpenError::OtherFormat { path: path.to_owned(), found: found.to_owned() }),
    }
}
