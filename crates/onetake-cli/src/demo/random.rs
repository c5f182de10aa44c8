//! A small seeded random generator: the same seed gives the same taps, faults and prices.

/// The increment of SplitMix64. It is odd, so every state occurs once.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64. Not for secrets.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The generator for one part of a run. It does not depend on what other parts drew.
    pub(super) fn of_part(seed: u64, part: u64) -> Self {
        let mut outer = Self::new(seed);
        let mut inner = Self::new(outer.next() ^ part.wrapping_mul(STEP));
        Self::new(inner.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, inclusive.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        let choices = u128::from(high.saturating_sub(low)) + 1;
        let offset = (u128::from(self.next()) * choices) >> 64;
        low.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }

    /// True with a probability of `percent` percent.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        // The first outputs of the reference implementation for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.next()).collect();
        let reference =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(drawn, reference);
    }

    #[test]
    fn ranges_keep_their_ends() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..1_000).map(|_| random.between(3, 5)).collect();
        assert!((3..=5).all(|number| drawn.contains(&number)));
        assert!(drawn.iter().all(|number| (3..=5).contains(number)));
        assert_eq!(random.between(9, 9), 9);
    }
}
