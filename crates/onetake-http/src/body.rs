//! Request and response bodies that pass through the layer, and bounded reading of bodies.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Version};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::BoxError;

/// A mark in the extensions of a request: its body reports its end exactly
/// ([`Body::is_end_stream`]), as the `Incoming` of hyper does for HTTP/2.
///
/// An HTTP/2 client can reset its stream with `NO_ERROR` in the middle of an upload. Hyper ends the
/// body without an error then, as if the body were whole. With this mark, the layer takes only
/// `END_STREAM` for the end of the body of an HTTP/2 request. It refuses a body that ends in
/// another way as incomplete.
///
/// The gateway sets it. Set it in a service of your own if nothing stands between hyper and the
/// layer that changes bodies: some middleware reports no end at all, and every request would be
/// refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactEnd;

impl ExactEnd {
    /// Returns true if only `END_STREAM` ends the body of this request.
    pub(crate) fn applies(parts: &Parts) -> bool {
        parts.version == Version::HTTP_2 && parts.extensions.get::<Self>().is_some()
    }
}

pin_project! {
    /// The body of a request to the inner service.
    ///
    /// For a request without a key it is the original body. For a keyed request it is the data that
    /// the layer has read, and its trailers.
    pub struct RequestBody<B> {
        #[pin]
        kind: RequestKind<B>,
    }
}

pin_project! {
    #[project = RequestProjection]
    enum RequestKind<B> {
        Untouched { #[pin] body: B, ends_exactly: bool },
        Read { data: Option<Bytes>, trailers: Option<HeaderMap> },
    }
}

impl<B> RequestBody<B> {
    /// `ends_exactly`: see [`ExactEnd`].
    pub(crate) fn untouched(body: B, ends_exactly: bool) -> Self {
        Self { kind: RequestKind::Untouched { body, ends_exactly } }
    }

    /// Returns a copy of a body that is in memory, and `None` for a stream.
    #[must_use]
    pub fn in_memory(&self) -> Option<Self> {
        match &self.kind {
            RequestKind::Untouched { .. } => None,
            RequestKind::Read { data, trailers } => Some(Self {
                kind: RequestKind::Read { data: data.clone(), trailers: trailers.clone() },
            }),
        }
    }

    pub(crate) fn read(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        let data = Some(data).filter(|data| !data.is_empty());
        Self { kind: RequestKind::Read { data, trailers } }
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            RequestProjection::Untouched { mut body, ends_exactly } => {
                match ready!(body.as_mut().poll_frame(cx)) {
                    // The client broke off its upload. There is no error to return, and the end
                    // would make a part of the body look whole. The server drops the request
                    // because its stream was reset, so nothing waits here for long.
                    None if *ends_exactly && !body.is_end_stream() => Poll::Pending,
                    frame => Poll::Ready(frame),
                }
            }
            RequestProjection::Read { data, trailers } => {
                let frame = data.take().map(Frame::data);
                let frame = frame.or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            RequestKind::Untouched { body, .. } => body.is_end_stream(),
            RequestKind::Read { data, trailers } => data.is_none() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            RequestKind::Untouched { body, .. } => body.size_hint(),
            RequestKind::Read { data, trailers } => size(data.as_ref(), trailers.as_ref()),
        }
    }
}

/// The size of a body. It is not exact if there are trailers: in HTTP/1.1 they can follow only a
/// body without a length.
fn size(data: Option<&Bytes>, trailers: Option<&HeaderMap>) -> SizeHint {
    match trailers {
        None => SizeHint::with_exact(data.map_or(0, |data| data.len() as u64)),
        Some(_) => SizeHint::default(),
    }
}

impl<B> std::fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestBody")
    }
}

/// The largest part of a body that is given to the connection at once. A client that does not read
/// leaves the rest here, where its memory is known.
const PART_BYTES_MAX: usize = 64 << 10;

pin_project! {
    /// The body of a response to the client.
    ///
    /// It is the inner service's body, a recorded or generated body, or the part that was read
    /// followed by the rest of the stream.
    pub struct ResponseBody<B> {
        #[pin]
        kind: ResponseKind<B>,
    }
}

