//! Limits of the heads of requests, and the refusals of heads.
//!
//! Over HTTP/1.1, the parser has the limits. Hyper answers a head that it cannot read by itself:
//! with 400 if the head is malformed, with 431 if it is too large, with 414 if its target has more
//! than 65,534 bytes. Such an answer has no body. A client, and the people who read its log, need a
//! problem with a code. Over HTTP/2, the edge has the same limits.

use bytes::Bytes;
use http::Version;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use onetake_http::{Code, Problem, ProblemFormat};

/// Limits of the head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    /// Maximum number of headers. The lines of `Cookie` count as one.
    pub(super) headers_max: usize,
    /// Maximum size, in bytes.
    pub(super) bytes_max: usize,
}

/// The end of the part of hyper's answer that is replaced.
const NO_BODY: &[u8] = b"content-length: 0\r\n";

/// Limits the head of an HTTP/2 request. The parser limits that of an HTTP/1.1 request.
pub(super) fn check_size(parts: &Parts, limits: HeadLimits) -> Result<(), Problem> {
    /// Size of a header in HTTP/2, beside its name and its value (RFC 9113, 6.5.2).
    const OVERHEAD: usize = 32;
    if parts.version != Version::HTTP_2 {
        return Ok(());
    }
    let of_header =
        |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + OVERHEAD;
    let bytes = parts.headers.iter().map(of_header).sum::<usize>();
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    match parts.headers.len() > limits.headers_max || bytes + target > limits.bytes_max {
        true => Err(too_large()),
        false => Ok(()),
    }
}

/// Completes an answer of hyper itself with a problem, and returns it with the problem's code.
/// Returns `None` for anything else.
pub(super) fn completed(head: &[u8], answers: ProblemFormat) -> Option<(Code, Bytes)> {
    let is_one = head.starts_with(b"HTTP/1.")
        && head.ends_with(b"\r\n\r\n")
        && find(head, b"connection: close\r\n").is_some();
    let problem = match head.get(8..13).filter(|_| is_one)? {
        b" 431 " | b" 414 " => too_large(),
        b" 400 " => Problem::new(
            Code::RequestRefused,
            "The head of the request is malformed. Nothing was forwarded.",
        ),
        _ => return None,
    };
    let code = problem.code();
    let at = find(head, NO_BODY)?;
    let (before, after) = head.split_at_checked(at)?;
    let (headers, body) = answers.tell(problem, None).into_parts();
    let version = head.get(..8)?;
    let mut whole = [version, b" ", headers.status.to_string().as_bytes()].concat();
    whole.extend_from_slice(before.get(find(head, b"\r\n")?..)?);
    for (name, value) in &headers.headers {
        whole.extend_from_slice(name.as_str().as_bytes());
        whole.extend_from_slice(b": ");
        whole.extend_from_slice(value.as_bytes());
        whole.extend_from_slice(b"\r\n");
    }
    whole.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
    whole.extend_from_slice(after.get(NO_BODY.len()..)?);
    whole.extend_from_slice(&body);
    Some((code, whole.into()))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// The problem of a request with too many or too large headers.
pub(super) fn too_large() -> Problem {
    Problem::new(
        Code::RequestHeadTooLarge,
        "The request has too many headers, or its target or its headers are too large. Nothing was forwarded.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_hyper_gets_a_body() {
        let too_large = "431 Request Header Fields Too Large";
        for (of_hyper, status, code) in [
            (too_large, too_large, "request_head_too_large"),
            ("414 URI Too Long", too_large, "request_head_too_large"),
            ("400 Bad Request", "400 Bad Request", "request_refused"),
        ] {
            let head = format!(
                "HTTP/1.1 {of_hyper}\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n"
            );
            let (counted, whole) = completed(head.as_bytes(), ProblemFormat::default()).unwrap();
            assert_eq!(counted.as_str(), code);
            let whole = String::from_utf8(whole.to_vec()).unwrap();
            let (head, body) = whole.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\nconnection: close\r\n")));
            assert!(head.ends_with("\r\ndate: now"), "{head}");
            assert!(head.contains("content-type: application/problem+json\r\n"), "{head}");
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
            assert!(body.contains(&format!("\"code\":\"{code}\"")), "{body}");
        }
    }

    #[test]
    fn nothing_else_is_changed() {
        for other in [
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 431 Too Large\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 400 ",
            "content-length: 0\r\n\r\n",
            "",
        ] {
            assert_eq!(completed(other.as_bytes(), ProblemFormat::default()), None, "{other}");
        }
    }
}
