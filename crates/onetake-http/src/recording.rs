//! Recordings of responses, and their replay.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, LOCATION};
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;

use onetake_core::codec::{DecodeError, Reader, put_slice};
use onetake_core::{Recording, Reference};

use crate::body::{BodyRead, ResponseBody, read};
use crate::problem::{Code, Problem, insert_reference};
use crate::typed::Types;

/// The response header by which the inner service says whether its attempt is recorded, released or
/// unknown. Clients never get it.
pub const ONETAKE_OUTCOME: HeaderName = HeaderName::from_static("onetake-outcome");

const VERSION: u8 = 1;
/// The version byte of a recorded value. The module [`typed`](crate::typed) has the rest of its
/// format.
pub(crate) const TYPED: u8 = 2;

/// Headers that a replay has in addition to the recorded ones.
const REPLAY_MARKS: [(HeaderName, HeaderValue); 3] = [
    (HeaderName::from_static("x-idempotency-replayed"), HeaderValue::from_static("true")),
    (HeaderName::from_static("idempotent-replayed"), HeaderValue::from_static("true")),
    (HeaderName::from_static("x-cache-lookup"), HeaderValue::from_static("HIT")),
];

/// The headers that a replay has beside those of the recording: the marks and the reference.
const MARKS_ADDED: usize = 4;
/// A recording with more headers gets room for them as they are read.
const HEADERS_USUAL: u16 = 64;

/// Returns true if a header is valid for one connection only.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Returns the headers that `Connection` names.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        // The usual words, which name no header.
        .filter(|name| !["close", "keep-alive"].iter().any(|word| name.eq_ignore_ascii_case(word)))
        .filter_map(|name| name.parse().ok())
        .collect()
}

/// Removes the headers that are valid for one connection only, including those that `Connection`
/// names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have none: one look at each name is cheaper than a search for each header.
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let own = headers.keys().filter(|name| is_hop_by_hop(name)).cloned();
    let all: Vec<_> = own.chain(named_by_connection(headers)).collect();
    for name in all {
        headers.remove(name);
    }
}

/// Returns true if a header belongs to the outcome. Headers about the time of the response, its
/// trace or its first client do not.
pub(crate) fn is_kept(name: &HeaderName) -> bool {
    let text = name.as_str();
    let is_fixed = matches!(
        text,
        "date"
            | "set-cookie"
            | "www-authenticate"
            | "proxy-authenticate"
            | "onetake-outcome"
            | "idempotency-reference"
            | "traceparent"
            | "tracestate"
            | "b3"
            | "x-request-id"
            | "x-trace-id"
            | "x-amzn-trace-id"
            | "x-cloud-trace-context"
            | "x-idempotency-replayed"
            | "idempotent-replayed"
            | "x-cache-lookup"
    );
    let families = ["ratelimit", "x-ratelimit", "x-rate-limit", "x-b3-"];
    !is_fixed && !families.iter().any(|family| text.starts_with(family))
}

/// Returns the recording of a response. `body` is `None` if the body is not kept.
#[must_use]
pub fn record(
    status: StatusCode,
    headers: &HeaderMap,
    body: Option<Bytes>,
    trailers: Option<&HeaderMap>,
) -> Recording {
    let named = named_by_connection(headers);
    let length = body.as_ref().map(|body| HeaderValue::from(body.len()));
    let mut head = BytesMut::with_capacity(256);
    head.put_u8(VERSION);
    head.put_u16(status.as_u16());
    put_headers(&mut head, headers, |name, value| {
        // A `Content-Length` that differs from the recorded body, or has no recorded body, would
        // break the replay.
        is_kept(name)
            && !is_hop_by_hop(name)
            && !named.contains(name)
            && (*name != CONTENT_LENGTH || Some(value) == length.as_ref())
    });
    put_headers(&mut head, trailers.unwrap_or(&HeaderMap::new()), |name, _| is_kept(name));
    Recording { head: head.freeze(), body }
}

/// Reads a response and returns its recording, in the form in which the layer records responses. A
/// reconciler uses it to record an outcome that it found. If the body has more than `body_max`
/// bytes, it is not recorded, and the rest of it is not read.
///
/// # Errors
/// If the body ends early.
pub async fn record_response<B>(
    response: Response<B>,
    body_max: usize,
) -> Result<Recording, B::Error>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = response.into_parts();
    let (status, headers) = (parts.status, &parts.headers);
    Ok(match read(body, body_max).await? {
        BodyRead::Whole { data, trailers, .. } => {
            let data = match status {
                // Responses with these statuses have no body.
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Bytes::new(),
                _ => Bytes::copy_from_slice(&data),
            };
            record(status, headers, Some(data), trailers.as_ref())
        }
        BodyRead::TooLarge { .. } => record(status, headers, None, None),
    })
}

