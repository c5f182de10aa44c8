//! Writing of a request.

use std::io::{IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    HOST, HeaderName, HeaderValue, MAX_FORWARDS, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, Request, request};
use hyper::body::Body;
use onetake_http::BoxError;
use tokio::io::AsyncWrite;

use super::response::one_length;

/// Data up to this size is copied behind the head, so that one write takes both.
const COPIED_BYTES_MAX: usize = 8 << 10;
/// Frames are gathered up to this size before they are written.
const GATHERED_BYTES_MAX: usize = 16 << 10;
/// Memory above this size is not kept for the next request.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The framing of a request's body.
#[derive(Debug, PartialEq, Eq)]
enum RequestFraming {
    /// This number of bytes is left.
    Length(u64),
    /// The trailers with these names may follow.
    Chunked(Vec<HeaderName>),
}

/// The reason for the end of an upload.
#[derive(Debug)]
pub(super) enum UploadError {
    /// The upstream does not read any more.
    Write,
    /// The body of the request broke off, or has another length than it said.
    Body(BoxError),
}

/// A request on its way to the upstream.
pub(super) struct Upload<B> {
    /// Bytes to write: those after the first `written`.
    bytes: Vec<u8>,
    written: usize,
    /// Data that follows these bytes, and that is too large to be copied.
    large: Bytes,
    /// `None` once all frames were taken.
    body: Option<B>,
    framing: RequestFraming,
    is_flushed: bool,
    /// Number of bytes that the upstream's connection has taken.
    moved: u64,
}

