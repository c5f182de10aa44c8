//! A check of the tree's journal before the tree opens it.
//!
//! When fjall finds something unreadable in its journal, it assumes the torn end of the last write
//! and cuts the file there. That is right after a crash and wrong after damage in the middle: every
//! acknowledged write after the damage would be lost, and its operation would run again.
//!
//! So the journal is read here first, without changing it. The folder is damaged, and is not
//! opened, if:
//!
//! - a complete batch follows the first unreadable part. A batch is written only after the one
//!   before it is on disk, so a torn end is never followed by a complete batch.
//! - a single inverted bit makes the last batch complete. Then it is damaged and not torn. This is
//!   tried for batches of up to 8 KiB.
//! - sequence numbers do not rise. No checksum protects them.
//!
//! Every batch of this store begins with a secret mark. Without it, a recorded body inside a torn
//! batch could look like a batch.
//!
//! The format, as of fjall 3: batches of `1 items:u32 seqno:u64`, then
//! `2 type:u8 compression… keyspace:u64 key:u16 value:u32 stored:u32 key value` or `4 keyspace:u64`
//! for each item, then `3 checksum:u64 "FJL\x03"`. Files are allocated ahead and end in zeros. A
//! test writes with fjall and reads with this module, so that a change of the format is noticed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use memchr::memmem;
use xxhash_rust::xxh3::xxh3_64;

use super::witness::Mark;

const TRAILER: &[u8] = b"FJL\x03";

/// The journals of a folder that is not damaged.
#[derive(Debug)]
pub(super) struct Journals {
    /// The readable length of each journal.
    pub(super) lengths: BTreeMap<String, u64>,
    /// The newest journal, and its readable length.
    newest: Option<(PathBuf, u64)>,
    /// The bytes of the last batch in the newest journal.
    last: Vec<u8>,
    /// True if the newest journal ends with a torn write.
    is_torn: bool,
}

/// Checks every journal in the folder. The inner error names the damaged journal and the damage.
pub(super) fn check(database: &Path, mark: &Mark) -> io::Result<Result<Journals, String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(database)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
            paths.push((number, path));
        }
    }
    paths.sort();
    let Some((_, newest)) = paths.last().cloned() else {
        return Ok(Err("the journal is missing".to_owned()));
    };
    let mut journals =
        Journals { lengths: BTreeMap::new(), newest: None, last: Vec::new(), is_torn: false };
    let mut last = None;
    for (_, path) in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = read(&path)?;
        let whole = whole(&bytes, last);
        if !whole.is_in_order {
            return Ok(Err(format!("{name} is out of order at byte {}", whole.end)));
        }
        last = whole.last;
        let (end, rest) = (whole.end, bytes.get(whole.end..).unwrap_or_default());
        if goes_on(rest, whole.last, mark) {
            return Ok(Err(format!(
                "{name} cannot be read at byte {end}, but has valid entries after it"
            )));
        }
        if !is_zeros(rest) {
            // A journal is complete before the next one begins.
            if path != newest || is_one_bit_from_whole(rest) {
                return Ok(Err(format!("{name} cannot be read at byte {end}")));
            }
            journals.is_torn = true;
        }
        journals.newest = Some((path, end as u64));
        journals.last = bytes.get(whole.last_start..end).unwrap_or_default().to_vec();
        journals.lengths.insert(name, end as u64);
    }
    Ok(Ok(journals))
}

/// Cuts off the rest of a write that a crash interrupted. That write was never acknowledged.
pub(super) fn cut(journals: &Journals) -> io::Result<()> {
    if let Some((path, end)) = journals.newest.as_ref().filter(|_| journals.is_torn) {
        let file = fs::File::options().write(true).open(path)?;
        file.set_len(*end)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Writes the last batch once more, and syncs it.
///
/// After a failed sync, the operating system shows bytes that are not on disk, also to the next
/// process. A batch that the next process writes after those bytes would be lost with them. Only
/// the last batch can be affected, because the store stops after a failed sync.
pub(super) fn write_last_again(journals: &Journals) -> io::Result<()> {
    let Some((path, end)) = &journals.newest else { return Ok(()) };
    let mut file = fs::File::options().write(true).open(path)?;
    file.seek(SeekFrom::Start(end.saturating_sub(journals.last.len() as u64)))?;
    file.write_all(&journals.last)?;
    file.sync_all()
}

/// Reads a file without the zeros at its end. A new journal consists of tens of mebibytes of zeros.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let mut chunk = vec![0; 1 << 20];
    let (mut bytes, mut length) = (Vec::new(), 0);
    loop {
        let count = file.read(&mut chunk)?;
        let read = chunk.get(..count).unwrap_or_default();
        if read.is_empty() {
            return Ok(bytes);
        }
        if !is_zeros(read) {
            bytes.resize(length, 0);
            bytes.extend_from_slice(read);
        }
        length += count;
    }
}

fn is_zeros(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| ZEROS.starts_with(chunk))
}

