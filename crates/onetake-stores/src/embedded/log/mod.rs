//! The write-ahead log. Every change of the store is durable here before it is answered.
//!
//! The log is a folder of segments. A group of changes is one frame, which is written and synced
//! before the next one is written. After its frame is durable, a group is applied to the tables,
//! which keep it in memory until they are written to files of their own. A segment is needed until
//! all tables have been written that contain its changes.
//!
//! Each segment begins with a frame that lists all running attempts, so that earlier segments are
//! not needed for them.
//!
//! Segments are used again: a file whose blocks exist is synced without a change of the file
//! system's own data, which takes less time and has a far shorter tail.
//!
//! ```text
//! 0000000000000007.log   a segment
//! spare                  a file for the next segment
//! ```

mod check;
mod frame;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::witness::Mark;
use crate::folders;

pub(super) use check::{LogOnDisk, check};
pub(super) use frame::{Frame, FrameBuilder, Item, Table};

const SPARE: &str = "spare";
const SPARE_DRAFT: &str = "spare.new";
const EXTENSION: &str = "log";

/// Returns the path of a segment.
fn segment_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016}.{EXTENSION}"))
}

/// The number of the segment at this path, if it is one.
fn segment_number(path: &Path) -> Option<u64> {
    let is_segment = path.extension().is_some_and(|extension| extension == EXTENSION);
    path.file_stem().filter(|_| is_segment)?.to_str()?.parse().ok()
}

/// The place of a frame: its segment and its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) frame: u64,
}

/// The bytes that a segment grows by, at least.
const GROWTH_BYTES: u64 = 256 << 10;

/// A segment without frames.
#[derive(Debug)]
pub(super) struct EmptySegment {
    file: File,
    /// The bytes whose blocks exist.
    allocated: u64,
}

/// The writing end of the log.
#[derive(Debug)]
pub(super) struct Log {
    files: LogFiles,
    mark: Mark,
    file: File,
    segment: u64,
    /// The bytes of the segment that are used.
    used: u64,
    /// The bytes of its first frame, which lists the running attempts.
    first_bytes: u64,
    /// The bytes of the segment whose blocks exist.
    allocated: u64,
    /// The number of the next frame.
    next: u64,
}

impl Log {
    /// Begins a new segment after everything that is in the log.
    pub(super) fn begin(
        files: LogFiles,
        mark: Mark,
        last: Place,
        first: FrameBuilder,
    ) -> io::Result<Self> {
        let segment = last.segment + 1;
        let EmptySegment { file, allocated } =
            files.open_segment(segment, first.bytes_finished())?;
        let next = last.frame + 1;
        let first_bytes = first.bytes_finished();
        let mut log = Self { files, mark, file, segment, used: 0, first_bytes, allocated, next };
        log.append(first)?;
        Ok(log)
    }

    /// Makes sure that this many bytes can be written on a full disk. If they cannot, nothing has
    /// changed.
    pub(super) fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let needed = self.used + bytes;
        if needed > self.allocated {
            let grown = needed.max(self.allocated + GROWTH_BYTES);
            allocate(&self.file, self.allocated, grown)?;
            self.allocated = grown;
        }
        Ok(())
    }

    /// Writes a frame, and waits until it is on disk. After an error the state on disk is unknown,
    /// and the log must not be used.
    pub(super) fn append(&mut self, frame: FrameBuilder) -> io::Result<()> {
        let bytes = frame.finish(&self.mark, self.next);
        self.file.write_all(&bytes)?;
        self.file.sync_data()?;
        self.used += bytes.len() as u64;
        self.next += 1;
        Ok(())
    }

    /// Opens the next segment, with room for its first frame. The log goes on in the current one
    /// until [`go_on_in`](Self::go_on_in).
    pub(super) fn prepare_next(&self, first: &FrameBuilder) -> io::Result<EmptySegment> {
        self.files.open_segment(self.segment + 1, first.bytes_finished())
    }

    /// Goes on in the next segment. Returns the place of its first frame. After an error the log
    /// must not be used.
    pub(super) fn go_on_in(
        &mut self,
        next: EmptySegment,
        first: FrameBuilder,
    ) -> io::Result<Place> {
        EmptySegment { file: self.file, allocated: self.allocated } = next;
        self.segment += 1;
        self.used = 0;
        self.first_bytes = first.bytes_finished();
        let place = Place { segment: self.segment, frame: self.next };
        self.append(first)?;
        Ok(place)
    }

    /// The place of the last frame.
    pub(super) fn last(&self) -> Place {
        Place { segment: self.segment, frame: self.next - 1 }
    }

    /// The bytes of the current segment that a new segment would not have.
    pub(super) fn grown(&self) -> u64 {
        self.used - self.first_bytes
    }
}

/// The files of the log.
#[derive(Clone, Debug)]
pub(super) struct LogFiles {
    folder: PathBuf,
    /// The bytes of a segment, allocated ahead.
    pub(super) segment_bytes: u64,
}

impl LogFiles {
    pub(super) fn new(folder: PathBuf, segment_bytes: u64) -> Self {
        Self { folder, segment_bytes }
    }

