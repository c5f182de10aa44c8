//! The outbox: messages that are written in the transaction that completes their operation (S14).
//!
//! A message exists if and only if its operation's completion committed. A relay delivers it at
//! least once, with the same [`MessageId`] every time. Messages of one ordering key are delivered
//! in the order in which they were committed. A relay reads the messages through an [`Outbox`].

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};

use crate::clock::Timestamp;
use crate::codec::{DecodeError, Reader, put_slice};
use crate::record::Fence;
use crate::scope::RecordId;
use crate::store::StoreError;

/// The maximum number of messages of one operation.
pub const MESSAGES_MAX: usize = 1_000;
/// The maximum length of a topic, in bytes.
pub const TOPIC_BYTES_MAX: usize = 255;
/// The maximum length of an ordering key, in bytes.
pub const ORDER_BYTES_MAX: usize = 255;
/// The maximum size of all headers of a message, in bytes.
pub const HEADERS_BYTES_MAX: usize = 8 << 10;
/// The maximum size of a payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 20;
/// The number of lanes by which relays share the messages. All messages of one ordering key are in
/// one lane.
pub const LANES: u8 = 64;

/// The id of a message, written as a UUID. It is unique, and the same at every delivery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId([u8; MessageId::BYTES]);

impl MessageId {
    /// The number of bytes of a message id.
    pub const BYTES: usize = 16;

    /// Returns the id of the `number`th message (from 0) of the attempt that completes a record. An
    /// attempt that is rolled back leaves no message, and the next attempt has another fence. So a
    /// key that is used again after it expired never repeats an id.
    #[must_use]
    pub fn of(record: RecordId, fence: Fence, number: u32) -> Self {
        let mut digest = Sha256::new();
        digest.update(b"onetake message v1");
        digest.update(record.as_bytes());
        digest.update(fence.get().to_be_bytes());
        digest.update(number.to_be_bytes());
        let mut bytes = [0; Self::BYTES];
        bytes.iter_mut().zip(digest.finalize()).for_each(|(to, from)| *to = from);
        // A UUID of version 8: the application defines its bits.
        let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
        *version = *version & 0x0f | 0x80;
        *variant = *variant & 0x3f | 0x80;
        Self(bytes)
    }

    /// Creates an id from stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::hex::write_uuid(f, &self.0)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is not a message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message's id is a UUID of 36 characters, such as 6f1c8d6a-3a09-8b6e-9c8f-2d1f5e7b8a90")]
pub struct NoMessageId;

impl std::str::FromStr for MessageId {
    type Err = NoMessageId;

    fn from_str(text: &str) -> Result<Self, NoMessageId> {
        crate::hex::parse_uuid(text).map(Self).ok_or(NoMessageId)
    }
}

/// A message of an operation to other systems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The topic: the subject at a broker, the event's type for a webhook.
    pub topic: String,
    /// The ordering key, for example an account. Messages with the same key are delivered one after
    /// the other.
    pub order: String,
    /// The headers, such as `Content-Type`.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
}

/// The reason why messages cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageRefused {
    /// A completion has too many messages.
    #[error("the completion has {found} messages; at most {MESSAGES_MAX} are allowed")]
    TooMany {
        /// The number of messages.
        found: usize,
    },
    /// A part of a message is too large.
    #[error("message {number}: {what} has {found} bytes; at most {limit} are allowed")]
    TooLarge {
        /// The message, counted from 0.
        number: usize,
        /// The part that is too large.
        what: &'static str,
        /// The size of the part, in bytes.
        found: usize,
        /// The maximum size of the part, in bytes.
        limit: usize,
    },
    /// A part of a message cannot be delivered or stored.
    #[error("message {number}: {what} {fault}")]
    Malformed {
        /// The message, counted from 0.
        number: usize,
        /// The invalid part.
        what: &'static str,
        /// The defect of the part.
        fault: &'static str,
    },
}

impl Message {
    /// Creates a message with the topic `topic` and the ordering key `order`.
    #[must_use]
    pub fn new(
        topic: impl Into<String>,
        order: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        let (topic, order, payload) = (topic.into(), order.into(), payload.into());
        Self { topic, order, headers: Vec::new(), payload }
    }

