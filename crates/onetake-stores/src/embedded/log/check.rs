//! A check of the log before anything in the folder is changed.
//!
//! A crash leaves at most one unfinished frame, at the end. Everything else that cannot be read is
//! damage: an acknowledged change would be lost, and its operation would run again. So the folder is
//! damaged, and is not opened, if:
//!
//! - a frame is missing between two others, or the first one that the WITNESS file names.
//! - a single inverted bit makes the frame at the end complete. Then it is damaged and not
//!   unfinished. All bits of frames of up to 8 KiB are tried, and the heads of larger ones.
//!
//! Behind the last frame of a segment is what the file contained before: frames with lower numbers,
//! or zeros. Every frame begins with a secret mark. Without it, a recorded body inside an unfinished
//! frame could look like a frame.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::super::witness::{Mark, Witness};
use super::frame::{END, Frame, HEAD_BYTES};
use super::{Place, SPARE, SPARE_DRAFT, segment_number};

/// The largest frame in which an inverted bit is looked for everywhere.
const TRIED_BYTES_MAX: usize = 8 << 10;
/// The largest frame in whose head an inverted bit is looked for.
const TRIED_HEAD_BYTES_MAX: usize = 1 << 20;

/// A log that is not damaged.
#[derive(Debug)]
pub(in crate::embedded) struct LogOnDisk {
    /// The segments with frames, from the first one that is needed.
    segments: Vec<SegmentOnDisk>,
    /// The place of the last frame, and the highest number of a segment.
    pub(in crate::embedded) last: Place,
}

#[derive(Debug)]
struct SegmentOnDisk {
    path: PathBuf,
    /// The start of the last frame, and the end of it.
    last_start: usize,
    end: usize,
}

/// Reads the log. The inner error names the damaged segment and the damage.
pub(in crate::embedded) fn check(
    folder: &Path,
    witness: &Witness,
) -> io::Result<Result<LogOnDisk, String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match segment_number(&path) {
            // Segments before the first one that is needed were about to be removed.
            Some(number) if number < witness.from.segment => {}
            Some(number) => paths.push((number, path)),
            None if [SPARE, SPARE_DRAFT].iter().any(|name| path.ends_with(name)) => {}
            None => return Ok(Err(format!("log has an unknown entry: {}", path.display()))),
        }
    }
    paths.sort();
    let mark = &witness.mark;
    let mut log = LogOnDisk {
        segments: Vec::new(),
        last: Place { segment: witness.from.segment, frame: witness.from.frame.saturating_sub(1) },
    };
    // The rest behind the last frame so far, and the segment that it is in.
    let mut rest = (String::new(), Vec::new());
    for (number, path) in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = fs::read(&path)?;
        let (mut end, mut last_start) = (0, 0);
        while let Some(frame) = Frame::read(bytes.get(end..).unwrap_or_default(), mark)
            && frame.number == log.last.frame + 1
        {
            last_start = end;
            end += frame.bytes;
            log.last.frame = frame.number;
        }
        let behind = bytes.get(end..).unwrap_or_default();
        if has_later_frame(behind, log.last.frame, mark) {
            return Ok(Err(format!(
                "{name} cannot be read at byte {end}, but has valid entries after it"
            )));
        }
        log.last.segment = number;
        if end > 0 {
            rest = (format!("{name} cannot be read at byte {end}"), behind.to_vec());
            log.segments.push(SegmentOnDisk { path, last_start, end });
        } else if rest.0.is_empty() {
            rest = (format!("{name} cannot be read at byte 0"), behind.to_vec());
        }
    }
    let (damage, rest) = rest;
    let has_changed = witness.closed.is_some_and(|closed| closed != log.last.frame);
    Ok(if log.segments.is_empty() {
        Err("the log is missing or empty".to_owned())
    } else if is_one_bit_from_whole(&rest, log.last.frame + 1, mark) {
        Err(damage)
    } else if has_changed {
        Err("the log has changed since the store was closed".to_owned())
    } else {
        Ok(log)
    })
}

