//! A check of the list of the tables' files before they are opened.
//!
//! The file `current` names the newest list of files (`v0`, `v1` and so on) and has a checksum of
//! it. lsm-tree does not verify that checksum: a damaged list makes it panic, or forget files and the
//! records in them.
//!
//! The format, as of lsm-tree 3: number of the list (u64), XXH3 of the list (u128), 0; little-endian.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::folders;

/// The name of the file that names the newest list.
pub(super) const CURRENT: &str = "current";

/// Returns true if the newest list of files matches its checksum.
pub(super) fn is_whole(folder: &Path) -> io::Result<bool> {
    let current = fs::read(folder.join(CURRENT))?;
    let Some((number, rest)) = current.split_first_chunk::<8>() else { return Ok(false) };
    let Some((checksum, [0])) = rest.split_first_chunk::<16>() else { return Ok(false) };
    match fs::read(folder.join(format!("v{}", u64::from_le_bytes(*number)))) {
        Ok(list) => Ok(xxh3_128(&list) == u128::from_le_bytes(*checksum)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the number of the list that `current` names.
pub(super) fn named_list(folder: &Path) -> io::Result<u64> {
    let current = fs::read(folder.join(CURRENT))?;
    let number = current.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    Ok(u64::from_le_bytes(*number))
}

/// Writes `current` once more, and syncs it.
///
/// After a failed sync, the operating system shows a file that is not on disk, also to the next
/// process. That process would remove the list of files that the file on disk names.
pub(super) fn write_current_again(folder: &Path) -> io::Result<()> {
    write_current(folder, &fs::read(folder.join(CURRENT))?)
}

/// Makes `current` name the list with this number, and syncs it.
///
/// A flush or merge that failed may have put the name of its own list there.
pub(super) fn name_list(folder: &Path, number: u64) -> io::Result<()> {
    let current = fs::read(folder.join(CURRENT))?;
    if current.starts_with(&number.to_le_bytes()) {
        // With the checksum of the time when the list was written.
        return write_current(folder, &current);
    }
    let list = fs::read(folder.join(format!("v{number}")))?;
    let (number, checksum) = (number.to_le_bytes(), xxh3_128(&list).to_le_bytes());
    write_current(folder, &[number.as_slice(), &checksum, &[0]].concat())
}

fn write_current(folder: &Path, content: &[u8]) -> io::Result<()> {
    let draft = folder.join("current.new");
    let mut file = File::create(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(draft, folder.join(CURRENT))?;
    folders::sync(folder)
}

#[cfg(test)]
mod tests {
    use lsm_tree::{AbstractTree, Config, SequenceNumberCounter};

    use super::*;

    /// A failed flush leaves the name of a newer list.
    #[test]
    fn an_older_list_is_named_again() {
        let folder = tempfile::tempdir().unwrap();
        let counter = SequenceNumberCounter::default;
        let table = Config::new(folder.path(), counter(), counter()).open().unwrap();
        table.insert("key", "value", 0);
        table.flush_active_memtable(0).unwrap();
        drop(table);
        let good = fs::read(folder.path().join(CURRENT)).unwrap();
        let number = u64::from(good[0]);
        let (older, newer) = (format!("v{number}"), format!("v{}", number + 1));
        fs::copy(folder.path().join(older), folder.path().join(newer)).unwrap();
        name_list(folder.path(), number + 1).unwrap();
        assert!(is_whole(folder.path()).unwrap());
        assert_ne!(fs::read(folder.path().join(CURRENT)).unwrap(), good);
        for _ in 0..2 {
            name_list(folder.path(), number).unwrap();
            assert_eq!(fs::read(folder.path().join(CURRENT)).unwrap(), good);
        }
    }

    #[test]
    fn what_lsm_tree_writes_is_whole_until_a_bit_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let counter = SequenceNumberCounter::default;
        let table = Config::new(&path, counter(), counter()).open().unwrap();
        table.insert("key", "value", 0);
        table.flush_active_memtable(0).unwrap();
        drop(table);
        assert!(is_whole(&path).unwrap());
        let current = fs::read(path.join("current")).unwrap();
        // Older lists may still be there.
        for file in [path.join("current"), path.join(format!("v{}", current[0]))] {
            let bytes = fs::read(&file).unwrap();
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << (at % 8);
                fs::write(&file, changed).unwrap();
                assert!(!is_whole(&path).unwrap(), "{} byte {at}", file.display());
            }
            fs::write(&file, bytes).unwrap();
        }
        assert!(is_whole(&path).unwrap());
    }
}
