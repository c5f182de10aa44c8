//! A check of the tables' lists of files before the tables are opened.
//!
//! The file `current` of a table names the newest list of its files (`v0`, `v1` and so on) and has
//! a checksum of it. lsm-tree does not verify that checksum: a damaged list makes it panic, or forget
//! files and the records in them.
//!
//! The format, as of lsm-tree 3: number of the list (u64), XXH3 of the list (u128), 0; little-endian.

use std::fs;
use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

/// Returns true if the newest list of a table's files matches its checksum.
pub(super) fn is_whole(table: &Path) -> io::Result<bool> {
    let current = fs::read(table.join("current"))?;
    let Some((number, rest)) = current.split_first_chunk::<8>() else { return Ok(false) };
    let Some((checksum, [0])) = rest.split_first_chunk::<16>() else { return Ok(false) };
    match fs::read(table.join(format!("v{}", u64::from_le_bytes(*number)))) {
        Ok(list) => Ok(xxh3_128(&list) == u128::from_le_bytes(*checksum)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::{AbstractTree, Config, SequenceNumberCounter};

    use super::*;

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
