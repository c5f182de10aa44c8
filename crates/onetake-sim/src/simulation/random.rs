//! Seeded randomness. Each part of a simulation has its own stream, so that leaving out one
//! operation or fault while shrinking does not change the choices of the others.

use std::sync::{Mutex, PoisonError};

use onetake_core::Rng;

/// A stream of pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the stream called `name` of a seed.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let mut state = mix(seed ^ 0x6f6e_6574_616b_6521);
        for byte in name.bytes() {
            state = mix(state ^ u64::from(byte));
        }
        Self { state }
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number below `bound`; zero if the bound is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.number() % bound }
    }

    /// Returns a number from `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// Returns true in `per_mille` of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// Returns an index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// Returns one of the items, or `otherwise` if there is none.
    pub fn pick<T: Copy>(&mut self, items: &[T], otherwise: T) -> T {
        let index = self.index(items.len());
        items.get(index).copied().unwrap_or(otherwise)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The randomness of an engine in a simulation.
#[derive(Debug)]
pub struct SeededRng(Mutex<Random>);

impl SeededRng {
    /// Creates randomness from a stream.
    #[must_use]
    pub fn new(random: Random) -> Self {
        Self(Mutex::new(random))
    }
}

impl Rng for SeededRng {
    fn fill(&self, into: &mut [u8]) {
        let mut random = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in into.chunks_mut(8) {
            let bytes = random.number().to_le_bytes();
            for (to, from) in chunk.iter_mut().zip(bytes) {
                *to = from;
            }
        }
    }
}
