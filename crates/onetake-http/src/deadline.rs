//! Deadlines of clients, read from request headers.
//!
//! `X-Request-Deadline` is a point in time (RFC 3339, or milliseconds since the epoch).
//! `X-Request-Timeout-Ms` and `grpc-timeout` are the time left when the request arrived. If there are
//! several, the earliest counts.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use onetake_core::Clock;

use crate::problem::{Code, Problem};

const X_REQUEST_DEADLINE: HeaderName = HeaderName::from_static("x-request-deadline");
const X_REQUEST_TIMEOUT_MS: HeaderName = HeaderName::from_static("x-request-timeout-ms");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The longest time left. A longer one is probably a mistake in the unit, and is cut to this.
const TIME_LEFT_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The time when a request arrived, by the monotonic clock: an extension of the request.
///
/// A service around the layer sets it if a request waits before it reaches the layer. Without it,
/// the time left of `X-Request-Timeout-Ms` and `grpc-timeout` counts from the layer on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived(pub Duration);

impl Arrived {
    /// Waits until the request's own deadline, and returns the problem of a request that has not
    /// run by then. Waits without end if the request has no deadline, or one that is invalid.
    pub async fn deadline_over(self, headers: &HeaderMap, clock: &dyn Clock) -> Problem {
        match Deadline::of(headers, Some(self), clock) {
            Ok(Some(deadline)) => clock.sleep(deadline.left(clock)).await,
            Err(problem) if problem.code() == Code::DeadlineExceeded => {}
            Ok(None) | Err(_) => std::future::pending().await,
        }
        exceeded()
    }
}

/// The deadline of a request, by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    /// Reads the deadline of a request, if it has one.
    ///
    /// # Errors
    /// A problem for the client, if the deadline is over or a header cannot be read.
    pub(crate) fn of(
        headers: &HeaderMap,
        arrived: Option<Arrived>,
        clock: &dyn Clock,
    ) -> Result<Option<Self>, Problem> {
        let mut left: Option<Duration> = None;
        for (name, read) in READERS {
            let mut values = headers.get_all(&name).iter();
            let Some(value) = values.next() else { continue };
            let this = if values.next().is_some() { None } else { value.to_str().ok() };
            let this = this.and_then(|text| match read {
                Read::Until(read) => read(text.trim(), clock),
                Read::Left(read) => {
                    let waited = arrived.map(|Arrived(at)| clock.monotonic().saturating_sub(at));
                    Some(read(text.trim())?.saturating_sub(waited.unwrap_or_default()))
                }
            });
            let this = this.ok_or_else(|| invalid(&name))?;
            left = Some(left.map_or(this, |left| left.min(this)));
        }
        let Some(left) = left else { return Ok(None) };
        if left.is_zero() {
            return Err(exceeded());
        }
        Ok(Some(Self(clock.monotonic().saturating_add(left.min(TIME_LEFT_MAX)))))
    }

    /// Returns the time left, or zero if the deadline is over.
    pub(crate) fn left(self, clock: &dyn Clock) -> Duration {
        self.0.saturating_sub(clock.monotonic())
    }

    /// Writes the time left into the headers for the inner service, and returns it.
    pub(crate) fn pass_on(self, headers: &mut HeaderMap, clock: &dyn Clock) -> Duration {
        let left = self.left(clock);
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        if headers.contains_key(GRPC_TIMEOUT) {
            // The value may have at most eight digits.
            let text = if millis < 100_000_000 {
                format!("{millis}m")
            } else {
                format!("{}S", (millis / 1000).min(99_999_999))
            };
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(GRPC_TIMEOUT, value);
            }
        }
        if headers.contains_key(X_REQUEST_DEADLINE) || headers.contains_key(X_REQUEST_TIMEOUT_MS) {
            headers.insert(X_REQUEST_TIMEOUT_MS, HeaderValue::from(millis));
        }
        left
    }
}

