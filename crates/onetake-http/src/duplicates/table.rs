//! The payloads of recent operations, in bounded memory.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// The number of expired payloads that are dropped at most when one is entered. Payloads are
/// dropped faster than they arrive, and a request does not wait long for it.
const DROPS_MAX: usize = 16;

/// The digest of a tenant, a namespace and a fingerprint. 128 bits are enough to find a payload
/// again.
pub(super) type PayloadDigest = [u8; 16];

/// Payloads with the operations that they belong to. `Id` names an operation.
#[derive(Debug)]
pub(super) struct PayloadTable<Id> {
    entries: HashMap<PayloadDigest, Entry<Id>>,
    /// The same payloads, in the order in which they expire.
    order: BTreeSet<(Duration, PayloadDigest)>,
    payloads_max: usize,
}

#[derive(Debug)]
struct Entry<Id> {
    id: Id,
    until: Duration,
    /// Requests that are being decided or run.
    holders: u32,
    /// True if the operation may have had its effect.
    is_kept: bool,
}

/// The result of entering a payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered<Id> {
    /// The payload is new, or belongs to the same operation. The caller must
    /// [`leave`](PayloadTable::leave) it.
    Own {
        /// The number of payloads that were forgotten to make room.
        evicted: u64,
    },
    /// The payload belongs to this other operation.
    Other(Id),
}

impl<Id: Copy + PartialEq> PayloadTable<Id> {
    pub(super) fn new(payloads_max: usize) -> Self {
        let payloads_max = payloads_max.max(1);
        Self { entries: HashMap::new(), order: BTreeSet::new(), payloads_max }
    }

    /// Enters the payload of an operation for `window`, counted from its first request.
    pub(super) fn enter(
        &mut self,
        payload: PayloadDigest,
        id: Id,
        now: Duration,
        window: Duration,
    ) -> Entered<Id> {
        self.drop_expired(now);
        match self.entries.get_mut(&payload) {
            Some(entry) if entry.until <= now => self.remove(&payload),
            Some(entry) if entry.id == id => {
                entry.holders = entry.holders.saturating_add(1);
                return Entered::Own { evicted: 0 };
            }
            Some(entry) => return Entered::Other(entry.id),
            None => {}
        }
        let mut evicted = 0;
        while self.entries.len() >= self.payloads_max {
            let Some((_, oldest)) = self.order.first().copied() else { break };
            self.remove(&oldest);
            evicted += 1;
        }
        let until = now.saturating_add(window);
        self.order.insert((until, payload));
        self.entries.insert(payload, Entry { id, until, holders: 1, is_kept: false });
        Entered::Own { evicted }
    }

    /// Notes whether the operation may have had its effect.
    pub(super) fn set_kept(&mut self, payload: &PayloadDigest, id: Id, is_kept: bool) {
        if let Some(entry) = self.entries.get_mut(payload).filter(|entry| entry.id == id) {
            entry.is_kept = is_kept;
        }
    }

    /// Ends one request of the operation. The payload is forgotten with the last one, unless the
    /// operation may have had its effect.
    pub(super) fn leave(&mut self, payload: &PayloadDigest, id: Id) {
        let Some(entry) = self.entries.get_mut(payload).filter(|entry| entry.id == id) else {
            return;
        };
        entry.holders = entry.holders.saturating_sub(1);
        if entry.holders == 0 && !entry.is_kept {
            self.remove(payload);
        }
    }

    fn drop_expired(&mut self, now: Duration) {
        for _ in 0..DROPS_MAX {
            match self.order.first().copied() {
                Some((until, payload)) if until <= now => self.remove(&payload),
                _ => break,
            }
        }
    }

