//! The format of a sealed recording.
//!
//! | part | content |
//! | --- | --- |
//! | head | `OTS1`, flags, the name of the key, the original length of the body, and the head itself |
//! | body | the body, compressed if that pays |
//!
//! With a key, head and body are encrypted separately with AES-256-GCM. The cipher's key is derived
//! from the configured key, the record's id and the attempt: a recording that is copied under
//! another id, and so to another tenant, cannot be opened. The nonce precedes the text and is a MAC
//! of it. So the same recording of the same attempt is sealed to the same bytes, by which a store
//! recognises a settlement that is sent twice, and no nonce is used for two texts. The fields
//! before the head are authenticated with both parts.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use bytes::{BufMut, Bytes, BytesMut};

use onetake_core::codec::Reader;
use onetake_core::{AttemptId, RecordId, Recording};

use super::key::EncryptionKey;

const MAGIC: &[u8; 4] = b"OTS1";
const ENCRYPTED: u8 = 1;
const COMPRESSED: u8 = 2;

/// Shorter bodies are not compressed.
const COMPRESS_FROM_BYTES: usize = 256;
/// The fastest level, because a request waits for it.
const COMPRESSION_LEVEL: i32 = 1;
/// The largest size of a body. A decompressed body is refused above it, whatever length its head
/// claims.
pub const BODY_BYTES_MAX: usize = 1 << 30;

/// The record and attempt that a recording belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Of {
    pub(super) id: RecordId,
    pub(super) attempt: AttemptId,
}

/// The reason why a recording or a memo could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotOpened {
    #[error(
        "the stored data is encrypted with the key `{0}`, which this node does not have: add it to [secrets] encryption again, after the key in use"
    )]
    NoKey(String),
    #[error(
        "the stored data cannot be decrypted: it was changed in the store, or the key `{0}` is not the one that encrypted it"
    )]
    Changed(String),
    #[error("the stored data has a form that this version of onetake cannot read")]
    Format,
}

/// The fields before a sealed head.
struct HeadFields {
    is_compressed: bool,
    /// The name of the key, if the recording is encrypted.
    key: Option<String>,
    body_bytes: u32,
}

impl HeadFields {
    fn put(&self) -> BytesMut {
        let key = self.key.as_deref().unwrap_or_default();
        let mut out = BytesMut::with_capacity(64 + key.len());
        out.put_slice(MAGIC);
        let encrypted = if self.key.is_some() { ENCRYPTED } else { 0 };
        out.put_u8(encrypted | if self.is_compressed { COMPRESSED } else { 0 });
        out.put_u8(u8::try_from(key.len()).unwrap_or(u8::MAX));
        out.put_slice(key.as_bytes());
        out.put_u32(self.body_bytes);
        out
    }

    /// Reads these fields, and leaves the rest. Returns `None` if the recording was never sealed.
    fn take(from: &mut Bytes) -> Option<Result<(Self, Bytes), NotOpened>> {
        if !from.starts_with(MAGIC) {
            return None;
        }
        Some(Self::take_sealed(from).ok_or(NotOpened::Format))
    }

    fn take_sealed(from: &mut Bytes) -> Option<(Self, Bytes)> {
        let whole = from.clone();
        let mut reader = Reader(from.slice(MAGIC.len()..));
        let flags = reader.u8("flags").ok()?;
        let length = usize::from(reader.u8("key").ok()?);
        let key = if reader.0.len() < length { None } else { Some(reader.0.split_to(length)) }?;
        let body_bytes = u32::from_be_bytes(reader.array("length").ok()?);
        let front = whole.slice(..whole.len() - reader.0.len());
        *from = reader.0;
        let key = String::from_utf8(key.to_vec()).ok()?;
        let is_encrypted = match flags & !COMPRESSED {
            0 => false,
            ENCRYPTED => true,
            _ => return None,
        };
        let key = is_encrypted.then_some(key);
        Some((Self { is_compressed: flags & COMPRESSED != 0, key, body_bytes }, front))
    }
}

/// Returns the name of the key in a recording's head.
pub(super) fn key_of(head: &Bytes) -> Option<String> {
    let (front, _) = HeadFields::take(&mut head.clone())?.ok()?;
    front.key
}

