//! The bytes of a sealed memo: `OTM1`, flags, the name of the key, and the memo.
//!
//! A memo is encrypted as recordings are, with a key that is derived for its record alone. A memo
//! that is copied under another id cannot be opened. Without a key the memo is kept unchanged,
//! unless it looks like a sealed one.

use bytes::{BufMut, Bytes, BytesMut};

use onetake_core::codec::Reader;
use onetake_core::{Memo, RecordId};

use super::key::EncryptionKey;
use super::seal::{NotOpened, cipher, decrypt, encrypt, nonce};

const MAGIC: &[u8; 4] = b"OTM1";
const PLAIN: u8 = 0;
const ENCRYPTED: u8 = 1;

/// Seals a memo. Returns `None` if the cipher refuses, which does not happen for texts this short.
pub(super) fn seal(memo: &Memo, id: RecordId, key: Option<&EncryptionKey>) -> Option<Memo> {
    let plain = memo.as_bytes();
    if plain.is_empty() {
        return Some(Memo::default());
    }
    let Some(key) = key else {
        let is_mistakable = plain.starts_with(MAGIC);
        let as_it_is = || [&MAGIC[..], &[PLAIN], plain].concat();
        return Some(if is_mistakable { Memo::as_kept(as_it_is()) } else { memo.clone() });
    };
    let mut out = BytesMut::with_capacity(64 + key.id().len() + plain.len());
    out.put_slice(MAGIC);
    out.put_u8(ENCRYPTED);
    out.put_u8(u8::try_from(key.id().len()).unwrap_or(u8::MAX));
    out.put_slice(key.id().as_bytes());
    let nonce = nonce(key.mac_of_record(b"onetake memo nonce v1", id), &out, plain);
    let sealed = encrypt(&memo_cipher(key, id)?, nonce, &out, plain)?;
    out.put_slice(&sealed);
    Some(Memo::as_kept(out))
}

/// Opens a memo. A memo that was never sealed is returned unchanged.
pub(super) fn open(sealed: &Memo, id: RecordId, keys: &[EncryptionKey]) -> Result<Memo, NotOpened> {
    let whole = sealed.as_bytes();
    if !whole.starts_with(MAGIC) {
        return Ok(sealed.clone());
    }
    let mut reader = Reader(whole.slice(MAGIC.len()..));
    match reader.u8("flags") {
        Ok(PLAIN) => return Ok(Memo::as_kept(reader.0)),
        Ok(ENCRYPTED) => {}
        _ => return Err(NotOpened::Format),
    }
    let name = key_name(&mut reader).ok_or(NotOpened::Format)?;
    let aad = whole.slice(..whole.len() - reader.0.len());
    let mut named = keys.iter().filter(|key| key.id() == name).peekable();
    if named.peek().is_none() {
        return Err(NotOpened::NoKey(name));
    }
    let opened = named.find_map(|key| decrypt(&memo_cipher(key, id)?, &aad, &reader.0));
    opened.map(Memo::as_kept).ok_or(NotOpened::Changed(name))
}

fn key_name(reader: &mut Reader) -> Option<String> {
    let length = usize::from(reader.u8("key").ok()?);
    let name: Bytes = (reader.0.len() >= length).then(|| reader.0.split_to(length))?;
    String::from_utf8(name.to_vec()).ok()
}

fn memo_cipher(key: &EncryptionKey, id: RecordId) -> Option<aws_lc_rs::aead::LessSafeKey> {
    cipher(key.mac_of_record(b"onetake memo v1", id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::origin::MEMO_BYTES_MAX;
    use proptest::prelude::*;

    fn key(id: &str, byte: u8) -> EncryptionKey {
        EncryptionKey::new(id, &[byte; 32])
    }

    fn id(byte: u8) -> RecordId {
        RecordId::from_bytes([byte; RecordId::BYTES])
    }

    fn memo(bytes: impl Into<Bytes>) -> Memo {
        Memo::new(bytes).unwrap()
    }

    #[test]
    fn it_opens_for_its_own_record_and_its_own_key_alone() {
        let (k1, k2) = (key("k1", 1), key("k2", 2));
        let plain = memo("the derived key of a payment");
        let sealed = seal(&plain, id(1), Some(&k1)).unwrap();
        assert!(!sealed.as_bytes().windows(7).any(|at| at == b"derived"));
        assert_eq!(sealed, seal(&plain, id(1), Some(&k1)).unwrap());
        assert_ne!(sealed, seal(&plain, id(2), Some(&k1)).unwrap());
        let opened = |id, keys: &[EncryptionKey]| open(&sealed, id, keys);
        assert_eq!(opened(id(1), &[k2.clone(), k1.clone()]).unwrap(), plain, "rotation");
        assert_eq!(opened(id(2), &[k1]), Err(NotOpened::Changed("k1".to_owned())));
        assert_eq!(opened(id(1), &[key("k1", 9)]), Err(NotOpened::Changed("k1".to_owned())));
        assert_eq!(opened(id(1), &[k2]), Err(NotOpened::NoKey("k1".to_owned())));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let keys = [key("k1", 1)];
        let sealed = seal(&memo("secret"), id(1), keys.first()).unwrap();
        for at in MAGIC.len()..sealed.as_bytes().len() {
            let mut bytes = sealed.as_bytes().to_vec();
            bytes[at] ^= 2;
            assert!(open(&Memo::as_kept(bytes), id(1), &keys).is_err(), "{at}");
            let cut = Memo::as_kept(sealed.as_bytes().slice(..at));
            assert!(open(&cut, id(1), &keys).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn without_a_key_it_is_as_it_is() {
        for plain in ["", "as it is", "OTM1 of somebody else", "OTM1"] {
            let kept = seal(&memo(plain), id(1), None).unwrap();
            assert_eq!(kept.as_bytes() == plain, !plain.starts_with("OTM1"));
            assert_eq!(open(&kept, id(1), &[]).unwrap(), memo(plain));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_sealed_comes_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..=MEMO_BYTES_MAX),
            encrypted in any::<bool>(),
        ) {
            let keys = [key("k", 3)];
            let sealed = seal(&memo(bytes.clone()), id(1), keys.first().filter(|_| encrypted));
            prop_assert_eq!(open(&sealed.unwrap(), id(1), &keys).unwrap(), memo(bytes));
        }

        #[test]
        fn no_bytes_make_it_panic(rest in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _any = open(&Memo::as_kept([&b"OTM1"[..], &rest].concat()), id(1), &[key("k", 3)]);
        }
    }
}
