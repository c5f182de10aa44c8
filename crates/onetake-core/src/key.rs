//! The key that a client chose for one operation.

use std::fmt;

/// A key without the quotes of a structured-field string.
///
/// Its `Debug` form hides the value, because keys never belong in logs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

/// The longest key that is accepted, in characters.
pub const KEY_LENGTH_MAX: usize = 255;

/// The minimum length of a key from a header, unless a route sets another one.
pub const KEY_LENGTH_MIN_DEFAULT: usize = 16;

/// The reason why a key was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has fewer characters than the route requires.
    #[error(
        "the key has {length} characters; at least {min} are required, so that it cannot be guessed (a UUID has 36)"
    )]
    TooShort {
        /// Characters received.
        length: usize,
        /// Characters required.
        min: usize,
    },
    /// The key has more characters than any key may have.
    #[error("the key has {length} characters; at most {KEY_LENGTH_MAX} are accepted")]
    TooLong {
        /// Characters received.
        length: usize,
    },
    /// The key contains a character that is not visible ASCII.
    #[error("the key has a character that is not visible ASCII at position {position}")]
    NotVisibleAscii {
        /// The position of the character, counted from one.
        position: usize,
    },
    /// The quoted string is not closed, contains an invalid escape, or is followed by more text.
    #[error("the key is not a well-formed quoted string: {what}")]
    BadQuotes {
        /// The defect.
        what: &'static str,
    },
    /// The value has several keys that differ, or a bare key with a comma.
    #[error(
        "it names several keys, separated by commas; send one key, and put a key that has a comma into quotes"
    )]
    Several,
}

impl Key {
    /// Reads a key from a header value.
    ///
    /// The structured-field string `"abc"` and the bare `abc` that every known SDK sends name the
    /// same key. A bare key has no comma: proxies join the lines of a repeated header with commas,
    /// so `abc, abc` is the key `abc`, and `abc, def` is an error.
    ///
    /// # Errors
    /// If the value is not a valid key, is shorter than `length_min` characters, or names several
    /// keys.
    pub fn from_header(value: &[u8], length_min: usize) -> Result<Self, KeyError> {
        let Member { text, rest, .. } = Member::read(value)?;
        let mut others = rest;
        while let Some(value) = others {
            let other = Member::read(value)?;
            if other.text != text {
                return Err(KeyError::Several);
            }
            others = other.rest;
        }
        let length = text.len();
        if length < length_min.max(1) {
            return Err(KeyError::TooShort { length, min: length_min.max(1) });
        }
        if length > KEY_LENGTH_MAX {
            return Err(KeyError::TooLong { length });
        }
        Ok(Self(text))
    }

    /// Returns the first key in a header value, as the client wrote it. It is the whole value,
    /// unless a proxy joined several lines.
    ///
    /// # Errors
    /// If the value does not start with a key.
    pub fn first_in_header(value: &[u8]) -> Result<&[u8], KeyError> {
        Member::read(value).map(|member| member.written)
    }

    /// Creates a key from a program's own text of 1 to 255 bytes.
    ///
    /// # Errors
    /// If the text is empty or too long.
    pub fn new(text: impl Into<String>) -> Result<Self, KeyError> {
        let text = text.into();
        match text.len() {
            0 => Err(KeyError::TooShort { length: 0, min: 1 }),
            length if length > KEY_LENGTH_MAX => Err(KeyError::TooLong { length }),
            _ => Ok(Self(text)),
        }
    }

    /// Returns the key's text. Keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} characters)", self.0.len())
    }
}

/// One key of a header value.
struct Member<'a> {
    /// The key without its quotes.
    text: String,
    /// The key with its quotes.
    written: &'a [u8],
    /// The value behind the comma, if there is one.
    rest: Option<&'a [u8]>,
}

impl<'a> Member<'a> {
    fn read(value: &'a [u8]) -> Result<Self, KeyError> {
        let value = value.trim_ascii();
        let (text, length) =
            if value.first() == Some(&b'"') { unquote(value)? } else { bare(value)? };
        let (written, behind) = value.split_at_checked(length).unwrap_or((value, &[]));
        let rest = match behind.trim_ascii_start() {
            [] => None,
            [b',', rest @ ..] => Some(rest),
            // Parameters (`"abc";v=1`) have no meaning for this header. They are refused, because
            // the client may have meant something by them.
            _ => return Err(KeyError::BadQuotes { what: "something follows the closing quote" }),
        };
        Ok(Self { text, written, rest })
    }
}

/// Reads a bare key. Returns it with its length.
fn bare(value: &[u8]) -> Result<(String, usize), KeyError> {
    let member = value.split(|byte| *byte == b',').next().unwrap_or_default().trim_ascii_end();
    let mut text = String::with_capacity(member.len());
    for (at, byte) in member.iter().enumerate() {
        if !byte.is_ascii_graphic() {
            return Err(KeyError::NotVisibleAscii { position: at + 1 });
        }
        text.push(char::from(*byte));
    }
    Ok((text, member.len()))
}

