//! A check of the write-ahead log before SQLite opens it.
//!
//! When SQLite finds a frame with a wrong checksum in its log, it assumes the torn end of the last
//! transaction and ignores everything from there on. That is right after a crash and wrong after
//! damage in the middle: the later transactions were acknowledged, and their keys would run again.
//!
//! So the log is read here first. SQLite syncs each commit (`synchronous = FULL`) before it writes
//! the next transaction, so a power loss tears the last transaction alone. Any of its sectors may
//! be missing. A missing sector has zeros, or old bytes: of an earlier use of the log, of a
//! transaction that was rolled back, or of the same page earlier in the same transaction. The log
//! is damaged in two cases:
//! - After the first unreadable frame there is a later transaction. A torn transaction has one
//!   commit, at its end. So two commits are damage, and so is a readable frame that continues the
//!   checksum of a commit.
//! - One inverted bit makes the unreadable frame readable, and its transaction is then complete up
//!   to its commit. If other frames of the transaction are missing, it was never acknowledged, and
//!   the frame is torn. One inverted bit that makes the head of the log readable is damage too.
//!
//! In two cases a power loss cannot be told from damage. The log is refused then, so that nothing
//! is lost silently:
//! - The last transaction is complete up to its commit, except for one sector, and one inverted bit
//!   explains the old bytes of that sector. The transaction could have been acknowledged.
//! - A commit failed while SQLite wrote it (a full disk), and the power failed while a later
//!   transaction was written over it. Both commits may be in the log.
//!
//! Not detected is damage to several bits of the last transaction, or of the last commit but one
//! and the transaction after it together.
//!
//! The format: a head of 32 bytes (magic, version, page size, sequence, two salts, checksum), then
//! frames of 24 bytes (page, pages of the database if it commits, the salts, checksum) and a page.
//! The checksum of a frame continues that of the frame before.

use std::fs;
use std::io;
use std::path::Path;

const HEAD: usize = 32;
const FRAME_HEAD: usize = 24;
/// The smallest unit that a disk writes as a whole.
const SECTOR: usize = 512;
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
    frame_bytes: usize,
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

    /// Returns true if a sector begins between the commit field of a frame and its salts. A power
    /// loss can leave the commit field of an old frame before the salts of a new one.
    fn can_have_old_commit(&self, at: usize) -> bool {
        (HEAD + at * self.frame_bytes + 8).is_multiple_of(SECTOR)
    }
}

/// The end of a frame after one of its bits was inverted: it is readable then.
#[derive(Clone, Copy)]
struct Corrected {
    checksum: Checksum,
    is_commit: bool,
}

fn find_damage(bytes: &[u8]) -> Option<String> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let Some(log) = read(head, rest) else {
        return is_one_bit_from_whole(head)
            .then(|| "the header of its WAL file has changed".to_owned());
    };
    let mut before = log.first;
    let (at, bad) = log.frames.iter().enumerate().find(|(_, frame)| {
        let is_whole = log.follows(before, frame);
        before = frame.checksum();
        !is_whole
    })?;
    // A frame of an earlier use of the log, or zeros: the end.
    let before = at.checked_sub(1).and_then(|at| log.frames.get(at));
    let before = before.map_or(log.first, Frame::checksum);
    let is_damaged = has_later_transaction(&log, at, before, bad)
        || one_bit_corrections(&log, before, bad)
            .into_iter()
            .any(|corrected| is_complete(&log, at, corrected));
    is_damaged.then(|| format!("frame {at} of its WAL file has changed"))
}

