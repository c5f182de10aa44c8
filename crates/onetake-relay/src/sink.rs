//! The contract of a destination for messages.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use onetake_core::Clock;
use onetake_core::outbox::PendingMessage;

/// A destination for messages.
///
/// A sink keeps the order of messages with one ordering key: the next message is sent when the one
/// before was delivered, and after a failure the other messages of its key are not tried.
/// [`in_order`] does that.
pub trait Sink: Send + Sync + fmt::Debug + 'static {
    /// The name for logs.
    fn name(&self) -> &'static str;

    /// The longest time that one message may take. A relay holds its turns for longer. Zero by
    /// default.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Delivers messages. Returns one answer for each, in their order. It must answer within the
    /// given time, because afterwards another relay may deliver the same messages.
    fn deliver<'a>(
        &'a self,
        batch: &'a [PendingMessage],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<(), SinkError>>>;
}

/// The way to handle a message that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinkErrorKind {
    /// Try it again.
    Retry,
    /// The receiver is unreachable. The message is not at fault, and no other message would be
    /// delivered.
    Away,
    /// The receiver will never accept the message.
    Poison,
    /// It was not sent: an earlier message of its key failed, or the time was over.
    NotTried,
}

/// The reason why a message was not delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    /// The way to handle it.
    pub kind: SinkErrorKind,
    /// The description of the failure.
    pub message: String,
    /// The pause that the receiver asked for.
    pub after: Option<Duration>,
}

impl SinkError {
    /// A failure that may not happen again.
    pub fn retry(message: impl Into<String>) -> Self {
        Self { kind: SinkErrorKind::Retry, message: message.into(), after: None }
    }

    /// A failure because the receiver is unreachable.
    pub fn away(message: impl Into<String>) -> Self {
        Self { kind: SinkErrorKind::Away, message: message.into(), after: None }
    }

    /// A message that will never be accepted.
    pub fn poison(message: impl Into<String>) -> Self {
        Self { kind: SinkErrorKind::Poison, message: message.into(), after: None }
    }

    /// A message that was not sent.
    #[must_use]
    pub fn not_tried() -> Self {
        let message = "not tried yet".to_owned();
        Self { kind: SinkErrorKind::NotTried, message, after: None }
    }
}

/// Sends messages with `send` until `within` is over. Messages of one ordering key are sent one
/// after the other, and messages of up to `at_once` different keys at the same time. A message is
/// left for another turn if the receiver would have less than its `patience` and less than half of
/// `within`: otherwise it could be cut off, which is not the message's fault.
pub async fn in_order<'a, F>(
    batch: &'a [PendingMessage],
    at_once: usize,
    clock: &dyn Clock,
    (within, patience): (Duration, Duration),
    send: impl Fn(&'a PendingMessage) -> F,
) -> Vec<Result<(), SinkError>>
where
    F: Future<Output = Result<(), SinkError>>,
{
    let end = clock.monotonic().saturating_add(within);
    let begin_until = end.saturating_sub(patience.min(within / 2));
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut keys: Vec<Vec<(usize, &PendingMessage)>> = Vec::new();
    for (at, waiting) in batch.iter().enumerate() {
        let place = *places.entry(&waiting.message.order).or_insert(keys.len());
        match keys.get_mut(place) {
            Some(of_key) => of_key.push((at, waiting)),
            None => keys.push(vec![(at, waiting)]),
        }
    }
    let sending: Vec<_> =
        keys.into_iter().map(|of_key| one_key(of_key, clock, (begin_until, end), &send)).collect();
    let answers: Vec<Vec<_>> =
        stream::iter(sending).buffer_unordered(at_once.max(1)).collect().await;
    let mut all: Vec<_> = batch.iter().map(|_| Err(SinkError::not_tried())).collect();
    for (at, answer) in answers.into_iter().flatten() {
        if let Some(place) = all.get_mut(at) {
            *place = answer;
        }
    }
    all
}

/// Sends the messages of one key, until one fails or the time is over.
async fn one_key<'a, F>(
    of_key: Vec<(usize, &'a PendingMessage)>,
    clock: &dyn Clock,
    (begin_until, end): (Duration, Duration),
    send: &impl Fn(&'a PendingMessage) -> F,
) -> Vec<(usize, Result<(), SinkError>)>
where
    F: Future<Output = Result<(), SinkError>>,
{
    let mut answers = Vec::with_capacity(of_key.len());
    for (at, waiting) in of_key {
        let now = clock.monotonic();
        if now > begin_until {
            break;
        }
        let answer = tokio::select! {
            biased;
            answer = send(waiting) => answer,
            () = clock.sleep(end.saturating_sub(now)) => Err(SinkError::retry("no response in time")),
        };
        let failed = answer.is_err();
        answers.push((at, answer));
        if failed {
            break;
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use onetake_core::outbox::{Message, MessageId};
    use onetake_core::{ManualClock, Timestamp};

    use super::*;

    fn waiting(order: &str) -> PendingMessage {
        PendingMessage {
            place: 0,
            id: MessageId::from_bytes([0; MessageId::BYTES]),
            message: Message::new("t", order, "p"),
            tries: 0,
            created_at: Timestamp::from_micros(0),
        }
    }

    #[tokio::test]
    async fn what_has_too_little_time_is_not_begun() {
        let seconds = Duration::from_secs;
        let batch = [waiting("a"), waiting("b")];
        // Each takes a minute of a hundred seconds.
        for (patience, expected) in [
            (30, [Ok(()), Ok(())]),
            (50, [Ok(()), Err(SinkErrorKind::NotTried)]),
            (900, [Ok(()), Err(SinkErrorKind::NotTried)]),
        ] {
            let clock = ManualClock::default();
            let send = |_| {
                clock.advance(seconds(60));
                std::future::ready(Ok(()))
            };
            let answers =
                in_order(&batch, 1, &clock, (seconds(100), seconds(patience)), send).await;
            let answers: Vec<_> =
                answers.into_iter().map(|answer| answer.map_err(|error| error.kind)).collect();
            assert_eq!(answers, expected, "{patience}");
        }
    }
}
