//! Canonical JSON for fingerprints: bodies with equal values become equal bytes, and bodies with
//! different values become different bytes.
//!
//! A wrong "equal" would replay another payment of the client. A wrong "unequal" would refuse a
//! legitimate retry. So no number is rounded (see [`Number`]), and a body that two parsers could
//! read differently is refused. Differences from most JSON libraries:
//!
//! - Two members with the same name in an object are refused. Names are compared after unescaping
//!   (`"a"` is `"\u0061"`).
//! - Half a surrogate pair (`"\ud800"`) and a byte order mark are refused.
//! - Arrays and objects nest at most [`Limits::DEPTH_MAX_DEFAULT`] levels deep.
//! - Numbers may have any length, and be larger than a float can hold (`1e400`). Only an exponent
//!   beyond 64 bits is refused.
//!
//! Strings are equal if their characters are equal after unescaping. There is no Unicode
//! normalization: `é` as one character differs from `é` as two. Time is linear in the size of the
//! body (times the logarithm of the number of members of an object). While a body is read, it takes
//! about four times its size in memory if it has ordinary values. Only bodies of one-digit numbers
//! take up to twenty times their size.

mod document;
mod encode;
mod number;
mod parse;
mod pointer;

pub use document::{Document, Value};
pub(crate) use encode::NULL;
pub use number::Number;
pub use parse::parse;
pub use pointer::{Pointer, PointerError, Selection, canonical, exclude, include};

/// The limits on a JSON body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    depth_max: usize,
}

impl Limits {
    /// The default maximum depth of nested arrays and objects.
    pub const DEPTH_MAX_DEFAULT: usize = 128;

    /// The highest depth that can be configured. The services behind often read JSON recursively.
    pub const DEPTH_MAX_CEILING: usize = 1024;

