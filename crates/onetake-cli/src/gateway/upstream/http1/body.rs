//! The body of a response. It owns its connection until its end.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use onetake_core::Clock;
use onetake_http::BoxError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::PollSender;

use super::super::after_response::AfterResponse;
use super::chunked::{Chunked, Piece};
use super::request::Upload;
use super::response::Framing;
use super::{Http1Connection, Idle, READ_BYTES};

/// The largest read of a long body.
const LONG_READ_BYTES: usize = 64 << 10;

/// The idle connections to return to, and the number of the upstream. `None` if a connection is not
/// used again.
type Home = Option<(Arc<Idle>, usize)>;

/// The body of a response.
pub(in super::super) struct Http1Body(Source);

enum Source {
    /// The whole body arrived with its head.
    Whole(Option<Bytes>),
    Stream(Box<BodyStream>),
    /// A task reads the body, because it also writes the rest of the request.
    Task {
        frames: mpsc::Receiver<Result<Frame<Bytes>, BoxError>>,
        /// The size of what is left.
        size: SizeHint,
        /// The way of permits to the task.
        permits: Option<oneshot::Sender<Box<dyn Send>>>,
        /// Tells the task that this body was dropped. The frames do not: a task that waits for the
        /// upstream alone has no place for a frame.
        _alive: oneshot::Sender<Infallible>,
    },
}

/// A body that is read from its connection.
struct BodyStream {
    /// `None` if it was given back, or is broken.
    connection: Option<Box<Http1Connection>>,
    decoder: Decoder,
    home: Home,
    has_ended: bool,
}

enum Decoder {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

impl Http1Body {
    /// Begins a body. The request is complete, or is never completed.
    pub(super) fn begin(
        mut connection: Box<Http1Connection>,
        framing: Framing,
        home: Home,
    ) -> Self {
        if let Framing::Length(length) = framing
            && let Ok(length) = usize::try_from(length)
            && length <= connection.read.len()
        {
            let data = connection.read.split_to(length).freeze();
            give_back(connection, home);
            return Self(Source::Whole(Some(data).filter(|data| !data.is_empty())));
        }
        Self(Source::Stream(Box::new(BodyStream::new(connection, framing, home))))
    }

    /// Begins a body while the request is still being written. A task does both, so that neither
    /// waits for the other, nor for the client.
    pub(super) fn beside_upload<B>(
        connection: Box<Http1Connection>,
        framing: Framing,
        home: Home,
        upload: Upload<B>,
        clock: Arc<dyn Clock>,
    ) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let stream = BodyStream::new(connection, framing, home);
        let size = stream.size_hint();
        let (sender, frames) = mpsc::channel(1);
        let (permits, held) = oneshot::channel();
        let (alive, dropped) = oneshot::channel();
        let reader = Reader { frames: PollSender::new(sender), dropped };
        let exchange = read_beside_upload(stream, upload, reader, clock);
        tokio::spawn(async move {
            exchange.await;
            drop(held);
        });
        Self(Source::Task { frames, size, permits: Some(permits), _alive: alive })
    }

    /// Holds permits until the connection is free. Returns them if that is so when the body ends.
    pub(in super::super) fn hold<P: Send + 'static>(&mut self, permits: P) -> Option<P> {
        let Source::Task { permits: way, .. } = &mut self.0 else { return Some(permits) };
        // If the task is over, they are dropped.
        let _sent = way.take().map(|way| way.send(Box::new(permits)));
        None
    }
}

/// Keeps a connection whose request and response are complete, if it may be used again.
fn give_back(connection: Box<Http1Connection>, home: Home) {
    // Bytes behind the end of the response answer no request.
    if let Some((idle, upstream)) = home.filter(|_| connection.read.is_empty()) {
        idle.put(upstream, connection);
    }
}

impl BodyStream {
    fn new(connection: Box<Http1Connection>, framing: Framing, home: Home) -> Self {
        let decoder = match framing {
            Framing::Length(length) => Decoder::Length(length),
            Framing::Chunked => Decoder::Chunked(Chunked::default()),
            Framing::UntilClose => Decoder::UntilClose,
        };
        let connection = Some(connection);
        Self { connection, decoder, home, has_ended: framing == Framing::Length(0) }
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take() {
            give_back(connection, self.home.take());
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.decoder {
            _ if self.has_ended => SizeHint::with_exact(0),
            Decoder::Length(left) => SizeHint::with_exact(*left),
            Decoder::Chunked(_) | Decoder::UntilClose => SizeHint::default(),
        }
    }

    /// Takes what has arrived of the body. `None` if more must be read.
    fn arrived(&mut self) -> io::Result<Option<Piece>> {
        let connection = self.connection.as_mut().filter(|_| !self.has_ended);
        let Some(Http1Connection { read, .. }) = connection.map(|boxed| &mut **boxed) else {
            return Ok(Some(Piece::End));
        };
        match &mut self.decoder {
            Decoder::Chunked(chunked) => chunked.next(read),
            Decoder::Length(_) | Decoder::UntilClose if read.is_empty() => Ok(None),
            Decoder::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                *left -= count as u64;
                Ok(Some(Piece::Data(read.split_to(count).freeze())))
            }
            Decoder::UntilClose => Ok(Some(Piece::Data(read.split().freeze()))),
        }
    }

