//! Fingerprints of requests: digests of method, path, query, content type, chosen headers and body.

use http::HeaderName;
use http::header::{COOKIE, HOST};
use http::request::Parts;

use onetake_core::{Fingerprint, Fingerprinter};

use crate::content_type::{self, Boundary};
use crate::grpc::ProtobufFingerprint;
use crate::head;
use crate::json::Selection;
use crate::payload::Payload;
use crate::problem::{Code, Problem};

/// The parts of a request that its fingerprint covers. Method, path, query and content type always
/// count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FingerprintPolicy {
    /// Mode of comparing the body.
    pub mode: FingerprintMode,
    /// Additional headers that count.
    ///
    /// **Warning:** a header that changes from one attempt to the next (a trace id, a date) makes
    /// every retry a mismatch.
    pub headers: Vec<HeaderName>,
}

/// Modes of comparing the body of two requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FingerprintMode {
    /// Byte by byte, except for the boundary of multipart, which SDKs generate again for each
    /// attempt.
    #[default]
    Bytes,
    /// As JSON. Member order, white space and the spelling of numbers do not count. Values count
    /// with every digit.
    Json(Selection),
    /// As a protobuf message, for gRPC calls. Other requests are compared byte by byte.
    Protobuf(ProtobufFingerprint),
}

/// Returns the fingerprint of a request. It is the same over HTTP/1.1 and HTTP/2.
///
/// # Errors
/// A problem for the client, if the body cannot be compared.
pub(crate) fn fingerprint(
    parts: &Parts,
    payload: &Payload,
    policy: &FingerprintPolicy,
    proof: &[u8],
) -> Result<Fingerprint, Problem> {
    // The boundary occurs in the header and in the body, and counts in neither. It cannot be found
    // in a body that is compressed, and a body that is read as JSON is not searched for it. In both
    // cases it counts like any other parameter of the header.
    let is_plain = matches!(payload.encoding(), b"" | b"identity");
    let boundary = match policy.mode {
        FingerprintMode::Bytes | FingerprintMode::Protobuf(_) if is_plain => Boundary::of(parts),
        _ => None,
    };
    let uri = head::uri(parts);
    let mut asked = Fingerprinter::new()
        .part(parts.method.as_str().as_bytes())
        .part(uri.path().as_bytes())
        .part(sorted_query(uri.query().unwrap_or_default()).as_bytes())
        .part(content_type::canonical(parts, boundary.as_ref()).as_bytes())
        .part(proof);
    for name in &policy.headers {
        let value = chosen(parts, name);
        asked = asked
            .part(name.as_str().as_bytes())
            .part(&[u8::from(value.is_some())])
            .part(&value.unwrap_or_default());
    }
    if let FingerprintMode::Bytes | FingerprintMode::Protobuf(_) = &policy.mode
        && let Some((encoding, message)) = payload.compared_call()?
    {
        let FingerprintMode::Protobuf(protobuf) = &policy.mode else {
            return Ok(asked.part(b"grpc").part(encoding).part(&message).finish());
        };
        let message = payload.message()?;
        let canonical = protobuf.schema.canonical(uri.path(), &protobuf.exclude, &message);
        let canonical = canonical.map_err(|error| {
            let detail = format!("The call cannot be compared: {error}. Nothing was run.");
            Problem::new(Code::RequestBodyInvalid, detail)
        })?;
        return Ok(asked.part(b"protobuf").part(&canonical).finish());
    }
    Ok(match (&policy.mode, boundary) {
        (FingerprintMode::Bytes | FingerprintMode::Protobuf(_), Some(boundary)) => {
            let asked = asked.part(b"multipart").part(payload.encoding());
            boundary.split(payload.data()).fold(asked, Fingerprinter::part).finish()
        }
        (FingerprintMode::Bytes | FingerprintMode::Protobuf(_), None) => {
            asked.part(b"bytes").part(payload.encoding()).part(payload.data()).finish()
        }
        // An empty body is not invalid JSON: there is nothing to compare.
        (FingerprintMode::Json(_), _) if payload.data().is_empty() => {
            asked.part(b"no json").finish()
        }
        (FingerprintMode::Json(selection), _) => {
            asked.part(b"json").part(&selection.canonical(payload.json()?)).finish()
        }
    })
}

/// Sorts the pairs of a query by name. Pairs with the same name keep their order, because it can
/// have a meaning.
fn sorted_query(query: &str) -> String {
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_by_cached_key(|pair| name_of(pair));
    pairs.join("&")
}

