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
//! gRPC calls are different, because Envoy cannot answer one of them at once with a message and
//! trailers. The filter sends nothing of their bodies by itself. If the layer reads a call, the
//! processor changes the modes of the filter to *full duplex*: Envoy sends bodies and trailers as
//! they arrive, keeps nothing of them, and waits for the reply to the head. The replies then have
//! the head, the whole body and the trailers.
//!
//! **Warning:** if a processor ends the stream without an error, Envoy forwards the request without
//! it. So a stream that was not finished on purpose ends with an error.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use http_body::Body;
use tonic::Streaming;

use crate::headers::{difference, joined_lines, streamed_head, trailers_of};
use crate::messages::{
    AnswerPart, Continue, HeaderMutation, HttpBody, HttpHeaders, HttpTrailers, ImmediateResponse,
    Part, ProcessingMode, ProcessingRequest, ProcessingResponse, Reply, TrailersResponse,
};
use crate::replies::{Batch, Sender, answer_chunks, answer_part, chunks, reply, with};

/// One conversation.
pub(crate) struct Exchange {
    /// The headers of the request, as Envoy has them.
    pub(crate) request_headers: HeaderMap,
    /// The head of the response, as Envoy has it.
    response: OnceLock<ResponseHead>,
    /// The trailers of the response, as Envoy has them.
    response_trailers: OnceLock<HeaderMap>,
    transfer: Transfer,
    /// True if the body of a call was needed, and could not be read.
    is_misconfigured: AtomicBool,
    messages: tokio::sync::Mutex<Streaming<ProcessingRequest>>,
    replies: Sender,
    step: Mutex<Step>,
}

/// How bodies are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// Envoy gathers a body up to the size of its buffer, and keeps it.
    Buffered,
    /// In full duplex: for gRPC calls.
    Duplex,
    /// Not at all: a gRPC call, and the filter does not allow full duplex.
    Never,
}

/// The head of a response, as Envoy has it.
pub(crate) struct ResponseHead {
    pub(crate) headers: HeaderMap,
    /// True if neither a body nor trailers follow.
    pub(crate) is_all: bool,
}

/// The reply or the data that Envoy waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The reply to the head of the request.
    RequestHead,
    /// The replies to the whole request, in full duplex.
    DuplexRequest,
    /// The rest of the request's body, from the client.
    RequestBodyToCome,
    /// The reply to the body of the request.
    RequestBody,
    /// The upstream's response.
    Upstream,
    /// The reply to the head of the response. In full duplex: the replies to all of it.
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

/// A part of a body, or the trailers behind it.
pub(crate) struct BodyPart {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) rest: Rest,
}

/// The rest of a body behind a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Nothing,
    ToCome,
    /// It is longer than Envoy's buffer, and cannot be read.
    WithEnvoy,
}

impl Exchange {
    /// Starts a conversation after the head of its request has arrived.
    pub(crate) fn new(
        request_headers: HeaderMap,
        transfer: Transfer,
        messages: Streaming<ProcessingRequest>,
        replies: Sender,
    ) -> Self {
        Self {
            request_headers,
            response: OnceLock::new(),
            response_trailers: OnceLock::new(),
            transfer,
            is_misconfigured: AtomicBool::new(false),
            messages: tokio::sync::Mutex::new(messages),
            replies,
            step: Mutex::new(Step::RequestHead),
        }
    }

    /// Waits until Envoy has left the stream.
    pub(crate) async fn left(&self) {
        self.replies.closed().await;
    }