/// Returns true if a transaction was written after that of the frame `bad`, which is at `at`.
fn has_later_transaction(log: &Log<'_>, at: usize, before: Checksum, bad: &Frame<'_>) -> bool {
    let rest = log.frames.get(at..).unwrap_or_default();
    // The next frame shows that only the salts or the checksum of this commit have changed.
    let computed = log.sum(before, bad);
    if bad.is_commit() && rest.get(1).is_some_and(|next| log.follows(computed, next)) {
        return true;
    }
    let mut has_commit = log.is_ours(bad) && bad.is_commit() && !log.can_have_old_commit(at);
    let mut is_earlier_whole = false;
    for (at, pair) in (at..).zip(rest.windows(2)) {
        let [earlier, frame] = pair else { break };
        let is_whole = log.follows(earlier.checksum(), frame);
        if is_whole && frame.is_commit() {
            if has_commit {
                return true;
            }
            has_commit = true;
        }
        // Frames of a transaction that was rolled back may be behind the last commit. They are
        // readable one after the other, but the first of them does not continue the commit.
        if is_whole
            && log.is_ours(earlier)
            && earlier.is_commit()
            && (is_earlier_whole || !log.can_have_old_commit(at))
        {
            return true;
        }
        is_earlier_whole = is_whole;
    }
    false
}

/// Returns true if the transaction of the frame at `at` is complete up to its commit, once that
/// frame is corrected.
fn is_complete(log: &Log<'_>, at: usize, corrected: Corrected) -> bool {
    let Corrected { mut checksum, mut is_commit } = corrected;
    let mut rest = log.frames.iter().skip(at + 1);
    while !is_commit {
        let Some(frame) = rest.next().filter(|frame| log.follows(checksum, frame)) else {
            return false;
        };
        checksum = frame.checksum();
        is_commit = frame.is_commit();
    }
    true
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
    let frame_bytes = FRAME_HEAD + page.max(512);
    let frames = rest.chunks_exact(frame_bytes).map(|bytes| Frame { bytes }).collect();
    Some(Log { frames, salts: slice(head, 16, 24), first, frame_bytes, is_big_endian })
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

/// Inverts each bit of a frame, and returns the ends of the frame with which it is readable. Each
/// bit adds a fixed amount to the sums, or subtracts it, whatever the other bits are. So the sums
/// need not be computed again for each bit.
fn one_bit_corrections(log: &Log<'_>, before: Checksum, frame: &Frame<'_>) -> Vec<Corrected> {
    let computed = log.sum(before, frame);
    let written = frame.checksum();
    let is_commit = frame.is_commit();
    if !log.is_ours(frame) {
        // One inverted bit in the salts, and no other difference.
        let bits =
            slice(frame.bytes, 8, 16).iter().zip(log.salts).map(|(a, b)| (a ^ b).count_ones());
        let is_one_bit = computed == written && bits.sum::<u32>() == 1;
        return is_one_bit
            .then_some(Corrected { checksum: written, is_commit })
            .into_iter()
            .collect();
    }
    let mut corrections = Vec::new();
    let bits = computed.iter().zip(&written).map(|(a, b)| (a ^ b).count_ones());
    if bits.sum::<u32>() == 1 {
        // One inverted bit in the checksum itself.
        corrections.push(Corrected { checksum: computed, is_commit });
    }
    let wrong = difference(written, computed);
    let words: Vec<u32> =
        frame.parts().iter().flat_map(|part| words(part, log.is_big_endian)).collect();
    // The weight of a word in both sums, beginning with the last word.
    let mut weights = [[1_u32, 1], [0, 1]];
    for (pair_at, pair) in words.chunks_exact(2).enumerate().rev() {
        for (word_at, (word, weight)) in pair.iter().zip(weights).enumerate() {
            for bit in 0..u32::BITS {
                let step = 1_u32 << bit;
                let step = if word & step == 0 { step } else { step.wrapping_neg() };
                if weight.map(|weight| weight.wrapping_mul(step)) == wrong {
                    // The second word of a frame is not zero in a commit.
                    let is_commit = if (pair_at, word_at) == (0, 1) {
                        word ^ (1 << bit) != 0
                    } else {
                        is_commit
                    };
                    corrections.push(Corrected { checksum: written, is_commit });
                }
            }
        }
        weights = earlier(weights);
    }
    corrections
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

fn difference([a0, a1]: Checksum, [b0, b1]: Checksum) -> Checksum {
    [a0.wrapping_sub(b0), a1.wrapping_sub(b1)]
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
mod tests;
