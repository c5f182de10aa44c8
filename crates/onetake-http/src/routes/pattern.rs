//! The pattern of a route: methods and a path, such as `POST,PUT /v1/charges/{id}`.

use std::borrow::Cow;
use std::fmt;

use http::Method;

use crate::text::{TextError, nearest};

/// The methods that can be keyed; `*` means all of them.
const KEYABLE: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// The methods that are never keyed: they have no effect that could happen twice.
const NEVER_KEYED: [&str; 5] = ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"];

const EXAMPLE: &str = "write for example \"POST,PUT /v1/charges/{id}\"";

/// An error in a part of a pattern.
#[derive(Debug)]
struct RoutePatternError {
    what: String,
    fix: String,
}

impl RoutePatternError {
    fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }
}

/// The methods of a route: a subset of POST, PUT, PATCH and DELETE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Methods(Vec<Method>);

impl Methods {
    /// True if the route has this method.
    #[must_use]
    pub fn contains(&self, method: &Method) -> bool {
        self.0.contains(method)
    }

    /// Returns the methods.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Method> {
        self.0.clone()
    }

    fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|method| self.0.contains(method))
    }

    fn parse(text: &str) -> Result<Self, RoutePatternError> {
        if text == "*" {
            return Ok(Self(KEYABLE.to_vec()));
        }
        let mut methods = Vec::new();
        for word in text.split(',').map(str::trim) {
            let method = Self::parse_one(word)?;
            if !methods.contains(&method) {
                methods.push(method);
            }
        }
        Ok(Self(methods))
    }

    fn parse_one(word: &str) -> Result<Method, RoutePatternError> {
        if let Some(method) = KEYABLE.iter().find(|method| method.as_str() == word) {
            return Ok(method.clone());
        }
        if NEVER_KEYED.contains(&word) {
            let what = format!("{word} requests are never keyed: they pass through unchanged");
            return Err(RoutePatternError::new(
                what,
                "remove it; only POST, PUT, PATCH and DELETE can be keyed",
            ));
        }
        let what = match word {
            "" => "a method is missing".to_owned(),
            _ => "not a method that can be keyed".to_owned(),
        };
        let names = KEYABLE.iter().map(Method::as_str);
        Err(match nearest(word, names).filter(|_| word != "*") {
            Some(near) => RoutePatternError::new(what, format!("did you mean `{near}`?")),
            None => RoutePatternError::new(
                what,
                "use POST, PUT, PATCH or DELETE, or `*` for all of these",
            ),
        })
    }
}

impl fmt::Display for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(Method::as_str).collect::<Vec<_>>();
        f.write_str(&names.join(","))
    }
}

/// A path pattern in axum's syntax: literal segments, `{name}` for any one segment, and a final
/// `{*rest}` for at least one more character.
///
/// Paths are compared as sent, except for characters that are percent-encoded without need
/// ([`plain`]). A slash at the end makes a different path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    text: String,
    segments: Vec<Segment>,
    /// True if `{*rest}` follows the segments.
    rest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// Any segment that is not empty.
    Any,
}

