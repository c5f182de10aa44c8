//! A strict parser of JSON (RFC 8259), with an explicit stack instead of recursion.

use std::collections::BTreeMap;

use super::number;
use super::pointer::push_token;
use super::{JsonError, JsonErrorKind, Limits, Members, Value};

/// Parses a body that holds one JSON value and otherwise only white space.
///
/// # Errors
/// If the body is not JSON by RFC 8259, or if two parsers could read it differently: see [the
/// module](super).
pub fn parse(body: &[u8], limits: Limits) -> Result<Value, JsonError> {
    let cursor = Position { body, rest: body };
    if body.starts_with("\u{feff}".as_bytes()) {
        return Err(cursor.error(JsonErrorKind::ByteOrderMark, 0));
    }
    if let Err(err) = std::str::from_utf8(body) {
        return Err(cursor.error(JsonErrorKind::NotUtf8, err.valid_up_to()));
    }
    let (open, scratch) = (Vec::new(), Vec::new());
    let parser = Parser { cursor, open, limits, scratch };
    parser.document()
}

struct Parser<'a> {
    cursor: Position<'a>,
    /// The arrays and objects around the cursor, outermost first.
    open: Vec<OpenContainer>,
    limits: Limits,
    /// A reused buffer for the digits of a number.
    scratch: Vec<u8>,
}

enum OpenContainer {
    Array(Vec<Value>),
    /// The members so far, and the name of the member that is being read.
    Object(BTreeMap<String, Value>, String),
}

impl Parser<'_> {
    fn document(mut self) -> Result<Value, JsonError> {
        loop {
            if let Some(value) = self.begin_value()?
                && let Some(root) = self.finish_value(value)?
            {
                return Ok(root);
            }
        }
    }

    /// Reads a whole value and returns it. Of an array or object that is not empty, it reads only
    /// the start, and returns `None`.
    fn begin_value(&mut self) -> Result<Option<Value>, JsonError> {
        self.cursor.skip_space();
        let value = match self.cursor.peek() {
            Some(b'[') => {
                self.enter()?;
                if !self.cursor.take(b']') {
                    self.open.push(OpenContainer::Array(Vec::new()));
                    return Ok(None);
                }
                Value::Array(Vec::new())
            }
            Some(b'{') => {
                self.enter()?;
                if !self.cursor.take(b'}') {
                    self.next_member(BTreeMap::new())?;
                    return Ok(None);
                }
                Value::Object(Members::default())
            }
            Some(b'"') => Value::String(self.cursor.string("a value")?),
            Some(b'-' | b'0'..=b'9') => {
                Value::Number(number::read(&mut self.cursor, &mut self.scratch)?)
            }
            _ if self.cursor.take_word(b"null") => Value::Null,
            _ if self.cursor.take_word(b"true") => Value::Bool(true),
            _ if self.cursor.take_word(b"false") => Value::Bool(false),
            _ => return Err(self.cursor.expected("a value")),
        };
        Ok(Some(value))
    }

    /// Moves the cursor into an array or object, to the first byte that is not white space.
    fn enter(&mut self) -> Result<(), JsonError> {
        let depth_max = self.limits.depth_max;
        if self.open.len() >= depth_max {
            let kind = JsonErrorKind::TooDeep(depth_max);
            return Err(self.cursor.error(kind, self.cursor.offset()));
        }
        self.cursor.skip(1);
        self.cursor.skip_space();
        Ok(())
    }

    /// Adds a value to the array or object around it, and closes all that end after it. Returns the
    /// root value at the end of the body, or `None` if another value must follow.
    fn finish_value(&mut self, mut value: Value) -> Result<Option<Value>, JsonError> {
        loop {
            self.cursor.skip_space();
            value = match self.open.pop() {
                None if self.cursor.peek().is_none() => return Ok(Some(value)),
                None => return Err(self.cursor.expected("the end of the body")),
                Some(OpenContainer::Array(mut items)) => {
                    // A body may consist of arrays of short values. Reserve no room for more items
                    // than the rest of the body can hold.
                    if items.len() == items.capacity() {
                        let room = self.cursor.rest.len() / 2 + 1;
                        items.reserve_exact(items.len().clamp(1, room));
                    }
                    items.push(value);
                    if self.cursor.take(b',') {
                        self.open.push(OpenContainer::Array(items));
                        return Ok(None);
                    }
                    if !self.cursor.take(b']') {
                        return Err(self.cursor.expected("a comma or a closing bracket"));
                    }
                    items.shrink_to_fit();
                    Value::Array(items)
                }
                Some(OpenContainer::Object(mut members, name)) => {
                    members.insert(name, value);
                    if self.cursor.take(b',') {
                        self.next_member(members)?;
                        return Ok(None);
                    }
                    if !self.cursor.take(b'}') {
                        return Err(self.cursor.expected("a comma or a closing brace"));
                    }
                    Value::Object(members.into())
                }
            };
        }
    }

    /// Reads a member's name and the colon after it. `members` are the members before it.
    fn next_member(&mut self, members: BTreeMap<String, Value>) -> Result<(), JsonError> {
        self.cursor.skip_space();
        let start = self.cursor.offset();
        let name = self.cursor.string("a member name in quotes")?;
        // Names are compared after unescaping, so `"a"` and `"\u0061"` are duplicates.
        if members.contains_key(&name) {
            let object = self.pointer();
            let kind = JsonErrorKind::DuplicateMember { object };
            return Err(self.cursor.error(kind, start));
        }
        self.cursor.skip_space();
        if !self.cursor.take(b':') {
            return Err(self.cursor.expected("a colon"));
        }
        self.open.push(OpenContainer::Object(members, name));
        Ok(())
    }

    /// Returns the JSON pointer of the array or object that is being read, cut after 256 bytes.
    fn pointer(&self) -> String {
        const BYTES_MAX: usize = 256;
        let mut pointer = String::new();
        for open in &self.open {
            match open {
                OpenContainer::Array(items) => push_token(&mut pointer, &items.len().to_string()),
                OpenContainer::Object(_, name) => push_token(&mut pointer, name),
            }
        }
        if pointer.len() > BYTES_MAX {
            pointer.truncate(pointer.floor_char_boundary(BYTES_MAX));
            pointer.push('…');
        }
        pointer
    }
}

