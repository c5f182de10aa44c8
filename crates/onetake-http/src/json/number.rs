//! Decimal numbers of any length. As floats, two different big integers could be equal.

use std::fmt;

use super::parse::Position;
use super::{JsonError, JsonErrorKind};

/// A JSON number: a sign, digits and a power of ten, without any rounding.
///
/// Every number has exactly one encoded form. So `1`, `1.0`, `1e0` and `10e-1` are equal, `-0`
/// equals `0`, and `9007199254740993` differs from `9007199254740992`. The `Debug` form hides the
/// digits, because bodies must not be logged.
#[derive(Clone, Copy)]
pub struct Number<'a> {
    /// Always false for zero.
    negative: bool,
    /// The first digits. Together with `more` they do not start or end with 0, except for zero.
    digits: &'a [u8],
    /// The rest of the digits. In the body, the decimal point is before them.
    more: &'a [u8],
    /// The power of ten. It is 0 if the number is zero.
    exponent: i64,
}

impl<'a> Number<'a> {
    pub(super) const ZERO: Number<'static> =
        Number { negative: false, digits: b"0", more: b"", exponent: 0 };

    /// Reads a number that has the form of one. Returns `None` if its exponent does not fit into 64
    /// bits.
    ///
    /// The exponent is checked in the number's one form, so all spellings of a number are treated
    /// the same.
    pub(super) fn of(text: &'a [u8]) -> Option<Self> {
        let (negative, text) = match text {
            [b'-', text @ ..] => (true, text),
            _ => (false, text),
        };
        let (mantissa, power) = split(text, |byte| matches!(byte, b'e' | b'E'));
        let (mut digits, mut more) = split(mantissa, |byte| *byte == b'.');
        let mut exponent = exponent(power);
        while let [head @ .., b'0'] = more {
            more = head;
        }
        exponent = exponent.saturating_sub(more.len() as i128);
        while let ([head @ .., b'0'], []) = (digits, more) {
            digits = head;
            exponent = exponent.saturating_add(1);
        }
        while let [b'0', tail @ ..] = digits {
            digits = tail;
        }
        while let ([], [b'0', tail @ ..]) = (digits, more) {
            more = tail;
        }
        if digits.is_empty() && more.is_empty() {
            return Some(Number::ZERO);
        }
        Some(Self { negative, digits, more, exponent: i64::try_from(exponent).ok()? })
    }

    /// Returns the number in plain digits (`-120`), if it is an integer of at most `digits_max`
    /// digits.
    ///
    /// The limit is needed because `1e1000000000` is an integer too.
    #[must_use]
    pub fn integer(&self, digits_max: usize) -> Option<String> {
        let zeros = usize::try_from(self.exponent).ok()?;
        if self.digits_count().checked_add(zeros)? > digits_max {
            return None;
        }
        let mut text = String::from(if self.negative { "-" } else { "" });
        text.extend(self.digits());
        text.extend(std::iter::repeat_n('0', zeros));
        Some(text)
    }

    /// Returns the integer part, if the number is not negative and the part fits into 64 bits.
    #[cfg(feature = "jwt")]
    pub(crate) fn whole(&self) -> Option<u64> {
        if self.negative {
            return None;
        }
        let fraction = usize::try_from(self.exponent.min(0).unsigned_abs()).ok()?;
        let kept = self.digits_count().saturating_sub(fraction);
        match kept {
            0 => Some(0),
            _ if self.exponent > 0 => self.integer(20)?.parse().ok(),
            _ => self.digits().take(kept).collect::<String>().parse().ok(),
        }
    }