pin_project! {
    #[project = ResponseProjection]
    enum ResponseKind<B> {
        Untouched { #[pin] body: B },
        Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
        Rest { read: Option<Bytes>, body: Pin<Box<B>> },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn untouched(body: B) -> Self {
        Self { kind: ResponseKind::Untouched { body } }
    }

    pub(crate) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        let data = Some(data).filter(|data| !data.is_empty());
        Self { kind: ResponseKind::Whole { data, trailers } }
    }

    pub(crate) fn empty() -> Self {
        Self::whole(Bytes::new(), None)
    }

    /// Returns the number of bytes that this body holds in memory. A body that passes through holds
    /// none.
    #[must_use]
    pub fn bytes_in_memory(&self) -> usize {
        match &self.kind {
            ResponseKind::Untouched { .. } => 0,
            ResponseKind::Whole { data, .. } => data.as_ref().map_or(0, Bytes::len),
            ResponseKind::Rest { read, .. } => read.as_ref().map_or(0, Bytes::len),
        }
    }

    pub(crate) fn rest(read: Bytes, body: Pin<Box<B>>) -> Self {
        let read = Some(read).filter(|read| !read.is_empty());
        Self { kind: ResponseKind::Rest { read, body } }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match self.project().kind.project() {
            ResponseProjection::Untouched { body } => ready!(body.poll_frame(cx)),
            ResponseProjection::Whole { data, trailers } => {
                let frame = next_part(data).map(Frame::data);
                let frame = frame.or_else(|| trailers.take().map(Frame::trailers));
                return Poll::Ready(frame.map(Ok));
            }
            ResponseProjection::Rest { read, body } => match next_part(read) {
                Some(read) => Some(Ok(Frame::data(read))),
                None => ready!(body.as_mut().poll_frame(cx)),
            },
        };
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            ResponseKind::Untouched { body } => body.is_end_stream(),
            ResponseKind::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            ResponseKind::Rest { read, body } => read.is_none() && body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            ResponseKind::Untouched { body } => body.size_hint(),
            ResponseKind::Whole { data, trailers } => size(data.as_ref(), trailers.as_ref()),
            // Not computed: it would be the size of `read` plus what is left of the inner body.
            ResponseKind::Rest { .. } => SizeHint::default(),
        }
    }
}

/// Takes the next part of a body.
fn next_part(data: &mut Option<Bytes>) -> Option<Bytes> {
    match data {
        Some(data) if data.len() > PART_BYTES_MAX => Some(data.split_to(PART_BYTES_MAX)),
        _ => data.take(),
    }
}

impl<B> std::fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseBody")
    }
}

/// Result of reading a body up to a limit.
pub(crate) enum BodyRead<B> {
    /// The whole body.
    Whole { data: Bytes, trailers: Option<HeaderMap> },
    /// The body is larger than `max`. `read` is the part read so far, `rest` is the remaining
    /// stream.
    TooLarge { read: Bytes, rest: Pin<Box<B>> },
}

/// Reads the body of a response, up to `max` bytes.
///
/// It keeps the bytes, not the frames: a body of a million one-byte frames takes a megabyte.
///
/// # Errors
/// If the body breaks off.
pub(crate) async fn read<B>(body: B, max: usize) -> Result<BodyRead<B>, B::Error>
where
    B: Body<Data = Bytes>,
{
    let mut body = Box::pin(body);
    let mut gathered = Gathered::default();
    let mut trailers = None;
    if body.size_hint().lower() > max as u64 {
        return Ok(BodyRead::TooLarge { read: Bytes::new(), rest: body });
    }
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        match frame?.into_data() {
            Ok(data) => {
                gathered.add(data);
                let rest = body.size_hint().lower();
                if rest.saturating_add(gathered.length() as u64) > max as u64 {
                    return Ok(BodyRead::TooLarge { read: gathered.finish(), rest: body });
                }
            }
            Err(other) => trailers = other.into_trailers().ok(),
        }
    }
    Ok(BodyRead::Whole { data: gathered.finish(), trailers })
}

/// Collects frames into one piece of bytes. A body of one frame, the usual case, is not copied.
#[derive(Default)]
pub(crate) struct Gathered {
    first: Bytes,
    rest: Vec<u8>,
    /// The announced length, or 0.
    announced: usize,
}

impl Gathered {
    /// Expects this number of bytes, or an unknown number if it is 0.
    pub(crate) fn announcing(announced: usize) -> Self {
        Self { announced, ..Self::default() }
    }

    pub(crate) fn length(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    pub(crate) fn add(&mut self, data: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = data;
            return;
        }
        let first = std::mem::take(&mut self.first);
        let needed = self.rest.len() + first.len() + data.len();
        if needed > self.rest.capacity() {
            // Twice as much, but never more than is announced. Nothing is reserved for an announced
            // body that does not come.
            let room = needed.saturating_mul(2);
            let room = if self.announced >= needed { room.min(self.announced) } else { room };
            self.rest.reserve_exact(room - self.rest.len());
        }
        self.rest.extend_from_slice(&first);
        self.rest.extend_from_slice(&data);
    }

    pub(crate) fn finish(mut self) -> Bytes {
        if self.rest.is_empty() {
            return self.first;
        }
        self.rest.shrink_to_fit();
        self.rest.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full};

