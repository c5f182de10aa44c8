//! JSON pointers (RFC 6901), and the canonical bytes of the values that they select.

use std::fmt;

use bytes::Bytes;

use super::encode::encode;
use super::number::{put_bytes, put_count};
use super::{JsonError, Limits, Value, parse};

/// The prefix of all canonical bytes. It changes with the encoding, so that old and new bytes are
/// never equal.
const VERSION: &[u8] = b"onetake json v1";

/// The parts of a body that count.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Selection {
    /// The whole body.
    #[default]
    Whole,
    /// Only the values at these places.
    Include(Vec<Pointer>),
    /// Everything except the values at these places.
    Exclude(Vec<Pointer>),
}

impl Selection {
    /// Returns the canonical bytes of the selected parts of a value.
    ///
    /// Under one selection, two values have the same bytes exactly if their selected parts are
    /// equal. `Whole` and an `Exclude` that finds nothing give the same bytes. The bytes of an
    /// `Include` differ from those of `Whole`, of `Exclude`, and of an `Include` with other
    /// pointers.
    #[must_use]
    pub fn canonical(&self, value: Value<'_>) -> Vec<u8> {
        match self {
            Self::Whole => exclude(value, &[]),
            Self::Include(pointers) => include(value, pointers),
            Self::Exclude(pointers) => exclude(value, pointers),
        }
    }
}

/// Returns the canonical bytes of the selected parts of a body.
///
/// # Errors
/// If the body is not acceptable JSON. The parts that are not selected are checked too.
pub fn canonical(body: Bytes, selection: &Selection, limits: Limits) -> Result<Vec<u8>, JsonError> {
    parse(body, limits).map(|document| selection.canonical(document.root()))
}

/// Returns the canonical bytes of a value without the values at these places.
///
/// An excluded member counts as absent. An excluded array element leaves a mark, so that the other
/// elements keep their positions. An excluded whole body (`""`) also leaves a mark, and then all
/// bodies are equal. A pointer that finds nothing is ignored.
#[must_use]
pub fn exclude(value: Value<'_>, pointers: &[Pointer]) -> Vec<u8> {
    let found = pointers.iter().filter_map(|pointer| value.get(pointer));
    let mut excluded = Vec::from_iter(found.map(|value| value.index));
    excluded.sort_unstable();
    // The canonical form is rarely longer than the body.
    let mut out = Vec::with_capacity(VERSION.len() + 1 + value.document.body.len());
    out.extend_from_slice(VERSION);
    out.push(b'w');
    encode(value, &excluded, &mut out);
    out
}

/// Returns the canonical bytes of the values at these places. The order of the pointers does not
/// matter.
///
/// A place without a value differs from one that holds `null`.
#[must_use]
pub fn include(value: Value<'_>, pointers: &[Pointer]) -> Vec<u8> {
    let mut pointers = Vec::from_iter(pointers);
    pointers.sort_unstable();
    pointers.dedup();
    let mut out = VERSION.to_vec();
    out.push(b'i');
    put_count(&mut out, pointers.len() as u64);
    for pointer in pointers {
        put_bytes(&mut out, pointer.text.as_bytes());
        let found = value.get(pointer);
        out.push(u8::from(found.is_some()));
        if let Some(found) = found {
            found.canonical(&mut out);
        }
    }
    out
}

/// A place in a JSON value, such as `/order/lines/0`. The empty text is the whole value.
///
/// Pointers are compared by their texts, which are unambiguous.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer {
    text: String,
    /// The names and indexes between the slashes, unescaped.
    tokens: Vec<String>,
}

/// The reason why a text is not a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// The text does not start with a slash.
    #[error("the JSON pointer {pointer:?} does not start with \"/\"; write {fix:?}")]
    NoSlash {
        /// The text as given.
        pointer: String,
        /// The pointer that was probably meant.
        fix: String,
    },
    /// The text has a tilde that escapes nothing.
    #[error(
        "the JSON pointer {pointer:?} has a \"~\" that is not followed by 0 or 1; inside a name \
         write \"~0\" for \"~\" and \"~1\" for \"/\""
    )]
    BadTilde {
        /// The text as given.
        pointer: String,
    },
}

impl Pointer {
    /// Reads a pointer in the notation of RFC 6901.
    ///
    /// # Errors
    /// If the text is not empty and does not start with a slash, or has a tilde that escapes
    /// nothing.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let Some(tail) = text.strip_prefix('/') else {
            if text.is_empty() {
                return Ok(Self { text: String::new(), tokens: Vec::new() });
            }
            return Err(PointerError::NoSlash { pointer: text.into(), fix: with_slash(text) });
        };
        if text.split('~').skip(1).any(|behind| !behind.starts_with(['0', '1'])) {
            return Err(PointerError::BadTilde { pointer: text.into() });
        }
        // The order matters: `~01` is the text `~1`, and not a slash.
        let unescape = |token: &str| token.replace("~1", "/").replace("~0", "~");
        Ok(Self { text: text.into(), tokens: tail.split('/').map(unescape).collect() })
    }

    /// The text of the pointer.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if the pointer is the whole value.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn find<'a>(&self, root: Value<'a>) -> Option<Value<'a>> {
        self.tokens.iter().try_fold(root, |value, token| match value.is_array() {
            true => value.items().nth(index(token)?),
            false => value.member(token),
        })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pointer({:?})", self.text)
    }
}

/// Appends one step to the text of a pointer.
pub(super) fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
}

/// Returns the array index of a token: digits without leading zeros, by RFC 6901.
fn index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = token.len() > 1 && token.starts_with('0');
    if digits && !leading_zero { token.parse().ok() } else { None }
}

