//! A check of the write-ahead log before SQLite opens it.
//!
//! When SQLite finds a frame with a wrong checksum in its log, it assumes the torn end of the last
//! transaction and ignores everything from there on. That is right after a crash and wrong after
//! damage in the middle: the later transactions were acknowledged, and their keys would run again.
//!
//! So the log is read here first. It is damaged if complete frames of a later transaction follow
//! the unreadable frame, because a transaction is written only after the one before it is on disk.
//! In the last transaction, and in the head of the log, it is damage and not a torn write if a
//! single inverted bit explains it.
//!
//! The format: a head of 32 bytes (magic, version, page size, sequence, two salts, checksum), then
//! frames of 24 bytes (page, pages of the database if it commits, the salts, checksum) and a page.
//! The checksum of a frame continues that of the frame before.

use std::fs;
use std::io;
use std::path::Path;

const HEAD: usize = 32;
const FRAME_HEAD: usize = 24;
/// The magic number without its last bit, which is the byte order of checksums.
const MAGIC: u32 = 0x377f_0682;

/// Returns a description of the damage, or `None` if the log is not damaged.
pub(super) fn damage(log: &Path) -> io::Result<Option<String>> {
    match fs::read(log) {
        Ok(bytes) => Ok(find_damage(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Two sums of 32 bits, as SQLite computes them.
type Checksum = [u32; 2];

/// A log with a readable head.
struct Log<'a> {
    frames: Vec<Frame<'a>>,
    salts: &'a [u8],
    first: Checksum,
    is_big_endian: bool,
}

struct Frame<'a> {
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The bytes that the checksum covers: the first eight bytes, and the page.
    fn parts(&self) -> [&'a [u8]; 2] {
        [slice(self.bytes, 0, 8), slice(self.bytes, FRAME_HEAD, self.bytes.len())]
    }

    fn checksum(&self) -> Checksum {
        [number(self.bytes, 16), number(self.bytes, 20)]
    }

    fn is_commit(&self) -> bool {
        number(self.bytes, 4) != 0
    }
}

impl Log<'_> {
    fn is_ours(&self, frame: &Frame<'_>) -> bool {
        slice(frame.bytes, 8, 16) == self.salts
    }

    fn sum(&self, from: Checksum, frame: &Frame<'_>) -> Checksum {
        let [head, page] = frame.parts();
        sum(sum(from, head, self.is_big_endian), page, self.is_big_endian)
    }

    /// Returns true if a frame is complete after a frame with this checksum.
    fn follows(&self, before: Checksum, frame: &Frame<'_>) -> bool {
        self.is_ours(frame) && self.sum(before, frame) == frame.checksum()
    }
}

fn find_damage(bytes: &[u8]) -> Option<String> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let Some(log) = read(head, rest) else {
        return is_one_bit_from_whole(head)
            .then(|| "the header of its WAL file has changed".to_owned());
    };
    let mut before = log.first;
    let mut frames = log.frames.iter().enumerate();
    let (at, bad) = frames.by_ref().find(|(_, frame)| {
        let is_whole = log.follows(before, frame);
        before = frame.checksum();
        !is_whole
    })?;
    // A frame of an earlier use of the log, or zeros: the end.
    let before = at.checked_sub(1).and_then(|at| log.frames.get(at));
    let before = before.map_or(log.first, Frame::checksum);
    let damaged = || Some(format!("frame {at} of its WAL file has changed"));
    let mut is_committed = log.is_ours(bad) && bad.is_commit();
    for pair in log.frames.get(at..).unwrap_or_default().windows(2) {
        let [earlier, frame] = pair else { break };
        if log.follows(earlier.checksum(), frame) {
            if is_committed {
                return damaged();
            }
            is_committed = frame.is_commit();
        }
    }
    if is_one_bit_from(&log, before, bad) { damaged() } else { None }
}

fn read<'a>(head: &'a [u8], rest: &'a [u8]) -> Option<Log<'a>> {
    let is_big_endian = match number(head, 0) ^ MAGIC {
        0 => false,
        1 => true,
        _ => return None,
    };
    let first = [number(head, 24), number(head, 28)];
    if sum([0, 0], slice(head, 0, 24), is_big_endian) != first {
        return None;
    }
    let page = usize::try_from(number(head, 8)).ok()?;
    let frames = rest.chunks_exact(FRAME_HEAD + page.max(512));
    let frames = frames.map(|bytes| Frame { bytes }).collect();
    Some(Log { frames, salts: slice(head, 16, 24), first, is_big_endian })
}

/// Returns true if one inverted bit makes the head valid.
fn is_one_bit_from_whole(head: &[u8]) -> bool {
    (0..HEAD * 8).any(|bit| {
        let mut head = head.to_vec();
        head.get_mut(bit / 8).is_some_and(|byte| {
            *byte ^= 1 << (bit % 8);
            true
        }) && read(&head, &[]).is_some()
    })
}

