//! The pattern of a route: methods and a path, such as `POST,PUT /v1/charges/{id}`.

use std::fmt;

use http::Method;

use super::path::{AmbiguousRequest, NormalPath, Segments, decode, has_dot_segment};
use crate::text::{TextError, nearest};

/// The methods that can be keyed; `*` means all of them.
const KEYABLE: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// The methods that are never keyed: they have no effect that could happen twice.
const NEVER_KEYED: [&str; 5] = ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"];

/// The last segment of the path of every method of a gRPC service.
const ANY_METHOD: &str = "{method}";

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

/// The comparison of letters in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathCase {
    /// `/V1/charges` and `/v1/charges` are different paths.
    #[default]
    Exact,
    /// They are the same path, as they are for Express.
    Ignore,
}

/// The meaning of a slash at the end of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrailingSlash {
    /// `/charges/` and `/charges` are the same path.
    #[default]
    Ignore,
    /// They are different paths. The pattern has the slash, or has none.
    Exact,
}

/// The rules by which the paths of a route are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathRules {
    /// The comparison of letters.
    pub case: PathCase,
    /// The meaning of a slash at the end.
    pub trailing_slash: TrailingSlash,
}

/// A path pattern in axum's syntax: literal segments, `{name}` for any one segment, and a final
/// `{*rest}` for at least one more segment.
///
/// Patterns are matched on one normal form of the path: percent-decoded once, with slashes merged.
/// [`PathRules`] say whether letter case and a slash at the end count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    text: String,
    segments: Vec<Segment>,
    /// The name of `{*rest}`, if it follows the segments.
    rest: Option<String>,
    ends_with_slash: bool,
    rules: PathRules,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// The segment, percent-decoded.
    Literal(Vec<u8>),
    /// Any segment that is not empty, by the name of its parameter.
    Any(String),
}

