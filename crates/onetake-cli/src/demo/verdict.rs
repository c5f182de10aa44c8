//! The final verdict: compares the ledger with what customers were told.

use std::collections::HashMap;

use super::ledger::Charge;
use super::phone::Receipt;

/// The verdict on one side, counted from its charges one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideVerdict {
    /// Payments that customers wanted to make.
    pub taps: u64,
    /// Charges in the ledger.
    pub charges: u64,
    /// Taps that were charged more than once.
    pub doubled: u64,
    /// Cents that were taken beyond the price of each tap.
    pub overcharged_cents: u64,
    /// Taps with a confirmed charge that the ledger does not have for that tap.
    pub missing: u64,
    /// Taps that never got a successful response.
    pub unanswered: u64,
}

impl SideVerdict {
    /// True if no tap was charged twice and every confirmed charge is in the ledger.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.doubled == 0 && self.missing == 0
    }

    /// Compares what customers were told with the charges in the ledger.
    pub(super) fn judge(receipts: &[Receipt], ledger: &[Charge]) -> Self {
        let mut charges_of: HashMap<u64, Vec<&Charge>> = HashMap::new();
        for charge in ledger {
            charges_of.entry(charge.order).or_default().push(charge);
        }
        let mut verdict =
            Self { taps: count(receipts.len()), charges: count(ledger.len()), ..Self::default() };
        for receipt in receipts {
            let charges = charges_of.remove(&receipt.order).unwrap_or_default();
            let taken: u64 = charges.iter().map(|charge| charge.amount_cents).sum();
            let exists = |id: &String| charges.iter().any(|charge| charge.id == *id);
            verdict.doubled += u64::from(charges.len() > 1);
            verdict.overcharged_cents += taken.saturating_sub(receipt.amount_cents);
            verdict.missing += u64::from(!receipt.told.iter().all(exists));
            verdict.unanswered += u64::from(receipt.told.is_empty());
        }
        verdict
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(id: &str, order: u64) -> Charge {
        Charge { id: id.to_owned(), order, amount_cents: 1_000 }
    }

    fn receipt(order: u64, told: &[&str]) -> Receipt {
        Receipt { order, amount_cents: 1_000, told: told.iter().map(|&id| id.to_owned()).collect() }
    }

    #[test]
    fn one_charge_for_each_tap_is_right() {
        let receipts = [receipt(0, &["a"]), receipt(1, &["b"])];
        let verdict = SideVerdict::judge(&receipts, &[charge("b", 1), charge("a", 0)]);
        let expected = SideVerdict { taps: 2, charges: 2, ..SideVerdict::default() };
        assert_eq!(verdict, expected);
        assert!(verdict.is_right());
    }

    #[test]
    fn a_second_charge_is_found_whether_or_not_the_customer_knows() {
        let ledger = [charge("a", 0), charge("b", 0), charge("c", 0)];
        for told in [&["a"][..], &["a", "c"], &[]] {
            let verdict = SideVerdict::judge(&[receipt(0, told)], &ledger);
            assert_eq!((verdict.doubled, verdict.overcharged_cents), (1, 2_000));
            assert!(!verdict.is_right());
        }
    }

    #[test]
    fn a_charge_that_the_ledger_does_not_have_is_missing() {
        let nothing = SideVerdict::judge(&[receipt(0, &["a"])], &[]);
        assert_eq!(nothing.missing, 1);
        assert!(!nothing.is_right());
        let another = SideVerdict::judge(&[receipt(0, &["a"])], &[charge("b", 0)]);
        assert_eq!(another.missing, 1);
        let somebody_elses = [receipt(0, &["a"]), receipt(1, &["a"])];
        let swapped = SideVerdict::judge(&somebody_elses, &[charge("a", 0), charge("b", 1)]);
        assert_eq!(swapped.missing, 1);
    }

    #[test]
    fn a_customer_without_an_answer_is_not_a_missing_charge() {
        let receipts = [receipt(0, &[]), receipt(1, &[])];
        let verdict = SideVerdict::judge(&receipts, &[charge("a", 0)]);
        assert_eq!((verdict.unanswered, verdict.missing), (2, 0));
        assert!(verdict.is_right());
    }
}
