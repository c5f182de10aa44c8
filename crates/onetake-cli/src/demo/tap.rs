//! Plan of taps and faults. It is made from the seed, so both sides get the same taps and the same
//! faults.

use std::time::Duration;

use bytes::Bytes;

use super::random::Random;

/// Percentage of responses that never arrive.
pub(super) const LOST_PERCENT: u64 = 15;
/// Percentage of requests that the phone gives up on while the server is still working.
pub(super) const HUNG_UP_PERCENT: u64 = 5;
/// Percentage of taps that are double taps.
pub(super) const DOUBLE_PERCENT: u64 = 10;
/// Planned tries of a press. The final retries come later.
pub(super) const TRIES_MAX: usize = 5;
/// Customers, each with a card and an account.
const CUSTOMERS: u64 = 500;

/// A customer's wish to pay once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    /// Counts from zero. It is also the number of the order.
    pub(super) number: u64,
    /// Created when the button is tapped, and sent with every retry.
    pub(super) key: String,
    pub(super) account: String,
    pub(super) amount_cents: u64,
    /// One, or two for a double tap.
    pub(super) presses: Vec<Press>,
}

/// One press of the button, with its tries until there is a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Press {
    /// Delay after the first press.
    pub(super) after: Duration,
    pub(super) tries: Vec<Try>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Try {
    pub(super) reception: Reception,
    /// How long the phone waits after this try if there was no response.
    pub(super) pause: Duration,
}

/// The network quality of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reception {
    Clear,
    /// The request arrives, its response does not.
    AnswerLost,
    /// The phone hangs up after this time, even if the server is still working.
    HangUp(Duration),
}

impl Tap {
    /// Plans the tap with this number for this seed.
    pub(super) fn plan(seed: u64, number: u64) -> Self {
        let mut random = Random::of_part(seed, number);
        let key = uuid(&mut random);
        let account = format!("customer-{:03}", random.between(1, CUSTOMERS));
        let amount_cents = random.between(199, 9_999);
        let mut presses = vec![Press::plan(&mut random, Duration::ZERO)];
        if random.chance(DOUBLE_PERCENT) {
            let after = Duration::from_millis(random.between(0, 30));
            presses.push(Press::plan(&mut random, after));
        }
        Self { number, key, account, amount_cents, presses }
    }

    /// The request body, the same bytes on every try.
    pub(super) fn body(&self) -> Bytes {
        let body = serde_json::json!({
            "order": self.number,
            "amount": self.amount_cents,
            "currency": "usd",
            "card": format!("card of {}", self.account),
        });
        body.to_string().into()
    }
}

impl Press {
    fn plan(random: &mut Random, after: Duration) -> Self {
        let tries = (0..TRIES_MAX).map(|index| Try::plan(random, index));
        Self { after, tries: tries.collect() }
    }
}

impl Try {
    fn plan(random: &mut Random, index: usize) -> Self {
        let reception = match random.between(1, 100) {
            drawn if drawn <= LOST_PERCENT => Reception::AnswerLost,
            drawn if drawn <= LOST_PERCENT + HUNG_UP_PERCENT => {
                Reception::HangUp(Duration::from_millis(random.between(10, 40)))
            }
            _ => Reception::Clear,
        };
        // Exponential backoff with full jitter above a floor.
        let longest = 100_u64 << index.min(4);
        let pause = Duration::from_millis(random.between(20, longest));
        Self { reception, pause }
    }
}

/// A version 4 UUID.
fn uuid(random: &mut Random) -> String {
    let (high, low) = (random.next(), random.next());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        (low >> 48) & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn plans(seed: u64) -> Vec<Tap> {
        (0..2_000).map(|number| Tap::plan(seed, number)).collect()
    }

    #[test]
    fn one_seed_is_one_plan() {
        assert_eq!(plans(5), plans(5));
        assert_ne!(plans(5), plans(6));
        assert_eq!(plans(5)[7].body(), plans(5)[7].body());
    }

    #[test]
    fn keys_are_uuids_and_differ() {
        let keys: HashSet<String> = plans(1).into_iter().map(|tap| tap.key).collect();
        assert_eq!(keys.len(), 2_000);
        for key in keys {
            let parts: Vec<&str> = key.split('-').collect();
            let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{key}");
            assert!(parts[2].starts_with('4'), "{key}");
            assert!(parts[3].starts_with(['8', '9', 'a', 'b']), "{key}");
        }
    }

    #[test]
    fn as_much_goes_wrong_as_is_said() {
        let taps = plans(3);
        let doubles = taps.iter().filter(|tap| tap.presses.len() == 2).count();
        assert!((150..250).contains(&doubles), "{doubles} of 2000");
        let first = |tap: &Tap| tap.presses[0].tries[0].reception;
        let lost = taps.iter().filter(|tap| first(tap) == Reception::AnswerLost).count();
        assert!((240..360).contains(&lost), "{lost} of 2000");
    }
}
