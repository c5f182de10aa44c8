//! Frames: the groups of writes in the log.
//!
//! A frame is `mark checksum:u64 number:u64 length:u64`, then `length` bytes of items, then
//! [`END`]. Numbers are little-endian. The checksum is the XXH3 of everything between it and the
//! end. The number rises by one from frame to frame, also from one segment to the next.
//!
//! An item is `kind:u8 key:u32 value:u64`, the key and the value. The kind says which table the item
//! belongs to, and whether it is inserted or removed.

use xxhash_rust::xxh3::xxh3_64;

use super::super::witness::Mark;

/// The bytes of a frame before its items.
pub(super) const HEAD_BYTES: usize = 16 + 8 + 8 + 8;
/// The room for a frame with a few records.
const FRAME_BYTES: usize = 16 << 10;
/// The last bytes of a frame. A frame whose end was not written lacks more than one bit.
pub(super) const END: &[u8] = b"END\n";
/// The start of the bytes that the checksum protects.
const CHECKED_FROM: usize = 16 + 8;

/// The tables whose changes are in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::embedded) enum Table {
    /// The records of running attempts. This table exists in memory and in the log alone.
    Running,
    Settled,
    Expiry,
    Meta,
}

impl Table {
    const EVERY: [Self; 4] = [Self::Running, Self::Settled, Self::Expiry, Self::Meta];
}

/// One change of a table.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::embedded) enum Item<'a> {
    /// All entries of `running` are removed. The entries that follow are all that there are.
    ClearRunning,
    Insert(Table, &'a [u8], &'a [u8]),
    Remove(Table, &'a [u8]),
}

const CLEAR_RUNNING: u8 = 0;
const INSERT: u8 = 0x10;
const REMOVE: u8 = 0x20;

/// A frame that is being built.
#[derive(Debug)]
pub(in crate::embedded) struct FrameBuilder(Vec<u8>);

impl FrameBuilder {
    pub(in crate::embedded) fn new() -> Self {
        let mut bytes = Vec::with_capacity(FRAME_BYTES);
        bytes.resize(HEAD_BYTES, 0);
        Self(bytes)
    }

    pub(in crate::embedded) fn add(&mut self, item: &Item<'_>) {
        let (kind, key, value): (u8, &[u8], &[u8]) = match item {
            Item::ClearRunning => (CLEAR_RUNNING, &[], &[]),
            Item::Insert(table, key, value) => (INSERT | *table as u8, key, value),
            Item::Remove(table, key) => (REMOVE | *table as u8, key, &[]),
        };
        // Keys are made by the store itself, and have fewer than a hundred bytes.
        let key_bytes = u32::try_from(key.len()).unwrap_or(u32::MAX);
        self.0.push(kind);
        self.0.extend_from_slice(&key_bytes.to_le_bytes());
        self.0.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
    }

    pub(in crate::embedded) fn is_empty(&self) -> bool {
        self.0.len() <= HEAD_BYTES
    }

    pub(in crate::embedded) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The bytes of the frame when it is complete.
    pub(in crate::embedded) fn bytes_finished(&self) -> u64 {
        (self.0.len() + END.len()) as u64
    }

    /// Completes the head, and returns the bytes of the frame.
    pub(super) fn finish(mut self, mark: &Mark, number: u64) -> Vec<u8> {
        let length = self.0.len().saturating_sub(HEAD_BYTES) as u64;
        let checked = [number.to_le_bytes(), length.to_le_bytes()].concat();
        self.put(CHECKED_FROM, &checked);
        let checksum = xxh3_64(self.0.get(CHECKED_FROM..).unwrap_or_default());
        self.put(0, &[mark.as_slice(), &checksum.to_le_bytes()].concat());
        self.0.extend_from_slice(END);
        self.0
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let places = self.0.iter_mut().skip(at);
        places.zip(bytes).for_each(|(place, byte)| *place = *byte);
    }
}

