//! Property of the rows of PostgreSQL, for the fuzzer.

use onetake_core::{RecordId, Recording, State};

use super::rows::{Numbers, Texts, assemble, cause, state};

/// The columns of a row are a record or an error. A cause that was read is written and read again
/// without a change.
pub fn postgres_row(data: &[u8]) {
    let (numbers, texts) = columns(data);
    let (Ok(numbers), Ok(texts)) = (Numbers::read(&numbers), Texts::read(&texts)) else { return };
    let kept = || Ok(Recording { head: Default::default(), body: None });
    let Ok(read) = state(&numbers, &texts, kept) else { return };
    let record = assemble(RecordId::from_bytes([7; 16]), &numbers, &texts, read.clone());
    assert!(record.is_err() || record.is_ok_and(|record| record.state == read));
    let State::Unknown { cause: read_cause, .. } = &read else { return };
    let (code, detail) = cause(read_cause);
    let mut texts = texts;
    (texts.code, texts.detail) = (Some(code.as_bytes()), Some(detail.as_bytes()));
    let again = state(&numbers, &texts, kept);
    assert!(again.is_ok_and(|again| again == read), "what was written is not what is read");
}

/// The columns of numbers and texts: ten numbers of one byte (255 is null, 254 is -1, 253 the
/// largest number), then texts that start with their length in one byte (255 is null).
fn columns(data: &[u8]) -> (Vec<Option<i64>>, Vec<Option<&[u8]>>) {
    let (numbers, mut rest) = data.split_at(data.len().min(10));
    let number = |byte: &u8| match byte {
        255 => None,
        254 => Some(-1),
        253 => Some(i64::MAX),
        small => Some(i64::from(*small)),
    };
    let mut texts = Vec::new();
    while let [length, behind @ ..] = rest {
        if *length == 255 {
            texts.push(None);
            rest = behind;
        } else {
            let (text, behind) = behind.split_at(behind.len().min(usize::from(*length)));
            texts.push(Some(text));
            rest = behind;
        }
    }
    (numbers.iter().map(number).collect(), texts)
}