    /// Adds one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Returns the lane of the ordering key.
    #[must_use]
    pub fn lane(&self) -> u8 {
        let digest = Sha256::digest(self.order.as_bytes());
        digest.first().map_or(0, |byte| byte % LANES)
    }

    /// Returns the headers as bytes to store.
    #[must_use]
    pub fn headers_to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        for (name, value) in &self.headers {
            put_slice(&mut out, name.as_bytes());
            put_slice(&mut out, value.as_bytes());
        }
        out.freeze()
    }

    /// Reads the headers that [`headers_to_bytes`](Self::headers_to_bytes) wrote.
    ///
    /// # Errors
    /// If the bytes are not such headers.
    pub fn headers_from_bytes(bytes: Bytes) -> Result<Vec<(String, String)>, DecodeError> {
        let mut from = Reader(bytes);
        let mut headers = Vec::new();
        while !from.0.is_empty() {
            headers.push((from.text("a header's name")?, from.text("a header's value")?));
        }
        Ok(headers)
    }

    /// Checks messages before any of them is written.
    ///
    /// # Errors
    /// If there are too many messages, one is too large, or its topic or ordering key is malformed.
    pub fn check(messages: &[Self]) -> Result<(), MessageRefused> {
        if messages.len() > MESSAGES_MAX {
            return Err(MessageRefused::TooMany { found: messages.len() });
        }
        for (number, message) in messages.iter().enumerate() {
            let headers = message.headers.iter().map(|(name, value)| name.len() + value.len());
            for (what, found, limit) in [
                ("the topic", message.topic.len(), TOPIC_BYTES_MAX),
                ("the ordering key", message.order.len(), ORDER_BYTES_MAX),
                ("the set of headers", headers.sum(), HEADERS_BYTES_MAX),
                ("the payload", message.payload.len(), PAYLOAD_BYTES_MAX),
            ] {
                if found > limit {
                    return Err(MessageRefused::TooLarge { number, what, found, limit });
                }
            }
            let malformed = |what, fault| Err(MessageRefused::Malformed { number, what, fault });
            if message.topic.is_empty() {
                return malformed("the topic", "is empty");
            }
            // PostgreSQL cannot store a NUL in a text.
            if message.topic.contains('\0') {
                return malformed("the topic", "contains a NUL character");
            }
            if message.order.contains('\0') {
                return malformed("the ordering key", "contains a NUL character");
            }
        }
        Ok(())
    }
}

/// A message that is not delivered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingMessage {
    /// The position among all messages. Messages of one ordering key are delivered in this order.
    pub place: u64,
    /// The id.
    pub id: MessageId,
    /// The message.
    pub message: Message,
    /// The number of failed deliveries.
    pub tries: u32,
    /// The time at which the message was written.
    pub created_at: Timestamp,
}

/// A lane that a relay holds for a limited time, and the messages to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The lane.
    pub lane: u8,
    /// A number that rises whenever the lane is taken. A relay that returns with an older number
    /// changes nothing.
    pub turn: u64,
    /// The messages to deliver, in the order of their positions. A message is left out while an
    /// earlier one of the same ordering key waits for its next try.
    pub messages: Vec<PendingMessage>,
}

/// The result of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The receiver has the message.
    Delivered,
    /// The delivery failed, and is tried again after a pause. Later messages of the same ordering
    /// key wait.
    Again {
        /// The pause: a day at most.
        after: Duration,
        /// The reason, for people.
        error: String,
    },
    /// The message can never be delivered as it is. It is set aside for an operator, and later
    /// messages of the same ordering key are delivered.
    Park {
        /// The reason, for people.
        error: String,
    },
}

/// The numbers of messages in an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxCounts {
    /// The number of undelivered messages. Counting stops at [`COUNTED_MAX`].
    pub waiting: u64,
    /// The age of the oldest undelivered message.
    pub lag: Duration,
    /// The number of parked messages. Counting stops at [`COUNTED_MAX`].
    pub parked: u64,
}

impl OutboxCounts {
    /// Creates the counts of an outbox: its undelivered messages, the age of the oldest of them,
    /// and its parked messages.
    #[must_use]
    pub fn new(waiting: u64, lag: Duration, parked: u64) -> Self {
        Self { waiting, lag, parked }
    }
}

