//! Commands, and the conditions under which their answers count.

use std::time::Duration;

use bytes::Bytes;
use onetake_core::clock::micros;
use onetake_core::{StoreError, StoreErrorKind};
use redis::{Cmd, Value};

use super::slots;

/// The number of replicas that must have what a pipeline read and wrote before its answers count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

impl Replicas {
    /// The timeout of WAIT in milliseconds, at least 1: WAIT treats 0 as no timeout.
    pub(super) fn millis(self) -> u64 {
        u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Checks WAIT's answer: enough replicas must have what was read and written.
    pub(super) fn are_enough(self, said: Option<&Value>) -> Result<(), StoreError> {
        let have = match said {
            Some(Value::Int(have)) => *have,
            _ => 0,
        };
        if have >= i64::from(self.count) {
            return Ok(());
        }
        let what = format!(
            "a write reached the Redis primary, but within {:?} only {have} of the {} replicas \
             that wait_replicas requires; check that the replicas are connected",
            self.within, self.count
        );
        Err(StoreError::new(StoreErrorKind::Indeterminate, what))
    }
}

/// The contact of this node with a server when it sends a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeContact {
    /// The length of the contact so far.
    pub(super) back_for: Duration,
    /// The time until which `back_for` may be used, in microseconds of the server's clock. A
    /// command that is executed later was delayed by an outage that this node did not know of when
    /// it sent the command.
    pub(super) until: u64,
}

/// One command for one slot.
#[derive(Clone, Debug)]
pub(crate) struct RedisCommand {
    pub(super) slot: u16,
    words: Vec<Bytes>,
    tells_contact: bool,
}

impl RedisCommand {
    /// A command on keys that share a slot with `key`.
    pub(crate) fn on(key: &[u8], name: &'static str) -> Self {
        let words = vec![Bytes::from_static(name.as_bytes())];
        Self { slot: slots::slot(key), words, tells_contact: false }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, word: impl Into<Bytes>) -> Self {
        self.words.push(word.into());
        self
    }

    /// Adds the [`NodeContact`] with the receiving server as the last two arguments.
    pub(crate) fn with_contact(mut self) -> Self {
        self.tells_contact = true;
        self
    }

    /// Returns the size of its words, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.words.iter().map(Bytes::len).sum()
    }

    pub(super) fn packed(&self, contact: NodeContact) -> Cmd {
        let mut command = Cmd::new();
        for word in &self.words {
            command.arg(word.as_ref());
        }
        if self.tells_contact {
            command.arg(micros(contact.back_for)).arg(contact.until);
        }
        command
    }
}
