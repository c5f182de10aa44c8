//! The WITNESS file: the least that the tree must contain, kept outside the tree.
//!
//! A tree that lost its journal or the folder of a table opens as an emptier tree without an error,
//! and every lost key would run again. So a small file beside the tree lists what was there: the
//! tables, the fence ceiling (raised about once a minute), and, after a clean close, the length of
//! each journal. A tree that contradicts this file is damaged.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use onetake_core::Fence;
use xxhash_rust::xxh3::xxh3_64;

use crate::folders;

/// The file's name.
pub(super) const FILE: &str = "WITNESS";

/// Sixteen random bytes, chosen when the folder is created.
pub(super) type Mark = [u8; 16];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Witness {
    /// The first item of every group. A batch in the journal that has it was written by this store,
    /// and is not part of a body that a client sent.
    pub(super) mark: Mark,
    /// The folders of the tables.
    pub(super) tables: Vec<String>,
    /// A fence ceiling that is certainly on disk.
    pub(super) ceiling: Fence,
    /// After a clean close: the readable length of each journal.
    pub(super) journals: Option<BTreeMap<String, u64>>,
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
        let mut text = format!("mark {mark:032x}\nceiling {}\n", self.ceiling.get());
        for table in &self.tables {
            text.push_str(&format!("table {table}\n"));
        }
        if let Some(journals) = &self.journals {
            text.push_str("closed\n");
            for (name, length) in journals {
                text.push_str(&format!("journal {length} {name}\n"));
            }
        }
        // The last lines, so that a truncated or damaged file is recognised.
        let checksum = xxh3_64(text.as_bytes());
        text.push_str(&format!("checksum {checksum:016x}\nend\n"));
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut witness = Self::default();
        let text = text.strip_suffix("end\n")?;
        // Earlier versions wrote no checksum.
        let text = match text.rsplit_once("checksum ") {
            Some((text, checksum))
                if checksum == format!("{:016x}\n", xxh3_64(text.as_bytes())) =>
            {
                text
            }
            Some(_) => return None,
            None => text,
        };
        let mut lines = text.lines();
        let mark = lines.next()?.strip_prefix("mark ")?;
        witness.mark = u128::from_str_radix(mark, 16).ok()?.to_be_bytes();
        witness.ceiling = Fence::new(lines.next()?.strip_prefix("ceiling ")?.parse().ok()?);
        for line in lines {
            match line.split_once(' ') {
                Some(("table", name)) => witness.tables.push(name.to_owned()),
                Some(("journal", rest)) => {
                    let (length, name) = rest.split_once(' ')?;
                    let length = length.parse().ok()?;
                    witness.journals.as_mut()?.insert(name.to_owned(), length);
                }
                None if line == "closed" => witness.journals = Some(BTreeMap::new()),
                _ => return None,
            }
        }
        Some(witness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_cut_is_not() {
        let journals = [("0.jnl".to_owned(), 17), ("12.jnl".to_owned(), 0)];
        let tables = vec!["0".to_owned(), "4".to_owned()];
        for journals in [None, Some(BTreeMap::from(journals))] {
            let witness = Witness {
                mark: [7; 16],
                tables: tables.clone(),
                ceiling: Fence::new(99),
                journals,
            };
            let text = witness.text();
            assert_eq!(Witness::parse(&text), Some(witness));
            for cut in 0..text.len() {
                assert_eq!(Witness::parse(&text[..cut]), None, "cut at {cut}");
                let mut flipped = text.clone().into_bytes();
                flipped[cut] ^= 1;
                let flipped = String::from_utf8(flipped).unwrap();
                assert_eq!(Witness::parse(&flipped), None, "flipped at {cut}");
            }
            let (facts, _) = text.split_once("checksum").unwrap();
            assert!(Witness::parse(&format!("{facts}end\n")).is_some(), "as it was without");
        }
    }
}
