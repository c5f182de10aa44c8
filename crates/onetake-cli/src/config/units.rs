//! Durations ("250ms", "24h") and sizes ("1MiB") with their bounds.

use std::time::Duration;

use super::error::ValueError;

const MIB: u64 = 1024 * 1024;

/// Units of durations, in milliseconds, from the largest.
const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Units of sizes, in bytes.
const SIZE_UNITS: [(&str, u64); 5] =
    [("GiB", 1024 * MIB), ("MiB", MIB), ("KiB", 1024), ("B", 1), ("", 1)];

/// Parses a duration such as "30s" or "1h30m" within inclusive bounds.
pub(super) fn parse_duration(
    text: &str,
    min: &str,
    max: &str,
    usual: &str,
) -> Result<Duration, ValueError> {
    let fix = format!(
        "write a number and a unit (ms, s, m, h or d), from {min} to {max}, such as \"{usual}\""
    );
    let bound = |text| parse_millis(text).unwrap_or_default();
    let what = match parse_millis(text) {
        Err(what) => what.to_owned(),
        Ok(millis) if millis < bound(min) => format!("shorter than the minimum of {min}"),
        Ok(millis) if millis > bound(max) => format!("longer than the maximum of {max}"),
        Ok(millis) => return Ok(Duration::from_millis(millis)),
    };
    Err(ValueError::new(what, fix))
}

/// Numbers too large for a u64 saturate; the bounds refuse them.
fn parse_millis(text: &str) -> Result<u64, &'static str> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("not a duration");
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (number, tail) = split_number(rest).ok_or("not a duration")?;
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(end).unwrap_or((tail, ""));
        let fault = if unit.is_empty() { "the unit is missing" } else { "the unit is unknown" };
        let (_, factor) = TIME_UNITS.iter().find(|(name, _)| *name == unit).ok_or(fault)?;
        total = total.saturating_add(number.saturating_mul(*factor));
        rest = tail;
    }
    Ok(total)
}

/// Parses a size such as "1MiB" within inclusive bounds.
pub(super) fn parse_size(text: &str, min: &str, max: &str) -> Result<usize, ValueError> {
    let fix = format!(
        "write a size from {min} to {max}, such as \"1MiB\" or \"512KiB\", or a number of bytes"
    );
    let bad = |what: &str| ValueError::new(what, fix.clone());
    let bytes = parse_bytes(text).map_err(bad)?;
    let bound = |text| parse_bytes(text).unwrap_or_default();
    match usize::try_from(bytes) {
        Ok(size) if (bound(min)..=bound(max)).contains(&bytes) => Ok(size),
        _ => Err(bad("out of range")),
    }
}

/// Returns the bytes of a size, whatever its bounds.
pub(super) fn parse_bytes(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = split_number(text.trim()).ok_or("not a size")?;
    let unit = unit.trim_start();
    let factor = SIZE_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    Ok(number.saturating_mul(factor.ok_or("the unit of the size is unknown")?))
}

/// Splits off the digits at the start; `None` if there are none.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, tail) = text.split_at_checked(end)?;
    (!digits.is_empty()).then(|| (digits.parse().unwrap_or(u64::MAX), tail))
}

/// A duration as a person would write it: in days from a week on.
pub(super) fn show_duration(duration: Duration) -> String {
    const WEEK: u64 = 7 * 86_400_000;
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let whole = |(unit, factor): &&(&str, u64)| {
        millis != 0 && millis.is_multiple_of(*factor) && (*unit != "d" || millis >= WEEK)
    };
    match TIME_UNITS.iter().find(whole) {
        Some((unit, factor)) => format!("{}{unit}", millis / factor),
        None => "0s".to_owned(),
    }
}

/// A size as a person would write it.
pub(super) fn show_size(bytes: usize) -> String {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let unit = SIZE_UNITS.iter().find(|(_, factor)| bytes.is_multiple_of(*factor));
    unit.map(|(unit, factor)| format!("{}{unit}", bytes / factor)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("15m", 900_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("0s", 0),
            ("99999999999999999999999d", u64::MAX),
        ] {
            assert_eq!(parse_millis(text), Ok(millis), "{text}");
        }
        for text in ["", " ", "s", "30", "30 s", "1.5h", "-1s", "30x", "30S", "1h30", "٣s", "1hö"]
        {
            assert!(parse_millis(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_are_included() {
        for ((min, max), good, bad) in [
            (("1s", "400d"), ["1s", "400d"], ["999ms", "401d"]),
            (("100ms", "1h"), ["100ms", "1h"], ["99ms", "61m"]),
            (("0s", "1h"), ["0s", "1h"], ["-1s", "3601s"]),
            (("0s", "5m"), ["0ms", "5m"], ["", "301s"]),
            (("1ms", "1h"), ["1ms", "1h"], ["0ms", "61m"]),
            (("1s", "1d"), ["1s", "24h"], ["0s", "25h"]),
        ] {
            for text in good {
                assert!(parse_duration(text, min, max, min).is_ok(), "{text}");
            }
            for text in bad {
                assert!(parse_duration(text, min, max, min).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("1MiB", 1 << 20), ("512KiB", 1 << 19), ("64MiB", 1 << 26), ("7", 7), ("9B", 9)]
        {
            assert_eq!(parse_size(text, "1B", "64MiB").unwrap(), bytes, "{text}");
        }
        for text in ["", "0", "65MiB", "1GiB", "1MB", "1.5MiB", "-1", "MiB", "99999999999999999999"]
        {
            assert!(parse_size(text, "1B", "64MiB").is_err(), "{text}");
        }
    }
}
