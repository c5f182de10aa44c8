//! The normal form of a request's path, on which routes are matched.
//!
//! Servers disagree about the spelling of a path: `//v1/charges`, `/v1/charges/` and
//! `/v1/%63harges` all run the handler of `/v1/charges` somewhere. Routes are matched on one normal
//! form, and a path without a single reading is refused. Otherwise a client could get around a
//! route by another spelling.
//!
//! The request itself is passed on with the path that the client sent.

use std::borrow::Cow;

use http::Method;

use crate::problem::{Code, Problem};

/// The standard methods. Some servers accept them in any letter case.
const STANDARD_METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

/// A request that two servers could read differently, so that its route is not certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmbiguousRequest {
    /// A standard method in another letter case, such as `post`.
    #[error("The method is a standard one in another letter case. Write it in capitals.")]
    MethodCase,
    /// The target of the request is no path.
    #[error("The path does not start with a slash.")]
    NoPath,
    /// `%` without two hexadecimal digits behind it.
    #[error(
        "The path has a percent sign without two hexadecimal digits behind it. Write %25 for a percent sign."
    )]
    Escape,
    /// `%2F`
    #[error(
        "The path has an encoded slash (%2F), which some servers read as a slash and others do not."
    )]
    EncodedSlash,
    /// A backslash, encoded or not.
    #[error("The path has a backslash, which some servers read as a slash.")]
    Backslash,
    /// NUL or another control character, encoded or not.
    #[error("The path has a control character.")]
    ControlCharacter,
    /// A segment `.` or `..`, encoded or not, with or without a parameter behind a semicolon.
    #[error(
        "The path has a segment of nothing but dots, alone or before a semicolon. Resolve such segments before sending."
    )]
    DotSegment,
    /// Two readings of the path match different routes.
    #[error(
        "The path can be read in two ways that belong to different routes. Write it without empty segments and without parameters behind a semicolon."
    )]
    TwoRoutes,
    /// Two readings of the path give different values of the parameter that is the key.
    #[error(
        "The path can be read in two ways that name different operations. Write it without empty segments and without parameters behind a semicolon."
    )]
    TwoValues,
}

impl From<AmbiguousRequest> for Problem {
    fn from(ambiguous: AmbiguousRequest) -> Self {
        Self::new(Code::RequestRefused, format!("{ambiguous} Nothing was run."))
    }
}

/// Refuses a standard method in another letter case.
pub(super) fn check_method(method: &Method) -> Result<(), AmbiguousRequest> {
    let text = method.as_str();
    let is_standard = STANDARD_METHODS.contains(&text);
    if !is_standard && STANDARD_METHODS.iter().any(|it| it.eq_ignore_ascii_case(text)) {
        return Err(AmbiguousRequest::MethodCase);
    }
    Ok(())
}

/// The segments of a path, percent-decoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segments<'a> {
    /// The segments, separated by slashes. They have no slash at the beginning or at the end.
    joined: Cow<'a, [u8]>,
    pub(super) ends_with_slash: bool,
}

impl Segments<'_> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let count = if self.joined.is_empty() { 0 } else { usize::MAX };
        self.joined.split(|byte| *byte == b'/').take(count)
    }
}

/// A path in normal form, and other readings of it that are possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NormalPath<'a> {
    /// The normal form: percent-decoded once, and without empty segments.
    pub(super) normal: Segments<'a>,
    /// Readings of servers that keep empty segments, or that ignore parameters behind a semicolon.
    pub(super) others: Vec<Segments<'a>>,
}