/// Seals a recording. Returns `None` if the body is larger than [`BODY_BYTES_MAX`], or if the cipher
/// refuses, which does not happen for data that fits into memory.
pub(super) fn seal(
    recording: &Recording,
    of: Of,
    key: Option<&EncryptionKey>,
) -> Option<Recording> {
    seal_up_to(BODY_BYTES_MAX, recording, of, key)
}

fn seal_up_to(
    body_bytes_max: usize,
    recording: &Recording,
    of: Of,
    key: Option<&EncryptionKey>,
) -> Option<Recording> {
    let body_bytes = recording.body.as_ref().map_or(0, Bytes::len);
    if body_bytes > body_bytes_max {
        return None;
    }
    let compressed = recording.body.as_ref().and_then(compress);
    let front = HeadFields {
        is_compressed: compressed.is_some(),
        key: key.map(|key| key.id().to_owned()),
        body_bytes: u32::try_from(body_bytes).ok()?,
    }
    .put();
    let body = compressed.or_else(|| recording.body.clone());
    let Some(key) = key else {
        let head = [&front[..], &recording.head].concat();
        return Some(Recording { head: head.into(), body });
    };
    let cipher = key.cipher(of)?;
    let part = |which, plain: &Bytes| {
        let aad = aad(which, &front);
        encrypt(&cipher, key.nonce(of, &aad, plain), &aad, plain)
    };
    let head = part(Part::Head, &recording.head)?;
    let body = match &body {
        Some(body) => Some(part(Part::Body, body)?),
        None => None,
    };
    Some(Recording { head: [&front[..], &head].concat().into(), body: body.map(Bytes::from) })
}

/// Opens a recording. A recording that was never sealed is returned unchanged.
pub(super) fn open(
    sealed: &Recording,
    of: Of,
    keys: &[EncryptionKey],
) -> Result<Recording, NotOpened> {
    let mut head = sealed.head.clone();
    let (front, authenticated) = match HeadFields::take(&mut head) {
        None => return Ok(sealed.clone()),
        Some(taken) => taken?,
    };
    let mut body = sealed.body.clone();
    if let Some(name) = &front.key {
        let mut named = keys.iter().filter(|key| key.id() == *name).peekable();
        if named.peek().is_none() {
            return Err(NotOpened::NoKey(name.clone()));
        }
        let opened = named.find_map(|key| {
            let cipher = key.cipher(of)?;
            let part =
                |which, sealed: &Bytes| decrypt(&cipher, &aad(which, &authenticated), sealed);
            let head = part(Part::Head, &head)?;
            let body = match &body {
                Some(body) => Some(part(Part::Body, body)?),
                None => None,
            };
            Some((head, body))
        });
        (head, body) = opened.ok_or_else(|| NotOpened::Changed(name.clone()))?;
    }
    if let (true, Some(packed)) = (front.is_compressed, &body) {
        body = Some(decompress(packed, front.body_bytes).ok_or(NotOpened::Format)?);
    }
    Ok(Recording { head, body })
}

#[derive(Clone, Copy)]
enum Part {
    Head = 0,
    Body = 1,
}

/// The additional authenticated data of a part. The id and the attempt are in the cipher's key.
fn aad(which: Part, front: &[u8]) -> Vec<u8> {
    [&[which as u8], front].concat()
}

/// Returns the cipher whose key is the result of this MAC.
pub(super) fn cipher(mac: hmac::Context) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, mac.sign().as_ref()).ok().map(LessSafeKey::new)
}

pub(super) fn nonce(mut mac: hmac::Context, aad: &[u8], plain: &[u8]) -> [u8; NONCE_LEN] {
    mac.update(&(aad.len() as u64).to_be_bytes());
    mac.update(aad);
    mac.update(plain);
    let mut nonce = [0; NONCE_LEN];
    nonce.iter_mut().zip(mac.sign().as_ref()).for_each(|(to, from)| *to = *from);
    nonce
}

pub(super) fn encrypt(
    cipher: &LessSafeKey,
    nonce: [u8; NONCE_LEN],
    aad: &[u8],
    plain: &[u8],
) -> Option<Vec<u8>> {
    let mut data = plain.to_vec();
    let unique = Nonce::assume_unique_for_key(nonce);
    cipher.seal_in_place_append_tag(unique, Aad::from(aad), &mut data).ok()?;
    Some([&nonce[..], &data].concat())
}

