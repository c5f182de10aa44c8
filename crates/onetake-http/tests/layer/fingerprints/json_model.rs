//! A model of JSON values: the spellings of one value, and values that differ from it. It uses
//! nothing of the code under test.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::seeded_random::Dice;

/// A JSON value. Two are equal if and only if they mean the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// A number: digits × 10^exponent. The digits neither begin nor end with a zero. Zero has no
/// digits, no sign and no exponent. Each number therefore has exactly one form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

/// Generates any value, small ones more often than large ones.
pub(crate) fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        1 => Just(Json::Null),
        1 => any::<bool>().prop_map(Json::Bool),
        4 => decimal().prop_map(Json::Number),
        3 => text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Json::List),
            btree_map(text(), inner, 0..5).prop_map(Json::Object),
        ]
    })
}

/// Generates strings from a small alphabet, so that collisions are likely, and some from all
/// characters.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[abA0\"\\\\/~é😀\u{1d11e}\u{0}\u{8}\u{c}\n\r\t\u{7f}\u{2028}]{0,3}",
        1 => any::<String>(),
        1 => "x{120,140}",
    ]
}

fn decimal() -> impl Strategy<Value = Decimal> {
    let digits = prop_oneof![
        3 => "[1-9]",
        2 => "[1-9][0-9]{0,3}[1-9]",
        // The limits of floats, and of integers of 64 and 128 bits.
        2 => "900719925474099[1-9]|1844674407370955161[1-9]|3402823669209384634633746074317682114[1-9]",
        1 => "[1-9][0-9]{20,60}[1-9]",
    ];
    let exponent = prop_oneof![4 => Just(0), 4 => -6..6_i64, 1 => -400..400_i64, 1 => any::<i32>().prop_map(i64::from)];
    let other = (any::<bool>(), digits, exponent)
        .prop_map(|(negative, digits, exponent)| Decimal { negative, digits, exponent });
    prop_oneof![1 => Just(Decimal::zero()), 6 => other]
}

impl Decimal {
    fn zero() -> Self {
        Self { negative: false, digits: String::new(), exponent: 0 }
    }

    fn spell(&self, dice: &mut Dice) -> String {
        if self.digits.is_empty() {
            let zeros = ["0", "-0", "0.0", "0e7", "-0.00E-9", "0e999999999999999999999"];
            return dice.pick(&zeros).to_owned();
        }
        let zeros = dice.roll(4);
        let mut text = self.digits.clone() + &"0".repeat(zeros);
        let mut exponent = self.exponent - zeros as i64;
        // Plain digits if that is short enough, otherwise the point at any place.
        let behind = match (dice.flip(), usize::try_from(-exponent)) {
            (true, Ok(behind)) if behind < 40 => behind,
            _ => dice.roll(text.len() + 3),
        };
        exponent += behind as i64;
        if (1..40).contains(&exponent) && behind == 0 && dice.flip() {
            text += &"0".repeat(usize::try_from(exponent).unwrap());
            exponent = 0;
        }
        if behind > 0 {
            text = format!("{text:0>width$}", width = behind + 1);
            text.insert(text.len() - behind, '.');
        }
        if exponent != 0 || dice.roll(4) == 0 {
            text += dice.pick(&["e", "E"]);
            text += if exponent < 0 { "-" } else { dice.pick(&["", "+"]) };
            text += dice.pick(&["", "0", "00"]);
            text += &exponent.unsigned_abs().to_string();
        }
        if self.negative { format!("-{text}") } else { text }
    }

    /// Returns another number that is as close as possible.
    fn twist(&self, dice: &mut Dice) -> Self {
        let mut other = self.clone();
        if self.digits.is_empty() {
            return Self {
                negative: dice.flip(),
                digits: "1".into(),
                exponent: dice.pick(&[0, -400]),
            };
        }
        match dice.roll(4) {
            0 => other.negative = !other.negative,
            1 => other.exponent += dice.pick(&[-1, 1]),
            // One more digit at the end, which no float can represent.
            2 => {
                other.digits.push('1');
                other.exponent -= 1;
            }
            _ => {
                let last = other.digits.pop().unwrap();
                other.digits.push(if last == '2' { '3' } else { '2' });
            }
        }
        other
    }
}

impl Json {
    /// Returns one of the many spellings of the value.
    pub(crate) fn spell(&self, dice: &mut Dice) -> String {
        let mut parts = Vec::new();
        match self {
            Self::Null => return "null".into(),
            Self::Bool(bool) => return bool.to_string(),
            Self::Number(number) => return number.spell(dice),
            Self::Text(text) => return quote(text, dice),
            Self::List(items) => parts.extend(items.iter().map(|item| item.spell(dice))),
            Self::Object(members) => {
                for (name, value) in members {
                    let name = quote(name, dice) + space(dice) + ":" + space(dice);
                    parts.insert(dice.roll(parts.len() + 1), name + &value.spell(dice));
                }
            }
        }
        let padded = parts.iter().map(|part| [space(dice), part, space(dice)].concat());
        let inner = padded.collect::<Vec<_>>().join(",") + space(dice);
        if matches!(self, Self::List(_)) { format!("[{inner}]") } else { format!("{{{inner}}}") }
    }