/// A position in a body that is known to be UTF-8.
pub(super) struct Position<'a> {
    body: &'a [u8],
    rest: &'a [u8],
}

impl Position<'_> {
    pub(super) fn offset(&self) -> usize {
        self.body.len() - self.rest.len()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    /// Skips this byte if it is next. Returns true if it was.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        self.take_word(&[byte])
    }

    fn take_word(&mut self, word: &[u8]) -> bool {
        let tail = self.rest.strip_prefix(word);
        self.rest = tail.unwrap_or(self.rest);
        tail.is_some()
    }

    fn skip_space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', tail @ ..] = self.rest {
            self.rest = tail;
        }
    }

    /// Reads a string from quote to quote. `what` names it in the error if there is none.
    fn string(&mut self, what: &'static str) -> Result<String, JsonError> {
        if !self.take(b'"') {
            return Err(self.expected(what));
        }
        let mut text = Vec::new();
        loop {
            let plain = self.rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '));
            let Some((plain, rest)) = plain.and_then(|end| self.rest.split_at_checked(end)) else {
                self.rest = &[];
                return Err(self.expected("the closing quote of a string"));
            };
            text.extend_from_slice(plain);
            self.rest = rest;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    let char = self.escape()?;
                    text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => return Err(self.error(JsonErrorKind::ControlCharacter, self.offset())),
            }
        }
        self.skip(1);
        String::from_utf8(text).map_err(|_| self.error(JsonErrorKind::NotUtf8, self.offset()))
    }

    /// Reads an escape. The backslash is the next byte.
    fn escape(&mut self) -> Result<char, JsonError> {
        let start = self.offset();
        self.skip(1);
        let char = match self.peek() {
            Some(b'u') => return self.unicode_escape(start),
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => return Err(self.expected("one of \" \\ / b f n r t u after a backslash")),
        };
        self.skip(1);
        Ok(char)
    }

    /// Reads `uXXXX`. If that is the first half of a surrogate pair, it also reads the `\uXXXX` of
    /// the second half.
    fn unicode_escape(&mut self, start: usize) -> Result<char, JsonError> {
        self.skip(1);
        let first = self.hex4()?;
        let code = match first {
            0xd800..=0xdbff if self.take_word(b"\\u") => match self.hex4()? {
                second @ 0xdc00..=0xdfff => 0x10000 + ((first & 0x3ff) << 10) + (second & 0x3ff),
                _ => first,
            },
            _ => first,
        };
        // Only the halves of surrogate pairs are not a `char`.
        char::from_u32(code).ok_or_else(|| self.error(JsonErrorKind::LoneSurrogate, start))
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.expected("a hexadecimal digit"))?;
            self.skip(1);
        }
        Ok(code)
    }

    /// Returns the error that `what` was expected at the cursor.
    pub(super) fn expected(&self, what: &'static str) -> JsonError {
        let at_end = self.rest.is_empty();
        let kind = if at_end { JsonErrorKind::EndsEarly } else { JsonErrorKind::Expected };
        self.error(kind(what), self.offset())
    }

    /// Returns an error at this offset. Lines are counted only here, so that valid bodies do not
    /// pay for it.
    pub(super) fn error(&self, kind: JsonErrorKind, offset: usize) -> JsonError {
        let mut line = 1;
        let mut column = 1;
        for byte in self.body.iter().take(offset) {
            match byte {
                b'\n' => (line, column) = (line + 1, 1),
                // A continuation byte of a UTF-8 character.
                0x80..=0xbf => {}
                _ => column += 1,
            }
        }
        JsonError { kind, offset, line, column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: impl AsRef<[u8]>) -> JsonError {
        parse(body.as_ref(), Limits::default()).unwrap_err()
    }

    #[test]
    fn duplicate_members_are_refused_without_naming_them() {
        for (name, again) in [("s3", "s3"), ("s3", r"\u00733"), (r"s\u0033", "s3")] {
            let err = refused(format!(r#"{{"x":[0,{{"a/b":{{"{name}":1,"{again}":2}}}}]}}"#));
            let object = "/x/1/a~1b".to_owned();
            assert_eq!(err.kind, JsonErrorKind::DuplicateMember { object });
            assert_eq!(err.offset, 21 + name.len());
            assert!(!format!("{err} {err:?}").contains("s3"));
        }
        let long = refused(format!(r#"{{"{}":{{"":1,"":1}}}}"#, "é".repeat(5000)));
        assert!(long.to_string().len() < 500);
        let fine = br#"{"a":{"b":1},"b":{"b":1},"A":1,"":1,"a ":1}"#;
        assert!(parse(fine, Limits::default()).is_ok());
    }

    #[test]
    fn errors_name_the_place_and_what_was_expected() {
        let place = "invalid JSON at byte 9 (line 2, column 7): expected a value";
        assert_eq!(refused("{\n \"é\": s3cret}").to_string(), place);
        let early = r#"| |"|{|[|[1|[1,|{"a"|{"a":|{"a":1|{"a":1,|"\|"\u00|-|1.|1e"#;
        for body in early.split('|') {
            let err = refused(body);
            assert!(matches!(err.kind, JsonErrorKind::EndsEarly(_)), "{body}");
        }
        let wrong = "[1,]|{\"a\":1,}|{,}|{a:1}|{'a':1}|1 2|[1 2]|{\"a\" 1}|//\n1|1/**/|\u{a0}1|[1}|\
                     ]|nul|True|\"\\x\"|\"\\u12g4\"|\"\\u+123\"|'a'|\u{c}1|{1:1}|\"\"\"|{]|truex";
        for body in wrong.split('|') {
            let err = refused(body);
            assert!(matches!(err.kind, JsonErrorKind::Expected(_)), "{body}");
        }
    }

    #[test]
    fn what_is_not_text_is_refused() {
        assert_eq!(refused("\u{feff}1").kind, JsonErrorKind::ByteOrderMark);
        for bytes in ["ff", "c0 af", "ed a0 80", "e2 82", "f5 80 80 80", "80"] {
            let bytes = bytes.split(' ').map(|it| u8::from_str_radix(it, 16).unwrap());
            let body = Vec::from_iter([b'"'].into_iter().chain(bytes).chain([b'"']));
            assert_eq!(refused(body).kind, JsonErrorKind::NotUtf8);
        }
        for body in ["\"\n\"", "\"\0\"", "\"\u{1f}\"", "{\"\t\":1}"] {
            assert_eq!(refused(body).kind, JsonErrorKind::ControlCharacter);
        }
        let halves = r#""\ud800" "\udc00" "\ud800\ud800" "\udc00\ud800" "\udbffx" "\ud800\n""#;
        for body in halves.split(' ') {
            assert_eq!(refused(body).kind, JsonErrorKind::LoneSurrogate, "{body}");
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let nest = |depth: usize, (open, close): (&str, &str)| {
            format!("{}0{}", open.repeat(depth), close.repeat(depth))
        };
        let deep = Limits::with_depth_max(usize::MAX);
        for brackets in [("[", "]"), ("{\"a\":", "}")] {
            assert!(parse(nest(128, brackets).as_bytes(), Limits::default()).is_ok());
            let err = refused(nest(129, brackets));
            assert_eq!(err.kind, JsonErrorKind::TooDeep(128));
            assert_eq!(err.offset, 128 * brackets.0.len());
            assert!(parse(nest(1024, brackets).as_bytes(), deep).is_ok());
            assert!(parse(nest(1 << 20, brackets).as_bytes(), deep).is_err());
        }
        assert!(parse(b"[]", Limits::with_depth_max(0)).is_err());
    }
}