pub(super) fn decrypt(cipher: &LessSafeKey, aad: &[u8], sealed: &Bytes) -> Option<Bytes> {
    let (nonce, data) = sealed.split_first_chunk::<NONCE_LEN>()?;
    let mut data = data.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let length = cipher.open_in_place(nonce, Aad::from(aad), &mut data).ok()?.len();
    data.truncate(length);
    Some(data.into())
}

/// Returns the compressed body, if that saves at least an eighth.
fn compress(body: &Bytes) -> Option<Bytes> {
    if body.len() < COMPRESS_FROM_BYTES {
        return None;
    }
    let packed = zstd::bulk::compress(body, COMPRESSION_LEVEL).ok()?;
    (packed.len() <= body.len() - body.len() / 8).then(|| packed.into())
}

fn decompress(packed: &Bytes, bytes: u32) -> Option<Bytes> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX)?;
    let body = zstd::bulk::decompress(packed, bytes).ok()?;
    (body.len() == bytes).then(|| body.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(id: u8, attempt: u8) -> Of {
        Of {
            id: RecordId::from_bytes([id; RecordId::BYTES]),
            attempt: AttemptId::from_bytes([attempt; AttemptId::BYTES]),
        }
    }

    fn key(id: &str, byte: u8) -> EncryptionKey {
        EncryptionKey::new(id, &[byte; 32])
    }

    fn recording() -> Recording {
        let body = format!("{{\"card\":\"4242424242424242\",\"pad\":\"{}\"}}", "x".repeat(400));
        Recording { head: Bytes::from_static(b"\x01 head"), body: Some(body.into()) }
    }

    fn holds(sealed: &Recording, text: &[u8]) -> bool {
        let body = sealed.body.clone().unwrap_or_default();
        [&sealed.head, &body].iter().any(|part| part.windows(text.len()).any(|at| at == text))
    }

    #[test]
    fn what_is_sealed_is_opened_and_tells_nothing() {
        let keys = [key("k1", 1)];
        let sealed = seal(&recording(), of(1, 1), keys.first()).unwrap();
        assert_eq!(open(&sealed, of(1, 1), &keys).unwrap(), recording());
        assert!(!holds(&sealed, b"4242") && !holds(&sealed, b"head"));
        assert_eq!(key_of(&sealed.head).as_deref(), Some("k1"));
        assert!(sealed.bytes() < recording().bytes(), "and it is smaller");
    }

    #[test]
    fn the_same_is_sealed_to_the_same_and_anything_else_to_something_else() {
        let keys = [key("k1", 1), key("k1", 2)];
        let mut other = recording();
        other.head = Bytes::from_static(b"\x01 heaD");
        let sealed =
            |recording: &Recording, of, key: usize| seal(recording, of, keys.get(key)).unwrap();
        let one = sealed(&recording(), of(1, 1), 0);
        assert_eq!(
            one,
            sealed(&recording(), of(1, 1), 0),
            "a settlement that is sent twice is one"
        );
        for another in [
            sealed(&recording(), of(2, 1), 0),
            sealed(&recording(), of(1, 2), 0),
            sealed(&recording(), of(1, 1), 1),
            sealed(&other, of(1, 1), 0),
        ] {
            assert_ne!(one.head, another.head);
        }
    }

    #[test]
    fn it_opens_for_its_own_attempt_and_its_own_key_alone() {
        let (k1, k2) = (key("k1", 1), key("k2", 2));
        let sealed = seal(&recording(), of(1, 1), Some(&k1)).unwrap();
        let opened = |of, keys: &[EncryptionKey]| open(&sealed, of, keys);
        assert_eq!(opened(of(1, 1), &[k2.clone(), k1.clone()]).unwrap(), recording(), "rotation");
        let changed = || Err(NotOpened::Changed("k1".to_owned()));
        assert_eq!(opened(of(2, 1), std::slice::from_ref(&k1)), changed());
        assert_eq!(opened(of(1, 2), std::slice::from_ref(&k1)), changed());
        assert_eq!(opened(of(1, 1), &[key("k1", 9)]), changed());
        assert_eq!(opened(of(1, 1), &[key("k1", 9), k1]).unwrap(), recording());
        let gone = opened(of(1, 1), &[k2]).unwrap_err();
        assert_eq!(gone, NotOpened::NoKey("k1".to_owned()));
        assert!(
            gone.to_string().contains("`k1`") && gone.to_string().contains("[secrets] encryption")
        );
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let keys = [key("k1", 1)];
        let sealed = seal(&recording(), of(1, 1), keys.first()).unwrap();
        let flip = |bytes: &Bytes, at: usize| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1;
            Bytes::from(bytes)
        };
        for at in 0..sealed.head.len() {
            let changed = Recording { head: flip(&sealed.head, at), body: sealed.body.clone() };
            // Without the magic bytes it counts as never sealed.
            assert!(at < MAGIC.len() || open(&changed, of(1, 1), &keys).is_err(), "head {at}");
        }
        let body = sealed.body.clone().unwrap();
        for at in 0..body.len() {
            let changed = Recording { head: sealed.head.clone(), body: Some(flip(&body, at)) };
            assert!(open(&changed, of(1, 1), &keys).is_err(), "body {at}");
        }
        let swapped = Recording { head: sealed.head.clone(), body: Some(sealed.head.slice(..)) };
        assert!(open(&swapped, of(1, 1), &keys).is_err());
        for end in 0..sealed.head.len() {
            let cut = Recording { head: sealed.head.slice(..end), body: None };
            assert!(end < MAGIC.len() || open(&cut, of(1, 1), &keys).is_err(), "cut at {end}");
        }
    }

    /// It could be sealed, but not be opened again.
    #[test]
    fn a_body_above_the_limit_is_not_sealed() {
        let bytes = recording().body.unwrap().len();
        assert!(seal_up_to(bytes, &recording(), of(1, 1), None).is_some());
        assert!(seal_up_to(bytes - 1, &recording(), of(1, 1), None).is_none());
        let no_body = Recording { body: None, ..recording() };
        assert!(seal_up_to(0, &no_body, of(1, 1), None).is_some());
    }

    #[test]
    fn what_was_never_sealed_is_as_it_is() {
        for plain in [Recording::default(), Recording::new("x"), recording()] {
            assert_eq!(open(&plain, of(1, 1), &[key("k1", 1)]).unwrap(), plain);
        }
    }

    #[test]
    fn without_a_key_it_is_only_smaller() {
        let sealed = seal(&recording(), of(1, 1), None).unwrap();
        assert!(sealed.bytes() < recording().bytes() / 2);
        assert_eq!(key_of(&sealed.head), None);
        assert_eq!(open(&sealed, of(9, 9), &[key("k1", 1)]).unwrap(), recording());
        // A claimed length above the maximum is rejected.
        let mut head = sealed.head.to_vec();
        head[6..10].copy_from_slice(&u32::MAX.to_be_bytes());
        let huge = Recording { head: head.into(), body: sealed.body };
        assert_eq!(open(&huge, of(1, 1), &[]), Err(NotOpened::Format));
    }

    proptest! {
        #[test]
        fn whatever_is_sealed_comes_back(
            head in proptest::collection::vec(any::<u8>(), 0..300),
            body in proptest::option::of(proptest::collection::vec(0_u8..8, 0..3000)),
            encrypted in any::<bool>(),
        ) {
            let recording = Recording { head: head.into(), body: body.map(Bytes::from) };
            let keys = [key("k", 3)];
            let sealed = seal(&recording, of(1, 2), keys.first().filter(|_| encrypted)).unwrap();
            prop_assert_eq!(open(&sealed, of(1, 2), &keys).unwrap(), recording);
        }

        #[test]
        fn no_bytes_make_it_panic(
            head in proptest::collection::vec(any::<u8>(), 0..60),
            body in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..60)),
            keyed in any::<bool>(),
        ) {
            let front: &[u8] = if keyed { b"OTS1\x01\x01k" } else { b"OTS1\x02\0" };
            let head = [front, &head].concat();
            let sealed = Recording { head: head.into(), body: body.map(Bytes::from) };
            let _any = open(&sealed, of(1, 2), &[key("k", 3)]);
        }
    }
}
