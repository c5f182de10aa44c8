//! Durations ("250ms", "24h") and sizes ("1MiB") with their bounds.

use std::time::Duration;

use super::error::{Fault, Problems};
use super::reader::Value;
use super::tree::Kind;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MIB: u64 = 1024 * 1024;

/// The bounds of a duration, both included, and a usual value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    min: Duration,
    max: Duration,
    usual: &'static str,
}

impl Limits {
    /// The bounds as a sentence.
    pub(super) fn sentence(&self) -> String {
        format!("From {} to {}.", show(self.min), show(self.max))
    }
}

/// `ttl`: longer than the longest preset by a wide margin, but storage is paid for.
pub(super) const TTL: Limits = Limits { min: SECOND, max: DAY.saturating_mul(400), usual: "24h" };
/// `lease`: renewed at a third of it, so a shorter one would be nothing but heartbeats.
pub(super) const LEASE: Limits =
    Limits { min: Duration::from_millis(100), max: HOUR, usual: "30s" };
/// `grace`
pub(super) const GRACE: Limits = Limits { min: Duration::ZERO, max: HOUR, usual: "30s" };
/// `wait_timeout`: a waiter holds a connection for as long.
pub(super) const WAIT_TIMEOUT: Limits =
    Limits { min: Duration::ZERO, max: Duration::from_secs(300), usual: "5s" };
/// `upstream_timeout`
pub(super) const UPSTREAM_TIMEOUT: Limits =
    Limits { min: Duration::from_millis(1), max: HOUR, usual: "30s" };
/// `leeway`: how far clocks may be apart.
pub(super) const LEEWAY: Limits =
    Limits { min: Duration::ZERO, max: Duration::from_secs(600), usual: "60s" };
/// `forward_auth.timeout`: it comes before everything else, and the client waits.
pub(super) const AUTH_TIMEOUT: Limits =
    Limits { min: Duration::from_millis(10), max: Duration::from_secs(30), usual: "2s" };
/// `forward_auth.cache`: for so long, a credential that was revoked still counts.
pub(super) const AUTH_CACHE: Limits =
    Limits { min: Duration::ZERO, max: Duration::from_secs(60), usual: "5s" };
/// `reconcile.timeout`: nobody waits for it, but each answer that is awaited holds a place.
pub(super) const RECONCILE_TIMEOUT: Limits =
    Limits { min: Duration::from_millis(10), max: Duration::from_secs(60), usual: "5s" };
/// `reconcile.limit`: until then, retries are told to come back.
pub(super) const RECONCILE_LIMIT: Limits =
    Limits { min: SECOND, max: DAY.saturating_mul(30), usual: "1h" };
/// `sweep.interval`
pub(super) const SWEEP_INTERVAL: Limits = Limits { min: SECOND, max: DAY, usual: "15m" };

/// `relay.hold`: when a relay dies, what it had waits for so long.
pub(super) const RELAY_HOLD: Limits =
    Limits { min: Duration::from_millis(100), max: HOUR, usual: "30s" };
/// `relay.poll`
pub(super) const RELAY_POLL: Limits =
    Limits { min: Duration::from_millis(1), max: Duration::from_secs(60), usual: "200ms" };
/// `relay.timeout`
pub(super) const RELAY_TIMEOUT: Limits =
    Limits { min: Duration::from_millis(10), max: Duration::from_secs(300), usual: "10s" };
/// `relay.backoff_max`
pub(super) const RELAY_BACKOFF: Limits =
    Limits { min: Duration::from_millis(10), max: DAY, usual: "30s" };
/// `relay.kept`
pub(super) const RELAY_KEPT: Limits =
    Limits { min: Duration::ZERO, max: DAY.saturating_mul(400), usual: "24h" };

/// The largest body that may be configured to be held in memory.
pub(super) const BODY_BYTES_MAX: u64 = 64 * MIB;

/// Units of durations, in milliseconds, from the largest.
const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Units of sizes, in bytes.
const SIZE_UNITS: [(&str, u64); 5] =
    [("GiB", 1024 * MIB), ("MiB", MIB), ("KiB", 1024), ("B", 1), ("", 1)];