    fn remove(&mut self, payload: &PayloadDigest) {
        if let Some(entry) = self.entries.remove(payload) {
            self.order.remove(&(entry.until, *payload));
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        assert_eq!(self.entries.len(), self.order.len());
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const OWN: Entered<char> = Entered::Own { evicted: 0 };

    fn payload(number: u8) -> PayloadDigest {
        [number; 16]
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn table(max: usize) -> PayloadTable<char> {
        PayloadTable::new(max)
    }

    #[test]
    fn another_operation_with_the_same_payload_is_found_within_the_window() {
        let mut table = table(10);
        assert_eq!(table.enter(payload(1), 'a', at(0), WINDOW), OWN);
        table.set_kept(&payload(1), 'a', true);
        table.leave(&payload(1), 'a');
        assert_eq!(table.enter(payload(1), 'b', at(9), WINDOW), Entered::Other('a'));
        assert_eq!(table.enter(payload(2), 'b', at(9), WINDOW), OWN);
        // A retry is its own payload, and does not make the window longer.
        assert_eq!(table.enter(payload(1), 'a', at(9), WINDOW), OWN);
        table.leave(&payload(1), 'a');
        assert_eq!(table.enter(payload(1), 'b', at(10), WINDOW), OWN);
    }

    #[test]
    fn an_operation_without_effect_leaves_nothing() {
        let mut table = table(10);
        // It did not start.
        table.enter(payload(1), 'a', at(0), WINDOW);
        table.leave(&payload(1), 'a');
        assert_eq!(table.len(), 0);
        // It started, and was released, while a second request waited for it.
        table.enter(payload(1), 'a', at(0), WINDOW);
        table.enter(payload(1), 'a', at(0), WINDOW);
        table.set_kept(&payload(1), 'a', true);
        table.set_kept(&payload(1), 'a', false);
        table.leave(&payload(1), 'a');
        assert_eq!(table.enter(payload(1), 'b', at(1), WINDOW), Entered::Other('a'));
        table.leave(&payload(1), 'a');
        assert_eq!(table.enter(payload(1), 'b', at(1), WINDOW), OWN);
        // Only the owner changes anything.
        table.leave(&payload(1), 'a');
        table.set_kept(&payload(1), 'a', true);
        assert_eq!(table.enter(payload(1), 'a', at(1), WINDOW), Entered::Other('b'));
        table.leave(&payload(1), 'b');
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut table = table(3);
        for number in 0..100 {
            let evicted = u64::from(number >= 3);
            let entered = table.enter(payload(number), 'a', at(u64::from(number) / 50), WINDOW);
            assert_eq!(entered, Entered::Own { evicted }, "{number}");
            assert!(table.len() <= 3);
        }
        // Those that expire last stay.
        assert_eq!(table.enter(payload(99), 'b', at(2), WINDOW), Entered::Other('a'));
        // Expired payloads go by themselves.
        table.enter(payload(200), 'a', at(60), WINDOW);
        assert_eq!(table.len(), 1);
    }

    /// docs/CONFIGURATION.md has the figures.
    #[test]
    #[ignore = "a measurement, for release builds"]
    fn cost_of_the_table() {
        use onetake_core::{Clock, SystemClock};
        const OPERATIONS: u32 = 200_000;
        for payloads in [1_000_u32, 100_000, 1_000_000] {
            let mut table = table(payloads as usize);
            let step = WINDOW / payloads;
            let digest = |number: u32| {
                let mut digest = PayloadDigest::default();
                // Spread like the digests of SHA-256.
                let spread =
                    u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                digest.copy_from_slice(&spread.to_be_bytes());
                digest
            };
            let mut run = |number: u32| {
                let payload = digest(number);
                table.enter(payload, 'a', step * number, WINDOW);
                table.set_kept(&payload, 'a', true);
                table.leave(&payload, 'a');
            };
            (0..payloads).for_each(&mut run);
            let from = SystemClock.monotonic();
            (payloads..payloads + OPERATIONS).for_each(&mut run);
            let each = (SystemClock.monotonic() - from) / OPERATIONS;
            println!("{payloads} payloads: {each:?} for each operation");
        }
    }
}
