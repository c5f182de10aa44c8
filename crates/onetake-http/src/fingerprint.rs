//! What was asked, as a digest: method, path, query, content type and body.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;

use onetake_core::{Fingerprint, Fingerprinter};

use crate::json::{self, Limits, Selection};
use crate::problem::{Code, Problem};

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
pub fn fingerprint(
    parts: &Parts,
    body: &[u8],
    mode: &FingerprintMode,
    proof: &[u8],
) -> Result<Fingerprint, Problem> {
    let asked = Fingerprinter::new()
        .part(parts.method.as_str().as_bytes())
        .part(parts.uri.path().as_bytes())
        .part(sorted_query(parts.uri.query().unwrap_or_default()).as_bytes())
        .part(content_type(parts).as_bytes())
        .part(content_encoding(parts).as_bytes())
        .part(proof);
    Ok(match mode {
        FingerprintMode::Bytes => asked.part(b"bytes").part(body).finish(),
        // No body at all is not invalid JSON: it is nothing to compare.
        FingerprintMode::Json(_) if body.is_empty() => asked.part(b"no json").finish(),
        FingerprintMode::Json(selection) => {
            if parts.headers.contains_key(CONTENT_ENCODING) {
                return Err(Problem::new(
                    Code::RequestEncodingUnsupported,
                    "This route compares requests as JSON and does not read compressed bodies; send it without Content-Encoding. Nothing was run.",
                ));
            }
            let canonical = json::canonical(body, selection, Limits::default()).map_err(|error| {
                Problem::new(
                    Code::RequestBodyInvalid,
                    format!("This route compares requests as JSON, and the body is not: {error}. Nothing was run."),
                )
            })?;
            asked.part(b"json").part(&canonical).finish()
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

fn content_encoding(parts: &Parts) -> String {
    let values = parts.headers.get_all(CONTENT_ENCODING).iter();
    let texts = values.map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
    texts.collect::<Vec<_>>().join(",")
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
    use http::Request;

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
        fingerprint(&parts, body.as_bytes(), mode, b"").map_err(|problem| problem.code())
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
        let with = |proof| fingerprint(&parts, b"", &FingerprintMode::Bytes, proof).ok().unwrap();
        assert_ne!(with(b"right"), with(b"wrong"));
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