    /// Appends the sign, the exponent and the digits. A reader can tell the end of each part.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.negative { b'-' } else { b'+' });
        // Zigzag encoding, so that small exponents of either sign take one byte: 0, -1, 1, -2
        // become 0, 1, 2, 3.
        let zigzag = (self.exponent << 1) ^ (self.exponent >> 63);
        put_count(out, zigzag.cast_unsigned());
        put_count(out, self.digits_count() as u64);
        out.extend_from_slice(self.digits);
        out.extend_from_slice(self.more);
    }

    fn digits(&self) -> impl Iterator<Item = char> {
        self.digits.iter().chain(self.more).copied().map(char::from)
    }

    fn digits_count(&self) -> usize {
        self.digits.len() + self.more.len()
    }
}

impl fmt::Debug for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Number(..)")
    }
}

/// Returns the bytes before and after the first byte of a kind. If there is none, nothing is after
/// it.
fn split(text: &[u8], is_mark: impl Fn(&u8) -> bool) -> (&[u8], &[u8]) {
    let at = text.iter().position(is_mark).unwrap_or(text.len());
    (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default())
}

/// Reads the text after the `e` of a number. Without digits it is 0.
fn exponent(text: &[u8]) -> i128 {
    let (minus, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    // Saturation at 128 bits is safe. No body is long enough for its fraction digits or trailing
    // zeros to bring such an exponent back into 64 bits.
    let size = digits.iter().fold(0_i128, |size, digit| {
        size.saturating_mul(10).saturating_add(i128::from(digit.wrapping_sub(b'0')))
    });
    if minus { -size } else { size }
}

/// Checks the number that starts at the cursor, and moves the cursor behind it.
pub(super) fn check(cursor: &mut Position<'_>) -> Result<(), JsonError> {
    let start = cursor.offset();
    cursor.take(b'-');
    // A leading zero is the whole integer part. In `01`, the `1` is not part of the number.
    if !cursor.take(b'0') {
        skip_digits(cursor)?;
    }
    if cursor.take(b'.') {
        skip_digits(cursor)?;
    }
    if cursor.take(b'e') || cursor.take(b'E') {
        if !cursor.take(b'-') {
            cursor.take(b'+');
        }
        skip_digits(cursor)?;
        // Without an `e`, no body is long enough for such an exponent.
        if Number::of(cursor.since(start)).is_none() {
            return Err(cursor.error(JsonErrorKind::ExponentOverflow, start));
        }
    }
    Ok(())
}

/// Moves the cursor behind one or more digits.
fn skip_digits(cursor: &mut Position<'_>) -> Result<(), JsonError> {
    if !cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
        return Err(cursor.expected("a digit"));
    }
    while cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
        cursor.skip(1);
    }
    Ok(())
}

