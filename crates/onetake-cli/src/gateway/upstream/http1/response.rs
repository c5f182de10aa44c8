//! The head of a response, and the framing of its body (RFC 9112, section 6.3).

use std::io;
use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Response, StatusCode, Version};
use httparse::{Header, ParserConfig, Status};
use hyper::ext::ReasonPhrase;

use crate::gateway::upstream::{HEAD_BYTES_MAX, HEADERS_MAX};

/// A response with more headers than this is parsed a second time, with a larger table.
const HEADERS_USUAL: usize = 64;
/// The headers that the gateway usually adds to a response. There is room for them from the start,
/// because a table that grows is hashed anew.
const HEADERS_ADDED: usize = 2;

/// The framing of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
    /// The body ends with the connection.
    UntilClose,
}

/// The head of a final response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) response: Response<()>,
    pub(super) framing: Framing,
    /// True if the upstream keeps the connection open after the body.
    pub(super) is_kept_alive: bool,
}

/// A reader of heads.
pub(super) struct Heads {
    /// True if the request was HEAD: its response has no body.
    is_head_request: bool,
    /// The number of bytes in which no end of a head was found.
    searched: usize,
}

impl Heads {
    pub(super) fn new(is_head_request: bool) -> Self {
        Self { is_head_request, searched: 0 }
    }

    /// Takes the head of the final response, if all of it is there. `hint` gets the informational
    /// ones (1xx) before it.
    pub(super) fn next(
        &mut self,
        read: &mut BytesMut,
        hint: impl Fn(Response<()>),
    ) -> io::Result<Option<Head>> {
        loop {
            let end = end_of_head(read, self.searched);
            if end.unwrap_or(read.len()) > HEAD_BYTES_MAX {
                return Err(malformed("its head is too large"));
            }
            let Some(end) = end else {
                // The end may have begun in the last two bytes.
                self.searched = read.len().saturating_sub(2);
                return Ok(None);
            };
            self.searched = 0;
            let (response, version) = parse(&read.split_to(end).freeze())?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Err(malformed("it changes the protocol, and was not asked to"));
            }
            if !response.status().is_informational() {
                return self.conclude(response, version).map(Some);
            }
            hint(response);
        }
    }

    fn conclude(&self, mut response: Response<()>, version: Version) -> io::Result<Head> {
        let status = response.status();
        let has_coding = response.headers().contains_key(TRANSFER_ENCODING);
        let has_length = response.headers().contains_key(CONTENT_LENGTH);
        // Clients refuse a list of lengths.
        let length = one_length(response.headers_mut());
        let is_empty = self.is_head_request
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let no_length = || malformed("its Content-Length is not one number");
        let framing = if is_empty {
            // Clients read this length, although no body follows.
            if has_length && length.is_none() {
                return Err(no_length());
            }
            Framing::Length(0)
        } else if has_coding {
            if version == Version::HTTP_10 || !is_chunked(response.headers()) {
                return Err(malformed("its Transfer-Encoding is not chunked"));
            }
            // The length is wrong by definition.
            response.headers_mut().remove(CONTENT_LENGTH);
            Framing::Chunked
        } else if has_length {
            Framing::Length(length.ok_or_else(no_length)?)
        } else {
            Framing::UntilClose
        };
        // A server that sends both may have meant either. These statuses have no body, but a server
        // that announces one may send it. The length of a 304 is that of another response.
        let announces_body = match status {
            StatusCode::NO_CONTENT => has_coding || length.is_some_and(|length| length > 0),
            StatusCode::NOT_MODIFIED => has_coding,
            _ => false,
        };
        let is_ambiguous = (has_coding && has_length) || announces_body;
        let is_kept_alive = !is_ambiguous && keeps_alive(response.headers(), version);
        Ok(Head { response, framing, is_kept_alive })
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the response is malformed: {what}"))
}

/// Returns the length of the first head: it ends with an empty line.
fn end_of_head(bytes: &[u8], searched: usize) -> Option<usize> {
    let mut from = searched;
    loop {
        let line = from + memchr::memchr(b'\n', bytes.get(from..)?)?;
        match bytes.get(line + 1..)? {
            [b'\n', ..] => return Some(line + 2),
            [b'\r', b'\n', ..] => return Some(line + 3),
            _ => from = line + 1,
        }
    }
}

fn parse(head: &Bytes) -> io::Result<(Response<()>, Version)> {
    let mut usual = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_USUAL];
    match parse_into(head, &mut usual) {
        Err(httparse::Error::TooManyHeaders) => {
            let mut many = vec![MaybeUninit::uninit(); HEADERS_MAX];
            parse_into(head, &mut many)
        }
        parsed => parsed,
    }
    .map_err(|error| malformed(&error.to_string()))
}

fn parse_into<'h>(
    head: &'h Bytes,
    headers: &mut [MaybeUninit<Header<'h>>],
) -> Result<(Response<()>, Version), httparse::Error> {
    let mut parsed = httparse::Response::new(&mut []);
    let config = ParserConfig::default();
    let status = config.parse_response_with_uninit_headers(&mut parsed, head, headers)?;
    // All of the head is here, so a part of it is no head.
    if status != Status::Complete(head.len()) {
        return Err(httparse::Error::NewLine);
    }
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let code = StatusCode::from_u16(parsed.code.unwrap_or_default());
    let mut response = Response::new(());
    *response.status_mut() = code.map_err(|_| httparse::Error::Status)?;
    let mut map = HeaderMap::with_capacity(parsed.headers.len() + HEADERS_ADDED);
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let name = name.map_err(|_| httparse::Error::HeaderName)?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(header.value));
        let value = value.map_err(|_| httparse::Error::HeaderValue)?;
        map.append(name, value);
    }
    *response.headers_mut() = map;
    if let Some(reason) = parsed.reason.filter(|reason| !reason.is_empty())
        && response.status().canonical_reason() != Some(reason)
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    Ok((response, version))
}

/// Returns the length that the headers name. `None` if they name none, or not exactly one.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for number in value.to_str().ok()?.split(',') {
            let number = number.trim();
            // `parse` would accept a sign.
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            let number = number.parse().ok().filter(|_| is_number)?;
            if length.is_some_and(|length| length != number) {
                return None;
            }
            length = Some(number);
        }
    }
    length
}

/// Returns the length that the headers name, and writes it once if it is repeated.
pub(in crate::gateway::upstream) fn one_length(headers: &mut HeaderMap) -> Option<u64> {
    let length = content_length(headers);
    if let Some(length) = length.filter(|_| is_repeated(headers)) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    length
}

/// True if there is more than one length.
fn is_repeated(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let first = values.next().map(HeaderValue::as_bytes).unwrap_or_default();
    first.contains(&b',') || values.next().is_some()
}

/// True if `chunked` is the only transfer coding.
fn is_chunked(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(TRANSFER_ENCODING).iter();
    let first = values.next().map(|value| value.as_bytes().trim_ascii());
    first.is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked")) && values.next().is_none()
}

fn keeps_alive(headers: &HeaderMap, version: Version) -> bool {
    let mut keeps = version == Version::HTTP_11;
    for value in headers.get_all(CONNECTION) {
        for word in value.as_bytes().split(|byte| *byte == b',') {
            let word = word.trim_ascii();
            if word.eq_ignore_ascii_case(b"close") {
                return false;
            }
            keeps = keeps || word.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    keeps
}
