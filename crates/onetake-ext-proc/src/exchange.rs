//! The conversation with Envoy about one request: one gRPC stream.
//!
//! Envoy sends the parts of the request and of its response as messages, and goes on only after
//! the reply to each of them.
//!
//! | message | reply |
//! | --- | --- |
//! | head of the request | go on, or answer the client at once |
//! | body of the request, only if the layer reads it | go on with the attempt's headers, or answer at once |
//! | head of the response | gather the body; or go on, if the layer does not need the body |
//! | body of the response | go on, once the outcome is durable (S6) |
//!
//! **Warning:** if a processor ends the stream without an error, Envoy forwards the request without
//! it. So a stream that was not finished on purpose ends with an error.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::messages::{
    CommonResponse, Continue, HeaderMutation, HttpBody, HttpHeaders, ImmediateResponse, Part,
    ProcessingMode, ProcessingRequest, ProcessingResponse, Reply,
};

/// The most replies of one stream that wait to be sent. There are at most five in all.
const REPLIES_MAX: usize = 8;

/// One conversation.
pub(crate) struct Exchange {
    /// The headers of the request, as Envoy has them.
    pub(crate) request_headers: HeaderMap,
    /// The headers of the response, as Envoy has them.
    response_headers: OnceLock<HeaderMap>,
    messages: tokio::sync::Mutex<Streaming<ProcessingRequest>>,
    replies: mpsc::Sender<Outgoing>,
    step: Mutex<Step>,
}

/// The reply or the data that Envoy waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The reply to the head of the request.
    RequestHead,
    /// The rest of the request's body, from the client.
    RequestBodyToCome,
    /// The reply to the body of the request.
    RequestBody,
    /// The upstream's response.
    Upstream,
    /// The reply to the head of the response.
    ResponseHead,
    /// The rest of the response's body, from the upstream.
    ResponseBodyToCome,
    /// The reply to the body of the response.
    ResponseBody,
    /// Nothing: the last reply was given.
    Ended,
}

/// The error of a stream that ended, or that did not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Envoy ended the stream")]
pub struct StreamEnded;

/// A body, or its beginning if it is longer than Envoy's buffer.
pub(crate) struct BodyPart {
    pub(crate) data: Bytes,
    pub(crate) is_whole: bool,
}

enum Outgoing {
    Reply(ProcessingResponse),
    /// The stream ends without an error after it.
    Last(ProcessingResponse),
}

impl Exchange {
    /// Starts a conversation after the head of its request has arrived.
    pub(crate) fn new(
        request_headers: HeaderMap,
        messages: Streaming<ProcessingRequest>,
        replies: Sender,
    ) -> Self {
        Self {
            request_headers,
            response_headers: OnceLock::new(),
            messages: tokio::sync::Mutex::new(messages),
            replies: replies.0,
            step: Mutex::new(Step::RequestHead),
        }
    }

    /// Waits until Envoy has left the stream.
    pub(crate) async fn left(&self) {
        self.replies.closed().await;
    }

    /// Asks for the body of the request, and waits for it.
    pub(crate) async fn request_body(&self) -> Result<BodyPart, StreamEnded> {
        self.reply(|step| match step {
            Step::RequestHead => Some((
                Step::RequestBodyToCome,
                Outgoing::Reply(reply(Reply::RequestHeaders(Continue::default()))),
            )),
            _ => None,
        })?;
        match self.next().await?.part {
            Some(Part::RequestBody(body)) => {
                self.set(Step::RequestBody);
                Ok(part_of(body, &self.request_headers))
            }
            // Envoy answers the client itself, for example because the body is too slow.
            Some(Part::ResponseHeaders(_)) => {
                self.set(Step::ResponseHead);
                self.finish(HeaderMutation::default())?;
                Err(StreamEnded)
            }
            _ => Err(StreamEnded),
        }
    }

    /// Lets the request go on, and stays in the conversation. After an error, Envoy has not
    /// forwarded the request and never will.
    pub(crate) fn forward(&self, headers: HeaderMutation) -> Result<(), StreamEnded> {
        self.reply(|step| {
            let reply = reply(request_reply(step, headers)?);
            Some((Step::Upstream, Outgoing::Reply(reply)))
        })
    }

    /// Lets the request go on, and leaves the conversation.
    pub(crate) fn pass_on(&self, headers: HeaderMutation) -> Result<(), StreamEnded> {
        self.reply(|step| {
            let mut reply = reply(request_reply(step, headers)?);
            reply.mode_override = Some(ProcessingMode::nothing());
            Some((Step::Ended, Outgoing::Last(reply)))
        })
    }

    /// Waits for the head of the response. It may be Envoy's own.
    pub(crate) async fn response(&self) -> Result<(HttpHeaders, ProcessingRequest), StreamEnded> {
        let mut message = self.next().await?;
        match message.part.take() {
            Some(Part::ResponseHeaders(head)) => {
                self.set(Step::ResponseHead);
                Ok((head, message))
            }
            _ => Err(StreamEnded),
        }
    }

    /// Keeps the headers of the response as Envoy has them.
    pub(crate) fn keep_response_headers(&self, headers: HeaderMap) {
        let _kept_before = self.response_headers.set(headers);
    }

    /// The headers of the response as Envoy has them.
    pub(crate) fn response_headers(&self) -> Option<&HeaderMap> {
        self.response_headers.get()
    }