impl<'a> NormalPath<'a> {
    /// Reads a path, without its query.
    pub(super) fn parse(path: &'a str) -> Result<Self, AmbiguousRequest> {
        let inner = path.strip_prefix('/').ok_or(AmbiguousRequest::NoPath)?;
        if has_dot_segment(inner) {
            return Err(AmbiguousRequest::DotSegment);
        }
        let decoded = decode(inner)?;
        let ends_with_slash = decoded.ends_with(b"/");
        let without_last = |text: Cow<'a, [u8]>| match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.strip_suffix(b"/").unwrap_or(text)),
            Cow::Owned(mut text) => {
                text.pop_if(|last| *last == b'/');
                Cow::Owned(text)
            }
        };
        let as_sent = without_last(decoded);
        let mut others = Vec::new();
        let is_empty = |segment: &[u8]| segment.is_empty();
        let has_empty = as_sent.split(|byte| *byte == b'/').any(is_empty) && !as_sent.is_empty();
        let normal = if has_empty {
            let merged = joined(as_sent.split(|byte| *byte == b'/').filter(|it| !it.is_empty()));
            others.push(Segments { joined: as_sent, ends_with_slash });
            Segments { joined: Cow::Owned(merged), ends_with_slash }
        } else {
            Segments { joined: as_sent, ends_with_slash }
        };
        if normal.joined.contains(&b';') {
            let before = |segment: &'_ [u8]| segment.iter().position(|byte| *byte == b';');
            let bare = normal.iter().map(|segment| match before(segment) {
                Some(length) => segment.get(..length).unwrap_or_default(),
                None => segment,
            });
            let bare = joined(bare.filter(|segment| !segment.is_empty()));
            others.push(Segments { joined: Cow::Owned(bare), ends_with_slash });
        }
        Ok(Self { normal, others })
    }
}

/// Returns true if a segment of the path is `.` or `..`, encoded or not.
///
/// Clients resolve such segments before they send. A server that resolves them serves another path
/// than one that does not. Tomcat, Jetty and Spring first remove the parameter of a segment and then
/// resolve dots, so `..;a=b` is a dot segment, too.
#[must_use]
pub fn has_dot_segment(path: &str) -> bool {
    let is_dots = |segment: &str| {
        let Some(rest) = without_first(segment, '.', "%2e") else { return false };
        let rest = without_first(rest, '.', "%2e").unwrap_or(rest);
        rest.is_empty() || without_first(rest, ';', "%3b").is_some()
    };
    path.split('/').any(is_dots)
}

/// Returns the text behind its first character, if that is the given one, plain or encoded.
fn without_first<'t>(text: &'t str, plain: char, encoded: &str) -> Option<&'t str> {
    text.strip_prefix(plain).or_else(|| {
        let (first, rest) = text.split_at_checked(encoded.len())?;
        first.eq_ignore_ascii_case(encoded).then_some(rest)
    })
}

fn joined<'s>(segments: impl Iterator<Item = &'s [u8]>) -> Vec<u8> {
    segments.collect::<Vec<_>>().join(&b'/')
}

/// Decodes a path, or a part of one, once.
pub(super) fn decode(text: &str) -> Result<Cow<'_, [u8]>, AmbiguousRequest> {
    text.bytes().try_for_each(check_byte)?;
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let mut pieces = text.split('%');
    let mut decoded = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, tail) = piece.split_at_checked(2).ok_or(AmbiguousRequest::Escape)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_hex);
        let byte = byte.ok_or(AmbiguousRequest::Escape)?;
        check_byte(byte)?;
        if byte == b'/' {
            return Err(AmbiguousRequest::EncodedSlash);
        }
        decoded.push(byte);
        decoded.extend_from_slice(tail.as_bytes());
    }
    Ok(Cow::Owned(decoded))
}