    /// Asks for the body of the request, if that was not done yet, and waits for the next part of
    /// it.
    pub(crate) async fn request_part(&self) -> Result<BodyPart, StreamEnded> {
        if self.transfer == Transfer::Never {
            self.is_misconfigured.store(true, Ordering::Relaxed);
            tracing::error!(
                "the ext_proc filter gathers the bodies of gRPC calls, so that calls with a key \
                 cannot be answered: each is refused. Write processing_mode: {{ \
                 request_body_mode: NONE, response_body_mode: NONE }} in the overrides of the \
                 filter for routes of gRPC calls"
            );
            return Err(StreamEnded);
        }
        if self.step() != Step::DuplexRequest {
            self.reply(|step| match (step, self.transfer) {
                (Step::RequestHead, Transfer::Buffered) => {
                    let go_on = reply(Reply::RequestHeaders(Continue::default()));
                    Some((Step::RequestBodyToCome, Batch::of(vec![go_on])))
                }
                (Step::RequestHead, Transfer::Duplex) => {
                    Some((Step::DuplexRequest, Batch::of(vec![to_full_duplex()])))
                }
                _ => None,
            })?;
        }
        match (self.next().await?.part, self.transfer) {
            (Some(Part::RequestBody(body)), Transfer::Buffered) => {
                self.set(Step::RequestBody);
                Ok(buffered(body, &self.request_headers))
            }
            (Some(Part::RequestBody(body)), Transfer::Duplex) => Ok(piece(body)),
            (Some(Part::RequestTrailers(trailers)), Transfer::Duplex) => end(&trailers),
            // Envoy answers the client itself, for example because the body is too slow.
            (Some(Part::ResponseHeaders(_)), _) => {
                self.set(Step::ResponseHead);
                self.finish(HeaderMutation::default())?;
                Err(StreamEnded)
            }
            _ => Err(StreamEnded),
        }
    }

    /// True if the request was read in full duplex: Envoy has nothing of it.
    pub(crate) fn has_taken_request(&self) -> bool {
        self.step() == Step::DuplexRequest
    }

    /// Lets the request go on, and stays in the conversation. After an error, Envoy has not
    /// forwarded the request and never will.
    pub(crate) fn forward(&self, headers: HeaderMutation) -> Result<(), StreamEnded> {
        self.reply(|step| {
            let reply = reply(request_reply(step, headers)?);
            Some((Step::Upstream, Batch::of(vec![reply])))
        })
    }

    /// Lets the request go on, and leaves the conversation.
    pub(crate) fn pass_on(&self, headers: HeaderMutation) -> Result<(), StreamEnded> {
        self.reply(|step| {
            let mut reply = reply(request_reply(step, headers)?);
            reply.mode_override = Some(ProcessingMode::nothing());
            Some((Step::Ended, Batch::last(vec![reply])))
        })
    }