/// Appends the length of the bytes, and then the bytes.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a count, seven bits to a byte, low bits first. The top bit is set if more bytes follow.
pub(super) fn put_count(out: &mut Vec<u8>, mut count: u64) {
    while count > 0x7f {
        out.push(0x80 | (count & 0x7f) as u8);
        count >>= 7;
    }
    out.push(count as u8);
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Limits, parse};
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn number(text: &str) -> Number<'_> {
        assert!(read(text).is_ok(), "{text}");
        Number::of(text.as_bytes()).unwrap()
    }

    fn read(text: &str) -> Result<super::super::Document, JsonError> {
        parse(Bytes::copy_from_slice(text.as_bytes()), Limits::default())
    }

    fn encoded(text: &str) -> Vec<u8> {
        let document = read(text).unwrap();
        let mut out = Vec::new();
        document.root().number().unwrap().encode(&mut out);
        out
    }

    fn overflows(text: &str) -> bool {
        let refused = read(text).err();
        refused.is_some_and(|err| err.kind == JsonErrorKind::ExponentOverflow)
    }

    #[test]
    fn spellings_of_one_number_are_one() {
        let lines = [
            "1 1.0 1e0 1E+0 1e-0 10e-1 0.1e1 0.01E2 100e-02 1.000",
            "-1 -1.0 -0.1e1",
            "0 -0 0.0 -0.000 0e5 -0E-7 0e99999999999999999999999999999999999999999999",
            "-120 -1.2e2 -12e1 -120.00 -0.12e+3 -1200e-1",
            "1e400 10e399 0.1E401 1.0e+0400",
            "1e-400 0.1e-399 10e-401",
            "18446744073709551615 1844674407370955161.5e1 18446744073709551615.0",
            "18446744073709551616 1.8446744073709551616e19 18446744073709551616000e-3",
            "1e9223372036854775807 0.01e9223372036854775809 10e9223372036854775806",
        ];
        for line in lines {
            for text in line.split(' ') {
                for other in lines {
                    let first = other.split(' ').next().unwrap();
                    let same = other == line;
                    assert_eq!(encoded(text) == encoded(first), same, "{text} {first}");
                }
            }
        }
    }

    #[test]
    fn big_integers_and_long_fractions_keep_every_digit() {
        assert_ne!(encoded("9007199254740993"), encoded("9007199254740992"));
        assert_ne!(encoded("0.1"), encoded("0.10000000000000000555111512312578"));
        let long = "7".repeat(500);
        assert_ne!(encoded(&long), encoded(&format!("{}8", &long[1..])));
        assert_eq!(encoded(&long), encoded(&format!("{long}00e-2")));
    }

    #[test]
    fn an_exponent_beyond_64_bits_is_an_error_and_never_a_guess() {
        assert!(overflows("1e9223372036854775808"));
        assert!(overflows("10e9223372036854775807"));
        assert!(overflows("-0.1e-9223372036854775808"));
        for sign in ["", "+", "-"] {
            assert!(overflows(&format!("1e{sign}{}", "9".repeat(1000))));
            // 2^64 and 2^128 must not wrap around to zero.
            assert!(overflows(&format!("1e{sign}18446744073709551616")));
            assert!(overflows(&format!("1e{sign}340282366920938463463374607431768211456")));
        }
        assert_eq!(number("1e-9223372036854775808").exponent, i64::MIN);
        assert_eq!(encoded(&format!("1e{}1", "0".repeat(1000))), encoded("10"));
    }

    #[test]
    fn integers_in_plain_digits() {
        let integer = |text: &str, digits_max| number(text).integer(digits_max);
        assert_eq!(integer("-12.0e1", 3).as_deref(), Some("-120"));
        assert_eq!(integer("-0", 1).as_deref(), Some("0"));
        let beyond_64_bits = "18446744073709551616";
        assert_eq!(integer(beyond_64_bits, 20).unwrap(), beyond_64_bits);
        assert_eq!(integer("120", 2), None);
        assert_eq!(integer("1.5", 99), None);
        assert_eq!(integer("1e9223372036854775807", 255), None);
    }

    #[test]
    fn a_megabyte_of_digits_is_no_trouble() {
        let nines = "9".repeat(1 << 20);
        assert_eq!(encoded(&nines).len(), nines.len() + 5);
        assert_eq!(encoded(&format!("0.{nines}e{}", nines.len())), encoded(&nines));
        assert!(overflows(&format!("1e{nines}")));
    }

    #[test]
    fn malformed_numbers_are_refused() {
        let texts = "- +1 .5 1. 1.e1 1e 1e+ 01 -01 00 -00.0 0x1 1_0 NaN -Infinity --1 1e1.5 1e++1 \
                     1,0 -\u{0661} 1f";
        for text in texts.split(' ') {
            assert!(read(text).is_err(), "{text}");
        }
    }

    /// A source of choices that are the same for the same seed (splitmix64).
    pub(crate) struct Dice(pub(crate) u64);

    impl Dice {
        pub(crate) fn roll(&mut self, sides: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 33) as usize % sides.max(1)
        }

        pub(crate) fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
            choices[self.roll(choices.len())]
        }
    }

    /// Returns one of the many spellings of a number.
    pub(crate) fn spell(coefficient: i128, mut exponent: i64, dice: &mut Dice) -> String {
        if coefficient == 0 {
            return dice.pick(&["0", "-0", "0.0", "0e7", "-0.00E-9"]).into();
        }
        let sign = if coefficient < 0 { "-" } else { "" };
        let zeros = dice.roll(3);
        let mut digits = format!("{}{}", coefficient.unsigned_abs(), "0".repeat(zeros));
        let fraction = dice.roll(digits.len() + 3);
        exponent += fraction as i64 - zeros as i64;
        if fraction > 0 {
            digits = format!("{digits:0>width$}", width = fraction + 1);
            digits.insert(digits.len() - fraction, '.');
        }
        if exponent != 0 || dice.roll(2) == 0 {
            digits.push_str(dice.pick(&["e", "E"]));
            let plus = dice.pick(&["", "+"]);
            digits.push_str(if exponent < 0 { "-" } else { plus });
            digits.push_str(dice.pick(&["", "0", "00"]));
            digits.push_str(&exponent.unsigned_abs().to_string());
        }
        format!("{sign}{digits}")
    }

    /// Returns one of the many spellings of a string.
    pub(crate) fn quote(text: &str, dice: &mut Dice) -> String {
        let mut out = String::from("\"");
        for char in text.chars() {
            let short = "\"\\/\u{8}\u{c}\n\r\t".find(char).map(|at| &"\"\\/bfnrt"[at..=at]);
            match (dice.roll(3), short) {
                (0, _) if char >= ' ' && char != '"' && char != '\\' => out.push(char),
                (1, Some(letter)) => out.push_str(&format!("\\{letter}")),
                _ => out.extend(char.encode_utf16(&mut [0; 2]).iter().map(|unit| {
                    let [lower, upper] = [format!("\\u{unit:04x}"), format!("\\u{unit:04X}")];
                    if dice.roll(2) == 0 { lower } else { upper }
                })),
            }
        }
        out + "\""
    }

    proptest! {
        #[test]
        fn numbers_are_equal_exactly_if_their_values_are(
            coefficient in prop_oneof![-200..200_i128, -(1_i128 << 66)..1 << 66, any::<i128>()],
            exponent in -40..40_i64,
            step in -2..3_i128,
            shift in -2..3_i64,
            seed: u64,
        ) {
            let dice = &mut Dice(seed);
            let one = spell(coefficient, exponent, dice);
            let again = spell(coefficient, exponent, dice);
            prop_assert_eq!(encoded(&one), encoded(&again), "{} {}", one, again);
            // Numbers nearby: another coefficient, another exponent, or both.
            let near = (coefficient.saturating_add(step), exponent + shift);
            let same = exact(coefficient, exponent) == exact(near.0, near.1);
            let other = spell(near.0, near.1, dice);
            prop_assert_eq!(encoded(&one) == encoded(&other), same, "{} {}", one, other);
        }
    }

    pub(crate) fn take_count(from: &mut &[u8]) -> u64 {
        let byte = *from.split_off_first().unwrap();
        let more = if byte > 0x7f { take_count(from) } else { 0 };
        u64::from(byte & 0x7f) | more << 7
    }

    pub(crate) fn take_number(sign: u8, from: &mut &[u8]) -> (i128, i64) {
        let zigzag = take_count(from);
        let exponent = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
        let number = format!("{}{}", char::from(sign), take_text(from));
        (number.parse().unwrap(), exponent)
    }

    pub(crate) fn take_text(from: &mut &[u8]) -> String {
        let length = take_count(from) as usize;
        String::from_utf8(from.split_off(..length).unwrap().to_vec()).unwrap()
    }

    /// Returns the number without trailing zeros, computed by arithmetic instead of from its
    /// digits.
    fn exact(mut coefficient: i128, mut exponent: i64) -> (i128, i64) {
        while coefficient != 0 && coefficient % 10 == 0 {
            (coefficient, exponent) = (coefficient / 10, exponent + 1);
        }
        (coefficient, if coefficient == 0 { 0 } else { exponent })
    }
}