/// Reads a structured-field string (RFC 9651): `\"` and `\\` are the only escapes. Returns the text
/// with the length of the string, quotes included.
fn unquote(value: &[u8]) -> Result<(String, usize), KeyError> {
    let mut text = String::with_capacity(value.len());
    let mut bytes = value.iter().enumerate().skip(1);
    loop {
        match bytes.next() {
            None => {
                return Err(KeyError::BadQuotes { what: "the closing quote is missing" });
            }
            Some((at, b'"')) => return Ok((text, at + 1)),
            Some((_, b'\\')) => match bytes.next() {
                Some((_, escaped @ (b'"' | b'\\'))) => text.push(char::from(*escaped)),
                _ => {
                    return Err(KeyError::BadQuotes {
                        what: "a backslash is only allowed before a quote or a backslash",
                    });
                }
            },
            Some((at, byte)) if !byte.is_ascii_graphic() => {
                return Err(KeyError::NotVisibleAscii { position: at + 1 });
            }
            Some((_, byte)) => text.push(char::from(*byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UUID: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

    #[test]
    fn quoted_and_bare_are_one_key() {
        let bare = Key::from_header(UUID.as_bytes(), 16).unwrap();
        let quoted = Key::from_header(format!("\"{UUID}\"").as_bytes(), 16).unwrap();
        let padded = Key::from_header(format!("  {UUID}\t").as_bytes(), 16).unwrap();
        assert_eq!(bare, quoted);
        assert_eq!(bare, padded);
    }

    #[test]
    fn bad_keys_say_what_is_wrong() {
        let err = |v: &[u8]| Key::from_header(v, 16).unwrap_err();
        assert_eq!(err(b""), KeyError::TooShort { length: 0, min: 16 });
        assert_eq!(err(b"123456789012345"), KeyError::TooShort { length: 15, min: 16 });
        assert_eq!(err(b"\"123456789012345\""), KeyError::TooShort { length: 15, min: 16 });
        assert_eq!(err(&[b'a'; 256]), KeyError::TooLong { length: 256 });
        assert_eq!(
            err("schlüssel-1234567890".as_bytes()),
            KeyError::NotVisibleAscii { position: 5 }
        );
        assert_eq!(err(b"with space in the key"), KeyError::NotVisibleAscii { position: 5 });
        assert!(matches!(err(b"\"unterminated-key-123"), KeyError::BadQuotes { .. }));
        assert!(matches!(err(b"\"a-key-with-params-1\";p=1"), KeyError::BadQuotes { .. }));
        assert!(matches!(err(b"\"bad-escape-\\n-123456\""), KeyError::BadQuotes { .. }));
        assert!(Key::from_header(&[b'a'; 255], 16).is_ok());
        assert!(Key::from_header(b"1234567890123456", 16).is_ok());
    }

    #[test]
    fn joined_lines_are_one_key_if_they_are_equal() {
        let one = Key::from_header(UUID.as_bytes(), 16).unwrap();
        for joined in [
            format!("{UUID},{UUID}"),
            format!("{UUID}, {UUID}"),
            format!("{UUID} ,\t\"{UUID}\" , {UUID}"),
            format!("\"{UUID}\",{UUID}"),
        ] {
            assert_eq!(Key::from_header(joined.as_bytes(), 16).as_ref(), Ok(&one), "{joined}");
            let first = Key::first_in_header(joined.as_bytes()).unwrap();
            assert_eq!(Key::from_header(first, 16).as_ref(), Ok(&one), "{joined}");
            assert!(!first.contains(&b','), "{joined}");
        }
        for several in [
            format!("{UUID},{}", UUID.to_uppercase()),
            format!("{UUID},another-key-1234567890"),
            format!("{UUID},"),
            format!(",{UUID}"),
            format!("{UUID},,{UUID}"),
            "a-bare-key,with-a-comma".to_owned(),
        ] {
            assert_eq!(
                Key::from_header(several.as_bytes(), 16),
                Err(KeyError::Several),
                "{several}"
            );
        }
        let quoted = Key::from_header(b"\"a-quoted-key,with-a-comma\"", 16).unwrap();
        assert_eq!(quoted.as_str(), "a-quoted-key,with-a-comma");
    }

    #[test]
    fn debug_hides_the_value() {
        assert!(!format!("{:?}", Key::new(UUID).unwrap()).contains("6f1c"));
    }

    proptest! {
        #[test]
        fn any_header_value_is_a_key_or_an_error(value in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(key) = Key::from_header(&value, 16) {
                prop_assert!(key.as_str().len() >= 16 && key.as_str().len() <= 255);
                prop_assert!(key.as_str().bytes().all(|b| b.is_ascii_graphic()));
            }
        }

        #[test]
        fn quoting_never_changes_the_key(text in "[!-~]{16,120}") {
            let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            let from_quoted = Key::from_header(quoted.as_bytes(), 16).unwrap();
            prop_assert_eq!(from_quoted.as_str(), text.as_str());
            if !text.starts_with('"') && !text.contains(',') {
                prop_assert_eq!(Key::from_header(text.as_bytes(), 16).unwrap(), from_quoted);
            }
        }
    }
}