/// The part of a journal that consists of complete batches.
struct Whole {
    end: usize,
    /// The start of the last batch.
    last_start: usize,
    /// The sequence number of the last batch.
    last: Option<u64>,
    /// True if the sequence numbers rise. fjall protects them by no checksum, and ignores batches
    /// that seem old.
    is_in_order: bool,
}

/// Reads complete batches. `last` is the sequence number before the first of them.
fn whole(bytes: &[u8], last: Option<u64>) -> Whole {
    let mut reader = JournalReader { bytes, at: 0 };
    let mut whole = Whole { end: 0, last_start: 0, last, is_in_order: true };
    while let Some(sequence) = batch(&mut reader) {
        if whole.last.is_some_and(|last| sequence <= last) {
            whole.is_in_order = false;
            break;
        }
        let (last_start, end) = (whole.end, reader.at);
        whole = Whole { end, last_start, last: Some(sequence), is_in_order: true };
    }
    whole
}

/// The distance from the start of a batch to its mark: the head of the batch, the head of its first
/// item, and that item's name.
const MARK_AT: usize = 13 + 21 + super::tables::MARK.len();

/// Returns true if `rest`, which is unreadable at its start, contains a later complete batch of
/// this store.
fn goes_on(rest: &[u8], last: Option<u64>, mark: &Mark) -> bool {
    memmem::find_iter(rest, mark).any(|at| {
        let Some(start) = at.checked_sub(MARK_AT) else { return false };
        let mut reader = JournalReader { bytes: rest, at: start };
        batch(&mut reader).is_some_and(|sequence| last.is_none_or(|last| sequence > last))
    })
}

/// The largest last batch in which an inverted bit is looked for. Each of its bits is tried.
const TRIED_BYTES_MAX: usize = 8 << 10;

/// Returns true if one inverted bit makes the last batch complete. Then it is damaged and not torn.
fn is_one_bit_from_whole(rest: &[u8]) -> bool {
    let end = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    if end > TRIED_BYTES_MAX {
        return false;
    }
    // The last bytes of a batch are not zeros, but one inverted bit can make them zeros.
    let mut bytes = rest.get(..rest.len().min(end + 8)).unwrap_or_default().to_vec();
    (0..bytes.len() * 8).any(|bit| {
        let mut invert = || bytes.get_mut(bit / 8).map(|byte| *byte ^= 1 << (bit % 8));
        invert();
        let is_whole = batch(&mut JournalReader { bytes: &bytes, at: 0 }).is_some();
        let mut invert = || bytes.get_mut(bit / 8).map(|byte| *byte ^= 1 << (bit % 8));
        invert();
        is_whole
    })
}

struct JournalReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> JournalReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.take(bytes)?;
        let value = taken.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).ok()
    }
}

/// Reads a batch and returns its sequence number.
fn batch(reader: &mut JournalReader<'_>) -> Option<u64> {
    if reader.number(1)? != 1 {
        return None;
    }
    let items = reader.number(4)?;
    let sequence = u64::from_le_bytes(reader.take(8)?.try_into().ok()?);
    let from = reader.at;
    for _ in 0..items {
        item(reader)?;
    }
    let checksum = xxh3_64(reader.bytes.get(from..reader.at)?);
    if reader.number(1)? != 3 || reader.take(8)? != checksum.to_le_bytes() {
        return None;
    }
    (reader.take(TRAILER.len())? == TRAILER).then_some(sequence)
}

