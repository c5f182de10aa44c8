//! Property of the journal's format, for the fuzzer.

use bytes::Bytes;
use onetake_core::Fingerprint;

use super::codec::{decode, encode};

/// The content of a file is a list of settlements or an error. Settlements that were read are
/// written and read again without a change. The checksum is added here: the fuzzer cannot guess it.
pub fn journal_file(data: &[u8]) {
    let file = [data, Fingerprint::of(data).digest().as_slice()].concat();
    let Ok((store, settlements)) = decode(Bytes::from(file)) else { return };
    let mut again = Vec::new();
    for file in encode(&store, &settlements, usize::MAX) {
        let read = decode(file);
        assert!(read.is_ok(), "a written file cannot be read");
        again.extend(read.into_iter().flat_map(|(_, settlements)| settlements));
    }
    assert_eq!(again, settlements, "what was written is not what is read");
}