impl<B> Upload<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    /// Encodes the head of a request with a relative target. `memory` is used for its bytes.
    ///
    /// # Errors
    /// If the headers contradict the body.
    pub(super) fn new(request: Request<B>, memory: Vec<u8>) -> Result<Self, BoxError> {
        let (mut parts, body) = request.into_parts();
        let framing = frame(&mut parts, &body)?;
        let mut bytes = memory;
        bytes.clear();
        encode(&parts, &mut bytes);
        let body = Some(body).filter(|_| framing != RequestFraming::Length(0));
        let (large, is_flushed) = (Bytes::new(), false);
        Ok(Self { bytes, written: 0, large, body, framing, is_flushed, moved: 0 })
    }

    /// True if everything is written.
    pub(super) fn is_done(&self) -> bool {
        self.body.is_none() && self.is_flushed
    }

    /// Number of bytes that the upstream's connection has taken.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns the memory for the next request.
    pub(super) fn into_memory(self) -> Vec<u8> {
        if self.bytes.capacity() > KEPT_BYTES_MAX { Vec::new() } else { self.bytes }
    }

    /// Writes as much as possible. Ready if everything is written.
    pub(super) fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>> {
        loop {
            let gathered = self.gather(cx)?;
            if self.has_bytes() {
                ready!(self.poll_write(stream, cx))?;
                continue;
            }
            if !self.is_flushed {
                let flushed = ready!(Pin::new(&mut *stream).poll_flush(cx));
                flushed.map_err(|_| UploadError::Write)?;
                self.is_flushed = true;
            }
            return gathered.map(Ok);
        }
    }

    fn has_bytes(&self) -> bool {
        self.written < self.bytes.len() || !self.large.is_empty()
    }

    fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>> {
        let bytes = self.bytes.get(self.written..).unwrap_or_default();
        let stream = Pin::new(stream);
        let written = match (bytes.is_empty(), self.large.is_empty()) {
            (_, true) => ready!(stream.poll_write(cx, bytes)),
            (true, false) => ready!(stream.poll_write(cx, &self.large)),
            (false, false) => {
                let slices = [IoSlice::new(bytes), IoSlice::new(&self.large)];
                ready!(stream.poll_write_vectored(cx, &slices))
            }
        };
        let mut count = written.map_err(|_| UploadError::Write)?;
        if count == 0 {
            return Poll::Ready(Err(UploadError::Write));
        }
        self.is_flushed = false;
        self.moved += count as u64;
        let of_bytes = count.min(bytes.len());
        self.written += of_bytes;
        count -= of_bytes;
        if count > 0 {
            self.large.advance(count);
            if self.large.is_empty() && matches!(self.framing, RequestFraming::Chunked(_)) {
                self.written = 0;
                self.bytes.clear();
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
        if self.written == self.bytes.len() && self.large.is_empty() {
            self.written = 0;
            self.bytes.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Takes frames of the body that are there. Ready if there are no more to come.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, UploadError> {
        while self.large.is_empty() && self.bytes.len() < GATHERED_BYTES_MAX {
            let Some(body) = &mut self.body else { return Ok(Poll::Ready(())) };
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.add(data)?,
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        self.end(Some(&trailers))?;
                    }
                },
                Poll::Ready(Some(Err(error))) => return Err(UploadError::Body(error.into())),
                Poll::Ready(None) => self.end(None)?,
            }
        }
        Ok(Poll::Pending)
    }

    fn add(&mut self, data: Bytes) -> Result<(), UploadError> {
        let length = data.len() as u64;
        if data.is_empty() {
            return Ok(());
        }
        match &mut self.framing {
            RequestFraming::Length(left) => {
                *left = left.checked_sub(length).ok_or_else(wrong_length)?;
                // The end is known before the body says so.
                if *left == 0 {
                    self.body = None;
                }
            }
            RequestFraming::Chunked(_) => {
                let _infallible = write!(self.bytes, "{length:x}\r\n");
            }
        }
        if data.len() > COPIED_BYTES_MAX {
            self.large = data;
            return Ok(());
        }
        self.bytes.extend_from_slice(&data);
        if matches!(self.framing, RequestFraming::Chunked(_)) {
            self.bytes.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), UploadError> {
        self.body = None;
        match &self.framing {
            RequestFraming::Length(0) => Ok(()),
            RequestFraming::Length(_) => Err(wrong_length()),
            RequestFraming::Chunked(names) => {
                self.bytes.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    if names.contains(name) && may_be_trailer(name) {
                        encode_header(name, value, &mut self.bytes);
                    }
                }
                self.bytes.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

fn wrong_length() -> UploadError {
    UploadError::Body("the body has another length than its Content-Length".into())
}

/// Decides the framing of the body, and corrects the headers about it.
fn frame<B: Body>(parts: &mut request::Parts, body: &B) -> Result<RequestFraming, BoxError> {
    let headers = &mut parts.headers;
    let length = match headers.contains_key(CONTENT_LENGTH) {
        true => Some(one_length(headers).ok_or("the Content-Length is not a number")?),
        false => None,
    };
    let exact = body.size_hint().exact();
    if body.is_end_stream() || exact == Some(0) {
        headers.remove(TRANSFER_ENCODING);
        return match length {
            None | Some(0) => Ok(RequestFraming::Length(0)),
            Some(_) => Err("the request has a Content-Length and no body".into()),
        };
    }
    let is_chunked = headers.contains_key(TRANSFER_ENCODING) || (length.or(exact)).is_none();
    if is_chunked {
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        let names = headers.get_all(TRAILER).iter();
        let names = names.flat_map(|value| value.to_str().unwrap_or_default().split(','));
        return Ok(RequestFraming::Chunked(
            names.filter_map(|name| name.trim().parse().ok()).collect(),
        ));
    }
    match (length, exact) {
        (Some(length), Some(exact)) if length != exact => {
            Err("the body has another length than its Content-Length".into())
        }
        (Some(length), _) => Ok(RequestFraming::Length(length)),
        (None, exact) => {
            let length = exact.unwrap_or_default();
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            Ok(RequestFraming::Length(length))
        }
    }
}

/// Writes the head of a request.
fn encode(parts: &request::Parts, into: &mut Vec<u8>) {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let method: &Method = &parts.method;
    into.reserve(64 + target.len() + parts.headers.len() * 40);
    into.extend_from_slice(method.as_str().as_bytes());
    into.push(b' ');
    into.extend_from_slice(target.as_bytes());
    into.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in &parts.headers {
        encode_header(name, value, into);
    }
    into.extend_from_slice(b"\r\n");
}

fn encode_header(name: &HeaderName, value: &HeaderValue, into: &mut Vec<u8>) {
    into.extend_from_slice(name.as_str().as_bytes());
    into.extend_from_slice(b": ");
    into.extend_from_slice(value.as_bytes());
    into.extend_from_slice(b"\r\n");
}

/// True if a trailer may have this name. Others could change the meaning of the head.
fn may_be_trailer(name: &HeaderName) -> bool {
    ![
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        HOST,
        MAX_FORWARDS,
        SET_COOKIE,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
    ]
    .contains(name)
}
