//! The assignment of a cluster's slots to its nodes.

use std::collections::BTreeMap;

use redis::Value;

/// The number of slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

/// Returns the slot of a key. If the key has a part in braces, that part decides, so that keys can
/// be kept together.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let behind = key.get(open + 1..)?;
        let close = behind.iter().position(|byte| *byte == b'}')?;
        behind.get(..close).filter(|tag| !tag.is_empty())
    });
    // CRC16 in the XMODEM variant.
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// The owners of ranges of slots, by the last slot of each range.
#[derive(Clone, Debug)]
pub(super) struct Slots<N>(BTreeMap<u16, (u16, N)>);

impl<N: Clone> Slots<N> {
    /// Assigns all slots to one owner.
    pub(super) fn all(owner: N) -> Self {
        Self(BTreeMap::from([(SLOTS - 1, (0, owner))]))
    }

    /// Assigns these ranges, each with its first and last slot.
    pub(super) fn new(ranges: impl IntoIterator<Item = (u16, u16, N)>) -> Self {
        Self(ranges.into_iter().map(|(first, last, owner)| (last, (first, owner))).collect())
    }

    /// The owner of a slot, if it has one.
    pub(super) fn owner(&self, slot: u16) -> Option<&N> {
        let (_, (first, owner)) = self.0.range(slot..).next()?;
        (*first <= slot).then_some(owner)
    }

    /// Gives one slot to another owner.
    pub(super) fn moved(&mut self, slot: u16, to: N) {
        let found =
            self.0.range(slot..).next().map(|(last, (first, owner))| (*last, *first, owner));
        if let Some((last, first, owner)) = found.filter(|(_, first, _)| *first <= slot) {
            let owner = owner.clone();
            self.0.remove(&last);
            if first < slot {
                self.0.insert(slot - 1, (first, owner.clone()));
            }
            if slot < last {
                self.0.insert(last, (slot + 1, owner));
            }
        }
        self.0.insert(slot, (slot, to));
    }

    /// Returns every owner, once for each of its ranges.
    pub(super) fn owners(&self) -> impl Iterator<Item = &N> {
        self.0.values().map(|(_, owner)| owner)
    }
}

/// A range of slots as a cluster reports it: first slot, last slot, host and port of the primary.
pub(super) type Range = (u16, u16, String, u16);

/// Parses the answer to `CLUSTER SLOTS`. A node that does not know its own host leaves it out; then
/// `host`, the host of the node that was asked, is used.
pub(super) fn read(answer: &Value, host: &str) -> Option<Vec<Range>> {
    let number = |value: Option<&Value>| match value? {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let Value::Array(ranges) = answer else { return None };
    let range = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let Some(Value::Array(primary)) = range.get(2) else { return None };
        let said = match primary.first()? {
            Value::BulkString(said) => std::str::from_utf8(said).ok()?,
            _ => "",
        };
        let host = if matches!(said, "" | "?") { host } else { said };
        Some((
            number(range.first())?,
            number(range.get(1))?,
            host.to_owned(),
            number(primary.get(1))?,
        ))
    };
    ranges.iter().map(range).collect()
}

/// Parses the new location of a slot: `3999 127.0.0.1:6381`. The host may be left out, as above.
pub(super) fn read_redirect(detail: &str, host: &str) -> Option<(u16, String, u16)> {
    let (slot, address) = detail.split_once(' ')?;
    let (said, port) = address.split_whitespace().next()?.rsplit_once(':')?;
    let host = if matches!(said, "" | "?") { host } else { said };
    Some((slot.parse().ok()?, host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), slot(b"foo{}{bar}"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"somekey"), 11_058);
    }

    #[test]
    fn a_moved_slot_leaves_its_neighbours() {
        let mut slots = Slots::new([(0, 10, 'a'), (11, 20, 'b')]);
        slots.moved(5, 'c');
        slots.moved(11, 'c');
        slots.moved(20, 'd');
        slots.moved(30, 'e');
        let owners: String = (0..=21).map(|slot| *slots.owner(slot).unwrap_or(&'-')).collect();
        assert_eq!(owners, "aaaaacaaaaacbbbbbbbbd-");
        assert_eq!(slots.owner(30), Some(&'e'));
        assert_eq!(Slots::all('x').owner(16_383), Some(&'x'));
    }

    #[test]
    fn redirects_are_read() {
        assert_eq!(
            read_redirect("3999 10.0.0.1:6381", "h"),
            Some((3_999, "10.0.0.1".into(), 6_381))
        );
        assert_eq!(read_redirect("3999 ::1:6381", "h"), Some((3_999, "::1".into(), 6_381)));
        assert_eq!(read_redirect("3999 :6381", "h"), Some((3_999, "h".into(), 6_381)));
        assert_eq!(read_redirect("nonsense", "h"), None);
    }
}