    /// Returns a value that differs from this one in one detail, at any depth.
    pub(crate) fn twist(&self, dice: &mut Dice) -> Self {
        match self {
            Self::List(items) if !items.is_empty() && dice.roll(4) > 0 => {
                let (mut items, at) = (items.clone(), dice.roll(items.len()));
                items[at] = items[at].twist(dice);
                Self::List(items)
            }
            Self::Object(members) if !members.is_empty() && dice.roll(4) > 0 => {
                let (mut members, at) = (members.clone(), dice.roll(members.len()));
                let value = members.values_mut().nth(at).unwrap();
                *value = value.twist(dice);
                Self::Object(members)
            }
            _ => self.twist_here(dice),
        }
    }

    fn twist_here(&self, dice: &mut Dice) -> Self {
        let other = match (self.clone(), dice.roll(5)) {
            (Self::Null, 0) => Self::Text("null".into()),
            (Self::Null, 1) => Self::Number(Decimal::zero()),
            (Self::Bool(bool), 0) => Self::Text(bool.to_string()),
            (Self::Bool(bool), 1) => Self::Bool(!bool),
            (Self::Number(number), 0) => Self::Text(number.spell(dice)),
            (Self::Number(number), 1..) => Self::Number(number.twist(dice)),
            (Self::Text(text), 0) => Self::Text(text + dice.pick(&["\0", " ", "\u{301}", "a"])),
            (Self::Text(text), 1) => Self::Text(text.to_uppercase()),
            (Self::Text(text), 2) => Self::Text(text.chars().rev().collect()),
            (Self::List(items), 0) => Self::List(items.into_iter().rev().collect()),
            (Self::List(items), 1) => Self::List(items.into_iter().skip(1).collect()),
            (Self::List(items), 2) => Self::Object(
                items.into_iter().enumerate().map(|(at, item)| (at.to_string(), item)).collect(),
            ),
            (Self::List(mut items), 3..) => {
                let pair = items.iter().zip(items.iter().skip(1)).position(|(one, _)| one.holds());
                if let Some(at) = pair {
                    let next = items.remove(at + 1);
                    items[at].absorb("absorbed", next);
                }
                Self::List(items)
            }
            (Self::Object(mut members), 3..) => {
                let mut pairs = members.iter().zip(members.keys().skip(1));
                let found = pairs.find(|((_, value), _)| value.holds());
                let names = found.map(|((one, _), next)| (one.clone(), next.clone()));
                if let Some((one, next)) = names {
                    let value = members.remove(&next).unwrap();
                    members.get_mut(&one).unwrap().absorb(&next, value);
                }
                Self::Object(members)
            }
            (Self::Object(mut members), 0) => {
                members.pop_first();
                Self::Object(members)
            }
            (Self::Object(mut members), 1) => {
                members.insert("absent".into(), Self::Null);
                Self::Object(members)
            }
            (Self::Object(mut members), 2) => {
                if let Some((name, value)) = members.pop_first() {
                    members.insert(name + "a", value);
                }
                Self::Object(members)
            }
            _ => Self::Null,
        };
        if other == *self { Self::List(vec![other]) } else { other }
    }

    fn holds(&self) -> bool {
        matches!(self, Self::List(_) | Self::Object(_) | Self::Text(_))
    }

    /// Takes in the value that follows it, so that the same pieces have another border.
    fn absorb(&mut self, name: &str, value: Self) {
        match (self, value) {
            (Self::List(items), value) => items.push(value),
            (Self::Object(members), value) => drop(members.insert(name.to_owned(), value)),
            (Self::Text(text), Self::Text(tail)) => text.push_str(&tail),
            _ => {}
        }
    }
}

fn space(dice: &mut Dice) -> &'static str {
    dice.pick(&["", "", " ", "\n", "\r\n\t", "  "])
}

/// Writes a string with random characters escaped. Characters beyond 16 bits are escaped as two.
fn quote(text: &str, dice: &mut Dice) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        let short = "\"\\/\u{8}\u{c}\n\r\t".find(char).map(|at| &"\"\\/bfnrt"[at..=at]);
        match (dice.roll(3), short) {
            (0, _) if char >= ' ' && char != '"' && char != '\\' => quoted.push(char),
            (1, Some(letter)) => quoted += &format!("\\{letter}"),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    let (lower, upper) = (format!("\\u{unit:04x}"), format!("\\u{unit:04X}"));
                    quoted += if dice.flip() { &lower } else { &upper };
                }
            }
        }
    }
    quoted + "\""
}