    /// Asks for the body of the response, and waits for it. Envoy holds the response.
    pub(crate) async fn response_body(&self) -> Result<BodyPart, StreamEnded> {
        self.reply(|step| match step {
            Step::ResponseHead => Some((
                Step::ResponseBodyToCome,
                Outgoing::Reply(reply(Reply::ResponseHeaders(Continue::default()))),
            )),
            _ => None,
        })?;
        match self.next().await?.part {
            Some(Part::ResponseBody(body)) => {
                self.set(Step::ResponseBody);
                let nothing = HeaderMap::new();
                Ok(part_of(body, self.response_headers.get().unwrap_or(&nothing)))
            }
            _ => Err(StreamEnded),
        }
    }

    /// Lets the response go on to the client, and leaves the conversation.
    pub(crate) fn finish(&self, headers: HeaderMutation) -> Result<(), StreamEnded> {
        self.reply(|step| {
            let mut reply = reply(match step {
                Step::ResponseHead => Reply::ResponseHeaders(with(headers)),
                Step::ResponseBody => Reply::ResponseBody(with(headers)),
                _ => return None,
            });
            reply.mode_override = Some(ProcessingMode::nothing());
            Some((Step::Ended, Outgoing::Last(reply)))
        })
    }

    /// Answers the client in place of the upstream, and leaves the conversation.
    pub(crate) fn answer(&self, response: ImmediateResponse) -> Result<(), StreamEnded> {
        self.reply(|step| match step {
            Step::Ended => None,
            _ => Some((Step::Ended, Outgoing::Last(reply(Reply::Immediate(response))))),
        })
    }

    /// Sends the reply that fits the step, and takes the next step. It is an error if no reply
    /// fits, or if Envoy has left.
    fn reply(
        &self,
        choose: impl FnOnce(Step) -> Option<(Step, Outgoing)>,
    ) -> Result<(), StreamEnded> {
        let mut step = self.step();
        let (next, outgoing) = choose(*step).ok_or(StreamEnded)?;
        self.replies.try_send(outgoing).map_err(|_| StreamEnded)?;
        *step = next;
        Ok(())
    }

    async fn next(&self) -> Result<ProcessingRequest, StreamEnded> {
        let mut messages = self.messages.lock().await;
        messages.message().await.ok().flatten().ok_or(StreamEnded)
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a message has arrived, unless the conversation has ended meanwhile.
    fn set(&self, to: Step) {
        let mut step = self.step();
        if *step != Step::Ended {
            *step = to;
        }
    }
}

/// The reply that lets a request go on.
fn request_reply(step: Step, headers: HeaderMutation) -> Option<Reply> {
    match step {
        Step::RequestHead => Some(Reply::RequestHeaders(with(headers))),
        Step::RequestBody => Some(Reply::RequestBody(with(headers))),
        _ => None,
    }
}

fn with(headers: HeaderMutation) -> Continue {
    Continue { response: Some(CommonResponse { header_mutation: Some(headers) }) }
}

fn reply(reply: Reply) -> ProcessingResponse {
    ProcessingResponse { reply: Some(reply), mode_override: None }
}

/// Envoy says that a body has ended, unless trailers follow or the body is longer than its buffer.
/// Then the announced length decides.
fn part_of(body: HttpBody, headers: &HeaderMap) -> BodyPart {
    let HttpBody { body: data, end_of_stream } = body;
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let is_announced = length.and_then(|text| text.parse().ok()) == Some(data.len());
    BodyPart { is_whole: end_of_stream || is_announced, data }
}

/// The sending side of the replies of one stream.
pub(crate) struct Sender(mpsc::Sender<Outgoing>);

/// The replies of one stream, for Envoy.
pub(crate) struct Replies {
    receiver: mpsc::Receiver<Outgoing>,
    is_ended: bool,
}

/// Creates the two sides of the replies of one stream.
pub(crate) fn replies() -> (Sender, Replies) {
    let (sender, receiver) = mpsc::channel(REPLIES_MAX);
    (Sender(sender), Replies { receiver, is_ended: false })
}

impl Stream for Replies {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        self.receiver.poll_recv(cx).map(|outgoing| {
            Some(match outgoing {
                Some(Outgoing::Reply(reply)) => Ok(reply),
                Some(Outgoing::Last(reply)) => {
                    self.is_ended = true;
                    Ok(reply)
                }
                // Without an error, Envoy would forward the request.
                None => {
                    self.is_ended = true;
                    Err(Status::aborted("the request was not finished"))
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn a_stream_that_was_not_finished_ends_with_an_error() {
        let (sender, mut replies) = replies();
        let go_on = || reply(Reply::RequestHeaders(Continue::default()));
        assert!(sender.0.try_send(Outgoing::Reply(go_on())).is_ok());
        drop(sender);
        assert!(replies.next().await.unwrap().is_ok());
        assert!(replies.next().await.unwrap().is_err());
        assert!(replies.next().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_ends_without_an_error_after_its_last_reply() {
        let (sender, mut replies) = replies();
        let go_on = reply(Reply::RequestHeaders(Continue::default()));
        assert!(sender.0.try_send(Outgoing::Last(go_on)).is_ok());
        assert!(replies.next().await.unwrap().is_ok());
        assert!(replies.next().await.is_none());
    }

    #[test]
    fn a_body_is_whole_if_envoy_or_its_length_says_so() {
        let part = |length: Option<&'static str>, end_of_stream| {
            let mut headers = HeaderMap::new();
            headers.extend(length.map(|length| (CONTENT_LENGTH, length.parse().unwrap())));
            let body = HttpBody { body: Bytes::from_static(b"four"), end_of_stream };
            part_of(body, &headers).is_whole
        };
        assert!(part(None, true) && part(Some("4"), true) && part(Some("4"), false));
        assert!(!part(None, false) && !part(Some("5"), false) && !part(Some("x"), false));
    }
}
