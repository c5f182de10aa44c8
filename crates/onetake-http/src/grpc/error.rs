//! Problems as gRPC errors: a response without a body, whose headers are its trailers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, LINK};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{GRPC_MESSAGE, GRPC_STATUS, GRPC_STATUS_DETAILS, GrpcCode};
use crate::problem::{ProblemFacts, insert};

/// The domain of an `ErrorInfo`: the problem's code is unique in it.
const DOMAIN: &str = "onetake";

/// The wait before a retry, in milliseconds. Clients with a retry policy obey it.
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The characters that `grpc-message` cannot hold as they are.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// Turns the response of a [`Problem`](crate::Problem) to a gRPC call into a gRPC error. Other
/// responses stay as they are. `empty` makes the body.
///
/// The layer does this itself. A server that answers with a problem outside the layer calls it.
#[must_use]
pub fn error_of<B>(mut response: Response<B>, empty: impl FnOnce() -> B) -> Response<B> {
    // A problem that is a gRPC error already is not converted again.
    if response.headers().contains_key(GRPC_STATUS) {
        return response;
    }
    match response.extensions_mut().remove::<ProblemFacts>() {
        Some(facts) => {
            let mut response = error(&facts, response, empty());
            response.extensions_mut().insert(facts);
            response
        }
        None => response,
    }
}

/// Returns the error. Headers of the problem about its JSON body are left out.
fn error<B>(facts: &ProblemFacts, problem: Response<B>, empty: B) -> Response<B> {
    let (mut parts, _body) = problem.into_parts();
    let code = GrpcCode::of_problem(facts.code);
    let headers = &mut parts.headers;
    for name in [CONTENT_LENGTH, LINK] {
        headers.remove(name);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code.number())));
    insert(headers, GRPC_MESSAGE, &utf8_percent_encode(&facts.detail, MESSAGE).to_string());
    let details = STANDARD_NO_PAD.encode(status(facts, code));
    insert(headers, GRPC_STATUS_DETAILS, &details);
    if let Some(seconds) = facts.retry_after {
        headers.insert(GRPC_RETRY_PUSHBACK, HeaderValue::from(seconds.saturating_mul(1000)));
    }
    parts.status = StatusCode::OK;
    Response::from_parts(parts, empty)
}

/// Encodes the `google.rpc.Status`: an `ErrorInfo`, and a `RetryInfo` if a retry helps.
fn status(facts: &ProblemFacts, code: GrpcCode) -> Vec<u8> {
    let mut info = Vec::new();
    put_bytes(&mut info, 1, facts.code.as_str().as_bytes());
    put_bytes(&mut info, 2, DOMAIN.as_bytes());
    let recorded = facts.recorded.map(|status| ("recorded_status", status.as_u16().to_string()));
    let reference = facts.reference.map(|reference| ("reference", reference.to_string()));
    let always = [("instance", facts.instance.clone()), ("retryable", facts.retryable.to_string())];
    for (key, value) in always.into_iter().chain(recorded).chain(reference) {
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, key.as_bytes());
        put_bytes(&mut entry, 2, value.as_bytes());
        put_bytes(&mut info, 3, &entry);
    }
    let mut status = Vec::new();
    put_number(&mut status, 1, u64::from(code.number()));
    put_bytes(&mut status, 2, facts.detail.as_bytes());
    put_any(&mut status, "type.googleapis.com/google.rpc.ErrorInfo", &info);
    if let Some(seconds) = facts.retry_after {
        let (mut duration, mut retry) = (Vec::new(), Vec::new());
        put_number(&mut duration, 1, seconds);
        put_bytes(&mut retry, 1, &duration);
        put_any(&mut status, "type.googleapis.com/google.rpc.RetryInfo", &retry);
    }
    status
}

/// Writes an element of `details`: a `google.protobuf.Any`.
fn put_any(out: &mut Vec<u8>, url: &str, value: &[u8]) {
    let mut any = Vec::new();
    put_bytes(&mut any, 1, url.as_bytes());
    put_bytes(&mut any, 2, value);
    put_bytes(out, 3, &any);
}

fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_number(out: &mut Vec<u8>, field: u32, number: u64) {
    put_varint(out, u64::from(field) << 3);
    put_varint(out, number);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Code, Problem, ProblemFormat};
    use bytes::Bytes;
    use serde_json::Value;

    #[test]
    fn a_problem_is_a_grpc_error() {
        let problem = Problem::new(Code::RequestInProgress, "It runs: 100 %, é.").retry_after(2);
        let response = error_of(ProblemFormat::default().tell(problem, None), Bytes::new);
        let headers = response.headers();
        assert_eq!((response.status().as_u16(), response.body().len()), (200, 0));
        assert_eq!(headers[CONTENT_TYPE], "application/grpc");
        assert_eq!(headers[GRPC_STATUS], "10");
        assert_eq!(headers[GRPC_MESSAGE], "It runs: 100 %25, %C3%A9.");
        assert_eq!(headers["grpc-retry-pushback-ms"], "2000");
        assert!(!headers.contains_key(LINK));
        let details = STANDARD_NO_PAD.decode(headers[GRPC_STATUS_DETAILS].as_bytes()).unwrap();
        let text = String::from_utf8_lossy(&details);
        for part in ["google.rpc.ErrorInfo", "request_in_progress", "google.rpc.RetryInfo"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(details.ends_with(b"\x12\x04\x0a\x02\x08\x02"), "two seconds: {details:?}");
        assert_eq!(Code::of(&response), Some(Code::RequestInProgress), "servers count it");
        let body = Bytes::from_static(b"not a second time");
        assert_eq!(error_of(response, || body).body(), "");
    }

    /// An [`Rng`](onetake_core::Rng) whose numbers all end with this byte.
    #[derive(Debug)]
    struct Equal(u8);

    impl onetake_core::Rng for Equal {
        fn fill(&self, into: &mut [u8]) {
            into.fill(0);
            into.iter_mut().last().into_iter().for_each(|last| *last = self.0);
        }
    }

    #[test]
    fn an_error_says_what_its_problem_says() {
        let known = "2SBD-Q7F4-ABCD".parse().ok();
        for (code, reference, random, seconds) in [
            (Code::Overloaded, None, 0, Some(1)),
            (Code::Overloaded, known, 2, Some(3)),
            (Code::RequestInProgress, known, 2, Some(1)),
            (Code::RequestRefused, None, 0, None),
        ] {
            let mut problem = Problem::new(code, "x");
            if seconds.is_some() {
                problem = problem.retry_after(1);
            }
            let response = ProblemFormat::default().tell_with(problem, reference, &Equal(random));
            let problem: Value = serde_json::from_slice(response.body()).unwrap();
            let response = error_of(response, Bytes::new);
            let number = |name| response.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
            let details =
                STANDARD_NO_PAD.decode(response.headers()[GRPC_STATUS_DETAILS].as_bytes());
            let details = details.unwrap();
            for name in ["instance", "retryable", "reference"] {
                let Some(value) = problem.get(name) else { continue };
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, name.as_bytes());
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                put_bytes(&mut entry, 2, text.as_bytes());
                let is_told = details.windows(entry.len()).any(|part| part == entry);
                assert!(is_told, "{code:?} {name}: {}", String::from_utf8_lossy(&details));
            }
            match seconds {
                Some(seconds) => {
                    assert_eq!(number("retry-after"), seconds, "{code:?}");
                    assert_eq!(number("grpc-retry-pushback-ms"), 1000 * seconds, "{code:?}");
                    assert_eq!(details.last().copied().map(u64::from), Some(seconds), "{code:?}");
                }
                None => assert!(!response.headers().contains_key("grpc-retry-pushback-ms")),
            }
        }
    }

    #[test]
    fn every_problem_has_a_code_and_other_responses_stay() {
        for code in Code::ALL {
            assert_ne!(GrpcCode::of_problem(*code), GrpcCode::Ok, "{code:?}");
        }
        let other = error_of(Response::new(Bytes::from_static(b"x")), Bytes::new);
        assert_eq!(other.body(), "x");
    }
}