/// A complete frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::embedded) struct Frame<'a> {
    pub(in crate::embedded) number: u64,
    /// The number of its bytes, with head and end.
    pub(super) bytes: usize,
    items: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads the frame at the start of `bytes`; `None` if there is no complete frame.
    pub(super) fn read(bytes: &'a [u8], mark: &Mark) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.take(mark.len())? != mark {
            return None;
        }
        let checksum = reader.number()?;
        let number = reader.number()?;
        let length = usize::try_from(reader.number()?).ok()?;
        let items = reader.take(length)?;
        let is_whole = reader.take(END.len())? == END
            && xxh3_64(bytes.get(CHECKED_FROM..HEAD_BYTES + length)?) == checksum;
        is_whole.then_some(Self { number, bytes: HEAD_BYTES + length + END.len(), items })
    }

    /// The items; `None` in place of an item that cannot be read.
    pub(in crate::embedded) fn items(&self) -> impl Iterator<Item = Option<Item<'a>>> + use<'a> {
        let mut reader = Reader(self.items);
        std::iter::from_fn(move || {
            if reader.0.is_empty() {
                return None;
            }
            let item = reader.item();
            if item.is_none() {
                reader.0 = &[];
            }
            Some(item)
        })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn item(&mut self) -> Option<Item<'a>> {
        let kind = *self.take(1)?.first()?;
        let key = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        let value = usize::try_from(self.number()?).ok()?;
        let key = self.take(usize::try_from(key).ok()?)?;
        let value = self.take(value)?;
        let table = || Table::EVERY.get(usize::from(kind & 0x0f)).copied();
        match kind & 0xf0 {
            _ if kind == CLEAR_RUNNING => Some(Item::ClearRunning),
            INSERT => Some(Item::Insert(table()?, key, value)),
            REMOVE => Some(Item::Remove(table()?, key)),
            _ => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::embedded::log) const MARK: Mark = *b"0123456789abcdef";

    pub(in crate::embedded::log) fn frame(number: u64, items: &[Item<'_>]) -> Vec<u8> {
        let mut frame = FrameBuilder::new();
        items.iter().for_each(|item| frame.add(item));
        frame.finish(&MARK, number)
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let items = || {
            [
                Item::ClearRunning,
                Item::Insert(Table::Running, b"fence and id", b"record"),
                Item::Remove(Table::Running, b"fence and id"),
                Item::Insert(Table::Settled, b"id", &[7; 3_000]),
                Item::Insert(Table::Expiry, b"moment and id", b""),
                Item::Remove(Table::Meta, b"name"),
            ]
        };
        let mut bytes = frame(17, &items());
        let end = bytes.len();
        bytes.extend_from_slice(b"more");
        let read = Frame::read(&bytes, &MARK).unwrap();
        assert_eq!((read.number, read.bytes), (17, end));
        assert_eq!(read.items().collect::<Vec<_>>(), items().map(Some));
        assert!(Frame::read(&bytes, b"another mark 16b").is_none());
    }

    #[test]
    fn a_changed_or_cut_frame_is_none() {
        let bytes = frame(3, &[Item::Insert(Table::Settled, b"id", &[7; 100])]);
        for at in 0..bytes.len() {
            assert!(Frame::read(&bytes[..at], &MARK).is_none(), "cut at {at}");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(Frame::read(&changed, &MARK).is_none(), "byte {at}");
            }
        }
    }

    /// Lengths that do not fit end the items. They cannot happen behind a correct checksum.
    #[test]
    fn items_that_make_no_sense_are_not_read() {
        for items in
            [&[9][..], &[INSERT, 1, 0, 0, 0], &[INSERT | 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
        {
            let mut builder = FrameBuilder::new();
            builder.0.extend_from_slice(items);
            let bytes = builder.finish(&MARK, 1);
            let read = Frame::read(&bytes, &MARK).unwrap();
            assert_eq!(read.items().collect::<Vec<_>>(), [None]);
        }
    }
}
