//! Hexadecimal encoding of bytes.

use std::fmt::Write as _;

/// Encodes bytes as lowercase digits, two for each byte.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}

/// Decodes exactly `N` bytes. Returns `None` for any other length or for a character that is not a
/// digit.
#[must_use]
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Reads the bytes of a UUID. Returns `None` for a form other than that of [`write_uuid`]; upper
/// case is accepted.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let dashes = text.bytes().enumerate().filter(|(_, byte)| *byte == b'-').map(|(at, _)| at);
    if text.len() != 36 || !dashes.eq([8, 13, 18, 23]) {
        return None;
    }
    decode(&text.replace('-', ""))
}

/// Returns sixteen bytes as the text of a UUID, in ASCII.
pub(crate) fn uuid(bytes: &[u8; 16]) -> [u8; 36] {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |half: u8| DIGITS.get(usize::from(half & 15)).copied().unwrap_or_default();
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]);
    let mut text = [b'-'; 36];
    let places = text.iter_mut().enumerate().filter(|(at, _)| !matches!(at, 8 | 13 | 18 | 23));
    for ((_, place), digit) in places.zip(digits) {
        *place = digit;
    }
    text
}

/// Writes sixteen bytes as a UUID, in one piece.
pub(crate) fn write_uuid(f: &mut std::fmt::Formatter<'_>, bytes: &[u8; 16]) -> std::fmt::Result {
    f.write_str(std::str::from_utf8(&uuid(bytes)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #[test]
    fn digits_there_and_back() {
        assert_eq!(super::encode(&[0, 0xab, 0xff]), "00abff");
        assert_eq!(super::decode("00ABff"), Some([0, 0xab, 0xff]));
        for wrong in ["00abf", "00abfff0", "+0abff", "00abfg", "äbff"] {
            assert_eq!(super::decode::<3>(wrong), None, "{wrong}");
        }
    }
}
