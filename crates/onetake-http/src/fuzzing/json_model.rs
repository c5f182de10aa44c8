//! A second reader of JSON, which shares nothing with the one under test: recursive, on characters,
//! and with numbers as texts.

use std::collections::BTreeMap;

/// A JSON value. Two are equal if and only if they mean the same.
#[derive(Debug, PartialEq)]
pub(super) enum Model {
    Word(&'static str),
    /// The sign, the digits without zeros at either end, and the power of ten. Zero is empty.
    Number(Option<(bool, String, i64)>),
    Text(String),
    List(Vec<Model>),
    Object(BTreeMap<String, Model>),
}

/// Reads a whole text. Returns `None` if it is not JSON, is ambiguous, or is nested too deeply.
pub(super) fn parse(body: &[u8], depth_max: usize) -> Option<Model> {
    let text = std::str::from_utf8(body).ok()?;
    let (value, rest) = value(text.trim_start_matches(is_space), depth_max)?;
    rest.trim_start_matches(is_space).is_empty().then_some(value)
}

fn is_space(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\n' | '\r')
}

/// Reads a value. Returns it with the text behind it.
fn value(text: &str, depth_left: usize) -> Option<(Model, &str)> {
    for word in ["null", "true", "false"] {
        if let Some(rest) = text.strip_prefix(word) {
            return Some((Model::Word(word), rest));
        }
    }
    match text.chars().next()? {
        '"' => string(text).map(|(text, rest)| (Model::Text(text), rest)),
        '[' => list(text.get(1..)?, depth_left.checked_sub(1)?),
        '{' => object(text.get(1..)?, depth_left.checked_sub(1)?),
        _ => number(text),
    }
}

fn list(text: &str, depth_left: usize) -> Option<(Model, &str)> {
    let mut rest = text.trim_start_matches(is_space);
    let mut items = Vec::new();
    if let Some(rest) = rest.strip_prefix(']') {
        return Some((Model::List(items), rest));
    }
    loop {
        let (item, behind) = value(rest.trim_start_matches(is_space), depth_left)?;
        items.push(item);
        rest = behind.trim_start_matches(is_space);
        match rest.strip_prefix(',') {
            Some(behind) => rest = behind,
            None => return Some((Model::List(items), rest.strip_prefix(']')?)),
        }
    }
}

fn object(text: &str, depth_left: usize) -> Option<(Model, &str)> {
    let mut rest = text.trim_start_matches(is_space);
    let mut members = BTreeMap::new();
    if let Some(rest) = rest.strip_prefix('}') {
        return Some((Model::Object(members), rest));
    }
    loop {
        let (name, behind) = string(rest.trim_start_matches(is_space))?;
        let behind = behind.trim_start_matches(is_space).strip_prefix(':')?;
        let (value, behind) = value(behind.trim_start_matches(is_space), depth_left)?;
        if members.insert(name, value).is_some() {
            return None;
        }
        rest = behind.trim_start_matches(is_space);
        match rest.strip_prefix(',') {
            Some(behind) => rest = behind,
            None => return Some((Model::Object(members), rest.strip_prefix('}')?)),
        }
    }
}

fn string(text: &str) -> Option<(String, &str)> {
    let mut chars = text.strip_prefix('"')?.chars();
    // Escapes name UTF-16 units, so the text is gathered as such.
    let mut units: Vec<u16> = Vec::new();
    loop {
        let unit = match chars.next()? {
            '"' => return Some((String::from_utf16(&units).ok()?, chars.as_str())),
            '\\' => match chars.next()? {
                plain @ ('"' | '\\' | '/') => u16::try_from(u32::from(plain)).ok()?,
                'b' => 8,
                'f' => 12,
                'n' => 10,
                'r' => 13,
                't' => 9,
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let is_hex = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                    u16::from_str_radix(&digits, 16).ok().filter(|_| is_hex)?
                }
                _ => return None,
            },
            control if control < ' ' => return None,
            char => {
                units.extend_from_slice(char.encode_utf16(&mut [0; 2]));
                continue;
            }
        };
        units.push(unit);
    }
}

fn number(text: &str) -> Option<(Model, &str)> {
    let end = text.find(|char: char| !matches!(char, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'));
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            (mantissa, Some((exponent.starts_with('-'), digits)))
        }
        None => (number, None),
    };
    let is_negative = mantissa.starts_with('-');
    let mantissa = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let has_form = is_digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(is_digits)
        && exponent.is_none_or(|(_, digits)| is_digits(digits));
    if !has_form {
        return None;
    }
    let digits = whole.to_owned() + fraction.unwrap_or_default();
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some((Model::Number(None), rest));
    }
    let zeros = digits.len() - digits.trim_end_matches('0').len();
    let shift =
        i128::try_from(zeros).ok()? - i128::try_from(fraction.unwrap_or_default().len()).ok()?;
    let power: i128 = match exponent {
        None => 0,
        Some((is_minus, digits)) => {
            let digits = digits.trim_start_matches('0');
            let size = if digits.is_empty() { 0 } else { digits.parse::<i128>().ok()? };
            if is_minus { -size } else { size }
        }
    };
    let power = i64::try_from(power.checked_add(shift)?).ok()?;
    Some((Model::Number(Some((is_negative, significant.to_owned(), power))), rest))
}
