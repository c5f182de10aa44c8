//! Properties of parsers and codecs, for the fuzzer (`fuzz/`) and for the tests, which replay its
//! corpora.

mod json_model;
mod paths;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use onetake_core::{Fingerprint, Key, RecordId, Recording, Rng, Timestamp};

use crate::handle::Handles;
use crate::issued::{self, IssuingKey, Use};
use crate::json::{self, Limits};
use crate::key::{IDEMPOTENCY_KEY, key};
use crate::policy::KeyPolicy;
use crate::recording::{record, recorded};
use crate::tenant::Caller;

pub use paths::route_path;

/// Separates two bodies. It occurs in no UTF-8 text.
const SEPARATOR: u8 = 0xff;
/// The depth of nested values here: low, so that the fuzzer reaches it.
const DEPTH_MAX: usize = 8;

/// Two bodies have equal canonical bytes if and only if an independent model says that their values
/// are equal. The model also decides which bodies are JSON.
pub fn json_fingerprint(data: &[u8]) {
    let mut bodies = data.splitn(2, |byte| *byte == SEPARATOR);
    let [one, other] = [bodies.next().unwrap_or_default(), bodies.next().unwrap_or_default()];
    let canonical = |body: &[u8]| {
        let model = json_model::parse(body, DEPTH_MAX);
        let parsed = json::parse(Bytes::copy_from_slice(body), Limits::with_depth_max(DEPTH_MAX));
        assert_eq!(parsed.is_ok(), model.is_some(), "only one of parser and model accepts it");
        let mut bytes = Vec::new();
        parsed.ok()?.root().canonical(&mut bytes);
        assert!(bytes.len() <= 24 * body.len() + 24, "the canonical form is too large");
        Some((bytes, model?))
    };
    let (Some(one), Some(other)) = (canonical(one), canonical(other)) else { return };
    assert_eq!(one.0 == other.0, one.1 == other.1, "equal bytes must mean equal values");
}

/// Lines of a repeated header name the same key as their values joined by a comma and a space, as a
/// proxy joins them.
pub fn key_lines(data: &[u8]) {
    let policy = KeyPolicy { min_length: Some(3), ..KeyPolicy::default() };
    let mut lines = HeaderMap::new();
    let mut joined = Vec::new();
    for line in data.split(|byte| *byte == b'\n').take(4) {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        lines.append(IDEMPOTENCY_KEY, value);
        if lines.len() > 1 {
            joined.extend_from_slice(b", ");
        }
        joined.extend_from_slice(line);
    }
    let Ok(value) = HeaderValue::from_bytes(&joined) else { return };
    let once = HeaderMap::from_iter([(IDEMPOTENCY_KEY, value)]);
    let (lines, once) = (key(&lines, &policy), key(&once, &policy));
    assert_eq!(lines.ok().flatten(), once.ok().flatten(), "a proxy changes the key");
}

/// Stored bytes are a recorded response or an error. A response that was read is recorded and read
/// again without a change.
pub fn recording(data: &[u8]) {
    let recording = Recording { head: Bytes::copy_from_slice(data), body: Some(Bytes::new()) };
    let Ok(read) = recorded(&recording) else { return };
    let again = record(read.status, &read.headers, read.body.clone(), Some(&read.trailers));
    let again = recorded(&again);
    assert!(again.is_ok(), "what was recorded cannot be read");
    // Headers that never belong to an outcome are left out when the response is recorded again.
    let Ok(again) = again else { return };
    assert_eq!((again.status, &again.body), (read.status, &read.body));
    assert!(again.headers.iter().all(|(name, value)| has(&read.headers, name, value)));
    assert!(again.trailers.iter().all(|(name, value)| has(&read.trailers, name, value)));
    let third = record(again.status, &again.headers, again.body.clone(), Some(&again.trailers));
    assert_eq!(recorded(&third).as_ref(), Ok(&again), "a second recording differs");
}

