//! The byte stream of a client connection, beneath HTTP.
//!
//! It notes facts that HTTP does not report, such as the first byte of a head, or a length that
//! hyper removes. And it ends with a
//! lingering close: if a server closes a connection while the client still sends, the operating
//! system resets the connection, and the client loses a response that it has not read yet. So this
//! side ends its own direction first, and then reads and discards what the client sends.
//!
//! It also writes what hyper cannot: the gateway's own words in place of hyper's refusals, and
//! informational responses.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use onetake_http::{Code, ProblemFormat};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::client_connection::count_problem;
use super::early_hints::Moment;
use super::edge::ConnectionPermit;
use super::head_scanner::HeadScanner;
use super::request_heads;

/// Maximum number of bytes that are discarded after the end of a connection.
const LINGER_BYTES_MAX: u64 = 128 << 20;
/// Size of one read of a lingering connection.
const DISCARD_BYTES: usize = 8 << 10;
/// Size of a read while the connection waits for a request. Most heads fit into it.
const ARRIVAL_BYTES: usize = 2 << 10;
/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Head and body of a response are joined up to this size. One plain write of both costs the
/// operating system less than a vectored one.
const JOINED_BYTES_MAX: usize = 4 << 10;

thread_local! {
    /// Memory for joined writes of this thread.
    static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The stream of one client.
pub(super) struct ClientStream<S> {
    inner: S,
    activity: Arc<Activity>,
    /// The form of problems.
    answers: ProblemFormat,
    /// Number of bytes of the preface that have arrived; `None` once the protocol is known.
    preface: Option<usize>,
    scanner: HeadScanner,
    place: ConnectionPermit,
    /// Bytes that arrived before HTTP was there to read them.
    early: Bytes,
    /// Bytes of the gateway itself that are to be written next: informational responses, or a
    /// refusal in place of hyper's.
    own: Bytes,
    /// The moment of the last flush, if nothing was written after it. hyper flushes when all that
    /// it had to write is written, so informational responses of that moment can be written.
    flushed_at: Option<Moment>,
    /// True once this side has ended its direction.
    has_ended: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream<S> {
    pub(super) fn new(
        inner: S,
        activity: Arc<Activity>,
        place: ConnectionPermit,
        answers: ProblemFormat,
    ) -> Self {
        Self {
            inner,
            activity,
            answers,
            preface: Some(0),
            scanner: HeadScanner::default(),
            place,
            early: Bytes::new(),
            own: Bytes::new(),
            flushed_at: None,
            has_ended: false,
        }
    }

    /// Waits until something has arrived, or the peer's direction has ended, and the protocol is
    /// known. The bytes are kept for HTTP.
    ///
    /// # Errors
    /// If the stream cannot be read.
    pub(super) fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.early.is_empty() && self.preface.is_none() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = [MaybeUninit::uninit(); ARRIVAL_BYTES];
            let mut read = ReadBuf::uninit(&mut buffer);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.arrived(read.filled());
            self.early = match self.early.is_empty() {
                true => Bytes::copy_from_slice(read.filled()),
                false => [&self.early, read.filled()].concat().into(),
            };
        }
    }

    /// Takes bytes back that HTTP has read and has no use for.
    pub(super) fn put_back(&mut self, unused: Bytes) {
        self.early = match self.early.is_empty() {
            // Even if it is empty, it would keep hyper's whole read buffer.
            true => Bytes::copy_from_slice(&unused),
            false => [unused, mem::take(&mut self.early)].concat().into(),
        };
    }

    /// Notes bytes that have arrived, and looks for requests that two servers could read
    /// differently.
    fn arrived(&mut self, bytes: &[u8]) {
        if let Some(seen) = self.preface {
            let rest = PREFACE.get(seen..).unwrap_or_default();
            let count = rest.len().min(bytes.len());
            let is_alike = rest.get(..count) == bytes.get(..count);
            self.preface = Some(seen + count).filter(|seen| is_alike && *seen < PREFACE.len());
            let is_http2 = is_alike && self.preface.is_none();
            self.activity.set_http2(is_http2);
            // A part of the preface may also be a part of a head.
            let has_head = self.scan(bytes) && !is_http2;
            self.activity.set_head(has_head);
            return;
        }
        let may_be_head = self.scan(bytes)
            && !self.activity.is_http2()
            && !self.activity.is_running()
            && !self.activity.is_sending();
        if may_be_head {
            self.activity.set_head(true);
        }
    }

    /// Looks for requests that two servers could read differently. Returns true if these bytes may
    /// contain a part of a head. Those of a body arrive after a response that came early, and some
    /// clients send empty lines behind a body.
    fn scan(&mut self, bytes: &[u8]) -> bool {
        if self.activity.is_http2() || self.activity.is_upgraded() {
            return true;
        }
        let (was_in_head, heads) = (self.scanner.is_in_head(), self.scanner.heads());
        if let Some(request) = self.scanner.scan(bytes) {
            self.activity.set_two_lengths(request);
        }
        was_in_head || self.scanner.heads() > heads
    }

    /// Returns the refusal to write in place of these bytes, if they are one of hyper itself. That
    /// is so if a head has arrived that did not become a request.
    fn refusal_for(&self, bytes: &[u8]) -> Option<(Code, Bytes)> {
        let activity = &self.activity;
        let is_other = !activity.has_head()
            || activity.is_running()
            || activity.is_sending()
            || activity.is_upgraded();
        if is_other { None } else { request_heads::completed(bytes, self.answers) }
    }

    /// Keeps the refusal for the next write. Hyper's own bytes count as written.
    fn refuse(
        &mut self,
        (code, refusal): (Code, Bytes),
        written: usize,
    ) -> Poll<io::Result<usize>> {
        count_problem(code);
        self.activity.set_refused(true);
        self.own = refusal;
        Poll::Ready(Ok(written))
    }

    /// Writes what precedes a write of hyper: informational responses of the same request, and
    /// what is left of earlier bytes of the gateway itself.
    fn poll_before_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_own(cx))?;
        if let Some(moment) = self.flushed_at.take() {
            self.own = self.place.hints.take(moment).into();
            ready!(self.poll_own(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes informational responses while nothing of hyper is to be written.
    fn poll_hints(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_own(cx))?;
        if !self.activity.is_http2() {
            let hints = &self.place.hints;
            hints.register(cx);
            let moment = hints.moment();
            self.flushed_at = Some(moment);
            self.own = hints.take(moment).into();
            ready!(self.poll_own(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_own(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.own.is_empty() {
            self.activity.set_unflushed(true);
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.own))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.own.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Discards bytes until the client ends its direction, or has sent too many. The time is
    /// limited by the connection's timeouts.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = [0; DISCARD_BYTES];
        loop {
            let mut read = ReadBuf::new(&mut buffer);
            let ended = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read)).is_err();
            let count = read.filled().len();
            if ended || count == 0 || self.activity.add_discarded(count) > LINGER_BYTES_MAX {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let count = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early.split_to(count));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let arrived = buffer.filled().get(before..).unwrap_or_default();
        if !arrived.is_empty() {
            self.arrived(arrived);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_write(cx))?;
        if let Some(refusal) = self.refusal_for(bytes) {
            return self.refuse(refusal, bytes.len());
        }
        self.activity.set_unflushed(true);
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_write(cx))?;
        let first = slices.iter().find(|slice| !slice.is_empty());
        if let Some(first) = first
            && let Some(refusal) = self.refusal_for(first)
        {
            return self.refuse(refusal, first.len());
        }
        self.activity.set_unflushed(true);
        match slices.iter().map(|slice| slice.len()).sum::<usize>() {
            0..=JOINED_BYTES_MAX => JOINED.with_borrow_mut(|joined| {
                joined.clear();
                slices.iter().for_each(|slice| joined.extend_from_slice(slice));
                Pin::new(&mut self.inner).poll_write(cx, joined)
            }),
            _ => Pin::new(&mut self.inner).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_hints(cx))?;
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.activity.set_unflushed(false);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // From here on the stream must not go to another part of HTTP.
        self.activity.set_ending(true);
        if !self.has_ended {
            ready!(self.poll_own(cx))?;
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.has_ended = true;
        }
        // Both directions of a WebSocket end on their own.
        if self.activity.is_upgraded() {
            return Poll::Ready(Ok(()));
        }
        self.activity.set_lingers(true);
        self.poll_discard(cx)
    }
}