fn check_byte(byte: u8) -> Result<(), AmbiguousRequest> {
    match byte {
        b'\\' => Err(AmbiguousRequest::Backslash),
        _ if byte.is_ascii_control() => Err(AmbiguousRequest::ControlCharacter),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: &str) -> Result<(String, bool), AmbiguousRequest> {
        let path = NormalPath::parse(path)?;
        let text = String::from_utf8_lossy(&path.normal.joined).into_owned();
        Ok((text, path.normal.ends_with_slash))
    }

    #[test]
    fn spellings_of_one_path_have_one_form() {
        for same in ["/v1/charges", "//v1/charges", "/v1//charges", "/%76%31/char%67e%73"] {
            assert_eq!(normal(same), Ok(("v1/charges".to_owned(), false)), "{same}");
        }
        for slash in ["/v1/charges/", "/v1/charges//", "///v1///charges///"] {
            assert_eq!(normal(slash), Ok(("v1/charges".to_owned(), true)), "{slash}");
        }
        for root in ["/", "//", "///"] {
            assert_eq!(normal(root).unwrap().0, "", "{root}");
            assert_eq!(NormalPath::parse(root).unwrap().normal.iter().count(), 0, "{root}");
        }
        assert_eq!(normal("/a%25b").unwrap().0, "a%b");
        assert_eq!(normal("/%252fa").unwrap().0, "%2fa", "it is decoded once");
        assert_eq!(normal("/a.b/...").unwrap().0, "a.b/...");
        assert_eq!(normal("/...;/;..").unwrap().0, "...;/;..");
        assert_eq!(normal("/%C3%A4").unwrap().0, "ä");
    }

    #[test]
    fn a_path_without_a_single_reading_is_refused() {
        use AmbiguousRequest as A;
        for (path, expected) in [
            ("", A::NoPath),
            ("*", A::NoPath),
            ("/v1%2fcharges", A::EncodedSlash),
            ("/%2Fv1/charges", A::EncodedSlash),
            ("/v1%5ccharges", A::Backslash),
            ("/v1\\charges", A::Backslash),
            ("/v1/charges%00", A::ControlCharacter),
            ("/v1/charges%0a", A::ControlCharacter),
            ("/v1/charges%7F", A::ControlCharacter),
            ("/v1/./charges", A::DotSegment),
            ("/v1/x/../charges", A::DotSegment),
            ("/v1/%2e%2E/charges", A::DotSegment),
            ("/v1/charges/..", A::DotSegment),
            ("/x/..;/v1/charges", A::DotSegment),
            ("/v1/.;/charges", A::DotSegment),
            ("/x/..%3b/v1/charges", A::DotSegment),
            ("/x/.%2E%3Ba=b;c/v1/charges", A::DotSegment),
            ("/v1/charges/..;", A::DotSegment),
            ("/100%", A::Escape),
            ("/100%2", A::Escape),
            ("/%+1", A::Escape),
            ("/%zz", A::Escape),
        ] {
            assert_eq!(normal(path), Err(expected), "{path}");
        }
    }

    #[test]
    fn other_readings_are_kept() {
        let others = |path: &str| {
            let parsed = NormalPath::parse(path).unwrap();
            let text = |it: &Segments<'_>| String::from_utf8_lossy(&it.joined).into_owned();
            parsed.others.iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(others("/v1/charges"), [""; 0]);
        assert_eq!(others("/v1/charges/"), [""; 0]);
        assert_eq!(others("//v1/charges"), ["/v1/charges"]);
        assert_eq!(others("/v1//charges/"), ["v1//charges"]);
        assert_eq!(others("/v1;a=b/charges;c"), ["v1/charges"]);
        assert_eq!(others("/v1%3Ba/charges"), ["v1/charges"]);
    }

    #[test]
    fn a_method_in_another_case_is_refused() {
        for method in ["post", "Post", "get", "dELETE"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(check_method(&method), Err(AmbiguousRequest::MethodCase), "{method}");
        }
        for method in ["POST", "GET", "PURGE", "purge", "M-SEARCH"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(check_method(&method), Ok(()), "{method}");
        }
    }

    #[test]
    fn the_problem_says_what_to_do() {
        let problem = Problem::from(AmbiguousRequest::EncodedSlash);
        assert_eq!(problem.code(), Code::RequestRefused);
        let response = problem.into_response(None);
        assert_eq!(response.status(), 400);
        let text = String::from_utf8(response.into_body().to_vec()).unwrap();
        assert!(text.contains("an encoded slash (%2F)") && text.contains("Nothing was run."));
    }
}