fn put_headers(
    out: &mut BytesMut,
    headers: &HeaderMap,
    keep: impl Fn(&HeaderName, &HeaderValue) -> bool,
) {
    // Repeated headers are separate entries, in their order.
    let lines = || headers.iter().filter(|(name, value)| keep(name, value));
    out.put_u16(u16::try_from(lines().count()).unwrap_or(u16::MAX));
    for (name, value) in lines().take(usize::from(u16::MAX)) {
        put_slice(out, name.as_str().as_bytes());
        put_slice(out, value.as_bytes());
    }
}

/// A response that was read from a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The status.
    pub status: StatusCode,
    /// The headers, including repeated ones.
    pub headers: HeaderMap,
    /// The body, if it was kept.
    pub body: Option<Bytes>,
    /// The trailers.
    pub trailers: HeaderMap,
}

/// Reads a recording that [`record`] made.
///
/// # Errors
/// If the recording has another format.
pub fn recorded(recording: &Recording) -> Result<Recorded, DecodeError> {
    let mut from = Reader(recording.head.clone());
    if from.u8("version of the recording")? != VERSION {
        return Err(DecodeError::new("version of the recording"));
    }
    let status =
        StatusCode::from_u16(from.u16("status")?).map_err(|_| DecodeError::new("status"))?;
    let headers = take_headers(&mut from)?;
    let trailers = take_headers(&mut from)?;
    from.end()?;
    Ok(Recorded { status, headers, body: recording.body.clone(), trailers })
}

fn take_headers(from: &mut Reader) -> Result<HeaderMap, DecodeError> {
    let count = from.u16("number of headers")?;
    let mut headers = HeaderMap::with_capacity(usize::from(count.min(HEADERS_USUAL)) + MARKS_ADDED);
    for _ in 0..count {
        let name = from.slice("header name")?;
        let value = from.slice("header value")?;
        let name = HeaderName::from_bytes(&name).map_err(|_| DecodeError::new("header name"))?;
        let value =
            HeaderValue::from_maybe_shared(value).map_err(|_| DecodeError::new("header value"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Returns the response that replays a recording, or a problem if the recording cannot be replayed.
pub(crate) fn replay<B>(
    recording: &Recording,
    reference: Reference,
    types: &Types,
) -> Result<Response<ResponseBody<B>>, Problem> {
    let Recorded { status, mut headers, body, trailers } = match types.recorded(recording) {
        Some(rebuilt) => rebuilt?,
        None => recorded(recording).map_err(|_| unreadable())?,
    };
    let Some(body) = body else {
        let detail = "The operation ran and its outcome is recorded, but the response body was too large to keep, or a stream. The operation is not run again.";
        let location = headers.remove(LOCATION);
        return Err(Problem::new(Code::ResponseNotReplayable, detail).recorded(status, location));
    };
    for (name, value) in REPLAY_MARKS {
        headers.insert(name, value);
    }
    insert_reference(&mut headers, reference);
    let trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
    let mut response = Response::new(ResponseBody::whole(body, trailers));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

fn unreadable() -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        "The outcome is recorded, but this version of the service cannot read it. The operation is not run again.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::IDEMPOTENCY_REFERENCE;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_is_recorded_is_replayed_line_by_line() {
        let sent = headers(&[
            ("content-type", "text/plain"),
            ("link", "<a>; rel=next"),
            ("link", "<b>, <c>"),
            ("content-length", "5"),
            ("location", "/charges/1"),
        ]);
        let trailers = headers(&[("grpc-status", "0")]);
        let recording = record(StatusCode::CREATED, &sent, Some("hello".into()), Some(&trailers));
        let read = recorded(&recording).unwrap();
        assert_eq!(
            (read.status, read.headers, read.trailers),
            (StatusCode::CREATED, sent, trailers)
        );
        assert_eq!(read.body.as_deref(), Some(&b"hello"[..]));
    }

    #[test]
    fn what_belongs_to_the_moment_is_not_replayed() {
        let sent = headers(&[
            ("date", "now"),
            ("set-cookie", "session=1"),
            ("set-cookie", "other=2"),
            ("www-authenticate", "Basic"),
            ("x-ratelimit-remaining", "3"),
            ("ratelimit", "limit=5"),
            ("traceparent", "00-1"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("onetake-outcome", "record"),
            ("content-length", "99"),
            ("x-kept", "yes"),
        ]);
        let read = recorded(&record(StatusCode::OK, &sent, Some("body".into()), None)).unwrap();
        assert_eq!(read.headers, headers(&[("x-kept", "yes")]));
    }

    /// A recording of a response that came through another onetake must not have its marks.
    #[test]
    fn the_marks_of_a_replay_are_not_recorded() {
        for name in REPLAY_MARKS.map(|(name, _)| name).into_iter().chain([ONETAKE_OUTCOME]) {
            assert!(!is_kept(&name), "{name}");
        }
        assert!(!is_kept(&IDEMPOTENCY_REFERENCE));
    }

    #[test]
    fn garbage_is_refused() {
        let whole = record(StatusCode::OK, &headers(&[("a", "b")]), None, None);
        for cut in 0..whole.head.len() {
            let cut = Recording { head: whole.head.slice(..cut), body: None };
            assert!(recorded(&cut).is_err());
        }
    }
}