    /// Opens an empty segment: the spare file, or a new one. Its name is durable, and its blocks
    /// exist, so that a full disk does not end the log in the middle of a segment.
    fn open_segment(&self, number: u64, first_bytes: u64) -> io::Result<EmptySegment> {
        let path = segment_path(&self.folder, number);
        let spare = self.folder.join(SPARE);
        if path.exists() {
            // An earlier attempt failed after the file got its name. The name is given again: a
            // sync that failed once says nothing about the same name later.
            fs::rename(&path, &spare)?;
        }
        let allocated = self.segment_bytes.max(first_bytes);
        let is_spare = match fs::rename(&spare, &path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let opened = self.open_and_allocate(&path, is_spare, allocated);
        if opened.is_err() {
            // Otherwise each start on a full disk would leave one more file.
            let _stays = if is_spare { fs::rename(path, spare) } else { fs::remove_file(path) };
        }
        Ok(EmptySegment { file: opened?, allocated })
    }

    fn open_and_allocate(&self, path: &Path, is_spare: bool, bytes: u64) -> io::Result<File> {
        let file = match is_spare {
            true => File::options().write(true).open(path)?,
            false => File::create_new(path)?,
        };
        allocate(&file, 0, bytes)?;
        if !is_spare {
            file.sync_all()?;
        }
        folders::sync(&self.folder)?;
        Ok(file)
    }

    pub(super) fn has_spare(&self) -> bool {
        self.folder.join(SPARE).exists()
    }

    /// Makes a spare file whose blocks exist.
    pub(super) fn make_spare(&self) -> io::Result<()> {
        let draft = self.folder.join(SPARE_DRAFT);
        let made = self.write_zeros(&draft);
        if made.is_err() {
            // A full disk needs its space.
            let _absent = fs::remove_file(&draft);
        }
        made?;
        fs::rename(draft, self.folder.join(SPARE))?;
        folders::sync(&self.folder)
    }

    fn write_zeros(&self, path: &Path) -> io::Result<()> {
        // Whole pages, one by one: the system counts a change of a larger piece as a write of all of it.
        const ZEROS: [u8; 4 << 10] = [0; 4 << 10];
        let mut file = File::create(path)?;
        let mut left = self.segment_bytes;
        while left > 0 {
            let part = left.min(ZEROS.len() as u64);
            file.write_all(ZEROS.get(..part as usize).unwrap_or_default())?;
            left -= part;
        }
        file.sync_all()
    }

    /// Removes the segments before this one, which are needed no more. One of them becomes the
    /// spare file.
    pub(super) fn remove_before(&self, segment: u64) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if segment_number(&path).is_none_or(|number| number >= segment) {
                continue;
            }
            let bytes = path.metadata()?.len();
            let fits = bytes >= self.segment_bytes && bytes / 2 <= self.segment_bytes;
            if fits && !self.has_spare() {
                fs::rename(path, self.folder.join(SPARE))?;
            } else {
                fs::remove_file(path)?;
            }
        }
        folders::sync(&self.folder)
    }
}

/// Allocates the blocks of a file from `from` to `to`, and makes it as long as that.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(file, FallocateFlags::empty(), from, to.saturating_sub(from)) {
            // The file system cannot allocate ahead.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            result => return Ok(result?),
        }
    }
    if file.metadata()?.len() < to.max(from) {
        file.set_len(to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::frame::tests::MARK;
    use super::*;
    use crate::embedded::witness::Witness;

    fn frame(key: &[u8]) -> FrameBuilder {
        let mut frame = FrameBuilder::new();
        frame.add(&Item::Insert(Table::Settled, key, &[7; 500]));
        frame
    }

    fn keys(found: &LogOnDisk) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let each = found.replay(&MARK, |frame| {
            keys.extend(frame.items().map(|item| match item {
                Some(Item::Insert(_, key, _)) => key.to_vec(),
                other => panic!("{other:?}"),
            }));
            Ok::<_, io::Error>(())
        });
        each.unwrap();
        keys
    }

    #[test]
    fn segments_follow_each_other_and_are_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::new(folder.path().to_owned(), 4_096);
        let mut log = Log::begin(files.clone(), MARK, Place::default(), frame(b"0")).unwrap();
        let mut witness = Witness { mark: MARK, from: log.last(), ..Witness::default() };
        let mut expected = vec![b"0".to_vec()];
        for round in 1..50_u8 {
            log.append(frame(&[round])).unwrap();
            expected.push(vec![round]);
            if log.grown() > 3_000 {
                let first = frame(b"first");
                let next = log.prepare_next(&first).unwrap();
                let place = log.go_on_in(next, first).unwrap();
                expected.push(b"first".to_vec());
                let found = check(folder.path(), &witness).unwrap().unwrap();
                assert_eq!((keys(&found), found.last), (expected, log.last()));
                // The tables were written.
                witness.from = place;
                files.remove_before(place.segment).unwrap();
                assert!(files.has_spare());
                expected = vec![b"first".to_vec()];
            }
            let found = check(folder.path(), &witness).unwrap().unwrap();
            assert_eq!((keys(&found), found.last), (expected.clone(), log.last()));
        }
        assert!(log.segment > 5);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a segment and a spare file");
    }

    #[test]
    fn a_spare_file_has_the_size_of_a_segment() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::new(folder.path().to_owned(), (64 << 10) + 5);
        files.make_spare().unwrap();
        assert_eq!(fs::metadata(folder.path().join(SPARE)).unwrap().len(), (64 << 10) + 5);
        let log = Log::begin(files.clone(), MARK, Place::default(), frame(b"0")).unwrap();
        assert!(!files.has_spare());
        assert_eq!(log.last(), Place { segment: 1, frame: 1 });
    }
}
