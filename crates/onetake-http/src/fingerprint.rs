//! What was asked, as a digest: method, path, query, content type, chosen headers and body.

use http::HeaderName;
use http::header::CONTENT_TYPE;
use http::request::Parts;

use onetake_core::{Fingerprint, Fingerprinter};

use crate::json::Selection;
use crate::payload::Payload;
use crate::problem::Problem;

/// How two requests are told apart. Method, path, query and content type always count.
#[derive(Clone, Debug, Default)]
pub struct FingerprintPolicy {
    /// How the body counts.
    pub mode: FingerprintMode,
    /// Headers that count too. One that changes from one attempt to the next (a trace id, a date)
    /// would make every retry a mismatch.
    pub headers: Vec<HeaderName>,
}

/// How the body counts.
#[derive(Clone, Debug, Default)]
pub enum FingerprintMode {
    /// As it is, byte by byte.
    #[default]
    Bytes,
    /// As JSON: member order, white space and spellings of numbers do not count; values do, with
    /// every digit.
    Json(Selection),
}

/// The fingerprint of a request. It is the same over HTTP/1.1 and HTTP/2.
///
/// # Errors
/// A problem for the client, if the body cannot be compared.
pub(crate) fn fingerprint(
    parts: &Parts,
    payload: &Payload,
    policy: &FingerprintPolicy,
    proof: &[u8],
) -> Result<Fingerprint, Problem> {
    let mut asked = Fingerprinter::new()
        .part(parts.method.as_str().as_bytes())
        .part(parts.uri.path().as_bytes())
        .part(sorted_query(parts.uri.query().unwrap_or_default()).as_bytes())
        .part(content_type(parts).as_bytes())
        .part(proof);
    for name in &policy.headers {
        let lines: Vec<&[u8]> =
            parts.headers.get_all(name).iter().map(|value| value.as_bytes().trim_ascii()).collect();
        // A comma between two lines is what a proxy may put there as well.
        asked = asked.part(name.as_str().as_bytes()).part(&lines.join(&b", "[..]));
    }
    Ok(match &policy.mode {
        FingerprintMode::Bytes => {
            asked.part(b"bytes").part(payload.encoding().as_bytes()).part(payload.data()).finish()
        }
        // No body at all is not invalid JSON: it is nothing to compare.
        FingerprintMode::Json(_) if payload.data().is_empty() => asked.part(b"no json").finish(),
        FingerprintMode::Json(selection) => {
            asked.part(b"json").part(&selection.canonical(payload.json()?)).finish()
        }
    })
}

/// The pairs of a query in the order of their names. Pairs with the same name keep their order,
/// which may mean something.
fn sorted_query(query: &str) -> String {
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_by_key(|pair| pair.split('=').next().unwrap_or_default());
    pairs.join("&")
}

/// The content type without what SDKs spell differently from one attempt to the next: letter case,
/// quotes and the boundary of multipart.
fn content_type(parts: &Parts) -> String {
    let lines = parts.headers.get_all(CONTENT_TYPE).iter();
    let lines = lines.map(|value| one_content_type(&String::from_utf8_lossy(value.as_bytes())));
    lines.collect::<Vec<_>>().join(",")
}

fn one_content_type(value: &str) -> String {
    let mut pieces = value.split(';').map(str::trim);
    let essence = pieces.next().unwrap_or_default().to_ascii_lowercase();
    let mut parameters: Vec<String> = pieces.filter_map(parameter).collect();
    parameters.sort_unstable();
    parameters.insert(0, essence);
    parameters.join(";")
}

