//! Decimal numbers of any length. As floats, two different big integers could be equal.

use std::borrow::Cow;
use std::fmt;

use super::parse::Position;
use super::{JsonError, JsonErrorKind};

/// A JSON number: a sign, a coefficient and a power of ten, without any rounding.
///
/// Every number has exactly one form. So `1`, `1.0`, `1e0` and `10e-1` are equal, `-0` equals `0`,
/// and `9007199254740993` differs from `9007199254740992`. The `Debug` form hides the digits,
/// because bodies must not be logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Number {
    /// Always false for zero.
    negative: bool,
    coefficient: Coefficient,
    /// The power of ten. It is 0 if the number is zero.
    exponent: i64,
}

/// An integer that is zero or does not end in the digit 0.
///
/// The size alone decides the variant. Otherwise equal numbers could differ.
#[derive(Clone, PartialEq, Eq)]
enum Coefficient {
    /// A coefficient of up to 64 bits. It needs no allocation, because a body may consist of half a
    /// million short numbers.
    Small(u64),
    /// The ASCII digits of a coefficient beyond 64 bits.
    Large(Box<[u8]>),
}

impl Number {
    /// Returns the number in plain digits (`-120`), if it is an integer of at most `digits_max`
    /// digits.
    ///
    /// The limit is needed because `1e1000000000` is an integer too.
    #[must_use]
    pub fn integer(&self, digits_max: usize) -> Option<String> {
        let zeros = usize::try_from(self.exponent).ok()?;
        let digits = self.digits();
        if digits.len().checked_add(zeros)? > digits_max {
            return None;
        }
        let mut text = String::from(if self.negative { "-" } else { "" });
        text.extend(digits.iter().copied().map(char::from));
        text.extend(std::iter::repeat_n('0', zeros));
        Some(text)
    }

    /// Returns the integer part, if the number is not negative and the part fits into 64 bits.
    #[cfg(feature = "jwt")]
    pub(crate) fn whole(&self) -> Option<u64> {
        if self.negative {
            return None;
        }
        let digits = self.digits();
        let fraction = usize::try_from(self.exponent.min(0).unsigned_abs()).ok()?;
        let kept = digits.len().saturating_sub(fraction);
        match std::str::from_utf8(digits.get(..kept)?).ok()? {
            "" => Some(0),
            _ if self.exponent > 0 => self.integer(20)?.parse().ok(),
            text => text.parse().ok(),
        }
    }

    /// Appends the sign, the exponent and the digits. A reader can tell the end of each part.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.negative { b'-' } else { b'+' });
        // Zigzag encoding, so that small exponents of either sign take one byte: 0, -1, 1, -2
        // become 0, 1, 2, 3.
        let zigzag = (self.exponent << 1) ^ (self.exponent >> 63);
        put_count(out, zigzag.cast_unsigned());
        put_bytes(out, &self.digits());
    }

    fn digits(&self) -> Cow<'_, [u8]> {
        match &self.coefficient {
            Coefficient::Small(coefficient) => Cow::Owned(coefficient.to_string().into_bytes()),
            Coefficient::Large(digits) => Cow::Borrowed(digits),
        }
    }

    /// Returns the number `digits` × 10^`exponent`, or `None` if its exponent does not fit into 64
    /// bits.
    ///
    /// The exponent is checked in the number's one form, so all spellings of a number are treated
    /// the same.
    fn new(negative: bool, mut digits: &[u8], mut exponent: i128) -> Option<Self> {
        while let [head @ .., b'0'] = digits {
            digits = head;
            exponent = exponent.saturating_add(1);
        }
        while let [b'0', tail @ ..] = digits {
            digits = tail;
        }
        if digits.is_empty() {
            return Some(Self { negative: false, coefficient: Coefficient::Small(0), exponent: 0 });
        }
        let small = digits.iter().try_fold(0_u64, |sum, digit| {
            sum.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
        });
        let coefficient =
            small.map_or_else(|| Coefficient::Large(digits.into()), Coefficient::Small);
        Some(Self { negative, coefficient, exponent: i64::try_from(exponent).ok()? })
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Number(..)")
    }
}