/// The number at which counting stops.
pub const COUNTED_MAX: u64 = 100_000;
/// The maximum number of reads of one [`take`](Outbox::take). Each read passes over up to a few
/// thousand messages that are held back.
pub const LOOKS_MAX: usize = 100;

/// A message that is parked or failing, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedMessage {
    /// The message.
    pub waiting: PendingMessage,
    /// The time at which the message was parked. For a failing message: the time of its next try.
    pub at: Timestamp,
    /// The reason, for people.
    pub error: String,
}

/// The reading side of an outbox, for relays. All times are by the store's clock.
pub trait Outbox: Send + Sync + fmt::Debug + 'static {
    /// Takes a free lane that has a message due, for the time `hold` (a day at most). Returns up to
    /// `limit` messages of `bytes` bytes in all (one at least), or `None` if no message is due.
    fn take(
        &self,
        hold: Duration,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Turn>, StoreError>>;

    /// Records the results of deliveries of a turn, by the positions of the messages, and gives the
    /// lane back. Returns false if the relay no longer held the turn; then nothing was changed.
    fn settle(
        &self,
        lane: u8,
        turn: u64,
        deliveries: Vec<(u64, Delivery)>,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Deletes up to `limit` messages that were delivered more than `kept` ago. Returns the number
    /// of deleted messages.
    fn prune(&self, kept: Duration, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>>;

    /// Returns the numbers of messages.
    fn counts(&self) -> BoxFuture<'_, Result<OutboxCounts, StoreError>>;

    /// Returns up to `limit` parked messages after this position, in the order of their positions.
    fn parked(
        &self,
        behind: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>>;

    /// Returns up to `limit` messages after this position that failed and are tried again at
    /// [`at`](ParkedMessage::at), in the order of their positions.
    fn failing(
        &self,
        behind: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<ParkedMessage>, StoreError>>;

    /// Makes a parked or failing message due now. Returns false if there is no such message.
    fn retry(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Deletes a parked or failing message, so that later messages of its ordering key are
    /// delivered. Returns false if there is no such message. A relay that is delivering the message
    /// now may still deliver it.
    fn discard(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_and_differ() {
        let record = RecordId::from_bytes([7; 16]);
        let first = MessageId::of(record, Fence::new(1), 0);
        // Consumers store these ids: they must never change.
        assert_eq!(first.to_string(), "cf5817fc-324e-8dd0-9507-2864d091ad58");
        assert_eq!(first.to_string().parse(), Ok(first));
        assert!("no".parse::<MessageId>().is_err());
        let others = [
            MessageId::of(record, Fence::new(1), 1),
            MessageId::of(record, Fence::new(2), 0),
            MessageId::of(RecordId::from_bytes([8; 16]), Fence::new(1), 0),
        ];
        assert!(others.iter().all(|other| *other != first));
    }

    #[test]
    fn headers_come_back_as_they_were() {
        let message = Message::new("t", "o", "p").with_header("Content-Type", "text/plain");
        let bytes = message.headers_to_bytes();
        assert_eq!(Message::headers_from_bytes(bytes.clone()), Ok(message.headers));
        assert!(Message::headers_from_bytes(bytes.slice(1..)).is_err());
    }

    #[test]
    fn what_is_too_large_is_named() {
        let large = Message::new("t".repeat(256), "o", "p");
        let fine = Message::new("t", "", "");
        let told = |messages: &[Message]| Message::check(messages).unwrap_err().to_string();
        assert_eq!(
            told(&[fine.clone(), large]),
            "message 1: the topic has 256 bytes; at most 255 are allowed"
        );
        assert_eq!(Message::check(&vec![fine.clone(); MESSAGES_MAX]), Ok(()));
        let many = vec![fine; MESSAGES_MAX + 1];
        assert_eq!(told(&many), "the completion has 1001 messages; at most 1000 are allowed");
        for (topic, order, what) in [
            ("", "o", "message 0: the topic is empty"),
            ("t\0", "o", "message 0: the topic contains a NUL character"),
            ("t", "\0", "message 0: the ordering key contains a NUL character"),
        ] {
            assert_eq!(told(&[Message::new(topic, order, "")]), what);
        }
    }
}
