//! The outbox: what an operation says to others, written in the transaction that completes it (S14).
//!
//! A message exists if and only if its operation's completion committed. A relay delivers it at least once,
//! with the same [`MessageId`] every time, and messages of one key in the order in which they were committed.
//! What is written here is read through an [`Outbox`].

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

/// The most messages that one operation may write.
pub const MESSAGES_MAX: usize = 1_000;
/// The longest topic, in bytes.
pub const TOPIC_BYTES_MAX: usize = 255;
/// The longest ordering key, in bytes.
pub const ORDER_BYTES_MAX: usize = 255;
/// The most bytes of all headers of a message.
pub const HEADERS_BYTES_MAX: usize = 8 << 10;
/// The largest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 20;
/// Messages are shared out among relays by lanes; all messages of one ordering key are in one lane.
pub const LANES: u8 = 64;

/// Names a message: the same at every delivery, and never that of another one. Written as a UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId([u8; MessageId::BYTES]);

impl MessageId {
    /// How many bytes it has.
    pub const BYTES: usize = 16;

    /// The id of the `number`th message (from 0) of the attempt that completes a record. An attempt that is
    /// rolled back leaves no message, and the next one has another fence, so that a key which is used anew
    /// after it expired never repeats an id.
    #[must_use]
    pub fn of(record: RecordId, fence: Fence, number: u32) -> Self {
        let mut digest = Sha256::new();
        digest.update(b"onetake message v1");
        digest.update(record.as_bytes());
        digest.update(fence.get().to_be_bytes());
        digest.update(number.to_be_bytes());
        let mut bytes = [0; Self::BYTES];
        bytes.iter_mut().zip(digest.finalize()).for_each(|(to, from)| *to = from);
        // A UUID of version 8: the meaning of its bits is ours.
        let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
        *version = *version & 0x0f | 0x80;
        *variant = *variant & 0x3f | 0x80;
        Self(bytes)
    }

    /// An id as a store kept it.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes to keep.
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

/// The text is no message's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message's id is a UUID of 36 characters, such as 6f1c8d6a-3a09-8b6e-9c8f-2d1f5e7b8a90")]
pub struct NoMessageId;

impl std::str::FromStr for MessageId {
    type Err = NoMessageId;

    fn from_str(text: &str) -> Result<Self, NoMessageId> {
        crate::hex::parse_uuid(text).map(Self).ok_or(NoMessageId)
    }
}

/// What an operation says to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What it is about: the subject at a broker, the event's type for a webhook.
    pub topic: String,
    /// Messages of the same ordering key are delivered one behind the other: an account, say.
    pub order: String,
    /// More about it, such as `Content-Type`.
    pub headers: Vec<(String, String)>,
    /// The message itself.
    pub payload: Bytes,
}

/// Why messages cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageRefused {
    /// There are too many for one completion.
    #[error("{found} messages are too many for one completion: {MESSAGES_MAX} at most")]
    TooMany {
        /// How many there are.
        found: usize,
    },
    /// One is too large.
    #[error("{what} of message {number} has {found} bytes, and may have {limit} at most")]
    TooLarge {
        /// Which message, from 0.
        number: usize,
        /// What of it is too large.
        what: &'static str,
        /// How large it is, in bytes.
        found: usize,
        /// How large it may be.
        limit: usize,
    },
    /// One has something that nobody could deliver or keep.
    #[error("{what} of message {number} {fault}")]
    Malformed {
        /// Which message, from 0.
        number: usize,
        /// What of it is wrong.
        what: &'static str,
        /// What is wrong with it.
        fault: &'static str,
    },
}

impl Message {
    /// A message about `topic`, in the order of `order`.
    #[must_use]
    pub fn new(
        topic: impl Into<String>,
        order: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        let (topic, order, payload) = (topic.into(), order.into(), payload.into());
        Self { topic, order, headers: Vec::new(), payload }
    }

    /// The same with one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The lane that its ordering key belongs to.
    #[must_use]
    pub fn lane(&self) -> u8 {
        let digest = Sha256::digest(self.order.as_bytes());
        digest.first().map_or(0, |byte| byte % LANES)
    }

    /// The bytes of its headers, as stores keep them.
    #[must_use]
    pub fn headers_to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        for (name, value) in &self.headers {
            put_slice(&mut out, name.as_bytes());
            put_slice(&mut out, value.as_bytes());
        }
        out.freeze()
    }

    /// What [`headers_to_bytes`](Self::headers_to_bytes) wrote.
    ///
    /// # Errors
    /// If it is something else.
    pub fn headers_from_bytes(bytes: Bytes) -> Result<Vec<(String, String)>, DecodeError> {
        let mut from = Reader(bytes);
        let mut headers = Vec::new();
        while !from.0.is_empty() {
            headers.push((from.text("a header's name")?, from.text("a header's value")?));
        }
        Ok(headers)
    }

    /// Refuses what cannot be written, before anything is.
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
                ("what the headers hold", headers.sum(), HEADERS_BYTES_MAX),
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
            // PostgreSQL has no place for it in a text.
            if message.topic.contains('\0') {
                return malformed("the topic", "holds a NUL");
            }
            if message.order.contains('\0') {
                return malformed("the ordering key", "holds a NUL");
            }
        }
        Ok(())
    }
}