/// Reads the number that starts at the cursor.
///
/// `scratch` is a buffer that is reused, so that a body of many numbers needs few allocations.
pub(super) fn read(cursor: &mut Position<'_>, scratch: &mut Vec<u8>) -> Result<Number, JsonError> {
    let start = cursor.offset();
    scratch.clear();
    let negative = cursor.take(b'-');
    // A leading zero is the whole integer part. In `01`, the `1` is not part of the number.
    if !cursor.take(b'0') {
        read_digits(cursor, |digit| scratch.push(digit))?;
    }
    let mut fraction_digits = 0_i128;
    if cursor.take(b'.') {
        read_digits(cursor, |digit| {
            scratch.push(digit);
            fraction_digits += 1;
        })?;
    }
    let mut exponent = 0_i128;
    if cursor.take(b'e') || cursor.take(b'E') {
        let minus = cursor.take(b'-');
        if !minus {
            cursor.take(b'+');
        }
        // Saturation at 128 bits is safe. No body is long enough for its fraction digits or
        // trailing zeros to bring such an exponent back into 64 bits.
        read_digits(cursor, |digit| {
            let digit = i128::from(digit.wrapping_sub(b'0'));
            exponent = exponent.saturating_mul(10).saturating_add(digit);
        })?;
        if minus {
            exponent = -exponent;
        }
    }
    Number::new(negative, scratch, exponent.saturating_sub(fraction_digits))
        .ok_or_else(|| cursor.error(JsonErrorKind::ExponentOverflow, start))
}

/// Reads one or more digits, and calls `each` for every digit.
fn read_digits(cursor: &mut Position<'_>, mut each: impl FnMut(u8)) -> Result<(), JsonError> {
    if !cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
        return Err(cursor.expected("a digit"));
    }
    while let Some(digit) = cursor.peek().filter(u8::is_ascii_digit) {
        each(digit);
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
    use super::super::{Limits, Value, parse};
    use super::*;
    use proptest::prelude::*;

    fn number(text: &str) -> Number {
        match parse(text.as_bytes(), Limits::default()) {
            Ok(Value::Number(number)) => number,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn encoded(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        number(text).encode(&mut out);
        out
    }

    fn overflows(text: &str) -> bool {
        let refused = parse(text.as_bytes(), Limits::default()).err();
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
                    assert_eq!(number(text) == number(first), same, "{text} {first}");
                    assert_eq!(encoded(text) == encoded(first), same, "{text} {first}");
                }
            }
        }
    }

    #[test]
    fn big_integers_and_long_fractions_keep_every_digit() {
        assert_ne!(number("9007199254740993"), number("9007199254740992"));
        assert_ne!(number("0.1"), number("0.10000000000000000555111512312578"));
        let long = "7".repeat(500);
        assert_ne!(number(&long), number(&format!("{}8", &long[1..])));
        assert_eq!(number(&long), number(&format!("{long}00e-2")));
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
        assert_eq!(number(&format!("1e{}1", "0".repeat(1000))), number("10"));
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
        assert_eq!(number(&format!("0.{nines}e{}", nines.len())), number(&nines));
        assert!(overflows(&format!("1e{nines}")));
        // This size bounds the memory for a body of one-digit numbers alone.
        assert!(size_of::<Value>() <= 32);
    }

    #[test]
    fn malformed_numbers_are_refused() {
        let texts = "- +1 .5 1. 1.e1 1e 1e+ 01 -01 00 -00.0 0x1 1_0 NaN -Infinity --1 1e1.5 1e++1 \
                     1,0 -\u{0661} 1f";
        for text in texts.split(' ') {
            assert!(parse(text.as_bytes(), Limits::default()).is_err(), "{text}");
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
            prop_assert_eq!(number(&one), number(&spell(coefficient, exponent, dice)), "{}", one);
            // Numbers nearby: another coefficient, another exponent, or both.
            let near = (coefficient.saturating_add(step), exponent + shift);
            let same = exact(coefficient, exponent) == exact(near.0, near.1);
            let other = spell(near.0, near.1, dice);
            prop_assert_eq!(number(&one) == number(&other), same, "{} {}", one, other);
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
