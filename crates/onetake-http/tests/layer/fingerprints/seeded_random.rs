//! A pseudo-random generator that repeats itself for the same seed.

/// The generator splitmix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number from 0 to `sides` - 1.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 33) as usize % sides.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())]
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.roll(2) == 0
    }
}
