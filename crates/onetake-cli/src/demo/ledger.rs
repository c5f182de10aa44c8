//! The ledger of charges that were made.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) id: String,
    /// The number of the tap that it pays for.
    pub(super) order: u64,
    pub(super) amount_cents: u64,
}

/// All charges of one payment API, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    charges: Vec<Charge>,
    charges_of: HashMap<u64, u32>,
    totals: Totals,
}

/// Running totals for the live display. The final verdict does not use them: it reads the charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) charges: u64,
    pub(super) doubled: u64,
    pub(super) overcharged_cents: u64,
}

impl Ledger {
    pub(super) fn append(&self, charge: Charge) {
        let mut pages = self.pages();
        let count = pages.charges_of.entry(charge.order).or_default();
        *count += 1;
        let count = *count;
        pages.totals.charges += 1;
        pages.totals.doubled += u64::from(count == 2);
        if count > 1 {
            pages.totals.overcharged_cents += charge.amount_cents;
        }
        pages.charges.push(charge);
    }

    pub(super) fn totals(&self) -> Totals {
        self.pages().totals
    }

    pub(super) fn charges(&self) -> Vec<Charge> {
        self.pages().charges.clone()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_count_an_order_as_doubled_once() {
        let ledger = Ledger::default();
        for (order, amount_cents) in [(1, 500), (2, 700), (1, 500), (1, 500)] {
            ledger.append(Charge { id: String::new(), order, amount_cents });
        }
        let totals = Totals { charges: 4, doubled: 1, overcharged_cents: 1_000 };
        assert_eq!(ledger.totals(), totals);
        assert_eq!(ledger.charges().len(), 4);
    }
}