/// Returns the name of a pair in the form in which pairs are sorted. Some servers read `to`, `To`,
/// `to[]` and `t%6f` as the same name.
fn name_of(pair: &str) -> Vec<u8> {
    let name = pair.split('=').next().unwrap_or_default().replace('+', " ");
    let name = percent_encoding::percent_decode_str(&name).map(|byte| byte.to_ascii_lowercase());
    name.take_while(|byte| *byte != b'[').collect()
}

/// Returns the value of a header with all its lines joined, or `None` if there is no such header.
fn chosen(parts: &Parts, name: &HeaderName) -> Option<Vec<u8>> {
    // In HTTP/2 the host is part of the request target. A host in the target of an HTTP/1.1 request
    // counts before its header too.
    if let (true, Some(host)) = (*name == HOST, parts.uri.authority()) {
        return Some(host.as_str().to_ascii_lowercase().into_bytes());
    }
    let lines: Vec<&[u8]> =
        parts.headers.get_all(name).iter().map(|value| value.as_bytes().trim_ascii()).collect();
    // Lines are joined as a proxy or HTTP/2 would join them.
    let between = if *name == COOKIE { "; " } else { ", " };
    let value = lines.join(between.as_bytes());
    let value = if *name == HOST { value.to_ascii_lowercase() } else { value };
    (!lines.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use http::header::CONTENT_TYPE;

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
    fn the_digests_stay_what_they_are() {
        // Records hold these digests. A change would refuse retries of operations that are already
        // recorded.
        let json = FingerprintMode::Json(Selection::Whole);
        let form = "multipart/form-data; boundary=x";
        for (mode, content_type, body, expected) in [
            (FingerprintMode::Bytes, "text/plain; charset=UTF-8", "a", "108627d7ae6a73a2"),
            (FingerprintMode::Bytes, form, "--x\r\n\r\na\r\n--x--", "eb615b0082414cc0"),
            (json, "application/json", "{\"a\":1.0}", "5b9fe3255593b81e"),
        ] {
            let print = print_as(&mode, "POST", "/a?y=2&x=1", content_type, body).unwrap();
            let hex: String =
                print.digest().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((print.scheme(), hex.as_str()), (1, expected), "{content_type}");
        }
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

    /// The boundary cannot be found in a compressed body, so it counts in the header.
    #[test]
    fn the_boundary_of_a_compressed_body_counts() {
        let print = |encoding: &str, boundary: &str| {
            let content_type = format!("multipart/form-data; boundary={boundary}");
            let request = Request::post("/").header(CONTENT_TYPE, content_type);
            let parts =
                request.header("content-encoding", encoding).body(()).unwrap().into_parts().0;
            let policy = FingerprintPolicy::default();
            fingerprint(&parts, &payload(&parts, "same"), &policy, b"").ok().unwrap()
        };
        assert_eq!(print("identity", "x"), print("identity", "y"));
        assert_ne!(print("gzip", "x"), print("gzip", "y"));
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
        // An HTTP/2 request has the authority in its URI.
        assert_eq!(
            one,
            print("POST", "http://h/a?x=1&y=2", "application/json;charset=utf-8", "{}")
        );
    }

    #[test]
    fn pairs_that_a_server_takes_for_one_name_keep_their_order() {
        let query = |query: &str| print("POST", &format!("/a?{query}"), "text/plain", "");
        for (one, other) in [
            ("a=1&%61=2", "%61=2&a=1"),
            ("a+b=1&a%20b=2", "a%20b=2&a+b=1"),
            ("A=1&a=2", "a=2&A=1"),
            ("to=1&to[]=2", "to[]=2&to=1"),
            ("l[][x]=1&l[][y]=2&l[][x]=3&l[][y]=4", "l[][x]=1&l[][x]=3&l[][y]=2&l[][y]=4"),
            ("l[]=1&l%5b%5D=2", "l%5b%5D=2&l[]=1"),
        ] {
            assert_ne!(query(one), query(other), "{one}");
            assert_eq!(query(&format!("z=0&{one}")), query(&format!("{one}&z=0")), "{one}");
        }
        // The spelling counts: names and values are not decoded.
        assert_ne!(query("a=1"), query("%61=1"));
        assert_ne!(query("a=+"), query("a=%20"));
        assert_eq!(query("a=1&&b=2&"), query("b=2&a=1"));
        assert_eq!(query(""), print("POST", "/a", "text/plain", ""));
    }

    #[test]
    fn parameters_of_the_content_type_keep_their_borders() {
        let print = |content_type| print("POST", "/", content_type, "");
        for (one, other) in [
            ("a/b; action=\"urn:a;b\"", "a/b; action=\"urn:a;c\""),
            ("a/b; x=\"a;y=b\"", "a/b; x=a; y=b"),
            ("a/b; x=\"a\\\";y=b\"", "a/b; x=\"a\\\"\";y=b"),
            ("a/b; charset=x; charset=y", "a/b; charset=y; charset=x"),
            ("a/b; word", "a/b"),
            ("a/b; x=", "a/b; x"),
            ("a/b; x=A", "a/b; x=a"),
            ("a/b; boundary=1", "a/b; boundary=2"),
            ("a/b", ""),
            ("a/\"b;c\"", "a/\"b;d\""),
        ] {
            assert_ne!(print(one), print(other), "{one} {other}");
        }
        for (one, other) in [
            ("A/B;x=1;Y=\"2\";", "a/b ; y = 2 ; ; X=1"),
            ("a/b; x=\"a;b\"; y=1", "a/b;y=1;x=\"a;b\""),
            ("text/plain; charset=\"UTF-8\"", "text/plain;Charset=utf-8"),
        ] {
            assert_eq!(print(one), print(other), "{one} {other}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_count_in_headers_too() {
        let print = |name: &str, bytes: &[u8]| {
            let request = Request::post("/").header(name, bytes).body(()).unwrap();
            let parts = request.into_parts().0;
            let policy = FingerprintPolicy::default();
            fingerprint(&parts, &payload(&parts, ""), &policy, b"").ok().unwrap()
        };
        for name in ["content-type", "content-encoding"] {
            assert_ne!(print(name, b"a/b;x=\xfe"), print(name, b"a/b;x=\xff"), "{name}");
            assert_ne!(print(name, b"a/b;x=\xa0"), print(name, b"a/b;x="), "{name}");
        }
    }

    #[test]
    fn the_boundary_of_multipart_does_not_count_wherever_it_stands() {
        let form = |boundary: &str, amount: u32| {
            format!(
                "--{boundary}\r\ncontent-disposition: form-data; name=amount\r\n\r\n{amount}\r\n--{boundary}--\r\n"
            )
        };
        let print = |boundary: &str, body: &str| {
            let content_type = format!("multipart/form-data; boundary={boundary}");
            print("POST", "/", &content_type, body)
        };
        let one = print("one", &form("one", 1));
        assert_eq!(one, print("two--", &form("two--", 1)));
        assert_eq!(one, print("\"a b=c\"", &form("a b=c", 1)));
        assert_ne!(one, print("two", &form("two", 2)));
        // The same bytes can be read in two ways: as 1 or as 2.
        let both = form("one", 1) + &form("two", 2);
        assert_ne!(print("one", &both), print("two", &both));
        assert_ne!(print("one", &form("one", 1)), print("on", &form("one", 1)));
        assert_ne!(one, print("two", &form("one", 1)));
        for (other_one, other_two) in [("one; boundary=two", "two; boundary=one"), ("", "\"\"")] {
            assert_ne!(print(other_one, &both), print(other_two, &both));
        }
    }

    #[test]
    fn no_header_is_not_an_empty_one() {
        let headers = vec![HeaderName::from_static("x-account")];
        let policy = FingerprintPolicy { headers, ..FingerprintPolicy::default() };
        let print = |request: http::request::Builder| {
            let parts = request.body(()).unwrap().into_parts().0;
            fingerprint(&parts, &payload(&parts, ""), &policy, b"").ok().unwrap()
        };
        let post = || Request::post("/");
        assert_ne!(print(post()), print(post().header("x-account", "")));
        assert_ne!(print(post().header("x-account", "")), print(post().header("x-account", ",")));
    }

    #[test]
    fn hosts_and_cookies_are_the_same_over_both_protocols() {
        let policy = FingerprintPolicy { headers: vec![HOST, COOKIE], ..Default::default() };
        let print = |request: http::request::Builder| {
            let parts = request.body(()).unwrap().into_parts().0;
            fingerprint(&parts, &payload(&parts, ""), &policy, b"").ok().unwrap()
        };
        let http1 = Request::post("/a").header(HOST, "API.test").header(COOKIE, "a=1; b=2");
        let http2 = Request::post("http://api.test/a").header(COOKIE, "a=1").header(COOKIE, "b=2");
        assert_eq!(print(http1), print(http2));
        assert_ne!(print(Request::post("http://a/")), print(Request::post("http://b/")));
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