fn item(reader: &mut JournalReader<'_>) -> Option<()> {
    match reader.number(1)? {
        2 => {
            reader.take(1)?;
            // Uncompressed: this store is built without compression.
            if reader.number(1)? != 0 {
                return None;
            }
            reader.take(8)?;
            let key = reader.number(2)?;
            let value = reader.number(4)?;
            let stored = reader.number(4)?;
            if value != stored {
                return None;
            }
            reader.take(key)?;
            reader.take(stored)?;
        }
        4 => {
            reader.take(8)?;
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    const SECRET: Mark = *b"0123456789abcdef";

    fn damaged(bytes: &[u8]) -> bool {
        let whole = whole(bytes, None);
        !whole.is_in_order || goes_on(&bytes[whole.end..], whole.last, &SECRET)
    }

    /// A journal that fjall wrote: ten batches of a mark and three items.
    fn journal() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let db = Database::builder(folder.path()).open().unwrap();
        let a = db.keyspace("a", KeyspaceCreateOptions::default).unwrap();
        for round in 0..10_u8 {
            let mut batch = db.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&a, super::super::tables::MARK, SECRET);
            batch.insert(&a, [round; 16], vec![round; 300]);
            batch.insert(&a, [round + 100; 16], vec![]);
            batch.remove(&a, [round; 8]);
            batch.commit().unwrap();
        }
        drop((a, db));
        let path = folder.path().join("0.jnl");
        let mut bytes = fs::read(path).unwrap();
        // Most of the file is allocated ahead. A little of that is enough.
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes.truncate(end + 1_000);
        bytes
    }

    #[test]
    fn what_fjall_writes_is_readable_to_its_zeros() {
        let bytes = journal();
        let end = whole(&bytes, None).end;
        assert!(end > 10 * 300, "all ten batches were read, not {end} bytes");
        assert!(bytes[end..].iter().all(|byte| *byte == 0));
        assert!(!damaged(&bytes));
    }

    #[test]
    fn any_cut_is_a_torn_end_and_no_damage() {
        let bytes = journal();
        let end = whole(&bytes, None).end;
        for cut in (0..end).step_by(7) {
            let mut torn = bytes.clone();
            torn[cut..].fill(0);
            assert!(!damaged(&torn), "cut at {cut}");
        }
    }

    #[test]
    fn a_body_that_looks_like_an_end_does_not_make_a_torn_batch_damage() {
        let bytes = journal();
        let end = whole(&bytes, None).end;
        let batch = end / 10;
        let mut torn = bytes.clone();
        // Inside the value of the last batch, whose end is torn off.
        let value = end - batch + 100;
        torn[value..value + 13].copy_from_slice(b"\x0312345678FJL\x03");
        // A complete batch of no items. Any client could send these bytes.
        let mut forged = vec![1, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 127, 3];
        forged.extend_from_slice(&xxh3_64(b"").to_le_bytes());
        forged.extend_from_slice(TRAILER);
        torn[value + 20..value + 20 + forged.len()].copy_from_slice(&forged);
        torn[end - 10..].fill(0);
        assert!(!damaged(&torn));
    }

    #[test]
    fn an_inverted_bit_in_the_last_batch_is_not_a_torn_end() {
        let bytes = journal();
        let end = whole(&bytes, None).end;
        let last = end - end / 10;
        for at in last..end {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(is_one_bit_from_whole(&changed[last..]), "byte {at}");
        }
        for cut in last + 1..end {
            let mut torn = bytes.clone();
            torn[cut..end].fill(0);
            assert!(!is_one_bit_from_whole(&torn[last..]), "cut at {cut}");
        }
    }

    #[test]
    fn damage_in_the_middle_is_seen() {
        let bytes = journal();
        let end = whole(&bytes, None).end;
        let batch = end / 10;
        // The tag of a batch, its sequence number, the tag of an item, a keyspace, a length, a
        // value, the checksum, the trailer.
        for at in [0, 12, 13, 13 + 10, 13 + 11, 45, 150, batch - 8, batch - 2] {
            for round in 0..9 {
                let mut changed = bytes.clone();
                changed[round * batch + at] ^= 0x40;
                assert!(whole(&changed, None).end < end && damaged(&changed), "{round} {at}");
            }
        }
    }
}