/// Returns true if one inverted bit makes a frame valid. Each bit adds a fixed amount to the sums,
/// or subtracts it, whatever the other bits are. So the sums need not be computed again for each
/// bit.
fn is_one_bit_from(log: &Log<'_>, before: Checksum, frame: &Frame<'_>) -> bool {
    let found = log.sum(before, frame);
    let written = frame.checksum();
    let wrong = [0, 1].map(|at: usize| {
        let of = |sums: &Checksum| sums.get(at).copied().unwrap_or_default();
        of(&written).wrapping_sub(of(&found))
    });
    if !log.is_ours(frame) {
        // One inverted bit in the salts, and no other difference.
        let bits =
            slice(frame.bytes, 8, 16).iter().zip(log.salts).map(|(a, b)| (a ^ b).count_ones());
        return wrong == [0, 0] && bits.sum::<u32>() == 1;
    }
    if wrong.iter().map(|wrong| is_power_of_two(*wrong)).eq([true, true]) && wrong.contains(&0) {
        // One inverted bit in the checksum itself.
        return true;
    }
    let words: Vec<u32> =
        frame.parts().iter().flat_map(|part| words(part, log.is_big_endian)).collect();
    // The weight of a word in both sums, beginning with the last word.
    let mut weights = [[1_u32, 1], [0, 1]];
    for pair in words.chunks_exact(2).rev() {
        let [even, odd] = weights;
        for (word, weight) in pair.iter().zip([even, odd]) {
            for bit in 0..u32::BITS {
                let step = 1_u32 << bit;
                let step = if word & step == 0 { step } else { step.wrapping_neg() };
                if weight.map(|weight| weight.wrapping_mul(step)) == wrong {
                    return true;
                }
            }
        }
        weights = earlier(weights);
    }
    false
}

/// Returns the weights of a pair's words from the weights of the next pair's words.
fn earlier([even, odd]: [Checksum; 2]) -> [Checksum; 2] {
    // A pair (a, b) does s1 += a + s2, then s2 += b + s1. The values of s1 and s2 before a pair
    // count in both sums: s1 like `a`; s2 like `a` and `b` together.
    let add = |a: Checksum, b: Checksum| {
        let [a0, a1] = a;
        let [b0, b1] = b;
        [a0.wrapping_add(b0), a1.wrapping_add(b1)]
    };
    let (first, second) = (even, add(even, odd));
    // So `a` of the pair before adds to s1 once, and through it to s2. `b` adds to s2 alone.
    [add(first, second), second]
}

/// Returns true if inverting one bit can have this effect.
fn is_power_of_two(difference: u32) -> bool {
    difference == 0 || difference.is_power_of_two() || difference.wrapping_neg().is_power_of_two()
}

fn words(bytes: &[u8], is_big_endian: bool) -> impl Iterator<Item = u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(move |word| {
        if is_big_endian { u32::from_be_bytes(*word) } else { u32::from_le_bytes(*word) }
    })
}

fn sum(from: Checksum, bytes: &[u8], is_big_endian: bool) -> Checksum {
    let [mut first, mut second] = from;
    let (pairs, _) = bytes.as_chunks::<8>();
    for pair in pairs {
        let pair = u64::from_le_bytes(*pair);
        // The lower half is first.
        let [even, odd] = [pair, pair >> 32].map(|half| {
            let word = (half & u64::from(u32::MAX)) as u32;
            if is_big_endian { word.swap_bytes() } else { word }
        });
        first = first.wrapping_add(even).wrapping_add(second);
        second = second.wrapping_add(odd).wrapping_add(first);
    }
    [first, second]
}

fn slice(bytes: &[u8], from: usize, to: usize) -> &[u8] {
    bytes.get(from..to).unwrap_or_default()
}

/// Reads a big-endian number of four bytes.
fn number(bytes: &[u8], at: usize) -> u32 {
    slice(bytes, at, at + 4).iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// The bytes of a log with some transactions.
    fn log() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("db");
        let connection = Connection::open(&file).unwrap();
        let mode = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
        connection.pragma_update_and_check(None, "journal_mode", "WAL", mode).unwrap();
        connection.execute_batch("CREATE TABLE t (a BLOB)").unwrap();
        for bytes in [10, 9_000, 300] {
            connection.execute("INSERT INTO t VALUES (randomblob(?1))", [bytes]).unwrap();
        }
        fs::read(folder.path().join("db-wal")).unwrap()
    }

    #[test]
    fn a_whole_log_and_a_cut_one_are_not_damaged() {
        let log = log();
        assert_eq!(find_damage(&log), None);
        for end in (0..log.len()).step_by(61) {
            let mut zeros = log.clone();
            zeros[end..].fill(0);
            // A torn head differs from a valid one by more than one bit.
            assert_eq!(find_damage(&zeros), None, "zeros from {end}");
            assert_eq!(find_damage(&log[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn a_torn_transaction_is_not_damage() {
        let log = log();
        let frame = FRAME_HEAD + 4096;
        let count = (log.len() - HEAD) / frame;
        let commits: Vec<usize> =
            (0..count).filter(|at| number(&log, HEAD + at * frame + 4) != 0).collect();
        let [.., before, last] = commits[..] else { panic!("{commits:?}") };
        for torn in before + 1..=last {
            let at = HEAD + torn * frame;
            for range in [at..at + frame, at + 512..at + 1024, at..at + 512, at + 512..at + frame] {
                let mut changed = log.clone();
                changed[range.clone()].fill(0);
                if changed != log {
                    assert_eq!(find_damage(&changed), None, "frame {torn}: {range:?}");
                }
            }
        }
    }

    #[test]
    fn an_inverted_bit_is_damage() {
        let log = log();
        let places = (0..HEAD).chain((HEAD..log.len()).step_by(13));
        let heads = (HEAD..log.len()).step_by(FRAME_HEAD + 4096).flat_map(|at| at..at + FRAME_HEAD);
        for at in places.chain(heads) {
            let mut changed = log.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(find_damage(&changed).is_some(), "byte {at}");
        }
    }
}
