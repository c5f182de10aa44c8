//! A strict parser of JSON (RFC 8259), with an explicit stack instead of recursion.

use bytes::Bytes;

use super::document::{Document, Node, Span};
use super::number;
use super::pointer::push_token;
use super::{JsonError, JsonErrorKind, Limits};

/// The most bytes of a body. Positions in it are numbers of 32 bits.
const BODY_BYTES_MAX: usize = u32::MAX as usize;
/// The number of nodes for which room is made at first.
const NODES_MIN: usize = 16;

/// Parses a body that holds one JSON value and otherwise only white space.
///
/// # Errors
/// If the body is not JSON by RFC 8259, or if two parsers could read it differently: see [the
/// module](super).
pub fn parse(body: Bytes, limits: Limits) -> Result<Document, JsonError> {
    let cursor = Position { body: &body, rest: &body };
    if body.len() > BODY_BYTES_MAX {
        return Err(cursor.error(JsonErrorKind::TooLong(BODY_BYTES_MAX), BODY_BYTES_MAX));
    }
    if body.starts_with("\u{feff}".as_bytes()) {
        return Err(cursor.error(JsonErrorKind::ByteOrderMark, 0));
    }
    if let Err(err) = std::str::from_utf8(&body) {
        return Err(cursor.error(JsonErrorKind::NotUtf8, err.valid_up_to()));
    }
    let document = Document {
        body: body.clone(),
        nodes: Vec::new(),
        unescaped: Vec::new(),
        members: Vec::new(),
    };
    Parser { cursor, document, open: Vec::new(), names: Vec::new(), limits }.read()
}

struct Parser<'a> {
    cursor: Position<'a>,
    document: Document,
    /// The arrays and objects around the cursor, outermost first.
    open: Vec<OpenContainer>,
    /// The member names of all open objects so far.
    names: Vec<Name>,
    limits: Limits,
}

enum OpenContainer {
    Array {
        node: u32,
        /// The number of items before the one that is being read.
        count: u32,
    },
    Object {
        node: u32,
        /// The position of its first name in [`Parser::names`].
        first_name: usize,
        /// The node of the name of the member that is being read.
        name: u32,
    },
}

/// A member name: its node, and its position in the body.
struct Name {
    node: u32,
    offset: u32,
}