    /// True if nothing of the body is left.
    fn is_complete(&self) -> bool {
        match &self.decoder {
            Decoder::Length(left) => *left == 0,
            Decoder::Chunked(chunked) => chunked.has_ended(),
            Decoder::UntilClose => false,
        }
    }

    /// Reads the next frame. The connection is given back after the last one.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = self.poll_held(cx);
        if self.has_ended {
            self.give_back();
        }
        frame
    }

    /// Reads the next frame. The connection stays here.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            let piece = match self.arrived() {
                Ok(piece) => piece,
                Err(error) => return Poll::Ready(Some(Err(self.break_off(error)))),
            };
            self.has_ended = self.has_ended || self.is_complete();
            match piece {
                Some(Piece::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Piece::Trailers(map)) => return Poll::Ready(Some(Ok(Frame::trailers(map)))),
                Some(Piece::End) => return Poll::Ready(None),
                None if self.has_ended => return Poll::Ready(None),
                None => {}
            }
            let wanted = match &self.decoder {
                Decoder::Length(left) if *left > READ_BYTES as u64 => LONG_READ_BYTES,
                _ => READ_BYTES,
            };
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            match ready!(connection.poll_more(cx, wanted)) {
                Ok(0) if matches!(self.decoder, Decoder::UntilClose) => {
                    self.has_ended = true;
                    return Poll::Ready(None);
                }
                Ok(0) => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Some(Err(self.break_off(error))));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(self.break_off(error)))),
            }
        }
    }

    fn break_off(&mut self, error: io::Error) -> io::Error {
        (self.connection, self.has_ended) = (None, true);
        error
    }
}

/// The reader of a body, as the task sees it.
struct Reader {
    frames: PollSender<Result<Frame<Bytes>, BoxError>>,
    /// Resolves if the body is dropped.
    dropped: oneshot::Receiver<Infallible>,
}

/// Reads a body and writes the rest of its request, until both are complete, the body is dropped
/// before the end of the response, or the request goes on for too long after its response.
async fn read_beside_upload<B>(
    mut stream: BodyStream,
    mut upload: Upload<B>,
    reader: Reader,
    clock: Arc<dyn Clock>,
) where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let Reader { mut frames, mut dropped } = reader;
    let (mut is_uploading, mut is_written) = (true, false);
    let mut after_response: Option<AfterResponse> = None;
    let is_complete = poll_fn(|cx| {
        if is_uploading
            && let Some(connection) = &mut stream.connection
            && let Poll::Ready(uploaded) = upload.poll(&mut connection.stream, cx)
        {
            is_uploading = false;
            is_written = uploaded.is_ok();
        }
        while !stream.has_ended {
            // After the end of the response its body is dropped, and the upload goes on.
            if Pin::new(&mut dropped).poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            // A place for the frame comes first, so that no more is read than the client takes.
            match frames.poll_reserve(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_has_left)) => return Poll::Ready(false),
                Poll::Ready(Ok(())) => {}
            }
            match stream.poll_held(cx) {
                Poll::Pending => {
                    frames.abort_send();
                    return Poll::Pending;
                }
                // The place would keep the channel open.
                Poll::Ready(None) => {
                    frames.abort_send();
                }
                Poll::Ready(Some(frame)) => {
                    let is_broken = frame.is_err();
                    let sent = frames.send_item(frame.map_err(BoxError::from));
                    if is_broken || sent.is_err() {
                        return Poll::Ready(false);
                    }
                }
            }
        }
        // The client sees the end of the response now.
        frames.close();
        if !is_uploading {
            return Poll::Ready(true);
        }
        let moved = upload.moved();
        let after_response =
            after_response.get_or_insert_with(|| AfterResponse::begin(&clock, moved));
        after_response.poll_over(cx, moved).map(|()| false)
    });
    if is_complete.await && is_written {
        stream.give_back();
    }
}

impl Body for Http1Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Source::Whole(data) => Poll::Ready(data.take().map(|data| Ok(Frame::data(data)))),
            Source::Stream(stream) => {
                stream.poll(cx).map(|frame| frame.map(|frame| frame.map_err(BoxError::from)))
            }
            Source::Task { frames, size, .. } => {
                let frame = ready!(frames.poll_recv(cx));
                if let (Some(left), Some(Ok(frame))) = (size.exact(), &frame)
                    && let Some(data) = frame.data_ref()
                {
                    *size = SizeHint::with_exact(left.saturating_sub(data.len() as u64));
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(data) => data.is_none(),
            Source::Stream(stream) => stream.has_ended,
            // hyper does not poll such a body, and some statuses have a length without a body.
            Source::Task { size, .. } => size.exact() == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(data) => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            Source::Stream(stream) => stream.size_hint(),
            Source::Task { size, .. } => *size,
        }
    }
}
