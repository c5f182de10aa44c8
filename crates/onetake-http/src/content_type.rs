//! The content type of a request in a canonical form, and the boundary of a multipart body.
//!
//! SDKs spell both differently from one attempt to the next. The fingerprint must not depend on
//! that.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::request::Parts;

const BOUNDARY: &str = "boundary";

/// The longest boundary of multipart, by RFC 2046.
const BOUNDARY_LENGTH_MAX: usize = 70;

/// The delimiter between the parts of a multipart body: `--` and the boundary parameter.
pub(crate) struct Boundary(Vec<u8>);

impl Boundary {
    /// Returns the boundary of a request, if it is given once and in a form that every reader
    /// understands in the same way.
    pub(crate) fn of(parts: &Parts) -> Option<Self> {
        let mut lines = lines(parts);
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return None;
        };
        // Most content types have no parameters.
        if !line.contains(';') {
            return None;
        }
        let (essence, parameters) = read(&line);
        let mut boundaries = parameters.into_iter().filter(|(name, _)| name.starts_with(BOUNDARY));
        let (Some((name, Some(value))), None) = (boundaries.next(), boundaries.next()) else {
            return None;
        };
        let is_quoted = |byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        let text = match unquoted(&value) {
            Some(inner) if inner.bytes().all(is_quoted) => inner,
            None if value.bytes().all(is_token) => &value,
            _ => return None,
        };
        let is_sound = essence.starts_with("multipart/")
            && name == BOUNDARY
            && (1..=BOUNDARY_LENGTH_MAX).contains(&text.len());
        is_sound.then(|| Self(format!("--{text}").into_bytes()))
    }

    /// Splits a body at its boundaries.
    ///
    /// Two bodies with the same pieces differ only in the boundary, so a reader finds the same
    /// parts in both.
    pub(crate) fn split<'a>(&'a self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let found = memchr::memmem::find_iter(body, &self.0);
        let starts = std::iter::once(0).chain(found.clone().map(|at| at + self.0.len()));
        let ends = found.chain(std::iter::once(body.len()));
        starts.zip(ends).map(|(start, end)| body.get(start..end).unwrap_or_default())
    }
}

/// Returns the canonical content type.
///
/// Letter case, unnecessary quotes, white space and the order of parameters do not count. The
/// boundary parameter does not count if `boundary` is given.
pub(crate) fn canonical(parts: &Parts, boundary: Option<&Boundary>) -> String {
    let mut text = String::new();
    for line in lines(parts) {
        // One allocation for a usual line.
        text.reserve(line.len() + 1);
        if is_canonical(&line) {
            text.push('\u{1}');
            text.push_str(&line);
            continue;
        }
        let (essence, mut parameters) = read(&line);
        if boundary.is_some() {
            parameters.retain(|(name, _)| name != BOUNDARY);
        }
        // The sort is stable: parameters with the same name keep their order, because a reader may
        // use only the first.
        parameters.sort_by(|(one, _), (other, _)| one.cmp(other));
        // Control characters are safe separators, because no header contains them.
        text.push('\u{1}');
        text.push_str(&essence);
        for (name, value) in parameters {
            text.push('\0');
            text.push_str(&name);
            if let Some(value) = value {
                text.push('=');
                text.push_str(&value);
            }
        }
    }
    text
}

/// True for a line without parameters that is canonical already, as most are.
fn is_canonical(line: &str) -> bool {
    line.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'+'))
}

/// The lines of the header, with each byte as a character, so that bytes that are not text count
/// too.
fn lines(parts: &Parts) -> impl Iterator<Item = Cow<'_, str>> {
    let values = parts.headers.get_all(CONTENT_TYPE).iter();
    values.map(|value| match value.to_str() {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => value.as_bytes().iter().copied().map(char::from).collect(),
    })
}

/// A parameter's name in lower case, and its value.
type Parameter = (String, Option<String>);

