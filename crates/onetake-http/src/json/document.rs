//! A JSON body as a flat list of its values. Strings and numbers stay in the body.

use std::fmt;

use bytes::Bytes;

use super::encode::encode;
use super::{Number, Pointer};

/// A JSON body that was checked, without loss.
///
/// It holds the body, and a node of twelve bytes for each value and each member name, in the
/// order of the body. A tree of values would take up to 32 times the size of the body, and most of
/// the time would go into its allocations. The `Debug` form hides the content, because bodies must
/// not be logged.
#[derive(Clone)]
pub struct Document {
    pub(super) body: Bytes,
    pub(super) nodes: Vec<Node>,
    /// The characters of all strings that have escapes in the body.
    pub(super) unescaped: Vec<u8>,
    /// For each object the nodes of its member names, sorted by the bytes of the names.
    pub(super) members: Vec<u32>,
}

/// A value or a member name. The value of a member is the node after its name.
#[derive(Clone, Copy)]
pub(super) enum Node {
    Null,
    Bool(bool),
    /// The digits and signs in the body.
    Number(Span),
    /// The characters of a string in the body.
    Text(Span),
    /// The characters of a string in [`Document::unescaped`].
    Unescaped(Span),
    Array {
        /// The node after the last item.
        end: u32,
        count: u32,
    },
    Object {
        /// The node after the last member.
        end: u32,
        /// The position in [`Document::members`]: the number of members, and then their names.
        members: u32,
    },
}

#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

impl Document {
    /// The value that is the whole body.
    #[must_use]
    pub fn root(&self) -> Value<'_> {
        Value { document: self, index: 0 }
    }

    pub(super) fn node(&self, index: u32) -> Node {
        self.nodes.get(index as usize).copied().unwrap_or(Node::Null)
    }

    /// Returns the node after a value and everything inside it.
    pub(super) fn after(&self, index: u32) -> u32 {
        match self.node(index) {
            Node::Array { end, .. } | Node::Object { end, .. } => end,
            _ => index.saturating_add(1),
        }
    }

    /// Returns the characters of a string or of a member name.
    pub(super) fn characters(&self, index: u32) -> &[u8] {
        match self.node(index) {
            Node::Text(span) => span.of(&self.body),
            Node::Unescaped(span) => span.of(&self.unescaped),
            _ => &[],
        }
    }

    pub(super) fn number(&self, span: Span) -> Number<'_> {
        Number::of(span.of(&self.body)).unwrap_or(Number::ZERO)
    }

    /// Returns the names of an object, sorted. `at` is their position in the table.
    pub(super) fn names(&self, at: u32) -> &[u32] {
        let table = self.members.get(at as usize..).unwrap_or_default();
        let (count, names) = table.split_first().unwrap_or((&0, &[]));
        names.get(..*count as usize).unwrap_or_default()
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Document(..)")
    }
}

/// A value of a [`Document`].
#[derive(Clone, Copy)]
pub struct Value<'a> {
    pub(super) document: &'a Document,
    pub(super) index: u32,
}

impl<'a> Value<'a> {
    /// Returns true if the value is `null`.
    #[must_use]
    pub fn is_null(self) -> bool {
        matches!(self.node(), Node::Null)
    }

    /// Returns true if the value is an array.
    #[must_use]
    pub fn is_array(self) -> bool {
        matches!(self.node(), Node::Array { .. })
    }

    /// Returns true if the value is an object.
    #[must_use]
    pub fn is_object(self) -> bool {
        matches!(self.node(), Node::Object { .. })
    }

    /// Returns the characters of a string, or `None` for other values.
    #[must_use]
    pub fn text(self) -> Option<&'a str> {
        match self.node() {
            Node::Text(_) | Node::Unescaped(_) => {
                std::str::from_utf8(self.document.characters(self.index)).ok()
            }
            _ => None,
        }
    }

    /// Returns a number, or `None` for other values.
    #[must_use]
    pub fn number(self) -> Option<Number<'a>> {
        match self.node() {
            Node::Number(span) => Some(self.document.number(span)),
            _ => None,
        }
    }

    /// Iterates over the items of an array. Other values have none.
    pub fn items(self) -> impl Iterator<Item = Value<'a>> {
        let Self { document, index } = self;
        let count = if let Node::Array { count, .. } = self.node() { count } else { 0 };
        let mut next = index.saturating_add(1);
        (0..count).map(move |_| {
            let item = Self { document, index: next };
            next = document.after(next);
            item
        })
    }

    /// Returns the member of an object with this name. Other values have none.
    #[must_use]
    pub fn member(self, name: &str) -> Option<Value<'a>> {
        let Self { document, .. } = self;
        let Node::Object { members, .. } = self.node() else { return None };
        let names = document.names(members);
        let found = names
            .binary_search_by(|other| document.characters(*other).cmp(name.as_bytes()))
            .ok()?;
        Some(Self { document, index: names.get(found)?.saturating_add(1) })
    }

    /// Returns the value at this place, if there is one.
    #[must_use]
    pub fn get(self, pointer: &Pointer) -> Option<Value<'a>> {
        pointer.find(self)
    }

    /// Appends the canonical form of the value. Different values have different bytes.
    ///
    /// Each value starts with a byte for its type, and each part of variable length starts with its
    /// length. So the bytes cannot be read as two different values. Members are sorted by name.
    pub fn canonical(self, out: &mut Vec<u8>) {
        encode(self, &[], out);
    }

    fn node(self) -> Node {
        self.document.node(self.index)
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, parse};
    use super::*;

    #[test]
    fn values_are_found_by_name_and_in_their_order() {
        let body = br#"{"z":[1,[2,{"y":3}],"\u0034"],"a":null,"\u0062":{}}"#;
        let document = parse(Bytes::from_static(body), Limits::default()).unwrap();
        let root = document.root();
        assert!(root.is_object() && root.text().is_none() && root.number().is_none());
        assert!(root.member("a").unwrap().is_null());
        assert!(root.member("b").unwrap().is_object());
        assert!(root.member("c").is_none() && root.items().next().is_none());
        let items: Vec<_> = root.member("z").unwrap().items().collect();
        assert_eq!(items.len(), 3);
        assert_eq!(items[0].number().unwrap().integer(1).unwrap(), "1");
        assert!(items[1].is_array() && items[1].member("y").is_none());
        assert_eq!(items[2].text(), Some("4"));
    }

    #[test]
    fn a_value_takes_few_bytes() {
        // This size bounds the memory for a body of one-digit numbers alone.
        assert_eq!(size_of::<Node>(), 12);
        let zeros = format!("[{}0]", "0,".repeat(1 << 20));
        let document = parse(zeros.clone().into(), Limits::default()).unwrap();
        assert!(document.nodes.capacity() * size_of::<Node>() <= 7 * zeros.len());
    }
}