    fn full(text: &'static str) -> Full<Bytes> {
        Full::new(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn a_request_knows_its_size_and_its_end() {
        let untouched = RequestBody::untouched(full("four"), true);
        assert_eq!((untouched.size_hint().exact(), untouched.is_end_stream()), (Some(4), false));
        let mut read = RequestBody::<Full<Bytes>>::read(Bytes::from_static(b"four"), None);
        assert_eq!((read.size_hint().exact(), read.is_end_stream()), (Some(4), false));
        let frame = read.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "four");
        assert_eq!((read.size_hint().exact(), read.is_end_stream()), (Some(0), true));
        assert_eq!(format!("{read:?}"), "RequestBody");
        let trailers = Some(HeaderMap::new());
        let mut read = RequestBody::<Full<Bytes>>::read(Bytes::from_static(b"four"), trailers);
        assert_eq!(read.size_hint().exact(), None);
        assert!(read.frame().await.unwrap().unwrap().is_data() && !read.is_end_stream());
        assert!(read.frame().await.unwrap().unwrap().is_trailers() && read.is_end_stream());
    }

    /// A body that ends without an end, as hyper's does after a reset with NO_ERROR.
    fn reset() -> impl Body<Data = Bytes, Error = std::convert::Infallible> + Unpin {
        let frame = Ok(Frame::data(Bytes::from_static(b"four")));
        http_body_util::StreamBody::new(futures_util::stream::iter([frame]))
    }

    #[tokio::test]
    async fn a_request_that_was_reset_never_ends() {
        use futures_util::FutureExt;
        let mut exact = RequestBody::untouched(reset(), true);
        assert!(exact.frame().await.unwrap().is_ok());
        assert!(exact.frame().now_or_never().is_none());
        let mut other = RequestBody::untouched(reset(), false);
        assert!(other.frame().await.unwrap().is_ok());
        assert!(other.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_response_knows_its_size_and_its_end() {
        let untouched = ResponseBody::untouched(full("four"));
        assert_eq!((untouched.size_hint().exact(), untouched.is_end_stream()), (Some(4), false));
        let mut whole =
            ResponseBody::<Full<Bytes>>::whole(Bytes::from_static(b"four"), Some(HeaderMap::new()));
        assert_eq!((whole.size_hint().exact(), whole.is_end_stream()), (None, false));
        assert!(whole.frame().await.unwrap().unwrap().is_data());
        assert!(!whole.is_end_stream(), "there are trailers");
        assert!(whole.frame().await.unwrap().unwrap().is_trailers());
        assert!(whole.is_end_stream() && whole.frame().await.is_none());
        assert_eq!(format!("{whole:?}"), "ResponseBody");
    }

    #[tokio::test]
    async fn a_response_that_was_read_in_part_ends_with_its_rest() {
        let mut rest = ResponseBody::rest(Bytes::from_static(b"one "), Box::pin(full("two")));
        assert!(!rest.is_end_stream() && rest.size_hint().exact().is_none());
        assert_eq!(rest.frame().await.unwrap().unwrap().into_data().unwrap(), "one ");
        assert!(!rest.is_end_stream(), "the rest is to come");
        assert_eq!(rest.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
        assert!(rest.is_end_stream());
        // Nothing was read, so the first frame comes from the rest.
        let mut rest = ResponseBody::rest(Bytes::new(), Box::pin(full("two")));
        assert_eq!(rest.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
        let rest = ResponseBody::rest(Bytes::from_static(b"one "), Box::pin(full("")));
        assert!(!rest.is_end_stream(), "what was read is to come");
    }

    /// A body of one frame that announces how much is left behind it.
    struct Announced(Option<&'static str>, u64);

    impl Body for Announced {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let frame =
                self.0.take().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes()))));
            Poll::Ready(frame.or_else(|| Some(Err("the rest is not here".into()))))
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_lower(if self.0.is_some() { 0 } else { self.1 });
            hint
        }
    }

    #[tokio::test]
    async fn a_body_with_more_to_come_than_fits_is_not_read_further() {
        for rest in [6, u64::MAX] {
            let Ok(BodyRead::TooLarge { read, .. }) = read(Announced(Some("four"), rest), 9).await
            else {
                panic!("it is larger")
            };
            assert_eq!(read, "four");
        }
        assert!(read(Announced(Some("four"), 5), 9).await.is_err(), "it fits, and is read on");
    }

    #[test]
    fn frames_are_gathered_in_order_and_without_slack() {
        for announced in [0, 6] {
            let mut gathered = Gathered { announced, ..Gathered::default() };
            for piece in ["a", "bcd", "", "ef"] {
                gathered.add(Bytes::from_static(piece.as_bytes()));
            }
            assert_eq!(gathered.length(), 6);
            assert!(announced == 0 || gathered.rest.capacity() == 6);
            assert_eq!(gathered.finish(), "abcdef");
        }
    }
}