impl LogOnDisk {
    /// Calls `each` for each frame, in order.
    pub(in crate::embedded) fn replay<E: From<io::Error>>(
        &self,
        mark: &Mark,
        mut each: impl FnMut(Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for segment in &self.segments {
            let bytes = fs::read(&segment.path)?;
            let mut at = 0;
            while at < segment.end {
                let rest = bytes.get(at..segment.end).unwrap_or_default();
                let Some(frame) = Frame::read(rest, mark) else {
                    let changed = "the log has changed while it was read";
                    return Err(io::Error::other(changed).into());
                };
                at += frame.bytes;
                each(frame)?;
            }
        }
        Ok(())
    }

    /// Writes the last frame once more, and syncs it.
    ///
    /// After a failed sync, the operating system shows bytes that are not on disk, also to the next
    /// process. Frames of the next process would follow a frame that is missing. Only the last frame
    /// can be affected, because the store stops after a failed sync.
    pub(in crate::embedded) fn write_last_again(&self) -> io::Result<()> {
        let Some(segment) = self.segments.last() else { return Ok(()) };
        let bytes = fs::read(&segment.path)?;
        let last = bytes.get(segment.last_start..segment.end).unwrap_or_default();
        let mut file = File::options().write(true).open(&segment.path)?;
        file.seek(SeekFrom::Start(segment.last_start as u64))?;
        file.write_all(last)?;
        file.sync_all()
    }
}

/// Returns true if `rest` contains a frame with a higher number than the last one.
fn has_later_frame(rest: &[u8], last: u64, mark: &Mark) -> bool {
    memmem::find_iter(rest, mark).any(|at| {
        let rest = rest.get(at..).unwrap_or_default();
        number_at(rest).is_some_and(|number| number > last) && Frame::read(rest, mark).is_some()
    })
}

/// The number in the head of a frame.
fn number_at(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?))
}

/// The length in the head of a frame.
fn length_at(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?)).ok()
}