    /// Gives a request back that was taken, so that it goes on, and stays in the conversation if
    /// the response is `wanted`. After an error, Envoy has not forwarded the request and never
    /// will.
    pub(crate) fn give_back(
        &self,
        headers: HeaderMutation,
        body: &Bytes,
        trailers: bool,
        wanted: bool,
    ) -> Result<(), StreamEnded> {
        let mut head = reply(Reply::RequestHeaders(with(headers)));
        if !wanted {
            head.mode_override = Some(ProcessingMode::full_duplex_request());
        }
        let mut replies = vec![head];
        replies.extend(chunks(body, !trailers, Reply::RequestBody));
        if trailers {
            replies.push(reply(Reply::RequestTrailers(TrailersResponse::default())));
        }
        self.reply(|step| match (step, wanted) {
            (Step::DuplexRequest, true) => Some((Step::Upstream, Batch::of(replies))),
            (Step::DuplexRequest, false) => Some((Step::Ended, Batch::last(replies))),
            _ => None,
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

    /// Keeps the head of the response as Envoy has it.
    pub(crate) fn keep_response(&self, head: ResponseHead) {
        let _kept_before = self.response.set(head);
    }

    /// The head of the response as Envoy has it.
    pub(crate) fn response_head(&self) -> Option<&ResponseHead> {
        self.response.get()
    }

    /// Asks for the body of the response, and waits for the next part of it. Envoy holds the
    /// response.
    pub(crate) async fn response_part(&self) -> Result<BodyPart, StreamEnded> {
        if self.transfer == Transfer::Duplex {
            return match self.next().await?.part {
                Some(Part::ResponseBody(body)) => Ok(piece(body)),
                Some(Part::ResponseTrailers(trailers)) => {
                    let part = end(&trailers)?;
                    let _kept_before =
                        self.response_trailers.set(part.trailers.clone().unwrap_or_default());
                    Ok(part)
                }
                _ => Err(StreamEnded),
            };
        }
        self.reply(|step| match step {
            Step::ResponseHead => {
                let go_on = reply(Reply::ResponseHeaders(Continue::default()));
                Some((Step::ResponseBodyToCome, Batch::of(vec![go_on])))
            }
            _ => None,
        })?;
        match self.next().await?.part {
            Some(Part::ResponseBody(body)) => {
                self.set(Step::ResponseBody);
                let nothing = HeaderMap::new();
                let headers = self.response.get().map_or(&nothing, |head| &head.headers);
                Ok(buffered(body, headers))
            }
            _ => Err(StreamEnded),
        }
    }

    /// Lets the response that Envoy has go on to the client, with other headers, and leaves the
    /// conversation. In full duplex, `body` is given back with it.
    pub(crate) async fn finish_with<B>(
        &self,
        headers: HeaderMutation,
        body: B,
    ) -> Result<(), StreamEnded>
    where
        B: Body<Data = Bytes>,
    {
        let is_all = self.response.get().is_none_or(|head| head.is_all);
        if self.transfer == Transfer::Buffered || is_all {
            return self.finish(headers);
        }
        let head = vec![reply(Reply::ResponseHeaders(with(headers)))];
        self.reply(|step| match step {
            Step::ResponseHead => Some((Step::ResponseBody, Batch::of(head))),
            _ => None,
        })?;
        let mut body = pin!(body);
        let mut trailers = HeaderMap::new();
        while let Some(frame) = poll_fn(|cx| {
            let polled = body.as_mut().poll_frame(cx);
            polled.map(|frame| frame.map(|frame| frame.map_err(|_| StreamEnded)))
        })
        .await
        {
            match frame?.into_data() {
                Ok(data) => {
                    let pieces = chunks(&data, false, Reply::ResponseBody).collect();
                    self.replies.send(Batch::of(pieces)).await?;
                }
                Err(other) => trailers = other.into_trailers().unwrap_or_default(),
            }
        }
        let last = match self.response_trailers.get() {
            Some(has) => {
                let header_mutation = Some(difference(has, &trailers));
                vec![reply(Reply::ResponseTrailers(TrailersResponse { header_mutation }))]
            }
            None => chunks(&Bytes::new(), true, Reply::ResponseBody).collect(),
        };
        self.set(Step::Ended);
        self.replies.send(Batch::last(last)).await
    }

    /// Lets the response that Envoy has go on to the client, with other headers, and leaves the
    /// conversation.
    fn finish(&self, headers: HeaderMutation) -> Result<(), StreamEnded> {
        self.reply(|step| {
            let mut reply = reply(match step {
                Step::ResponseHead => Reply::ResponseHeaders(with(headers)),
                Step::ResponseBody => Reply::ResponseBody(with(headers)),
                _ => return None,
            });
            reply.mode_override = Some(ProcessingMode::nothing());
            Some((Step::Ended, Batch::last(vec![reply])))
        })
    }

    /// Answers the client in place of the upstream, and leaves the conversation.
    pub(crate) fn answer(&self, response: ImmediateResponse) -> Result<(), StreamEnded> {
        self.reply(|step| match step {
            Step::Ended => None,
            _ => Some((Step::Ended, Batch::last(vec![reply(Reply::Immediate(response))]))),
        })
    }

    /// True if the request is a gRPC call.
    pub(crate) fn is_call(&self) -> bool {
        self.transfer != Transfer::Buffered
    }

    /// True if the filter does not let a call be read that had to be.
    pub(crate) fn is_misconfigured(&self) -> bool {
        self.is_misconfigured.load(Ordering::Relaxed)
    }

    /// True if an answer can have messages and trailers: the request of a gRPC call has not gone
    /// on.
    pub(crate) fn can_answer_call(&self) -> bool {
        self.transfer == Transfer::Duplex
            && matches!(self.step(), Step::RequestHead | Step::DuplexRequest)
    }

    /// Answers a gRPC call in place of the upstream, and leaves the conversation.
    pub(crate) fn answer_call(
        &self,
        response: &Response<Bytes>,
        trailers: Option<&HeaderMap>,
    ) -> Result<(), StreamEnded> {
        let (data, has_trailers) = (response.body(), trailers.is_some());
        let end_of_stream = data.is_empty() && !has_trailers;
        let headers = Some(streamed_head(response.status(), response.headers()));
        let head = answer_part(AnswerPart::Head(HttpHeaders { headers, end_of_stream }));
        let mut replies = vec![head];
        if !end_of_stream {
            replies.extend(answer_chunks(data, !has_trailers));
        }
        replies.extend(
            trailers.map(|trailers| answer_part(AnswerPart::Trailers(joined_lines(trailers)))),
        );
        self.reply(|step| match step {
            Step::RequestHead if end_of_stream => Some((Step::Ended, Batch::last(replies))),
            // Envoy takes an answer with a body in full duplex alone.
            Step::RequestHead => {
                replies.insert(0, to_full_duplex());
                Some((Step::Ended, Batch::last(replies)))
            }
            Step::DuplexRequest => Some((Step::Ended, Batch::last(replies))),
            _ => None,
        })
    }

    /// Sends the replies that fit the step, and takes the next step. It is an error if none fit, or
    /// if Envoy has left.
    fn reply(&self, choose: impl FnOnce(Step) -> Option<(Step, Batch)>) -> Result<(), StreamEnded> {
        let mut step = self.lock();
        let (next, batch) = choose(*step).ok_or(StreamEnded)?;
        self.replies.try_send(batch)?;
        *step = next;
        Ok(())
    }

    async fn next(&self) -> Result<ProcessingRequest, StreamEnded> {
        let mut messages = self.messages.lock().await;
        messages.message().await.ok().flatten().ok_or(StreamEnded)
    }

    fn step(&self) -> Step {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a message has arrived, unless the conversation has ended meanwhile.
    fn set(&self, to: Step) {
        let mut step = self.lock();
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

/// The message that changes the modes of the filter. It is no reply: Envoy still waits for one.
fn to_full_duplex() -> ProcessingResponse {
    ProcessingResponse { reply: None, mode_override: Some(ProcessingMode::full_duplex()) }
}

/// Envoy says that a body has ended, unless trailers follow or the body is longer than its buffer.
/// Then the announced length decides.
fn buffered(body: HttpBody, headers: &HeaderMap) -> BodyPart {
    let HttpBody { body: data, end_of_stream } = body;
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let is_announced = length.and_then(|text| text.parse().ok()) == Some(data.len());
    let rest = if end_of_stream || is_announced { Rest::Nothing } else { Rest::WithEnvoy };
    BodyPart { data, trailers: None, rest }
}

/// A piece of a body in full duplex.
fn piece(body: HttpBody) -> BodyPart {
    let rest = if body.end_of_stream { Rest::Nothing } else { Rest::ToCome };
    BodyPart { data: body.body, trailers: None, rest }
}

/// The end of a body in full duplex.
fn end(trailers: &HttpTrailers) -> Result<BodyPart, StreamEnded> {
    let trailers = trailers_of(trailers).map_err(|_| StreamEnded)?;
    Ok(BodyPart { data: Bytes::new(), trailers: Some(trailers), rest: Rest::Nothing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_whole_if_envoy_or_its_length_says_so() {
        let part = |length: Option<&'static str>, end_of_stream| {
            let mut headers = HeaderMap::new();
            headers.extend(length.map(|length| (CONTENT_LENGTH, length.parse().unwrap())));
            let body = HttpBody { body: Bytes::from_static(b"four"), end_of_stream };
            buffered(body, &headers).rest == Rest::Nothing
        };
        assert!(part(None, true) && part(Some("4"), true) && part(Some("4"), false));
        assert!(!part(None, false) && !part(Some("5"), false) && !part(Some("x"), false));
    }
}
