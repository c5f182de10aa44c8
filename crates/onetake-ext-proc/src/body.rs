//! Bodies that Envoy has, and sends only if they are read.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};

use crate::exchange::{BodyPart, Exchange, Rest, StreamEnded};

/// The body of a request or a response. Envoy sends it when it is read for the first time. A body
/// that is longer than Envoy's buffer can be read only up to there: its size hint says that it is
/// longer than any limit. In full duplex, a body comes in pieces and has no such end.
pub struct EnvoyBody(State);

enum State {
    Unread {
        source: Source,
        length: u64,
    },
    Reading {
        source: Source,
        part: Pin<Box<dyn Future<Output = Result<BodyPart, StreamEnded>> + Send + Sync>>,
    },
    /// A body of the processor itself.
    Whole(Bytes),
    /// The rest stays with Envoy.
    Cut,
    Ended,
}

/// The request or the response of an exchange.
#[derive(Clone)]
struct Source {
    exchange: Arc<Exchange>,
    direction: Direction,
}

#[derive(Clone, Copy)]
enum Direction {
    Request,
    Response,
}

impl Source {
    /// Reads the next part of the body.
    async fn part(self) -> Result<BodyPart, StreamEnded> {
        match self.direction {
            Direction::Request => self.exchange.request_part().await,
            Direction::Response => self.exchange.response_part().await,
        }
    }
}

impl EnvoyBody {
    pub(crate) fn empty() -> Self {
        Self(State::Ended)
    }

    /// A body that Envoy does not have.
    pub(crate) fn whole(data: Bytes) -> Self {
        Self(State::Whole(data))
    }

    pub(crate) fn of_request(exchange: &Arc<Exchange>, is_empty: bool) -> Self {
        Self::new(exchange, Direction::Request, &exchange.request_headers, is_empty)
    }

    pub(crate) fn of_response(
        exchange: &Arc<Exchange>,
        headers: &HeaderMap,
        is_empty: bool,
    ) -> Self {
        Self::new(exchange, Direction::Response, headers, is_empty)
    }

    fn new(
        exchange: &Arc<Exchange>,
        direction: Direction,
        headers: &HeaderMap,
        is_empty: bool,
    ) -> Self {
        if is_empty {
            return Self::empty();
        }
        let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let length = length.and_then(|text| text.parse().ok()).unwrap_or_default();
        Self(State::Unread { source: Source { exchange: Arc::clone(exchange), direction }, length })
    }
}

impl Body for EnvoyBody {
    type Data = Bytes;
    type Error = StreamEnded;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamEnded>>> {
        loop {
            match &mut self.0 {
                State::Unread { source, .. } => {
                    let source = source.clone();
                    let part = Box::pin(source.clone().part());
                    self.0 = State::Reading { source, part };
                }
                State::Reading { source, part } => {
                    let part = ready!(part.as_mut().poll(cx));
                    self.0 = match part.as_ref().map(|part| part.rest) {
                        Ok(Rest::ToCome) => State::Unread { source: source.clone(), length: 0 },
                        Ok(Rest::WithEnvoy) => State::Cut,
                        Ok(Rest::Nothing) | Err(StreamEnded) => State::Ended,
                    };
                    match part {
                        Ok(BodyPart { trailers: Some(trailers), .. }) => {
                            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                        }
                        Ok(part) if part.data.is_empty() => {}
                        part => return Poll::Ready(Some(part.map(|part| Frame::data(part.data)))),
                    }
                }
                State::Whole(data) => {
                    let data = std::mem::take(data);
                    self.0 = State::Ended;
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                State::Cut => {
                    self.0 = State::Ended;
                    return Poll::Ready(Some(Err(StreamEnded)));
                }
                State::Ended => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, State::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        match &self.0 {
            State::Unread { length, .. } => hint.set_lower(*length),
            State::Whole(data) => hint.set_exact(data.len() as u64),
            State::Cut => hint.set_lower(u64::MAX),
            State::Reading { .. } => {}
            State::Ended => hint.set_exact(0),
        }
        hint
    }
}

impl fmt::Debug for EnvoyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnvoyBody")
    }
}
