//! Paths against the table of routes.

use http::Method;

use crate::routes::{PathCase, PathRules, RoutePattern, find_route};

/// The routes. The last one ignores letter case.
const ROUTES: [(&str, PathCase); 4] = [
    ("POST /v1/charges", PathCase::Exact),
    ("POST /v1/charges/{id}/refunds", PathCase::Exact),
    ("POST /files/{*rest}", PathCase::Exact),
    ("POST /Orders", PathCase::Ignore),
];

/// A path without a route has no route in any reading of a server either: percent-decoded once,
/// slashes merged, backslashes as slashes, dot segments resolved, parameters or control characters
/// cut off, parameters cut off before dot segments are resolved.
pub fn route_path(data: &[u8]) {
    let path = String::from_utf8_lossy(data);
    let mut routes = Vec::new();
    for (text, case) in ROUTES {
        let Ok(pattern) = RoutePattern::parse(text) else { continue };
        routes.push((pattern.with_rules(PathRules { case, ..PathRules::default() }), text));
    }
    assert_eq!(routes.len(), ROUTES.len(), "every pattern is valid");
    let found = find_route(&routes, &Method::POST, &path);
    // A request without a single reading is refused, so it cannot get around a route.
    let Ok(found) = found else { return };
    for reading in readings(&path) {
        let other = naive_route(&reading);
        assert_eq!(other, found.copied(), "{path:?} is another route as {reading:?}");
    }
    // A server that removes parameters may find no route where the gateway finds one: it reads
    // `/files/;` as `/files`.
    let bare = without_parameters(&path);
    let other = naive_route(&bare);
    let is_same = other.is_none() || other == found.copied();
    assert!(is_same, "{path:?} is another route as {bare:?}");
}

/// The segments of a path as Tomcat, Jetty and Spring read them: they remove the parameters of
/// segments, and then resolve dots.
fn without_parameters(path: &str) -> Vec<Vec<u8>> {
    let decoded = decode_once(path.as_bytes());
    let segments: Vec<_> = decoded.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
    resolved(&cut_at(&segments, |byte| byte == b';'))
}

/// The segments of a path as servers read them.
fn readings(path: &str) -> Vec<Vec<Vec<u8>>> {
    let decoded = decode_once(path.as_bytes());
    let is_slash = |byte: &u8| *byte == b'/';
    let mut readings = Vec::new();
    for text in
        [decoded.clone(), decoded.iter().map(|b| if *b == b'\\' { b'/' } else { *b }).collect()]
    {
        let merged: Vec<Vec<u8>> =
            text.split(is_slash).filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect();
        // Control characters at the end are ignored by some servers, and end a text in others.
        readings.push(cut_at(&merged, |byte| byte.is_ascii_control()));
        readings.push(resolved(&merged));
        readings.push(merged);
    }
    readings
}

/// The segments without their dot segments.
fn resolved(segments: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut resolved = Vec::new();
    for segment in segments {
        match segment.as_slice() {
            b"." => {}
            b".." => drop(resolved.pop()),
            _ => resolved.push(segment.clone()),
        }
    }
    resolved
}

/// The segments, each up to its first such byte. Segments that become empty are left out.
fn cut_at(segments: &[Vec<u8>], is_end: impl Fn(u8) -> bool) -> Vec<Vec<u8>> {
    let cut =
        |segment: &Vec<u8>| segment.iter().copied().take_while(|byte| !is_end(*byte)).collect();
    segments.iter().map(cut).filter(|segment: &Vec<u8>| !segment.is_empty()).collect()
}

/// Decodes `%41`, and leaves everything else as it is.
fn decode_once(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let decoded = match behind {
            [high, low, ..] if *byte == b'%' => digit(high).zip(digit(low)),
            _ => None,
        };
        match decoded.and_then(|(high, low)| u8::try_from(16 * high + low).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*byte);
                rest = behind;
            }
        }
    }
    out
}

/// The route of these segments, without patterns.
fn naive_route(segments: &[Vec<u8>]) -> Option<&'static str> {
    let segments: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
    match segments.as_slice() {
        [b"v1", b"charges"] => Some("POST /v1/charges"),
        [b"v1", b"charges", _, b"refunds"] => Some("POST /v1/charges/{id}/refunds"),
        [b"files", _, ..] => Some("POST /files/{*rest}"),
        [orders] if orders.eq_ignore_ascii_case(b"orders") => Some("POST /Orders"),
        _ => None,
    }
}
