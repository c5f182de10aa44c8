//! The replies of one stream, on their way to Envoy.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;
use tonic::Status;

use crate::exchange::StreamEnded;
use crate::messages::{
    AnswerPart, BodyChunk, BodyMutation, CommonResponse, Continue, HeaderMutation,
    ProcessingResponse, Reply, StreamedImmediateResponse,
};

/// The most batches of one stream that wait to be sent. Without full duplex there are at most five
/// in all.
const BATCHES_MAX: usize = 8;
/// The largest piece of a body in one reply.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// Replies that follow each other.
pub(crate) struct Batch {
    replies: Vec<ProcessingResponse>,
    /// The stream ends without an error after them.
    is_last: bool,
}

impl Batch {
    pub(crate) fn of(replies: Vec<ProcessingResponse>) -> Self {
        Self { replies, is_last: false }
    }

    pub(crate) fn last(replies: Vec<ProcessingResponse>) -> Self {
        Self { replies, is_last: true }
    }
}

/// A message without changes of the filter's modes.
pub(crate) fn reply(reply: Reply) -> ProcessingResponse {
    ProcessingResponse { reply: Some(reply), mode_override: None }
}

/// Lets a part go on, with changes to its headers.
pub(crate) fn with(headers: HeaderMutation) -> Continue {
    let header_mutation = Some(headers);
    Continue { response: Some(CommonResponse { header_mutation, body_mutation: None }) }
}

/// The pieces of a body in full duplex. The last one ends the message if `is_end`.
pub(crate) fn chunks(
    data: &Bytes,
    is_end: bool,
    part: fn(Continue) -> Reply,
) -> impl Iterator<Item = ProcessingResponse> {
    pieces(data, is_end).map(move |chunk| {
        let body_mutation = Some(BodyMutation { streamed_response: Some(chunk) });
        let response = CommonResponse { header_mutation: None, body_mutation };
        reply(part(Continue { response: Some(response) }))
    })
}

/// A part of an answer to the client in place of the upstream.
pub(crate) fn answer_part(part: AnswerPart) -> ProcessingResponse {
    reply(Reply::StreamedImmediate(StreamedImmediateResponse { part: Some(part) }))
}

/// The pieces of the body of such an answer.
pub(crate) fn answer_chunks(
    data: &Bytes,
    is_end: bool,
) -> impl Iterator<Item = ProcessingResponse> {
    pieces(data, is_end).map(|chunk| answer_part(AnswerPart::Body(chunk)))
}

/// Divides a body. An empty one has a piece only if that is its end.
fn pieces(data: &Bytes, is_end: bool) -> impl Iterator<Item = BodyChunk> {
    let data = data.clone();
    let empty = usize::from(data.is_empty() && is_end);
    let count = data.len().div_ceil(CHUNK_BYTES_MAX).max(empty);
    (0..count).map(move |nth| {
        let from = nth * CHUNK_BYTES_MAX;
        let to = data.len().min(from + CHUNK_BYTES_MAX);
        BodyChunk { body: data.slice(from..to), end_of_stream: is_end && nth + 1 == count }
    })
}

/// The sending side of the replies of one stream.
#[derive(Clone)]
pub(crate) struct Sender(mpsc::Sender<Batch>);

impl Sender {
    /// Sends replies at once.
    pub(crate) fn try_send(&self, batch: Batch) -> Result<(), StreamEnded> {
        self.0.try_send(batch).map_err(|_| StreamEnded)
    }

    /// Sends replies once there is room for them.
    pub(crate) async fn send(&self, batch: Batch) -> Result<(), StreamEnded> {
        self.0.send(batch).await.map_err(|_| StreamEnded)
    }

    /// Waits until Envoy has left the stream.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The replies of one stream, for Envoy.
pub(crate) struct Replies {
    receiver: mpsc::Receiver<Batch>,
    batch: std::vec::IntoIter<ProcessingResponse>,
    end: End,
}

/// How a stream ends after the current batch.
enum End {
    NotYet,
    WithoutError,
    Ended,
}

/// Creates the two sides of the replies of one stream.
pub(crate) fn replies() -> (Sender, Replies) {
    let (sender, receiver) = mpsc::channel(BATCHES_MAX);
    (Sender(sender), Replies { receiver, batch: Vec::new().into_iter(), end: End::NotYet })
}

impl Stream for Replies {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(reply) = self.batch.next() {
                return Poll::Ready(Some(Ok(reply)));
            }
            match self.end {
                End::NotYet => {}
                End::WithoutError | End::Ended => return Poll::Ready(None),
            }
            match std::task::ready!(self.receiver.poll_recv(cx)) {
                Some(batch) => {
                    self.batch = batch.replies.into_iter();
                    if batch.is_last {
                        self.end = End::WithoutError;
                    }
                }
                // Without an error, Envoy would forward the request.
                None => {
                    self.end = End::Ended;
                    let error = Status::aborted("the request was not finished");
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    fn go_on() -> Vec<ProcessingResponse> {
        vec![reply(Reply::RequestHeaders(Continue::default()))]
    }

    #[tokio::test]
    async fn a_stream_that_was_not_finished_ends_with_an_error() {
        let (sender, mut replies) = replies();
        assert!(sender.try_send(Batch::of(go_on())).is_ok());
        drop(sender);
        assert!(replies.next().await.unwrap().is_ok());
        assert!(replies.next().await.unwrap().is_err());
        assert!(replies.next().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_ends_without_an_error_after_its_last_reply() {
        let (sender, mut replies) = replies();
        let both = go_on().into_iter().chain(go_on()).collect();
        assert!(sender.try_send(Batch::last(both)).is_ok());
        assert!(replies.next().await.unwrap().is_ok());
        assert!(replies.next().await.unwrap().is_ok());
        assert!(replies.next().await.is_none());
    }

    #[test]
    fn a_body_is_sent_in_pieces_and_the_last_one_is_its_end() {
        let sizes = |length: usize, is_end| -> Vec<_> {
            let data = Bytes::from(vec![7; length]);
            pieces(&data, is_end).map(|one| (one.body.len(), one.end_of_stream)).collect()
        };
        assert_eq!(sizes(0, false), []);
        assert_eq!(sizes(0, true), [(0, true)]);
        assert_eq!(sizes(10, false), [(10, false)]);
        assert_eq!(sizes(CHUNK_BYTES_MAX, true), [(CHUNK_BYTES_MAX, true)]);
        let two = [(CHUNK_BYTES_MAX, false), (1, true)];
        assert_eq!(sizes(CHUNK_BYTES_MAX + 1, true), two);
    }
}
