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
}

impl Key {
    /// Reads a key from a header value.
    ///
    /// The structured-field string `"abc"` and the bare `abc` that every known SDK sends name the
    /// same key.
    ///
    /// # Errors
    /// If the value is not a valid key, or is shorter than `length_min` characters.
    pub fn from_header(value: &[u8], length_min: usize) -> Result<Self, KeyError> {
        let value = value.trim_ascii();
        let text = if value.first() == Some(&b'"') { unquote(value)? } else { bare(value)? };
        let length = text.len();
        if length < length_min.max(1) {
            return Err(KeyError::TooShort { length, min: length_min.max(1) });
        }
        if length > KEY_LENGTH_MAX {
            return Err(KeyError::TooLong { length });
        }
        Ok(Self(text))
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

fn bare(value: &[u8]) -> Result<String, KeyError> {
    let mut text = String::with_capacity(value.len());
    for (at, byte) in value.iter().enumerate() {
        if !byte.is_ascii_graphic() {
            return Err(KeyError::NotVisibleAscii { position: at + 1 });
        }
        text.push(char::from(*byte));
    }
    Ok(text)
}

/// Reads a structured-field string (RFC 9651): `\"` and `\\` are the only escapes.
fn unquote(value: &[u8]) -> Result<String, KeyError> {
    let mut text = String::with_capacity(value.len());
    let mut bytes = value.iter().enumerate().skip(1);
    loop {
        match bytes.next() {
            None => {
                return Err(KeyError::BadQuotes { what: "the closing quote is missing" });
            }
            Some((_, b'"')) => break,
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
    // Parameters (`"abc";v=1`) have no meaning for this header. They are refused, because the
    // client may have meant something by them.
    if bytes.next().is_some() {
        return Err(KeyError::BadQuotes { what: "unexpected text after the closing quote" });
    }
    Ok(text)
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
            if !text.starts_with('"') {
                prop_assert_eq!(Key::from_header(text.as_bytes(), 16).unwrap(), from_quoted);
            }
        }
    }
}
