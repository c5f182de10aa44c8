//! Where messages go.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use onetake_core::Clock;
use onetake_core::outbox::Waiting;

/// Takes messages to whom they are for.
///
/// A sink keeps the order of messages with one ordering key: the next one is sent when the one before is there,
/// and behind one that failed the others of its key are not tried. [`in_order`] does it.
pub trait Sink: Send + Sync + fmt::Debug + 'static {
    /// What it is, for logs.
    fn name(&self) -> &'static str;

    /// How long it may take for one message: a relay holds its turns for longer. Nothing by default.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Delivers messages; one answer for each, in their order. It must answer within the given time: after
    /// that, another relay may be at the same messages.
    fn deliver<'a>(
        &'a self,
        batch: &'a [Waiting],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<(), SinkError>>>;
}

/// What to do about a message that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinkErrorKind {
    /// Try it again.
    Retry,
    /// Whom it is for cannot be reached: nothing is wrong with the message, and none will do better.
    Away,
    /// It will never be taken as it is.
    Poison,
    /// It was not sent: one before it failed, or the time was over.
    NotTried,
}

/// Why a message was not delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    /// What to do about it.
    pub kind: SinkErrorKind,
    /// Why, for people.
    pub message: String,
    /// For how long the receiver asked to be left alone.
    pub after: Option<Duration>,
}

impl SinkError {
    /// It may work another time.
    pub fn retry(message: impl Into<String>) -> Self {
        Self { kind: SinkErrorKind::Retry, message: message.into(), after: None }
    }

    /// It will, once the receiver can be reached.
    pub fn away(message: impl Into<String>) -> Self {
        Self { kind: SinkErrorKind::Away, message: message.into(), after: None }
    }

    /// It never will.
    pub fn poison(message: impl Into<String>) -> Self {
        Self { kind: SinkErrorKind::Poison, message: message.into(), after: None }
    }

    /// It was not sent.
    #[must_use]
    pub fn not_tried() -> Self {
        let message = "it was not tried yet".to_owned();
        Self { kind: SinkErrorKind::NotTried, message, after: None }
    }
}

/// Sends each message with `send`, those of one ordering key one behind the other, those of different keys up to
/// `at_once` at the same time, for as long as `within`. One of which the receiver would have less than its `patience`,
/// and less than half of all the time, is left for another turn: to cut it off would be no fault of its own.
pub async fn in_order<'a, F>(
    batch: &'a [Waiting],
    at_once: usize,
    clock: &dyn Clock,
    (within, patience): (Duration, Duration),
    send: impl Fn(&'a Waiting) -> F,
) -> Vec<Result<(), SinkError>>
where
    F: Future<Output = Result<(), SinkError>>,
{
    let end = clock.monotonic().saturating_add(within);
    let begin_until = end.saturating_sub(patience.min(within / 2));
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut keys: Vec<Vec<(usize, &Waiting)>> = Vec::new();
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
    of_key: Vec<(usize, &'a Waiting)>,
    clock: &dyn Clock,
    (begin_until, end): (Duration, Duration),
    send: &impl Fn(&'a Waiting) -> F,
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
            () = clock.sleep(end.saturating_sub(now)) => Err(SinkError::retry("no answer came in time")),
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

    fn waiting(order: &str) -> Waiting {
        Waiting {
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
