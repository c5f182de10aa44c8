//! Properties of parsers and codecs, for the fuzzer (`fuzz/`) and for the tests, which replay its
//! corpora.

use bytes::Bytes;

use crate::codec;
use crate::key::{KEY_LENGTH_MAX, Key};
use crate::record::State;
use crate::scope::RecordId;

/// The minimum length of keys here: short, so that the fuzzer finds keys quickly.
const LENGTH_MIN: usize = 3;

/// A header value is read as an independent model reads it, and each spelling of a key is the same
/// key.
pub fn key_header(data: &[u8]) {
    let read = Key::from_header(data, LENGTH_MIN);
    let model = key_model(data);
    assert_eq!(
        read.as_ref().ok().map(Key::as_str),
        model.as_deref(),
        "the model reads another key"
    );
    let Ok(key) = read else { return };
    let first = Key::first_in_header(data);
    assert!(first.is_ok(), "a key has a first spelling");
    let first = Key::from_header(first.unwrap_or_default(), LENGTH_MIN);
    assert_eq!(first.as_ref(), Ok(&key), "the first spelling is another key");
    let quoted = format!("\"{}\"", key.as_str().replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(Key::from_header(quoted.as_bytes(), LENGTH_MIN).as_ref(), Ok(&key), "quoted");
    for comma in [&b","[..], b", ", b" ,\t"] {
        let joined = [data, comma, quoted.as_bytes()].concat();
        assert_eq!(Key::from_header(&joined, LENGTH_MIN).as_ref(), Ok(&key), "repeated");
        let other = [data, comma, b"another-key"].concat();
        let is_other = key.as_str() != "another-key";
        assert_eq!(Key::from_header(&other, LENGTH_MIN).is_err(), is_other, "two keys are not one");
    }
}

/// The key in a header value: its members are split first, and each is read by itself.
fn key_model(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.is_ascii())?;
    let (mut members, mut member, mut in_quotes, mut is_escaped) =
        (Vec::new(), String::new(), false, false);
    for char in text.chars() {
        let begins = member.trim_matches(is_space).is_empty();
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' if in_quotes => is_escaped = true,
            '"' if in_quotes => in_quotes = false,
            '"' if begins => in_quotes = true,
            ',' if !in_quotes => {
                members.push(std::mem::take(&mut member));
                continue;
            }
            _ => {}
        }
        member.push(char);
    }
    members.push(member);
    let keys: Option<Vec<String>> = members.iter().map(|member| member_model(member)).collect();
    let mut keys = keys?;
    let first = keys.pop()?;
    let is_one = keys.iter().all(|key| *key == first);
    (is_one && (LENGTH_MIN..=KEY_LENGTH_MAX).contains(&first.len())).then_some(first)
}

/// One member: a bare key, or a structured-field string (RFC 9651).
fn member_model(member: &str) -> Option<String> {
    let member = member.trim_matches(is_space);
    let key = match member.strip_prefix('"') {
        None => member.to_owned(),
        Some(rest) => {
            let inner = rest.strip_suffix('"')?;
            // After the valid escapes are gone, neither a quote nor a backslash may be left.
            let plain = inner.replace("\\\\", "\u{1}").replace("\\\"", "\u{2}");
            if plain.contains(['"', '\\']) || inner.contains(['\u{1}', '\u{2}']) {
                return None;
            }
            plain.replace('\u{1}', "\\").replace('\u{2}', "\"")
        }
    };
    key.bytes().all(|byte| (0x21..=0x7e).contains(&byte)).then_some(key)
}

fn is_space(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\n' | '\u{c}' | '\r')
}

/// Stored bytes are a record or an error. A record that was read is written and read again without
/// a change.
pub fn record_codec(data: &[u8]) {
    let id = RecordId::from_bytes([7; 16]);
    let Ok(record) = codec::decode(id, Bytes::copy_from_slice(data)) else { return };
    let written = codec::encode(&record);
    let again = codec::decode(id, written.clone());
    assert_eq!(again.as_ref(), Ok(&record), "what was written is not what is read");
    assert_eq!(codec::encode(&record), written, "a record has two spellings");
    if let State::Completed { recording, .. } = &record.state {
        assert!(recording.bytes() <= data.len(), "a recording is larger than its bytes");
    }
}

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
    fn corpus_of_key_headers() {
        replay("key_header", super::key_header);
    }

    #[test]
    fn corpus_of_records() {
        replay("record_codec", super::record_codec);
    }
}
