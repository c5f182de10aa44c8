//! What is sent, and what has to be true before an answer counts.

use std::time::Duration;

use bytes::Bytes;
use onetake_core::clock::micros;
use onetake_core::{StoreError, StoreErrorKind};
use redis::{Cmd, Value};

use super::slots;

/// How many replicas must have what a pipeline saw and wrote before it is believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

impl Replicas {
    /// In how many milliseconds WAIT gives up: it takes 0 for never.
    pub(super) fn millis(self) -> u64 {
        u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Whether enough of them have what was seen and written, as WAIT `said`.
    pub(super) fn are_enough(self, said: Option<&Value>) -> Result<(), StoreError> {
        let have = match said {
            Some(Value::Int(have)) => *have,
            _ => 0,
        };
        if have >= i64::from(self.count) {
            return Ok(());
        }
        let what = format!(
            "Redis has it on the primary, but within {:?} on {have} replicas of the {} that \
             wait_replicas asks for; are they connected?",
            self.within, self.count
        );
        Err(StoreError::new(StoreErrorKind::Indeterminate, what))
    }
}

/// How this side is in touch with a server when it sends a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contact {
    /// For how long it has been.
    pub(super) back_for: Duration,
    /// Until when that counts, in microseconds of the server's clock. A command that is executed
    /// later was stuck on its way, in an outage that nobody knew of when it was sent.
    pub(super) until: u64,
}

/// One command for one slot.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(super) slot: u16,
    words: Vec<Bytes>,
    tells_contact: bool,
}

impl Command {
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

    /// Adds, as the last two arguments, the [`Contact`] with the server that it is sent to.
    pub(crate) fn with_contact(mut self) -> Self {
        self.tells_contact = true;
        self
    }

    pub(super) fn packed(&self, contact: Contact) -> Cmd {
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
