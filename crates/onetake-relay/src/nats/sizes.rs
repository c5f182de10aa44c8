//! Detection of messages that are too large for an account.
//!
//! The client knows the server's `max_payload`. An account may have a lower limit, which the client
//! does not know: the server reports that a message was too large, not which one, and closes the
//! connection. It was the largest message in progress, if any.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_nats::{Event, ServerError};
use onetake_core::outbox::Message;

/// The server's error, in lower case.
const VIOLATION: &str = "maximum payload violation";

/// The sizes of messages in progress, and the size that was refused.
#[derive(Debug, Default)]
pub(super) struct Sizes(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    on_their_way: BTreeMap<usize, usize>,
    /// The smallest size that is known to be too large.
    refused: Option<usize>,
}

/// A message in progress.
pub(super) struct OnItsWay<'a> {
    sizes: &'a Sizes,
    size: usize,
}

impl Sizes {
    /// Registers a message of this size; `None` if it is known to be too large.
    pub(super) fn go(&self, size: usize) -> Option<OnItsWay<'_>> {
        let mut known = self.known();
        if known.refused.is_some_and(|refused| size >= refused) {
            return None;
        }
        *known.on_their_way.entry(size).or_default() += 1;
        Some(OnItsWay { sizes: self, size })
    }

    /// Handles an event of the connection.
    pub(super) fn hear(&self, event: &Event) {
        let Event::ServerError(ServerError::Other(said)) = event else { return };
        if said.to_ascii_lowercase().contains(VIOLATION) {
            let mut known = self.known();
            let largest = known.on_their_way.keys().next_back().copied();
            known.refused = largest.or(known.refused);
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnItsWay<'_> {
    /// Returns true if the message is known by now to be too large.
    pub(super) fn is_refused(&self) -> bool {
        self.sizes.known().refused.is_some_and(|refused| self.size >= refused)
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let mut known = self.sizes.known();
        if let Some(count) = known.on_their_way.get_mut(&self.size) {
            *count -= 1;
            if *count == 0 {
                known.on_their_way.remove(&self.size);
            }
        }
    }
}

/// Returns the size of a message for a server, without the header for its id, which all messages
/// have.
pub(super) fn size(message: &Message) -> usize {
    let headers = message.headers.iter().map(|(name, value)| name.len() + value.len() + 4);
    message.payload.len() + headers.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_on_its_way_is_the_one_that_is_refused() {
        let (sizes, other) = (Sizes::default(), Event::SlowConsumer(1));
        let violation = ServerError::Other("Maximum Payload Violation".to_owned());
        sizes.hear(&Event::ServerError(violation.clone()));
        let (small, large) = (sizes.go(10).unwrap(), sizes.go(1000).unwrap());
        drop(sizes.go(2000));
        sizes.hear(&other);
        assert!(!large.is_refused());
        sizes.hear(&Event::ServerError(violation.clone()));
        assert!(large.is_refused() && !small.is_refused());
        assert!(sizes.go(1000).is_none() && sizes.go(999).is_some());
        drop(large);
        let middle = sizes.go(500).unwrap();
        sizes.hear(&Event::ServerError(violation));
        assert!(middle.is_refused() && !small.is_refused());
    }
}