/// A message that waits to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Where it stands among all others: messages of one ordering key are delivered in this order.
    pub place: u64,
    /// Its id.
    pub id: MessageId,
    /// The message.
    pub message: Message,
    /// How often it was tried without success.
    pub tries: u32,
    /// When it was written.
    pub created_at: Timestamp,
}

/// A lane that a relay has for a while, and what waits in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The lane.
    pub lane: u8,
    /// A number that rises whenever the lane is taken: a relay that comes back late changes nothing.
    pub turn: u64,
    /// What to deliver, in the order of their places. Where an earlier message of the same ordering key has to
    /// wait before it is tried again, the later ones are not among them.
    pub messages: Vec<Waiting>,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Whom it was for has it.
    Delivered,
    /// It failed, and is tried again after a while; those behind it of the same ordering key wait.
    Again {
        /// How long to wait: a day at most.
        after: Duration,
        /// Why it failed, for people.
        error: String,
    },
    /// It will never be delivered as it is: it is set aside for an operator, and those behind it go on.
    Park {
        /// Why, for people.
        error: String,
    },
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxCounts {
    /// How many wait, at least: counting stops at [`COUNTED_MAX`].
    pub waiting: u64,
    /// For how long the oldest of them has waited.
    pub lag: Duration,
    /// How many are parked, at least.
    pub parked: u64,
}

/// Counting stops here.
pub const COUNTED_MAX: u64 = 100_000;
/// How often a [`take`](Outbox::take) looks on behind messages that are held back, a few thousand each time.
pub const LOOKS_MAX: usize = 100;

/// A message that an operator has to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The message.
    pub waiting: Waiting,
    /// Since when; of one that is failing: when it is tried again.
    pub at: Timestamp,
    /// Why.
    pub error: String,
}

/// The reading side of an outbox, for relays. Time is the store's.
pub trait Outbox: Send + Sync + fmt::Debug + 'static {
    /// Takes a lane that nobody has and in which something is due, for as long as `hold` (a day at most), and up to `limit`
    /// messages of `bytes` bytes in all (one at least). `None` if there is nothing to do.
    fn take(
        &self,
        hold: Duration,
        limit: usize,
        bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Turn>, StoreError>>;

    /// Says what became of messages of a turn, by their places, and gives the lane back. Says whether the turn
    /// was still the relay's: if not, nothing was changed.
    fn settle(
        &self,
        lane: u8,
        turn: u64,
        deliveries: Vec<(u64, Delivery)>,
    ) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Deletes up to `limit` messages that were delivered more than `kept` ago; how many it were.
    fn prune(&self, kept: Duration, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>>;

    /// How much there is.
    fn counts(&self) -> BoxFuture<'_, Result<OutboxCounts, StoreError>>;

    /// Up to `limit` parked messages behind this place, in the order of their places.
    fn parked(&self, behind: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Parked>, StoreError>>;

    /// Up to `limit` messages behind this place that failed and are tried again, at [`at`](Parked::at), in the order
    /// of their places.
    fn failing(&self, behind: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Parked>, StoreError>>;

    /// Lets a parked message be tried again, and a failing one now; says whether there is such a one.
    fn retry(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Deletes a parked or failing message, so that those behind it go on; says whether there is such a one. A relay
    /// that is at it just now may still deliver it.
    fn discard(&self, id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_and_differ() {
        let record = RecordId::from_bytes([7; 16]);
        let first = MessageId::of(record, Fence::new(1), 0);
        // Consumers keep these: they must never change.
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
            "the topic of message 1 has 256 bytes, and may have 255 at most"
        );
        assert_eq!(Message::check(&vec![fine.clone(); MESSAGES_MAX]), Ok(()));
        let many = vec![fine; MESSAGES_MAX + 1];
        assert_eq!(told(&many), "1001 messages are too many for one completion: 1000 at most");
        for (topic, order, what) in [
            ("", "o", "the topic of message 0 is empty"),
            ("t\0", "o", "the topic of message 0 holds a NUL"),
            ("t", "\0", "the ordering key of message 0 holds a NUL"),
        ] {
            assert_eq!(told(&[Message::new(topic, order, "")]), what);
        }
    }
}