impl PathPattern {
    /// True if a path, without its query, matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        let path = plain(path);
        let Some(path) = path.strip_prefix('/') else {
            return false;
        };
        let mut remaining = Some(path);
        for segment in &self.segments {
            let Some(text) = remaining else { return false };
            let (head, tail) = match text.split_once('/') {
                Some((head, tail)) => (head, Some(tail)),
                None => (text, None),
            };
            let fits = match segment {
                Segment::Literal(literal) => literal == head,
                Segment::Any => !head.is_empty(),
            };
            if !fits {
                return false;
            }
            remaining = tail;
        }
        match self.rest {
            true => remaining.is_some_and(|rest| !rest.is_empty()),
            false => remaining.is_none(),
        }
    }

    /// True if this pattern matches every path that the other pattern matches.
    fn covers(&self, other: &Self) -> bool {
        let mut theirs = other.segments.iter();
        for segment in &self.segments {
            let is_covered = match (segment, theirs.next()) {
                (Segment::Literal(ours), Some(Segment::Literal(theirs))) => ours == theirs,
                (Segment::Any, Some(Segment::Literal(theirs))) => !theirs.is_empty(),
                (Segment::Any, Some(Segment::Any)) => true,
                (Segment::Literal(_), Some(Segment::Any)) | (_, None) => false,
            };
            if !is_covered {
                return false;
            }
        }
        match (self.rest, theirs.next()) {
            // `{*rest}` does not match a last segment that is empty.
            (true, Some(Segment::Literal(first))) => {
                !first.is_empty() || theirs.next().is_some() || other.rest
            }
            (true, Some(Segment::Any)) => true,
            (true, None) => other.rest,
            (false, None) => !other.rest,
            (false, Some(_)) => false,
        }
    }

    fn parse(text: &str) -> Result<Self, RoutePatternError> {
        let strange = text.chars().find(|c| !c.is_ascii_graphic() || "?#\\\"<>^`|".contains(*c));
        if let Some(c) = strange {
            let what = format!("`{}` is not allowed in a path", c.escape_debug());
            return Err(RoutePatternError::new(
                what,
                "write the path as clients send it: percent-encoded, without a query",
            ));
        }
        let inner = text.strip_prefix('/').unwrap_or(text);
        let mut segments = Vec::new();
        let mut rest = false;
        for segment in inner.split('/') {
            if rest {
                let what = "`{*…}` matches the rest of the path and must be the last segment";
                return Err(RoutePatternError::new(what, EXAMPLE));
            }
            match parse_segment(segment)? {
                Some(segment) => segments.push(segment),
                None => rest = true,
            }
        }
        Ok(Self { text: text.to_owned(), segments, rest })
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Decodes the characters of a path that need no encoding. Every server reads `%63` as `c` (RFC
/// 3986, 6.2.2.2). Without decoding, a client could bypass a route with another spelling.
#[must_use]
pub fn plain(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut pieces = path.split('%');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (digits, tail) = piece.split_at_checked(2).unwrap_or(("", piece));
        let byte = u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        match byte.filter(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(tail);
            }
            None => {
                text.push('%');
                text.push_str(piece);
            }
        }
    }
    Cow::Owned(text)
}

/// The pattern of a route: methods and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePattern {
    /// The methods of the route.
    pub methods: Methods,
    /// The path of the route.
    pub path: PathPattern,
}

impl RoutePattern {
    /// Parses a pattern such as `POST,PUT /v1/charges/{id}`.
    ///
    /// # Errors
    /// Returns an error if the text is not a pattern.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        parse_match(text).map_err(|fault| TextError::new(text, fault.what, fault.fix))
    }

    /// True if a request with this method and path matches.
    #[must_use]
    pub fn matches(&self, method: &Method, path: &str) -> bool {
        self.methods.contains(method) && self.path.matches(path)
    }

    /// True if this pattern matches every request that the other pattern matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.methods.covers(&other.methods) && self.path.covers(&other.path)
    }
}

impl fmt::Display for RoutePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.methods, self.path)
    }
}

fn parse_match(text: &str) -> Result<RoutePattern, RoutePatternError> {
    let Some(slash) = text.find('/') else {
        return Err(RoutePatternError::new("the path is missing; a path starts with `/`", EXAMPLE));
    };
    let (methods, path) = text.split_at_checked(slash).unwrap_or((text, ""));
    let trimmed = methods.trim();
    if trimmed.is_empty() {
        return Err(RoutePatternError::new("the method before the path is missing", EXAMPLE));
    }
    if trimmed.len() == methods.trim_start().len() {
        let what =
            "there is no space between methods and path, or the path does not start with `/`";
        return Err(RoutePatternError::new(what, EXAMPLE));
    }
    let (methods, path) = (Methods::parse(trimmed)?, PathPattern::parse(path.trim_end())?);
    Ok(RoutePattern { methods, path })
}