/// Type and subtype in lower case, and the parameters.
fn read(line: &str) -> (String, Vec<Parameter>) {
    let mut pieces = pieces(line).into_iter();
    let essence = pieces.next().unwrap_or_default().to_ascii_lowercase();
    (essence, pieces.filter(|piece| !piece.is_empty()).map(parameter).collect())
}

/// Splits at semicolons that are not inside quotes.
fn pieces(line: &str) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let pieces = line.split(|char| {
        if std::mem::take(&mut is_escaped) {
            return false;
        }
        match char {
            '"' => is_quoted = !is_quoted,
            '\\' => is_escaped = is_quoted,
            _ => {}
        }
        char == ';' && !is_quoted
    });
    pieces.map(str::trim_ascii).collect()
}

fn parameter(piece: &str) -> Parameter {
    let Some((name, value)) = piece.split_once('=') else {
        return (piece.to_ascii_lowercase(), None);
    };
    let (name, value) = (name.trim_ascii().to_ascii_lowercase(), value.trim_ascii());
    // Quotes around a token have no meaning. Other quotes stay, because they show where the value
    // ends.
    let is_needless = |inner: &&str| !inner.is_empty() && inner.bytes().all(is_token);
    let value = unquoted(value).filter(is_needless).unwrap_or(value);
    let value = if name == "charset" { value.to_ascii_lowercase() } else { value.to_owned() };
    (name, Some(value))
}

fn unquoted(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"')
}

/// Returns true if a byte may be part of a value without quotes (RFC 9110).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn boundary(lines: &[&str]) -> Option<String> {
        let request =
            lines.iter().fold(Request::post("/"), |r, line| r.header(CONTENT_TYPE, *line));
        let parts = request.body(()).unwrap().into_parts().0;
        Boundary::of(&parts).map(|it| String::from_utf8(it.0).unwrap())
    }

    #[test]
    fn a_boundary_is_found_if_there_is_no_doubt_about_it() {
        assert_eq!(boundary(&["multipart/form-data; boundary=x"]).unwrap(), "--x");
        assert_eq!(boundary(&["Multipart/Mixed;a=1; BOUNDARY = \"a;b c\""]).unwrap(), "--a;b c");
        // An escaped quote does not end the value of the parameter before.
        let escaped = r#"multipart/form-data; a="x\"; boundary=y"; boundary=z"#;
        assert_eq!(boundary(&[escaped]).unwrap(), "--z");
        let long = |length| format!("multipart/form-data; boundary={}", "x".repeat(length));
        assert!(boundary(&[&long(70)]).is_some());
        for doubtful in [
            "text/plain; boundary=x",
            "multipart/form-data",
            "multipart/form-data; boundary",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=\"x",
            "multipart/form-data; boundary=\"x\\y\"",
            "multipart/form-data; boundary=x; boundary=y",
            "multipart/form-data; boundary=x; boundary*0=y",
            "multipart/form-data; boundary*=x",
            "multipart/form-data; boundary=x y",
            "multipart/form-data; boundary=x(y)",
            "multipart/form-data; boundary=\"é\"",
            &long(71),
        ] {
            assert_eq!(boundary(&[doubtful]), None, "{doubtful}");
        }
        assert_eq!(boundary(&["multipart/form-data; boundary=x", "text/plain"]), None);
        assert_eq!(boundary(&[]), None);
    }

    #[test]
    fn a_body_is_split_wherever_the_boundary_stands() {
        let split = |body: &'static str| {
            let boundary = Boundary(b"--x".to_vec());
            let pieces = boundary.split(body.as_bytes());
            pieces.map(|piece| String::from_utf8(piece.to_vec()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(split(""), [""]);
        assert_eq!(split("--x"), ["", ""]);
        assert_eq!(split("a--xb---x--x--"), ["a", "b-", "", "--"]);
        assert_eq!(split("--y"), ["--y"]);
    }
}
