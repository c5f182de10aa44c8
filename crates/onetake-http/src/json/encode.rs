//! The canonical bytes of JSON values.

use super::document::{Node, Value};
use super::number::{put_bytes, put_count};

/// The canonical form of `null`.
pub(crate) const NULL: &[u8] = b"n";

/// The items or members of an array or object that are not written yet.
enum Rest<'a> {
    /// The next item, and how many items are left.
    Items(u32, u32),
    /// The nodes of the names.
    Names(&'a [u32]),
}

/// Appends the canonical form of a value, without recursion.
///
/// `excluded` are the nodes of excluded values, sorted.
pub(super) fn encode(root: Value<'_>, excluded: &[u32], out: &mut Vec<u8>) {
    let document = root.document;
    let encoder = Encoder { root, excluded };
    let mut open = Vec::from_iter(encoder.head(root.index, out));
    while let Some(rest) = open.last_mut() {
        let next = match rest {
            Rest::Items(_, 0) => None,
            Rest::Items(item, left) => {
                let this = *item;
                (*item, *left) = (document.after(this), *left - 1);
                Some(this)
            }
            Rest::Names(names) => loop {
                let Some((name, tail)) = names.split_first() else { break None };
                *names = tail;
                let value = name.saturating_add(1);
                if !encoder.is_excluded(value) {
                    put_bytes(out, document.characters(*name));
                    break Some(value);
                }
            },
        };
        match next {
            Some(value) => open.extend(encoder.head(value, out)),
            None => drop(open.pop()),
        }
    }
}

struct Encoder<'a> {
    root: Value<'a>,
    excluded: &'a [u32],
}

impl<'a> Encoder<'a> {
    /// Appends a value. Of an array or object it appends only the type and the length, and returns
    /// the rest.
    fn head(&self, index: u32, out: &mut Vec<u8>) -> Option<Rest<'a>> {
        if self.is_excluded(index) {
            // Only array elements and a whole body get here. The mark keeps the position of the
            // element, so that the elements after it do not move up.
            out.push(b'x');
            return None;
        }
        let document = self.root.document;
        match document.node(index) {
            Node::Null => out.extend_from_slice(NULL),
            Node::Bool(false) => out.push(b'f'),
            Node::Bool(true) => out.push(b't'),
            Node::Number(span) => document.number(span).encode(out),
            Node::Text(_) | Node::Unescaped(_) => {
                out.push(b's');
                put_bytes(out, document.characters(index));
            }
            Node::Array { count, .. } => {
                out.push(b'a');
                put_count(out, count.into());
                return Some(Rest::Items(index.saturating_add(1), count));
            }
            Node::Object { members, .. } => {
                let names = document.names(members);
                let excluded = match self.excluded {
                    [] => 0,
                    _ => {
                        names.iter().filter(|name| self.is_excluded(name.saturating_add(1))).count()
                    }
                };
                out.push(b'o');
                put_count(out, (names.len() - excluded) as u64);
                return Some(Rest::Names(names));
            }
        }
        None
    }

    fn is_excluded(&self, index: u32) -> bool {
        !self.excluded.is_empty() && self.excluded.binary_search(&index).is_ok()
    }
}