/// Returns the time that `grpc-timeout` leaves. `None` if the header is missing or invalid.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    grpc(headers.get(GRPC_TIMEOUT)?.to_str().ok()?.trim())
}

/// Removes all deadline headers. The inner service must not obey the deadline of a client that does
/// not wait for it.
pub(crate) fn remove(headers: &mut HeaderMap) {
    for (name, _) in &READERS {
        headers.remove(name);
    }
}

/// A reader of the time left: zero if the deadline is over, `None` if the text is invalid.
enum Read {
    /// The header has a point in time.
    Until(fn(&str, &dyn Clock) -> Option<Duration>),
    /// The header has a duration, which begins with the arrival of the request.
    Left(fn(&str) -> Option<Duration>),
}

const READERS: [(HeaderName, Read); 3] = [
    (X_REQUEST_DEADLINE, Read::Until(until)),
    (X_REQUEST_TIMEOUT_MS, Read::Left(|text| number(text).map(Duration::from_millis))),
    (GRPC_TIMEOUT, Read::Left(grpc)),
];

fn until(text: &str, clock: &dyn Clock) -> Option<Duration> {
    let micros = match number(text) {
        Some(millis) => i128::from(millis) * 1000,
        None => OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos() / 1000,
    };
    let left = (micros - i128::from(clock.now().as_micros())).max(0);
    Some(Duration::from_micros(u64::try_from(left).unwrap_or(u64::MAX)))
}

/// Reads a number of digits only, without sign or space. A number that is too large counts as the
/// maximum.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