/// Parses a segment. Returns `None` for `{*rest}`.
fn parse_segment(text: &str) -> Result<Option<Segment>, RoutePatternError> {
    if text.contains("{{") || text.contains("}}") {
        let what = "escaped braces, `{{` and `}}`, are not supported";
        return Err(RoutePatternError::new(what, "match the segment with `{name}` instead"));
    }
    if text.starts_with(':') || text.starts_with('*') {
        let what = "a segment must not start with `:` or `*`";
        return Err(RoutePatternError::new(
            what,
            "write `{name}` for one segment, `{*rest}` for the rest of the path",
        ));
    }
    if !text.contains(['{', '}']) {
        return Ok(Some(Segment::Literal(plain(text).into_owned())));
    }
    let bad = || {
        let fix = "a placeholder must be a whole segment: write `{name}` or `{*rest}` between two slashes";
        RoutePatternError::new(format!("`{text}` is not a valid segment"), fix)
    };
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or_else(bad)?;
    let (name, rest) = match inner.strip_prefix('*') {
        Some(name) => (name, true),
        None => (inner, false),
    };
    if name.is_empty() || name.contains(['{', '}', '*', ':']) {
        return Err(bad());
    }
    Ok((!rest).then_some(Segment::Any))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        parse_match(&format!("* {pattern}")).unwrap().path.matches(path)
    }

    #[test]
    fn paths() {
        for (pattern, yes, no) in [
            ("/", &["/"][..], &["", "//", "/a", "*"][..]),
            (
                "/a",
                &["/a", "/%61"],
                &["/", "/a/", "/A", "/ab", "a", "/%41", "/%", "/%6", "/%+1", "/%2561"],
            ),
            ("/%61/%2F", &["/a/%2F", "/%61/%2F"], &["/a//", "/a/%2f"]),
            ("/a/", &["/a/"], &["/a", "/a/b"]),
            ("/a/{id}", &["/a/1", "/a/%2F"], &["/a", "/a/", "/a/1/", "/a/1/b"]),
            ("/a/{id}/b", &["/a/1/b"], &["/a//b", "/a/1/c", "/a/1"]),
            ("/a/{*rest}", &["/a/1", "/a/1/2", "/a//"], &["/a", "/a/", "/b/1"]),
            ("/{*rest}", &["/a", "/a/b/"], &["/", ""]),
            ("/{id}/{*rest}", &["/a/b/c"], &["/a", "/a/", "//b"]),
        ] {
            for path in yes {
                assert!(matches(pattern, path), "{pattern} {path}");
            }
            for path in no {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn methods() {
        let of = |text: &str| parse_match(text).unwrap().methods.to_string();
        assert_eq!(of("POST /"), "POST");
        assert_eq!(of("POST, PUT,POST   /x "), "POST,PUT");
        assert_eq!(of("* /"), "POST,PUT,PATCH,DELETE");
        let any = parse_match("* /").unwrap().methods;
        assert!(any.contains(&Method::DELETE));
        assert!(!any.contains(&Method::GET), "GET is never keyed");
    }

    #[test]
    fn a_pattern_that_covers_another() {
        for (first, second, covers) in [
            ("POST /a", "POST /a", true),
            ("POST /a", "POST /%61", true),
            ("* /a", "POST,PUT /a", true),
            ("POST /a", "POST,PUT /a", false),
            ("POST /{x}", "POST /a", true),
            ("POST /{x}", "POST /", false),
            ("POST /a", "POST /{x}", false),
            ("POST /{*x}", "POST /a/b", true),
            ("POST /{*x}", "POST /", false),
            ("POST /{*x}", "POST //a", true),
            ("POST /a/{*x}", "POST /a/", false),
            ("POST /a/{*x}", "POST /a/b/", true),
            ("POST /a/{*x}", "POST /a/{y}/{*z}", true),
            ("POST /a/{y}", "POST /a/{*z}", false),
        ] {
            let (one, other) = (parse_match(first).unwrap(), parse_match(second).unwrap());
            assert_eq!(one.covers(&other), covers, "{first} covers {second}");
        }
    }

    #[test]
    fn what_is_no_match_is_refused() {
        for (text, hint) in [
            ("", "path is missing"),
            ("POST", "path is missing"),
            ("/v1", "method before the path is missing"),
            ("POST/v1", "no space between"),
            ("POST v1/charges", "does not start with `/`"),
            ("GET /v1", "GET requests are never keyed"),
            ("POST,HEAD /v1", "HEAD requests are never keyed"),
            ("post /v1", "did you mean `POST`?"),
            ("PSOT /v1", "did you mean `POST`?"),
            ("BREW /v1", "not a method"),
            ("POST, /v1", "a method is missing"),
            ("*,POST /v1", "not a method"),
            ("POST /{{id}}", "not supported"),
            ("POST /:id", "must not start with"),
            ("POST /*", "must not start with"),
            ("POST /{}", "not a valid segment"),
            ("POST /{*}", "not a valid segment"),
            ("POST /{id", "not a valid segment"),
            ("POST /a{id}", "not a valid segment"),
            ("POST /{*rest}/a", "must be the last"),
            ("POST /a?b=c", "`?` is not allowed"),
            ("POST /ä", "`ä` is not allowed"),
            ("POST /a b", "` ` is not allowed"),
        ] {
            let fault = parse_match(text).unwrap_err();
            let said = format!("{} {}", fault.what, fault.fix);
            assert!(said.contains(hint), "{text}: {said}");
        }
    }
}
