//! Random choices, and random changes of bytes.
#![expect(clippy::indexing_slicing, reason = "tests may panic")]

/// Reproducible random numbers (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Mixed twice, so that neighbouring seeds have nothing in common.
        let mut dice = Self(seed ^ 0x6A09_E667_F3BC_C908);
        let high = u64::try_from(dice.roll(usize::MAX)).unwrap();
        Self(high.rotate_left(32) ^ seed.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap() % sides
    }

    pub(crate) fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    pub(crate) fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.roll(choices.len())]
    }
}

/// Changes a few bytes, but none of a target: it names the conversation.
pub(crate) fn mutate(bytes: &mut Vec<u8>, case: u64, dice: &mut Dice) {
    if !dice.one_in(4) {
        return;
    }
    let odd = [0, 9, 10, 11, 13, 32, b',', b':', b';', b'"', b'0', b'5', 0x7f, 0x80, 0xa0, 0xff];
    let name = format!("/{case}/");
    for _ in 0..=dice.roll(2) {
        let at = dice.roll(bytes.len());
        let near = bytes.get(at.saturating_sub(name.len() + 8)..(at + name.len()).min(bytes.len()));
        let near = near.unwrap_or_default();
        if near.windows(name.len()).any(|part| part == name.as_bytes()) {
            continue;
        }
        match dice.roll(3) {
            0 => bytes[at] = odd[dice.roll(odd.len())],
            1 => bytes.insert(at, odd[dice.roll(odd.len())]),
            _ => drop(bytes.remove(at)),
        }
    }
}