impl PathPattern {
    /// True if a path, without its query, matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        NormalPath::parse(path).is_ok_and(|path| self.fits(&path.normal))
    }

    /// True if the segments of a path match.
    pub(super) fn fits(&self, path: &Segments<'_>) -> bool {
        let mut segments = path.iter();
        for pattern in &self.segments {
            let Some(segment) = segments.next() else { return false };
            let fits = match (pattern, self.rules.case) {
                (Segment::Literal(literal), PathCase::Exact) => literal == segment,
                (Segment::Literal(literal), PathCase::Ignore) => {
                    literal.eq_ignore_ascii_case(segment)
                }
                (Segment::Any(_), _) => !segment.is_empty(),
            };
            if !fits {
                return false;
            }
        }
        if self.rest.is_some() {
            return segments.next().is_some();
        }
        let is_end = match self.rules.trailing_slash {
            TrailingSlash::Ignore => true,
            TrailingSlash::Exact => path.ends_with_slash == self.ends_with_slash,
        };
        is_end && segments.next().is_none()
    }

    /// Returns the number of parameters with this name.
    pub(crate) fn count_of(&self, name: &str) -> usize {
        let is_it = |segment: &&Segment| matches!(segment, Segment::Any(other) if other == name);
        let is_rest = self.rest.as_deref() == Some(name);
        self.segments.iter().filter(is_it).count() + usize::from(is_rest)
    }

    /// Returns the value of a parameter in a path, percent-decoded once. Returns `None` if the path
    /// does not match, or if the pattern has no such parameter.
    ///
    /// # Errors
    /// If two servers could read the value differently.
    pub(crate) fn parameter(
        &self,
        name: &str,
        path: &str,
    ) -> Result<Option<Vec<u8>>, AmbiguousRequest> {
        let path = NormalPath::parse(path)?;
        let value = self.value_of(name, &path.normal);
        let differs =
            |other: &Segments<'_>| self.fits(other) && self.value_of(name, other) != value;
        match path.others.iter().any(differs) {
            true => Err(AmbiguousRequest::TwoValues),
            false => Ok(value),
        }
    }

    fn value_of(&self, name: &str, path: &Segments<'_>) -> Option<Vec<u8>> {
        if !self.fits(path) {
            return None;
        }
        let mut segments = path.iter();
        for (pattern, segment) in self.segments.iter().zip(segments.by_ref()) {
            if matches!(pattern, Segment::Any(other) if other == name) {
                return Some(segment.to_vec());
            }
        }
        let is_rest = self.rest.as_deref() == Some(name);
        is_rest.then(|| segments.collect::<Vec<_>>().join(&b'/'))
    }

    /// True if this pattern matches every path that the other pattern matches.
    fn covers(&self, other: &Self) -> bool {
        let mut theirs = other.segments.iter();
        for segment in &self.segments {
            let is_covered = match (segment, theirs.next()) {
                (Segment::Literal(ours), Some(Segment::Literal(theirs))) => {
                    self.covers_literal(ours, other, theirs)
                }
                (Segment::Any(_), Some(_)) => true,
                (Segment::Literal(_), Some(Segment::Any(_))) | (_, None) => false,
            };
            if !is_covered {
                return false;
            }
        }
        match (&self.rest, theirs.next()) {
            (Some(_), Some(_)) => true,
            (Some(_), None) => other.rest.is_some(),
            (None, None) => other.rest.is_none() && self.covers_end(other),
            (None, Some(_)) => false,
        }
    }

    fn covers_literal(&self, ours: &[u8], other: &Self, theirs: &[u8]) -> bool {
        let has_letters = theirs.iter().any(u8::is_ascii_alphabetic);
        match (self.rules.case, other.rules.case) {
            (PathCase::Ignore, _) => ours.eq_ignore_ascii_case(theirs),
            (PathCase::Exact, PathCase::Ignore) => ours == theirs && !has_letters,
            (PathCase::Exact, PathCase::Exact) => ours == theirs,
        }
    }

    fn covers_end(&self, other: &Self) -> bool {
        self.rules.trailing_slash == TrailingSlash::Ignore
            || (other.rules.trailing_slash == TrailingSlash::Exact
                && other.ends_with_slash == self.ends_with_slash)
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
        let mut rest = None;
        for segment in inner.split('/').filter(|segment| !segment.is_empty()) {
            if rest.is_some() {
                let what = "`{*…}` matches the rest of the path and must be the last segment";
                return Err(RoutePatternError::new(what, EXAMPLE));
            }
            match parse_segment(segment)? {
                Ok(segment) => segments.push(segment),
                Err(name) => rest = Some(name),
            }
        }
        let ends_with_slash = inner.ends_with('/');
        let (text, rules) = (text.to_owned(), PathRules::default());
        Ok(Self { text, segments, rest, ends_with_slash, rules })
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The pattern of a route: methods and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePattern {
    /// The methods of the route.
    pub methods: Methods,
    /// The path of the route.
    pub path: PathPattern,
    /// True if the pattern names a method of gRPC.
    is_grpc: bool,
}

impl RoutePattern {
    /// Parses a pattern such as `POST,PUT /v1/charges/{id}`, or `grpc billing.v1.Payments/Charge`
    /// for a method of gRPC, or `grpc billing.v1.Payments/*` for every method of a service.
    ///
    /// # Errors
    /// Returns an error if the text is not a pattern.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        parse_match(text).map_err(|fault| TextError::new(text, fault.what, fault.fix))
    }

    /// Sets the rules by which paths are compared.
    #[must_use]
    pub fn with_rules(mut self, rules: PathRules) -> Self {
        self.path.rules = rules;
        self
    }

    /// The path of a call, if the pattern names one method of gRPC.
    #[must_use]
    pub fn grpc_method(&self) -> Option<String> {
        let path = self.path.to_string();
        (self.is_grpc && !path.ends_with('}')).then_some(path)
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
        if self.is_grpc {
            let path = self.path.text.trim_start_matches('/');
            let path = path.strip_suffix(ANY_METHOD).map(|path| format!("{path}*"));
            let path = path.unwrap_or_else(|| self.path.text.trim_start_matches('/').to_owned());
            return write!(f, "grpc {path}");
        }
        write!(f, "{} {}", self.methods, self.path)
    }
}

