//! The WITNESS file: the least that the log and the tables must contain, kept outside of them.
//!
//! A folder that lost its log, or the folder of a table, could be opened as an emptier one without
//! an error, and every lost key would run again. So a small file lists what was there: the first
//! frame of the log that is needed, the fence ceiling (raised about once a minute), and, after a
//! clean close, the last frame of the log. A folder that contradicts this file is damaged.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use onetake_core::Fence;
use xxhash_rust::xxh3::xxh3_64;

use super::log::Place;
use crate::folders;

/// The file's name.
pub(super) const FILE: &str = "WITNESS";

/// Sixteen random bytes, chosen when the folder is created.
pub(super) type Mark = [u8; 16];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Witness {
    /// The start of every frame of the log. A frame that has it was written by this store, and is
    /// not part of a body that a client sent.
    pub(super) mark: Mark,
    /// A fence ceiling that is certainly on disk.
    pub(super) ceiling: Fence,
    /// The first frame of the log that is needed. All earlier changes are in the tables.
    pub(super) from: Place,
    /// After a clean close: the last frame of the log.
    pub(super) closed: Option<u64>,
}

/// The WITNESS file of a folder in use.
#[derive(Debug)]
pub(super) struct WitnessFile {
    folder: PathBuf,
    /// The content of the file.
    content: Mutex<Witness>,
}

impl WitnessFile {
    pub(super) fn new(folder: &Path, content: Witness) -> Self {
        Self { folder: folder.to_owned(), content: Mutex::new(content) }
    }

    /// Changes the content, and writes the file.
    pub(super) fn update(&self, change: impl FnOnce(&mut Witness)) -> io::Result<()> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = content.clone();
        change(&mut changed);
        changed.write(&self.folder)?;
        *content = changed;
        Ok(())
    }
}

impl Witness {
    /// Writes the file atomically: either the old or the new version exists.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let draft = folder.join("WITNESS.new");
        let mut file = File::create(&draft)?;
        file.write_all(self.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(draft, folder.join(FILE))?;
        folders::sync(folder)
    }

    /// Reads the file; `None` if its content is not what [`write`](Self::write) writes.
    pub(super) fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read_to_string(folder.join(FILE)) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn text(&self) -> String {
        let mark = u128::from_be_bytes(self.mark);
        let Place { segment, frame } = self.from;
        let ceiling = self.ceiling.get();
        let mut text =
            format!("mark {mark:032x}\nceiling {ceiling}\nsegment {segment}\nframe {frame}\n");
        if let Some(last) = self.closed {
            text.push_str(&format!("closed {last}\n"));
        }
        // The last lines, so that a truncated or damaged file is recognised.
        let checksum = xxh3_64(text.as_bytes());
        text.push_str(&format!("checksum {checksum:016x}\nend\n"));
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix("end\n")?;
        let (text, checksum) = text.rsplit_once("checksum ")?;
        if checksum != format!("{:016x}\n", xxh3_64(text.as_bytes())) {
            return None;
        }
        let mut lines = text.lines();
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let mark = u128::from_str_radix(value("mark")?, 16).ok()?.to_be_bytes();
        let ceiling = Fence::new(value("ceiling")?.parse().ok()?);
        let segment = value("segment")?.parse().ok()?;
        let frame = value("frame")?.parse().ok()?;
        let closed = lines.next().map(|line| line.strip_prefix("closed ")?.parse().ok());
        let closed = match closed {
            Some(None) => return None,
            closed => closed.flatten(),
        };
        Some(Self { mark, ceiling, from: Place { segment, frame }, closed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_cut_is_not() {
        for closed in [None, Some(91)] {
            let from = Place { segment: 4, frame: 70 };
            let witness = Witness { mark: [7; 16], ceiling: Fence::new(99), from, closed };
            let text = witness.text();
            assert_eq!(Witness::parse(&text), Some(witness));
            for cut in 0..text.len() {
                assert_eq!(Witness::parse(&text[..cut]), None, "cut at {cut}");
                let mut flipped = text.clone().into_bytes();
                flipped[cut] ^= 1;
                let flipped = String::from_utf8(flipped).unwrap();
                assert_eq!(Witness::parse(&flipped), None, "flipped at {cut}");
            }
        }
    }
}
