//! Properties of stored formats and replies, for the fuzzer (`fuzz/`) and for the tests, which
//! replay its corpora.

pub use crate::journal::fuzzing::journal_file;
#[cfg(feature = "postgres")]
pub use crate::postgres::fuzzing::postgres_row;
#[cfg(feature = "redis")]
pub use crate::redis::fuzzing::redis_reply;

#[cfg(test)]
mod tests {
    /// Runs a property with every file of its corpus.
    fn replay(target: &str, property: fn(&[u8])) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/").to_owned() + target;
        let files: Vec<_> = std::fs::read_dir(&corpus).unwrap().map(|file| file.unwrap()).collect();
        assert!(files.len() > 4, "{corpus} has too few files");
        for file in files {
            property(&std::fs::read(file.path()).unwrap());
        }
    }

    #[test]
    fn corpora() {
        replay("journal_file", super::journal_file);
        #[cfg(feature = "postgres")]
        replay("postgres_row", super::postgres_row);
        #[cfg(feature = "redis")]
        replay("redis_reply", super::redis_reply);
    }
}