fn grpc(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count = number(digits).filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(count.saturating_mul(3600)),
        "M" => Duration::from_secs(count.saturating_mul(60)),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

fn invalid(name: &HeaderName) -> Problem {
    let form = match name.as_str() {
        "x-request-deadline" => {
            "one time, such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
        }
        "x-request-timeout-ms" => "one number of milliseconds, such as 2500",
        _ => "one number of at most eight digits and a unit (H, M, S, m, u or n), such as 2500m",
    };
    Problem::new(
        Code::DeadlineInvalid,
        format!("The header {name} is invalid: send {form}. Nothing was run."),
    )
}

pub(crate) fn exceeded() -> Problem {
    Problem::new(
        Code::DeadlineExceeded,
        "The request's own deadline has passed. Nothing was run by this request, but an earlier attempt may have run. Retry with the same key and a later deadline.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::clock::{ManualClock, Timestamp};

    fn read(name: &str, value: &str) -> Result<Option<Duration>, Code> {
        let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
        let mut headers = HeaderMap::new();
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, value.parse().unwrap());
        let deadline = Deadline::of(&headers, None, &clock).map_err(|problem| problem.code())?;
        Ok(deadline.map(|deadline| deadline.left(&clock)))
    }

    #[test]
    fn every_form_is_read() {
        let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
        let now_ms = clock.now().as_micros() / 1000;
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(now_ms + 2000) * 1_000_000);
        let at = at.unwrap().format(&Rfc3339).unwrap();
        let two = Ok(Some(Duration::from_secs(2)));
        assert_eq!(read("x-request-timeout-ms", "2000"), two);
        assert_eq!(read("x-request-deadline", &(now_ms + 2000).to_string()), two);
        assert_eq!(read("x-request-deadline", &at), two);
        assert_eq!(read("grpc-timeout", "2S"), two);
        assert_eq!(read("grpc-timeout", "2M"), Ok(Some(Duration::from_secs(120))));
        assert_eq!(read("grpc-timeout", "2H"), Ok(Some(Duration::from_secs(7200))));
        assert_eq!(read("grpc-timeout", "2000m"), two);
        assert_eq!(read("grpc-timeout", "2000000u"), two);
        assert_eq!(
            read("x-request-timeout-ms", "99999999999999999999999"),
            Ok(Some(TIME_LEFT_MAX))
        );
        assert_eq!(read("x-other", "1"), Ok(None));
    }

    #[test]
    fn what_is_over_or_unreadable_is_refused() {
        for (name, value) in [
            ("x-request-timeout-ms", "0"),
            ("x-request-deadline", "1"),
            ("x-request-deadline", "1999-12-31T23:59:59Z"),
            ("grpc-timeout", "0n"),
        ] {
            assert_eq!(read(name, value), Err(Code::DeadlineExceeded), "{name}: {value}");
        }
        for (name, value) in [
            ("x-request-timeout-ms", "-1"),
            ("x-request-timeout-ms", "1.5"),
            ("x-request-timeout-ms", ""),
            ("x-request-deadline", "tomorrow"),
            ("x-request-deadline", "2026-01-31"),
            ("grpc-timeout", "123456789S"),
            ("grpc-timeout", "5"),
            ("grpc-timeout", "5s"),
            ("grpc-timeout", "S"),
            ("grpc-timeout", ""),
        ] {
            assert_eq!(read(name, value), Err(Code::DeadlineInvalid), "{name}: {value}");
        }
    }

    #[test]
    fn the_earliest_counts_and_what_is_left_is_passed_on() {
        let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
        let mut headers = HeaderMap::new();
        headers.insert("x-request-timeout-ms", HeaderValue::from_static("5000"));
        headers.insert("grpc-timeout", HeaderValue::from_static("3S"));
        let deadline = Deadline::of(&headers, None, &clock).unwrap().unwrap();
        clock.advance(Duration::from_millis(1200));
        assert_eq!(deadline.pass_on(&mut headers, &clock), Duration::from_millis(1800));
        assert_eq!(headers["x-request-timeout-ms"], "1800");
        assert_eq!(headers["grpc-timeout"], "1800m");
        headers.append("grpc-timeout", HeaderValue::from_static("4S"));
        assert_eq!(Deadline::of(&headers, None, &clock).unwrap_err().code(), Code::DeadlineInvalid);
    }

    #[test]
    fn the_time_left_counts_from_the_arrival() {
        let clock = ManualClock::new(Timestamp::from_micros(1_800_000_000_000_000));
        let arrived = Some(Arrived(clock.monotonic()));
        let until = (clock.now().as_micros() / 1000 + 9000).to_string();
        clock.advance(Duration::from_secs(2));
        for (name, value, left) in [
            ("x-request-timeout-ms", "5000", Some(3)),
            ("x-request-timeout-ms", "2000", None),
            ("grpc-timeout", "9S", Some(7)),
            ("x-request-deadline", &until, Some(7)),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            let read = Deadline::of(&headers, arrived, &clock).map_err(|problem| problem.code());
            let read = read.map(|deadline| deadline.unwrap().left(&clock));
            let left = left.map(Duration::from_secs).ok_or(Code::DeadlineExceeded);
            assert_eq!(read, left, "{name}: {value}");
        }
    }

    #[test]
    fn a_grpc_timeout_has_at_most_eight_digits() {
        let clock = ManualClock::default();
        for (left, expected) in [(99_999_999, "99999999m"), (100_000_000, "100000S")] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static("1S"));
            let deadline = Deadline(clock.monotonic() + Duration::from_millis(left));
            deadline.pass_on(&mut headers, &clock);
            assert_eq!(headers["grpc-timeout"], expected);
        }
    }

    #[test]
    fn an_unreadable_deadline_is_answered_with_the_form_of_its_header() {
        for (name, form) in [
            ("x-request-deadline", "2026-01-31T12:00:00Z"),
            ("x-request-timeout-ms", "one number of milliseconds"),
            ("grpc-timeout", "a unit (H, M, S, m, u or n)"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static("soon"));
            let problem = Deadline::of(&headers, None, &ManualClock::default()).unwrap_err();
            let body = problem.into_response(None).into_body();
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(text.contains(name) && text.contains(form), "{text}");
        }
    }
}