fn parameter(piece: &str) -> Option<String> {
    let (name, value) = piece.split_once('=')?;
    let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
    match name.as_str() {
        "boundary" => None,
        "charset" => Some(format!("charset={}", value.to_ascii_lowercase())),
        _ => Some(format!("{name}={value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Code;
    use http::Request;

    fn payload(parts: &Parts, body: &str) -> Payload {
        Payload::new(&parts.headers, body.to_owned().into(), 1000)
    }

    fn print(method: &str, uri: &str, content_type: &str, body: &str) -> Fingerprint {
        print_as(&FingerprintMode::Bytes, method, uri, content_type, body).unwrap()
    }

    fn print_as(
        mode: &FingerprintMode,
        method: &str,
        uri: &str,
        content_type: &str,
        body: &str,
    ) -> Result<Fingerprint, Code> {
        let request = Request::builder().method(method).uri(uri);
        let parts = request.header(CONTENT_TYPE, content_type).body(()).unwrap().into_parts().0;
        let policy = FingerprintPolicy { mode: mode.clone(), ..FingerprintPolicy::default() };
        fingerprint(&parts, &payload(&parts, body), &policy, b"").map_err(|problem| problem.code())
    }

    #[test]
    fn everything_that_was_asked_counts() {
        let one = print("POST", "/a?x=1&y=2", "application/json", "{}");
        assert_ne!(one, print("PATCH", "/a?x=1&y=2", "application/json", "{}"));
        assert_ne!(one, print("POST", "/b?x=1&y=2", "application/json", "{}"));
        assert_ne!(one, print("POST", "/a?x=1&y=3", "application/json", "{}"));
        assert_ne!(one, print("POST", "/a?x=1&y=2", "text/plain", "{}"));
        assert_ne!(one, print("POST", "/a?x=1&y=2", "application/json", "{ }"));
    }

    #[test]
    fn the_order_of_pairs_with_one_name_counts() {
        let one = print("POST", "/a?to=a&to=b&x=1", "text/plain", "");
        assert_eq!(one, print("POST", "/a?x=1&to=a&to=b", "text/plain", ""));
        assert_ne!(one, print("POST", "/a?to=b&to=a&x=1", "text/plain", ""));
    }

    #[test]
    fn a_proof_counts() {
        let parts = Request::post("/").body(()).unwrap().into_parts().0;
        let policy = FingerprintPolicy::default();
        let with = |proof| fingerprint(&parts, &payload(&parts, ""), &policy, proof).ok().unwrap();
        assert_ne!(with(b"right"), with(b"wrong"));
    }

    #[test]
    fn chosen_headers_count_and_others_do_not() {
        let headers = vec![HeaderName::from_static("x-account")];
        let policy = FingerprintPolicy { headers, ..FingerprintPolicy::default() };
        let print = |lines: &[(&str, &str)]| {
            let request = lines.iter().fold(Request::post("/"), |r, (n, v)| r.header(*n, *v));
            let parts = request.body(()).unwrap().into_parts().0;
            fingerprint(&parts, &payload(&parts, ""), &policy, b"").ok().unwrap()
        };
        let one = print(&[("x-account", "a"), ("traceparent", "1")]);
        assert_eq!(one, print(&[("traceparent", "2"), ("x-account", "a")]));
        assert_ne!(one, print(&[("x-account", "b")]));
        assert_ne!(one, print(&[]));
        assert_eq!(
            print(&[("x-account", "a"), ("x-account", "b")]),
            print(&[("x-account", "a, b")])
        );
    }

    #[test]
    fn spelling_does_not_count() {
        let one = print("POST", "/a?x=1&y=2", "application/json; charset=utf-8", "{}");
        assert_eq!(one, print("POST", "/a?y=2&x=1", "Application/JSON;charset=\"UTF-8\"", "{}"));
        // HTTP/2 requests carry the authority in their URI.
        assert_eq!(
            one,
            print("POST", "http://h/a?x=1&y=2", "application/json;charset=utf-8", "{}")
        );
    }

    #[test]
    fn json_is_compared_as_json() {
        let mode = FingerprintMode::Json(Selection::Whole);
        let json = |body| print_as(&mode, "POST", "/", "application/json", body);
        let one = json("{\"a\": 1, \"b\": [true]}").unwrap();
        assert_eq!(json("{\"b\":[true],\"a\":1.0}").unwrap(), one);
        assert_ne!(json("{\"b\":[true],\"a\":2}").unwrap(), one);
        assert_eq!(json("{\"a\":1"), Err(Code::RequestBodyInvalid));
        assert_eq!(json("{\"a\":1,\"a\":1}"), Err(Code::RequestBodyInvalid));
        assert!(json("").is_ok());
    }
}