/// Returns the pointer that was probably meant by a name, a URI fragment or a JSONPath.
fn with_slash(text: &str) -> String {
    match text.strip_prefix("$.") {
        Some(path) => format!("/{}", path.replace('.', "/")),
        None => format!("/{}", text.trim_start_matches(['#', '/'])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str =
        r#"{"a":{"b":[10,20,{"c":null}],"":1,"m~n":2,"x/y":3,"0":4,"p~1q":5},"z":9}"#;

    fn pointers(texts: &[&str]) -> Vec<Pointer> {
        let parsed = texts.iter().map(|text| Pointer::parse(text));
        parsed.collect::<Result<_, _>>().unwrap()
    }

    fn bytes(body: &str, selection: &Selection) -> Vec<u8> {
        canonical(body.to_owned().into(), selection, Limits::default()).unwrap()
    }

    fn without(body: &str, texts: &[&str]) -> Vec<u8> {
        bytes(body, &Selection::Exclude(pointers(texts)))
    }

    fn only(body: &str, texts: &[&str]) -> Vec<u8> {
        bytes(body, &Selection::Include(pointers(texts)))
    }

    #[test]
    fn pointers_find_what_rfc_6901_says() {
        let document = parse(Bytes::from_static(BODY.as_bytes()), Limits::default()).unwrap();
        let found = |text: &str| match document.root().get(&pointers(&[text])[0]) {
            Some(value) if value.is_null() => "null".into(),
            Some(value) => value.number().map_or("other".into(), |it| it.integer(9).unwrap()),
            None => "none".into(),
        };
        assert_eq!(found(""), "other");
        assert_eq!(found("/a/b/0") + &found("/a/b/1"), "1020");
        assert_eq!(found("/a/b/2/c"), "null");
        assert_eq!(found("/a/") + &found("/a/m~0n") + &found("/a/x~1y") + &found("/a/0"), "1234");
        assert_eq!(found("/a/p~01q"), "5");
        let nothing = "/ /b /a/b/3 /a/b/00 /a/b/01 /a/b/+1 /a/b/- /a/b/ /z/0 /a/m~01n /a/b/0/0 \
                       /a/b/99999999999999999999999";
        for text in nothing.split(' ') {
            assert_eq!(found(text), "none", "{text}");
        }
    }

    #[test]
    fn bad_pointers_say_how_to_write_them() {
        let fixes = [("a/b", "/a/b"), ("#/a", "/a"), ("$.a.b", "/a/b"), (" /a", "/ /a")];
        for (text, fix) in fixes {
            let err = Pointer::parse(text).unwrap_err().to_string();
            assert!(err.contains(&format!("{text:?}")), "{err}");
            assert!(err.ends_with(&format!("write {fix:?}")), "{err}");
        }
        for text in ["/a~", "/~2", "/a~/b", "/~~0"] {
            let err = Pointer::parse(text).unwrap_err();
            assert_eq!(err, PointerError::BadTilde { pointer: text.into() });
        }
    }

    #[test]
    fn excluded_members_are_absent_and_excluded_elements_keep_their_place() {
        let same = |one, other, texts: &[&str]| without(one, texts) == without(other, texts);
        assert!(same(r#"{"a":1,"t":2}"#, r#"{"t":{"x":[3]},"a":1}"#, &["/t"]));
        assert!(same(r#"{"a":1,"t":2}"#, r#"{"a":1}"#, &["/t", "/t/x", "/none/0"]));
        assert!(!same(r#"{"a":1,"t":2}"#, r#"{"a":2,"t":2}"#, &["/t"]));
        assert!(!same(r#"{"a":{"t":1}}"#, r#"{"a":{"t":2}}"#, &["/t"]));
        assert!(same("[1,2,3]", "[1,[9],3]", &["/1"]));
        assert!(!same("[1,2,3]", "[1,3]", &["/1"]));
        assert!(!same("[1,2,3]", "[1,3,2]", &["/1"]));
        assert!(!same("[1,2]", "[1]", &["/1"]));
        // No body can have the same bytes as the mark.
        for body in ["[1,null]", "[1,\"x\"]", "[1]", "[1,[]]", "[1,{}]"] {
            assert_ne!(without("[1,2]", &["/1"]), without(body, &[]));
        }
        assert_eq!(without("[1]", &["/0"]), b"onetake json v1wa\x01x");
        assert_eq!(without(BODY, &["/none"]), bytes(BODY, &Selection::Whole));
        assert_eq!(without(BODY, &[""]), without("1", &[""]));
    }

    #[test]
    fn included_places_are_all_that_counts() {
        let same = |one, other, texts: &[&str]| only(one, texts) == only(other, texts);
        assert!(same(r#"{"a":1,"b":2}"#, r#"{"b":3,"a":1.0}"#, &["/a"]));
        assert!(!same(r#"{"a":1}"#, r#"{"a":2}"#, &["/a"]));
        assert!(!same(r#"{"a":null}"#, "{}", &["/a"]));
        assert!(same(r#"{"b":1}"#, "[]", &["/a"]));
        assert!(!same(r#"{"a":1}"#, r#"{"b":1}"#, &["/a", "/b"]));
        assert_eq!(only(BODY, &["/z", "/a", "/z"]), only(BODY, &["/a", "/z"]));
        let expected = b"onetake json v1i\x02\x02/a\x00\x02/b\x01n";
        assert_eq!(only(r#"{"b":null}"#, &["/b", "/a"]), expected);
        assert_ne!(only(BODY, &[""]), bytes(BODY, &Selection::Whole));
    }
}