fn parse_match(text: &str) -> Result<RoutePattern, RoutePatternError> {
    if let Some(call) = text
        .trim_start()
        .strip_prefix("grpc")
        .filter(|call| call.is_empty() || call.starts_with(char::is_whitespace))
    {
        return parse_grpc(call.trim());
    }
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
    Ok(RoutePattern { methods, path, is_grpc: false })
}

/// Parses the service and the method of a gRPC call.
fn parse_grpc(text: &str) -> Result<RoutePattern, RoutePatternError> {
    const EXAMPLE: &str = "write for example \"grpc billing.v1.Payments/Charge\", or \"grpc billing.v1.Payments/*\" for every method";
    let is_name = |name: &str| {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(is_word)
    };
    let Some((service, method)) = text.split_once('/') else {
        return Err(RoutePatternError::new("the method of the service is missing", EXAMPLE));
    };
    if !service.split('.').all(is_name) {
        return Err(RoutePatternError::new(format!("`{service}` is not a gRPC service"), EXAMPLE));
    }
    let method = match method {
        "*" => ANY_METHOD,
        name if is_name(name) => name,
        other => {
            return Err(RoutePatternError::new(format!("`{other}` is not a gRPC method"), EXAMPLE));
        }
    };
    let path = PathPattern::parse(&format!("/{service}/{method}"))?;
    Ok(RoutePattern { methods: Methods(vec![Method::POST]), path, is_grpc: true })
}

/// The error of a pattern that no request could match.
fn never_sent(refused: AmbiguousRequest) -> RoutePatternError {
    RoutePatternError::new(
        refused.to_string(),
        "requests with such a path are refused: leave it out",
    )
}