    /// Creates limits with this maximum depth, but at most [`Limits::DEPTH_MAX_CEILING`].
    ///
    /// A number alone has depth 0, `[]` has depth 1.
    #[must_use]
    pub fn with_depth_max(depth_max: usize) -> Self {
        Self { depth_max: depth_max.min(Self::DEPTH_MAX_CEILING) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::with_depth_max(Self::DEPTH_MAX_DEFAULT)
    }
}

/// The reason why a body was refused, with its position.
///
/// It never holds a part of a value, because bodies are secret. The names of members are as secret:
/// the log has [`for_log`](Self::for_log).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {offset} (line {line}, column {column}): {kind}")]
#[non_exhaustive]
pub struct JsonError {
    /// The kind of mistake.
    pub kind: JsonErrorKind,
    /// The byte of the body, counted from zero.
    pub offset: usize,
    /// The line, counted from one.
    pub line: usize,
    /// The character of the line, counted from one.
    pub column: usize,
}

impl JsonError {
    /// Returns the error without names of members, for logs.
    #[must_use]
    pub fn for_log(&self) -> String {
        match &self.kind {
            JsonErrorKind::DuplicateMember { .. } => {
                format!("invalid JSON at byte {}: an object repeats a member", self.offset)
            }
            _ => self.to_string(),
        }
    }
}

/// The kind of mistake in a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonErrorKind {
    /// The body has something else where this was expected.
    #[error("expected {0}")]
    Expected(&'static str),
    /// The body ends where this was expected.
    #[error("expected {0}, but the body ends")]
    EndsEarly(&'static str),
    /// The body is not UTF-8. RFC 8259 requires it for JSON that systems exchange.
    #[error("the bytes are not UTF-8")]
    NotUtf8,
    /// The body starts with a byte order mark.
    #[error("the body starts with a byte order mark; remove it")]
    ByteOrderMark,
    /// A string holds a control character that is not escaped.
    #[error("a control character in a string must be escaped")]
    ControlCharacter,
    /// A `\u` escape names one half of a surrogate pair, which is not a character.
    #[error("a \\u escape is one half of a surrogate pair; write both halves, the high one first")]
    LoneSurrogate,
    /// Arrays and objects are nested deeper than this number of levels.
    #[error("arrays and objects are nested more than {0} levels deep")]
    TooDeep(usize),
    /// An object has two members with the same name. The upstream could use either of them.
    #[error("two members of the object at {object:?} have the same name; send each member once")]
    DuplicateMember {
        /// The JSON pointer of the object (`""` is the whole body), cut after 256 bytes.
        object: String,
    },
    /// The body has more bytes than this number.
    #[error("the body has more than {0} bytes")]
    TooLong(usize),
    /// A number needs an exponent of more than 64 bits.
    #[error("the exponent of a number does not fit in 64 bits")]
    ExponentOverflow,
}

#[cfg(test)]
mod tests {
    use super::number::tests::{Dice, quote, spell, take_count, take_number, take_text};
    use super::*;
    use bytes::Bytes;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The meaning of a body, in a model that uses none of the code under test.
    #[derive(Clone, Debug, PartialEq)]
    enum Model {
        /// `null`, `true`, `false`
        Word(&'static str),
        /// A coefficient that does not end in 0, and an exponent.
        Number(i128, i64),
        Text(String),
        List(Vec<Model>),
        Map(BTreeMap<String, Model>),
    }

    fn model() -> impl Strategy<Value = Model> {
        let words = prop_oneof![Just("null"), Just("true"), Just("false")];
        // Only a few different names and texts, so that equal ones are frequent.
        let few = "[ab01\"\\\\/~é😀\u{0}\u{8}\u{c}\n\r\t]{0,3}";
        let text = move || prop_oneof![3 => few, 1 => any::<String>(), 1 => "a{120,300}"];
        let coefficient = prop_oneof![3 => -3..3_i128, 1 => any::<i128>()];
        let leaf = prop_oneof![
            words.prop_map(Model::Word),
            (coefficient, -3..3_i64)
                .prop_map(|it| if it.0 % 10 == 0 { (0, 0) } else { it })
                .prop_map(|(n, exponent)| Model::Number(n, exponent)),
            text().prop_map(Model::Text),
        ];
        leaf.prop_recursive(4, 32, 5, move |inner| {
            prop_oneof![
                vec(inner.clone(), 0..5).prop_map(Model::List),
                btree_map(text(), inner, 0..5).prop_map(Model::Map),
            ]
        })
    }

    fn space(dice: &mut Dice) -> &'static str {
        dice.pick(&["", "", " ", "\n", "\r\n\t", "  "])
    }

    /// Writes a value in one of many ways: order of members, white space, escapes, numbers.
    fn print(model: &Model, dice: &mut Dice) -> String {
        let mut parts: Vec<String> = Vec::new();
        match model {
            Model::Word(word) => return (*word).into(),
            Model::Number(coefficient, exponent) => return spell(*coefficient, *exponent, dice),
            Model::Text(text) => return quote(text, dice),
            Model::List(items) => parts.extend(items.iter().map(|item| print(item, dice))),
            Model::Map(members) => {
                for (name, value) in members {
                    let name = [&quote(name, dice), space(dice), ":", space(dice)].concat();
                    parts.insert(dice.roll(parts.len() + 1), name + &print(value, dice));
                }
            }
        }
        let padded = parts.iter().map(|part| [space(dice), part, space(dice)].concat());
        let inner = [&Vec::from_iter(padded).join(","), space(dice)].concat();
        match model {
            Model::Map(_) => format!("{{{inner}}}"),
            _ => format!("[{inner}]"),
        }
    }

    /// Returns the value with one small change somewhere.
    fn twist(model: &Model, dice: &mut Dice) -> Model {
        match (model.clone(), dice.roll(6)) {
            (Model::List(mut items), 2..) if !items.is_empty() => {
                let at = dice.roll(items.len());
                items[at] = twist(&items[at], dice);
                Model::List(items)
            }
            (Model::Map(mut members), 2..) if !members.is_empty() => {
                let at = dice.roll(members.len());
                let value = members.values_mut().nth(at).unwrap();
                *value = twist(value, dice);
                Model::Map(members)
            }
            (Model::List(items), 0) => Model::List(items.into_iter().skip(1).collect()),
            (Model::List(items), 1) => Model::List(items.into_iter().rev().collect()),
            (Model::Map(members), 0) => Model::Map(members.into_iter().skip(1).collect()),
            (Model::Number(n, exponent), 0) => Model::Number(n.saturating_neg(), exponent),
            (Model::Number(n, 0), _) => Model::Text(n.to_string()),
            (Model::Text(text), 0) => Model::Text(text.chars().skip(1).collect()),
            (Model::Text(text), 1) => Model::Text(format!("{text}\0")),
            (Model::Word(word), 0) => Model::Text(word.into()),
            (_, 3) => Model::Word(dice.pick(&["null", "true", "false"])),
            _ => Model::List(vec![model.clone()]),
        }
    }

    /// Reads canonical bytes back. Bytes that can be decoded cannot mean two values.
    fn decode(from: &mut &[u8]) -> Model {
        match from.split_off_first().unwrap() {
            b'n' => Model::Word("null"),
            b't' => Model::Word("true"),
            b'f' => Model::Word("false"),
            b's' => Model::Text(take_text(from)),
            b'a' => Model::List((0..take_count(from)).map(|_| decode(from)).collect()),
            b'o' => {
                let members = (0..take_count(from)).map(|_| (take_text(from), decode(from)));
                Model::Map(members.collect())
            }
            sign => {
                let (coefficient, exponent) = take_number(*sign, from);
                Model::Number(coefficient, exponent)
            }
        }
    }

    fn whole(text: &str) -> Vec<u8> {
        canonical(text.to_owned().into(), &Selection::Whole, Limits::default()).unwrap()
    }

    #[test]
    fn the_bytes_stay_what_they_are() {
        // Recorded fingerprints are made of these bytes. A change of them needs a new version.
        let body = r#"{"b":[null,true,false,-120,0.5,{}],"a":"é"}"#;
        let bytes = b"o\x02\x01as\x02\xc3\xa9\x01ba\x06ntf-\x02\x0212+\x01\x015o\x00";
        assert_eq!(whole(body), [b"onetake json v1w", &bytes[..]].concat());
    }

    #[test]
    fn errors_never_hold_a_piece_of_the_body() {
        const INSERTS: &str = "\"|\\|x|[|}|,|\n|\0|\"s3n\":0,|e99999999999999999999";
        let body = r#"{"s3n":"s3cr\u00e9t\n","s3m":[7777777.77e77,{"s3o":-7777},true],"s3p":{}}"#;
        for at in 0..body.len() {
            for insert in INSERTS.split('|') {
                let longer = [&body[..at], insert, &body[at..]].concat();
                for body in [&longer, &longer[..at + insert.len()]] {
                    if let Err(err) = parse(body.to_owned().into(), Limits::default()) {
                        let shown = format!("{err} {err:?}");
                        assert!(!shown.contains("s3") && !shown.contains("777"), "{shown}");
                    }
                }
            }
        }
        let document = parse(Bytes::from_static(body.as_bytes()), Limits::default()).unwrap();
        assert_eq!(format!("{document:?} {:?}", document.root()), "Document(..) Value(..)");
    }

    #[test]
    fn a_megabyte_of_anything_is_no_trouble() {
        let list = |part: &str| format!("[{}0]", part.repeat((1 << 20) / part.len()));
        let mut members = Vec::from_iter((0..80_000).map(|it| format!("\"{it:09}\":0")));
        let up = format!("{{{}}}", members.join(","));
        members.reverse();
        assert_eq!(whole(&up), whole(&format!("{{{}}}", members.join(","))));
        let parts = r#"0, [], [0], {}, {"":0}, "", "\ud83d\ude00", 1e9, true,"#;
        for part in parts.split(' ') {
            let body = list(part);
            assert!(whole(&body).len() <= 3 * body.len(), "{part}");
        }
        for part in [r"\u0061", r"\n", "é", "a"] {
            let text = list(part).replace(['[', ']'], "\"");
            whole(&format!("{{{text}:{text}}}"));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn bytes_are_equal_exactly_if_the_values_are(one in model(), far in model(), seed: u64) {
            let dice = &mut Dice(seed);
            let text = print(&one, dice);
            let again = print(&one, dice);
            prop_assert_eq!(whole(&text), whole(&again), "{} {}", text, again);
            let bytes = whole(&text);
            let mut bytes = bytes.strip_prefix(b"onetake json v1w").unwrap();
            prop_assert_eq!((decode(&mut bytes), bytes.len()), (one.clone(), 0), "{}", text);
            for other in [twist(&one, dice), far] {
                let other_text = print(&other, dice);
                let same = whole(&text) == whole(&other_text);
                prop_assert_eq!(same, one == other, "{} {}", text, other_text);
            }
        }

        #[test]
        fn serde_json_accepts_the_same_bodies(
            one in model(),
            soup in r#"([\[\]{}:,"'/\\ \n\x00u0-9aef.E+\-]|true|null|"a"|\\u[dD][89cC]00){0,20}"#,
            noise in vec(any::<u8>(), 0..40),
            seed: u64,
        ) {
            // A valid body, with up to two changes: a byte replaced, inserted or removed.
            let dice = &mut Dice(seed);
            let mut broken = print(&one, dice).into_bytes();
            for _ in 0..dice.roll(3) {
                let at = dice.roll(broken.len());
                let until = (at + dice.roll(2)).min(broken.len());
                let byte = b"\"\\{}[],:0-.eE+u/ \n\x00\x7f\x80\xff"[dice.roll(22)];
                broken.splice(at..until, [byte].into_iter().take(dice.roll(2)));
            }
            let quoted = format!("\"{soup}\"").into_bytes();
            for body in [broken, soup.into_bytes(), quoted, noise] {
                let shown = String::from_utf8_lossy(&body).into_owned();
                let theirs = serde_json::from_slice::<serde_json::Value>(&body);
                match (parse(body.into(), Limits::default()).map_err(|err| err.kind), theirs) {
                    (Ok(_), Ok(_)) | (Err(_), Err(_)) => {}
                    (Ok(_), Err(why)) if why.to_string().contains("number out of range") => {}
                    (Err(JsonErrorKind::DuplicateMember { .. }), Ok(_)) => {}
                    (ours, theirs) => prop_assert!(false, "{shown}: {ours:?} {theirs:?}"),
                }
            }
        }
    }
}