fn has(headers: &HeaderMap, name: &http::HeaderName, value: &HeaderValue) -> bool {
    headers.get_all(name).iter().any(|other| other == value)
}

/// Bytes that are always the same, so that every run issues the same key.
#[derive(Debug)]
struct Fixed;

impl Rng for Fixed {
    fn fill(&self, into: &mut [u8]) {
        into.fill(0x5a);
    }
}

/// No key but the issued one is accepted, and only for its use. The data is an edit of the key: see
/// [`edited`].
pub fn issued_key(data: &[u8]) {
    let issuer = IssuingKey::new(&[1; 32]);
    let keys = [issuer.clone()];
    let post = Method::POST;
    let used = Use { tenant: b"alice", namespace: b"n", method: &post, path: "/v1/charges" };
    let ttl = std::time::Duration::from_secs(60);
    let (real, _) = issued::issue(&issuer, &used, ttl, Timestamp::from_micros(9), &Fixed);
    let text = edited(&real, data);
    let Ok(key) = Key::new(text.clone()) else { return };
    let is_accepted = issued::verify(&keys, &used, &key).is_some();
    assert_eq!(is_accepted, text == real, "a forged key is accepted, or a real one is not");
    for other in [
        Use { tenant: b"alic", ..used },
        Use { namespace: b"", ..used },
        Use { method: &Method::PUT, ..used },
        Use { path: "/v1/charge", ..used },
    ] {
        assert!(issued::verify(&keys, &other, &key).is_none(), "the key has another use");
    }
    assert!(issued::verify(&[IssuingKey::new(&[2; 32])], &used, &key).is_none());
}

/// No handle but the real one is accepted, and only from its caller. The data is an edit of the
/// handle: see [`edited`].
pub fn handle(data: &[u8]) {
    let handles = Handles::new(&[3; 32]);
    let caller =
        |tenant: &[u8], proof: &[u8]| Caller { tenant: tenant.into(), proof: proof.into() };
    let (alice, bob) = (caller(b"alice", b"p"), caller(b"bob", b"p"));
    let fingerprints = [Fingerprint::of(b"a"), Fingerprint::of(b"b")];
    let real = handles.of(RecordId::from_bytes([4; 16]), &alice, &fingerprints);
    let text = edited(&real, data);
    let read = handles.read(&text, std::slice::from_ref(&alice));
    assert_eq!(read.is_some(), text == real, "a forged handle is accepted, or a real one is not");
    let others = [bob, caller(b"alice", b""), caller(b"alicep", b""), caller(b"", b"alicep")];
    assert!(handles.read(&text, &others).is_none(), "the handle has another caller");
}

/// Edits a text: the first byte chooses a place, the second a number of bytes to replace, and the
/// rest is the replacement. Data of fewer than two bytes leaves the text as it is. If the first byte
/// is 255, the rest is the whole text.
fn edited(text: &str, data: &[u8]) -> String {
    let [place, count, replacement @ ..] = data else { return text.to_owned() };
    let replacement = String::from_utf8_lossy(replacement);
    if *place == u8::MAX {
        return replacement.into_owned();
    }
    let place = usize::from(*place).min(text.len());
    let end = (place + usize::from(*count)).min(text.len());
    let (before, after) = (text.get(..place), text.get(end..));
    [before.unwrap_or_default(), &replacement, after.unwrap_or_default()].concat()
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
    fn corpora() {
        replay("json_fingerprint", super::json_fingerprint);
        replay("key_lines", super::key_lines);
        replay("recording", super::recording);
        replay("issued_key", super::issued_key);
        replay("handle", super::handle);
        replay("route_path", super::route_path);
    }

    #[test]
    fn edits() {
        assert_eq!(super::edited("abc", b""), "abc");
        assert_eq!(super::edited("abc", b"\x01\x01X"), "aXc");
        assert_eq!(super::edited("abc", b"\xff\x00X"), "X");
        assert_eq!(super::edited("abc", b"\x09\x09X"), "abcX");
    }
}