/// Returns true if one inverted bit makes the start of `rest` the frame with this number. Then that
/// frame is damaged and not unfinished.
fn is_one_bit_from_whole(rest: &[u8], number: u64, mark: &Mark) -> bool {
    let (Some(found), Some(length), Some(start)) =
        (number_at(rest), length_at(rest), rest.get(..mark.len()))
    else {
        return false;
    };
    let differing: u32 = start.iter().zip(mark).map(|(a, b)| (a ^ b).count_ones()).sum();
    // Older frames and zeros are most of what is found here.
    if differing + (found ^ number).count_ones() > 1 {
        return false;
    }
    let end = rest.len().min(HEAD_BYTES + TRIED_HEAD_BYTES_MAX + END.len());
    let mut bytes = rest.get(..end).unwrap_or_default().to_vec();
    let is_small = length <= TRIED_BYTES_MAX;
    let tried = if is_small { HEAD_BYTES + length + END.len() } else { HEAD_BYTES };
    let invert = |bytes: &mut Vec<u8>, bit: usize| {
        bytes.get_mut(bit / 8).into_iter().for_each(|byte| *byte ^= 1 << (bit % 8));
    };
    (0..tried.min(end) * 8).any(|bit| {
        invert(&mut bytes, bit);
        let frame = Frame::read(&bytes, mark);
        let is_whole = frame.is_some_and(|frame| frame.number == number);
        invert(&mut bytes, bit);
        is_whole
    })
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::{MARK, frame};
    use super::super::{Item, Table, segment_path};
    use super::*;

    const LENGTHS: [usize; 3] = [300, 0, 2_000];

    fn frames(numbers: std::ops::Range<u64>) -> Vec<u8> {
        let length = |number| LENGTHS[usize::try_from(number % 3).unwrap()];
        let value = |number| vec![7; length(number)];
        numbers.flat_map(|n| frame(n, &[Item::Insert(Table::Settled, b"id", &value(n))])).collect()
    }

    /// Checks a log of these segments, the first of which begins with frame 10.
    fn checked(segments: &[&[u8]], closed: Option<u64>) -> Result<LogOnDisk, String> {
        let folder = tempfile::tempdir().unwrap();
        for (number, bytes) in (3..).zip(segments) {
            fs::write(segment_path(folder.path(), number), bytes).unwrap();
        }
        let from = Place { segment: 3, frame: 10 };
        let witness = Witness { mark: MARK, from, closed, ..Witness::default() };
        check(folder.path(), &witness).unwrap()
    }

    fn last(segments: &[&[u8]]) -> Result<u64, String> {
        checked(segments, None).map(|log| log.last.frame)
    }

    #[test]
    fn any_cut_is_an_unfinished_frame() {
        let bytes = frames(10..20);
        let end_of_first = frames(10..11).len();
        for cut in (end_of_first..bytes.len()).step_by(41) {
            for behind in [&[][..], &[0; 5_000], &frames(1..9), &frames(1..9)[77..]] {
                let mut torn = bytes[..cut].to_vec();
                torn.extend_from_slice(behind);
                let last = last(&[&torn]).unwrap();
                assert!(frames(10..last + 1).len() <= cut && cut < frames(10..last + 2).len());
            }
        }
        assert!(last(&[&bytes[..end_of_first - 1]]).is_err(), "the first frame was known");
    }

    /// The end of the log is in the last segment with frames. A segment that was only created has
    /// none.
    #[test]
    fn segments_are_read_in_order() {
        let old = frames(1..9);
        assert_eq!(last(&[&frames(10..13), &frames(13..15)]), Ok(14));
        assert_eq!(last(&[&frames(10..13), &old, &frames(13..15)]), Ok(14));
        assert_eq!(last(&[&frames(10..13), &old]), Ok(12));
        assert!(last(&[&frames(10..13), &frames(14..15)]).is_err(), "frame 13 is missing");
        assert!(last(&[&frames(11..13)]).is_err(), "frame 10 is missing");
        assert!(last(&[&[]]).is_err());
        assert!(last(&[]).is_err());
    }

    #[test]
    fn a_closed_log_does_not_change() {
        let bytes = frames(10..15);
        assert!(checked(&[&bytes], Some(14)).is_ok());
        assert!(checked(&[&bytes], Some(15)).is_err());
        assert!(checked(&[&bytes], Some(13)).is_err());
    }

    #[test]
    fn an_inverted_bit_is_damage_wherever_it_is() {
        let (first, second) = (frames(10..15), frames(15..17));
        let behind = [second.clone(), frames(1..9)].concat();
        for at in 0..first.len() + second.len() {
            let (mut one, mut two) = (first.clone(), behind.clone());
            let bit = 1 << (at % 8);
            match at.checked_sub(first.len()) {
                None => one[at] ^= bit,
                Some(at) => two[at] ^= bit,
            }
            assert!(last(&[&one, &two]).is_err(), "byte {at}");
        }
        // The last frame is at the end of a segment, and the next one has none.
        for at in 0..first.len() {
            let mut one = first.clone();
            one[at] ^= 1 << (at % 8);
            assert!(last(&[&one, &frames(1..9)]).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_body_that_looks_like_a_frame_is_none() {
        // Any client could send these bytes, but it does not know the mark.
        let mut forged = super::super::FrameBuilder::new();
        forged.add(&Item::Remove(Table::Settled, b"id"));
        let forged = forged.finish(b"not the mark 16b", 99);
        let whole = frame(11, &[Item::Insert(Table::Settled, b"id", &forged)]);
        let torn = [frames(10..11).as_slice(), &whole[..whole.len() - 1]].concat();
        assert_eq!(last(&[&torn]), Ok(10));
    }
}