/// Parses a segment. The inner error is the name of `{*rest}`.
fn parse_segment(text: &str) -> Result<Result<Segment, String>, RoutePatternError> {
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
        if has_dot_segment(text) {
            return Err(never_sent(AmbiguousRequest::DotSegment));
        }
        return Ok(Ok(Segment::Literal(decode(text).map_err(never_sent)?.into_owned())));
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
    let name = name.to_owned();
    Ok(if rest { Err(name) } else { Ok(Segment::Any(name)) })
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
            ("/", &["/", "//"][..], &["", "/a", "*"][..]),
            (
                "/a",
                &["/a", "/%61", "/a/", "//a", "/a//"],
                &["/", "/A", "/ab", "a", "/%41", "/%", "/%6", "/%+1", "/%2561", "/a/b"],
            ),
            ("/%61/b%20c", &["/a/b%20c", "/%61/b%20c", "//a//b%20c/"], &["/a/b%2520c", "/a/b+c"]),
            ("/a/", &["/a/", "/a"], &["/a/b"]),
            ("/a/{id}", &["/a/1", "/a/1/", "/a//1"], &["/a", "/a/", "/a/1/b", "/a/%2F", "/a/%00"]),
            ("/a/{id}/b", &["/a/1/b", "/a/1//b"], &["/a//b", "/a/1/c", "/a/1"]),
            ("/a/{*rest}", &["/a/1", "/a/1/2", "/a//1"], &["/a", "/a/", "/a//", "/b/1"]),
            ("/{*rest}", &["/a", "/a/b/"], &["/", "//", ""]),
            ("/{id}/{*rest}", &["/a/b/c", "//a/b"], &["/a", "/a/", "//b"]),
        ] {
            for path in yes {
                assert!(matches(pattern, path), "{pattern} {path}");
            }
            for path in no {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }

    const IGNORE_CASE: PathRules =
        PathRules { case: PathCase::Ignore, trailing_slash: TrailingSlash::Ignore };
    const EXACT_SLASH: PathRules =
        PathRules { case: PathCase::Exact, trailing_slash: TrailingSlash::Exact };

    #[test]
    fn letter_case_and_the_last_slash_count_by_the_rules() {
        for (rules, pattern, yes, no) in [
            (IGNORE_CASE, "/v1/{id}", &["/v1/A", "/V1/a", "/%56%31/a/"][..], &["/v2/a"][..]),
            (EXACT_SLASH, "/a", &["/a", "//a"], &["/a/", "/a//", "/A"]),
            (EXACT_SLASH, "/a/", &["/a/", "/a//"], &["/a", "//a"]),
            (EXACT_SLASH, "/", &["/"], &["/a"]),
            (EXACT_SLASH, "/a/{*rest}", &["/a/b", "/a/b/"], &["/a/"]),
        ] {
            let pattern = parse_match(&format!("* {pattern}")).unwrap().with_rules(rules);
            for path in yes {
                assert!(pattern.path.matches(path), "{pattern} {path}");
            }
            for path in no {
                assert!(!pattern.path.matches(path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn a_pattern_covers_another_only_under_rules_as_wide() {
        let exact = PathRules::default();
        for (first, one, second, other, covers) in [
            ("POST /a", IGNORE_CASE, "POST /A", exact, true),
            ("POST /a", exact, "POST /a", IGNORE_CASE, false),
            ("POST /1", exact, "POST /1", IGNORE_CASE, true),
            ("POST /{x}", exact, "POST /a", IGNORE_CASE, true),
            ("POST /a", exact, "POST /a/", EXACT_SLASH, true),
            ("POST /a", EXACT_SLASH, "POST /a", exact, false),
            ("POST /a", EXACT_SLASH, "POST /a/", EXACT_SLASH, false),
            ("POST /a/", EXACT_SLASH, "POST /a/", EXACT_SLASH, true),
            ("POST /a/{*x}", EXACT_SLASH, "POST /a/b", exact, true),
        ] {
            let wide = parse_match(first).unwrap().with_rules(one);
            let narrow = parse_match(second).unwrap().with_rules(other);
            assert_eq!(wide.covers(&narrow), covers, "{first} {one:?} covers {second} {other:?}");
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
    fn methods_of_grpc() {
        let one = parse_match("grpc billing.v1.Payments/Charge").unwrap();
        assert!(one.matches(&Method::POST, "/billing.v1.Payments/Charge"));
        assert!(!one.matches(&Method::PUT, "/billing.v1.Payments/Charge"));
        assert!(!one.matches(&Method::POST, "/billing.v1.Payments/Refund"));
        assert_eq!(one.to_string(), "grpc billing.v1.Payments/Charge");
        assert_eq!(one.grpc_method().as_deref(), Some("/billing.v1.Payments/Charge"));
        let all = parse_match(" grpc  Payments/* ").unwrap();
        assert!(all.matches(&Method::POST, "/Payments/Charge"));
        assert!(!all.matches(&Method::POST, "/Payments/Charge/x"));
        assert_eq!((all.to_string(), all.grpc_method()), ("grpc Payments/*".to_owned(), None));
        assert!(all.covers(&parse_match("POST /Payments/{id}").unwrap()));
        for (text, hint) in [
            ("grpc", "method of the service is missing"),
            ("grpc billing.v1.Payments", "method of the service is missing"),
            ("grpc /billing/Charge", "not a gRPC service"),
            ("grpc billing..v1/Charge", "not a gRPC service"),
            ("grpc billing.v1/", "not a gRPC method"),
            ("grpc billing.v1/{id}", "not a gRPC method"),
            ("grpc billing.v1/Charge/x", "not a gRPC method"),
            ("grpcx /a", "not a method"),
        ] {
            let fault = parse_match(text).unwrap_err();
            assert!(fault.what.contains(hint), "{text}: {}", fault.what);
        }
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
            ("POST /a%2Fb", "an encoded slash"),
            ("POST /a%0a", "a control character"),
            ("POST /a/../b", "nothing but dots"),
            ("POST /a/..;x/b", "nothing but dots"),
            ("POST /a%", "percent sign"),
        ] {
            let fault = parse_match(text).unwrap_err();
            let said = format!("{} {}", fault.what, fault.fix);
            assert!(said.contains(hint), "{text}: {said}");
        }
    }
}