/// Reads a duration such as "30s" or "1h30m".
pub(super) fn duration(
    value: &Value<'_>,
    limits: &Limits,
    problems: &mut Problems<'_>,
) -> Option<Duration> {
    let example = format!("\"{}\"", limits.usual);
    value.parse(&example, problems, |text| parse_duration(text, limits))
}

/// Reads a body's largest size: "1MiB", or a number of bytes.
pub(super) fn body_size(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<usize> {
    let parsed = match &value.node.kind {
        // The number may be written in hexadecimal; one that does not fit is out of bounds.
        Kind::Integer(text, number) => parse_size(&number.map_or(text.clone(), |n| n.to_string())),
        _ => parse_size(value.text("\"1MiB\"", problems)?),
    };
    parsed.map_err(|fault| value.refuse(fault, problems)).ok()
}

fn parse_duration(text: &str, limits: &Limits) -> Result<Duration, Fault> {
    let Limits { min, max, usual } = limits;
    let fix = format!(
        "write a number and a unit (ms, s, m, h or d), from {} to {}, such as \"{usual}\"",
        show(*min),
        show(*max)
    );
    let millis = match parse_millis(text) {
        Ok(millis) => millis,
        Err(what) => return Err(Fault::new(what, fix)),
    };
    let duration = Duration::from_millis(millis);
    if duration < *min {
        return Err(Fault::new(format!("shorter than {}, the shortest accepted", show(*min)), fix));
    }
    if duration > *max {
        return Err(Fault::new(format!("longer than {}, the longest accepted", show(*max)), fix));
    }
    Ok(duration)
}

/// Numbers too large for a u64 saturate: the bounds refuse them anyway.
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
        let factor = TIME_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let factor = match (factor, unit) {
            (Some(factor), _) => factor,
            (None, "") => return Err("a duration without a unit"),
            (None, _) => return Err("a duration with an unknown unit"),
        };
        total = total.saturating_add(number.saturating_mul(factor));
        rest = tail;
    }
    Ok(total)
}

fn parse_size(text: &str) -> Result<usize, Fault> {
    let fix = "write a size from 1B to 64MiB, such as \"1MiB\" or \"512KiB\", or a number of bytes";
    let bad = |what: &str| Fault::new(what, fix);
    let (number, unit) = split_number(text.trim()).ok_or_else(|| bad("not a size"))?;
    let unit = unit.trim_start();
    let factor = SIZE_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let factor = factor.ok_or_else(|| bad("a size with an unknown unit"))?;
    let bytes = number.saturating_mul(factor);
    match usize::try_from(bytes) {
        Ok(size) if (1..=BODY_BYTES_MAX).contains(&bytes) => Ok(size),
        _ => Err(bad("out of bounds")),
    }
}

/// The digits at the start, which have to be there, and what follows them.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, tail) = text.split_at_checked(end)?;
    (!digits.is_empty()).then(|| (digits.parse().unwrap_or(u64::MAX), tail))
}

/// A duration as somebody would write it.
fn show(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let whole = |(_, factor): &&(&str, u64)| millis != 0 && millis.is_multiple_of(*factor);
    match TIME_UNITS.iter().find(whole) {
        Some((unit, factor)) => format!("{}{unit}", millis / factor),
        None => "0s".to_owned(),
    }
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
        for (limits, good, bad) in [
            (TTL, ["1s", "400d"], ["999ms", "401d"]),
            (LEASE, ["100ms", "1h"], ["99ms", "61m"]),
            (GRACE, ["0s", "1h"], ["-1s", "3601s"]),
            (WAIT_TIMEOUT, ["0ms", "5m"], ["", "301s"]),
            (UPSTREAM_TIMEOUT, ["1ms", "1h"], ["0ms", "61m"]),
            (SWEEP_INTERVAL, ["1s", "24h"], ["0s", "25h"]),
        ] {
            for text in good {
                assert!(parse_duration(text, &limits).is_ok(), "{text}");
            }
            for text in bad {
                assert!(parse_duration(text, &limits).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("1MiB", 1 << 20), ("512KiB", 1 << 19), ("64MiB", 1 << 26), ("7", 7), ("9B", 9)]
        {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "0", "65MiB", "1GiB", "1MB", "1.5MiB", "-1", "MiB", "99999999999999999999"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
