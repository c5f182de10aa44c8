//! Fitting of a changed text to the length of the original.

use std::ops::Range;

use super::Language;
use super::change::TextChange;

/// Applies a change and keeps the length of the text; `None` if there is no room for it.
pub(super) fn apply(text: &str, change: &TextChange, language: Language) -> Option<String> {
    let (before, behind) = (text.get(..change.at.start)?, text.get(change.at.end..)?);
    let old = change.at.len();
    if change.with.len() <= old {
        let space = " ".repeat(old - change.with.len());
        return Some(format!("{before}{}{space}{behind}", change.with));
    }
    let mut missing = change.with.len() - old;
    // An operator needs no space around it.
    let is_sign =
        |sign: Option<char>| sign.is_some_and(|sign| !sign.is_alphanumeric() && sign != ' ');
    let behind = match behind.strip_prefix(' ') {
        Some(rest) if is_sign(change.with.chars().last()) => {
            missing -= 1;
            rest
        }
        _ => behind,
    };
    let before = match before.strip_suffix(' ') {
        Some(rest) if missing > 0 && is_sign(change.with.chars().next()) => {
            missing -= 1;
            rest
        }
        _ => before,
    };
    // The room after the change is used first, then the room before it.
    let behind = shorter(behind, &mut missing, language);
    let before =
        if missing > 0 { shorter(before, &mut missing, language) } else { before.to_owned() };
    (missing == 0).then(|| format!("{before}{}{behind}", change.with))
}

/// Removes up to `missing` bytes of white space and comments.
fn shorter(text: &str, missing: &mut usize, language: Language) -> String {
    let mut new = text.to_owned();
    // From the end, so that earlier positions stay valid.
    for room in rooms(text, language).into_iter().rev() {
        let taken = room.len().min(*missing);
        new.replace_range(room.end - taken..room.end, "");
        *missing -= taken;
    }
    new
}

/// Returns ranges without a meaning: all but one character of white space, the text of comments,
/// and a space after a comparison.
fn rooms(text: &str, language: Language) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut at, mut is_quoted) = (0, false);
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        let rest = text.get(at..).unwrap_or_default();
        if byte == b'\'' {
            is_quoted = !is_quoted;
        }
        if is_quoted && byte == b'\\' && language == Language::Lua {
            at += 2;
            continue;
        }
        let length = match byte {
            _ if is_quoted => 0,
            b'-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            b' ' | b'\n' => rest.len() - rest.trim_start().len(),
            _ => 0,
        };
        // The characters that start a comment or a line stay.
        let kept = if byte == b'-' { 2 } else { 1 };
        let ascii = rest.get(kept..length).filter(|room| room.is_ascii());
        if let Some(room) =
            ascii.filter(|room| !(room.is_empty() || byte == b' ' && room.contains('\n')))
        {
            found.push(at + kept..at + kept + room.len());
        } else if byte == b' '
            && at > 0
            && bytes.get(at - 1).is_some_and(|sign| b"<>=,".contains(sign))
            && length == 1
        {
            found.push(at..at + 1);
        }
        at += length.max(1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, old: &str, new: &str) -> Option<String> {
        let start = text.find(old).unwrap();
        let change =
            TextChange { at: start..start + old.len(), with: new.to_owned(), what: String::new() };
        let fitted = apply(text, &change, Language::Postgres);
        assert!(fitted.as_ref().is_none_or(|fitted| fitted.len() == text.len()));
        fitted
    }

    #[test]
    fn a_shorter_text_is_filled_up() {
        assert_eq!(changed("a <= b", "<=", "<").as_deref(), Some("a <  b"));
        assert_eq!(changed("a AND b;", "AND b", "").as_deref(), Some("a      ;"));
    }

    #[test]
    fn a_longer_text_takes_room() {
        assert_eq!(changed("a < b", "<", "<=").as_deref(), Some("a <=b"));
        assert_eq!(changed("a <b", "<", "<=").as_deref(), Some("a<=b"));
        assert_eq!(changed("a OR b", "OR", "AND").as_deref(), None);
        assert_eq!(changed("a  OR\n   b", "OR", "AND").as_deref(), Some("a  AND\n  b"));
        assert_eq!(changed("a OR b -- why\n", "OR", "AND").as_deref(), Some("a AND b -- wh\n"));
        assert_eq!(changed("x = y AND a < b", "a <", "a <=").as_deref(), Some("x = y AND a <=b"));
        assert_eq!(changed("'  ' OR b", "OR", "AND").as_deref(), None);
    }
}