impl Parser<'_> {
    fn read(mut self) -> Result<Document, JsonError> {
        loop {
            if self.begin_value()? && self.finish_value()? {
                return Ok(self.document);
            }
        }
    }

    /// Reads a whole value and returns true. Of an array or object that is not empty, it reads only
    /// the start, and returns false.
    fn begin_value(&mut self) -> Result<bool, JsonError> {
        self.cursor.skip_space();
        let node = match self.cursor.peek() {
            Some(b'[') => {
                self.enter()?;
                let node = self.push(Node::Array { end: 0, count: 0 });
                if !self.cursor.take(b']') {
                    self.open.push(OpenContainer::Array { node, count: 0 });
                    return Ok(false);
                }
                self.end_array(node, 0);
                return Ok(true);
            }
            Some(b'{') => {
                self.enter()?;
                let node = self.push(Node::Object { end: 0, members: 0 });
                let first_name = self.names.len();
                if !self.cursor.take(b'}') {
                    let name = self.next_name()?;
                    self.open.push(OpenContainer::Object { node, first_name, name });
                    return Ok(false);
                }
                self.end_object(node, first_name)?;
                return Ok(true);
            }
            Some(b'"') => self.cursor.string("a value", &mut self.document.unescaped)?,
            Some(b'-' | b'0'..=b'9') => {
                let start = self.cursor.position();
                number::check(&mut self.cursor)?;
                Node::Number(Span { start, end: self.cursor.position() })
            }
            _ if self.cursor.take_word(b"null") => Node::Null,
            _ if self.cursor.take_word(b"true") => Node::Bool(true),
            _ if self.cursor.take_word(b"false") => Node::Bool(false),
            _ => return Err(self.cursor.expected("a value")),
        };
        self.push(node);
        Ok(true)
    }

    /// Appends a node, and returns its index.
    fn push(&mut self, node: Node) -> u32 {
        let nodes = &mut self.document.nodes;
        if nodes.len() == nodes.capacity() {
            // A node takes at least two bytes of the body (`0,`), except for brackets that are
            // open. Make no room for more nodes than the rest of the body can have.
            let room = self.cursor.rest.len() / 2 + NODES_MIN;
            nodes.reserve_exact(nodes.len().clamp(NODES_MIN, room));
        }
        let index = nodes.len() as u32;
        nodes.push(node);
        index
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

    /// Ends the value before the cursor, and all arrays and objects that end after it. Returns true
    /// at the end of the body, and false if another value must follow.
    fn finish_value(&mut self) -> Result<bool, JsonError> {
        loop {
            self.cursor.skip_space();
            match self.open.pop() {
                None if self.cursor.peek().is_none() => return Ok(true),
                None => return Err(self.cursor.expected("the end of the body")),
                Some(OpenContainer::Array { node, count }) => {
                    let count = count + 1;
                    if self.cursor.take(b',') {
                        self.open.push(OpenContainer::Array { node, count });
                        return Ok(false);
                    }
                    if !self.cursor.take(b']') {
                        return Err(self.cursor.expected("a comma or a closing bracket"));
                    }
                    self.end_array(node, count);
                }
                Some(OpenContainer::Object { node, first_name, .. }) => {
                    if self.cursor.take(b',') {
                        let name = self.next_name()?;
                        self.open.push(OpenContainer::Object { node, first_name, name });
                        return Ok(false);
                    }
                    if !self.cursor.take(b'}') {
                        return Err(self.cursor.expected("a comma or a closing brace"));
                    }
                    self.end_object(node, first_name)?;
                }
            }
        }
    }

    /// Reads a member's name and the colon after it.
    fn next_name(&mut self) -> Result<u32, JsonError> {
        self.cursor.skip_space();
        let offset = self.cursor.position();
        let name = self.cursor.string("a member name in quotes", &mut self.document.unescaped)?;
        self.cursor.skip_space();
        if !self.cursor.take(b':') {
            return Err(self.cursor.expected("a colon"));
        }
        let node = self.push(name);
        self.names.push(Name { node, offset });
        Ok(node)
    }

    fn end_array(&mut self, node: u32, count: u32) {
        let end = self.document.nodes.len() as u32;
        if let Some(node) = self.document.nodes.get_mut(node as usize) {
            *node = Node::Array { end, count };
        }
    }

    /// Sorts the names of an object, and refuses it if two of them are the same.
    fn end_object(&mut self, node: u32, first_name: usize) -> Result<(), JsonError> {
        let document = &mut self.document;
        let names = self.names.get_mut(first_name..).unwrap_or_default();
        // Names are compared after unescaping, so `"a"` and `"\u0061"` are the same.
        names.sort_unstable_by(|one, other| {
            let characters = |name: &Name| document.characters(name.node);
            characters(one).cmp(characters(other)).then(one.node.cmp(&other.node))
        });
        let repeated = names.array_windows().filter_map(|[one, other]| {
            let is_same = document.characters(one.node) == document.characters(other.node);
            is_same.then_some(other.offset)
        });
        if let Some(offset) = repeated.min() {
            let kind = JsonErrorKind::DuplicateMember { object: self.pointer() };
            return Err(self.cursor.error(kind, offset as usize));
        }
        let members = document.members.len() as u32;
        document.members.push(names.len() as u32);
        document.members.extend(names.iter().map(|name| name.node));
        self.names.truncate(first_name);
        let end = document.nodes.len() as u32;
        if let Some(node) = document.nodes.get_mut(node as usize) {
            *node = Node::Object { end, members };
        }
        Ok(())
    }

    /// Returns the JSON pointer of the array or object that is being read, cut after 256 bytes.
    fn pointer(&self) -> String {
        const BYTES_MAX: usize = 256;
        let mut pointer = String::new();
        for open in &self.open {
            match open {
                OpenContainer::Array { count, .. } => push_token(&mut pointer, &count.to_string()),
                OpenContainer::Object { name, .. } => {
                    let name = String::from_utf8_lossy(self.document.characters(*name));
                    push_token(&mut pointer, &name);
                }
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

impl<'a> Position<'a> {
    pub(super) fn offset(&self) -> usize {
        self.body.len() - self.rest.len()
    }

    /// The offset as it is kept in nodes.
    fn position(&self) -> u32 {
        self.offset() as u32
    }

    /// Returns the bytes from an offset to the cursor.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        self.body.get(start..self.offset()).unwrap_or_default()
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

    /// Reads a string from quote to quote. `what` names it in the error if there is none. The
    /// characters of a string with escapes are appended to `unescaped`.
    fn string(&mut self, what: &'static str, unescaped: &mut Vec<u8>) -> Result<Node, JsonError> {
        if !self.take(b'"') {
            return Err(self.expected(what));
        }
        let first = self.plain()?;
        if self.peek() == Some(b'"') {
            let end = self.position();
            self.skip(1);
            return Ok(Node::Text(Span { start: end - first.len() as u32, end }));
        }
        let start = unescaped.len() as u32;
        unescaped.extend_from_slice(first);
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    let char = self.escape()?;
                    unescaped.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => return Err(self.error(JsonErrorKind::ControlCharacter, self.offset())),
            }
            unescaped.extend_from_slice(self.plain()?);
        }
        self.skip(1);
        Ok(Node::Unescaped(Span { start, end: unescaped.len() as u32 }))
    }

    /// Reads characters of a string up to the next quote, backslash or control character.
    fn plain(&mut self) -> Result<&'a [u8], JsonError> {
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..b' ');
        // Whole blocks first. The loop over one block has no branches, so it is fast.
        let has_special =
            |block: &[u8; 16]| block.iter().fold(false, |has, byte| has | is_special(byte));
        let (blocks, _) = self.rest.as_chunks();
        let skipped = 16 * blocks.iter().take_while(|block| !has_special(block)).count();
        let tail = self.rest.get(skipped..).unwrap_or_default();
        let Some((plain, rest)) = tail
            .iter()
            .position(is_special)
            .and_then(|end| self.rest.split_at_checked(skipped + end))
        else {
            self.rest = &[];
            return Err(self.expected("the closing quote of a string"));
        };
        self.rest = rest;
        Ok(plain)
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
        parse(Bytes::copy_from_slice(body.as_ref()), Limits::default()).unwrap_err()
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
        assert!(parse(Bytes::from_static(fine), Limits::default()).is_ok());
        // The first repetition is named, and not the first one in the order of names.
        let twice = r#"{"b":1,"c":{"b":1},"b":1,"a":1,"a":1,"b":1}"#;
        assert_eq!(refused(twice).offset, 19);
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
            assert!(parse(nest(128, brackets).into(), Limits::default()).is_ok());
            let err = refused(nest(129, brackets));
            assert_eq!(err.kind, JsonErrorKind::TooDeep(128));
            assert_eq!(err.offset, 128 * brackets.0.len());
            assert!(parse(nest(1024, brackets).into(), deep).is_ok());
            assert!(parse(nest(1 << 20, brackets).into(), deep).is_err());
        }
        assert!(parse(Bytes::from_static(b"[]"), Limits::with_depth_max(0)).is_err());
    }
}
