//! Limits on the rate of new operations, and the contract of a counter that many nodes share.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::store::StoreError;

/// The longest period of a rate.
const PER_MAX: Duration = Duration::from_secs(31 * 86_400);
/// The shortest time between two operations of a rate: Redis counts in microseconds.
const INTERVAL_MIN: Duration = Duration::from_micros(1);

/// A number of operations per period: `5/min`.
///
/// Up to `count` operations may start at once, and one more whenever `per / count` has passed:
/// 5/min allows five at once, and then one every twelve seconds. So nearly twice `count` operations
/// can start within one period, and on average never more than `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: NonZeroU32,
    per: Duration,
}

impl Rate {
    /// Creates a rate of `count` operations per period `per`.
    ///
    /// # Errors
    /// If `per` is zero or longer than 31 days, or the rate is above one operation per microsecond.
    pub fn new(count: NonZeroU32, per: Duration) -> Result<Self, RateError> {
        let rate = Self { count, per };
        if per.is_zero() || per > PER_MAX {
            return Err(RateError::Per { per });
        }
        if per / count.get() < INTERVAL_MIN {
            return Err(RateError::TooHigh { count, per });
        }
        Ok(rate)
    }

    /// Returns the number of operations per period.
    #[must_use]
    pub fn count(self) -> NonZeroU32 {
        self.count
    }

    /// Returns the period.
    #[must_use]
    pub fn per(self) -> Duration {
        self.per
    }

    /// Returns the time for one operation, rounded up to a nanosecond.
    #[must_use]
    pub fn interval(self) -> Duration {
        let nanos = self.per.as_nanos().div_ceil(u128::from(self.count.get()));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, per)| *per == self.per) {
            Some((unit, _)) => write!(f, "{}/{unit}", self.count),
            None => write!(f, "{} in {:?}", self.count, self.per),
        }
    }
}

const UNITS: [(&str, Duration); 4] = [
    ("s", Duration::from_secs(1)),
    ("min", Duration::from_secs(60)),
    ("h", Duration::from_secs(3_600)),
    ("d", Duration::from_secs(86_400)),
];

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let form = || RateError::Form { text: text.to_owned() };
        let (count, unit) = text.split_once('/').ok_or_else(form)?;
        let (count, unit) = (count.trim(), unit.trim());
        if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(form());
        }
        let wrong = || RateError::Count { text: text.to_owned() };
        let count: NonZeroU32 = count.parse().map_err(|_| wrong())?;
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let (_, per) = unit.ok_or_else(|| RateError::Unit { text: text.to_owned() })?;
        Self::new(count, *per)
    }
}

/// The reason why a rate is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RateError {
    /// The text is not a number, a slash and a unit.
    #[error(
        "{text:?} is not a rate; write a number, a slash and s, min, h or d, such as \"5/min\""
    )]
    Form {
        /// The text as given.
        text: String,
    },
    /// The number is out of range.
    #[error("the number in {text:?} must be from 1 to 4294967295")]
    Count {
        /// The text as given.
        text: String,
    },
    /// The unit is unknown.
    #[error("the unit in {text:?} must be s, min, h or d, such as \"5/min\"")]
    Unit {
        /// The text as given.
        text: String,
    },
    /// The period is out of range.
    #[error("the period {per:?} of a rate is out of range; use more than 0 and at most 31 days")]
    Per {
        /// The period as given.
        per: Duration,
    },
    /// The rate allows less than a microsecond for each operation.
    #[error("a rate of {count} in {per:?} is too high; use at most 1000000 per second")]
    TooHigh {
        /// The number as given.
        count: NonZeroU32,
        /// The period as given.
        per: Duration,
    },
}

/// The decision about one more operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VelocityDecision {
    /// The operation may start, and is counted.
    Allowed,
    /// The operation may not start, and is not counted.
    Refused {
        /// The time until one more operation may start.
        retry_after: Duration,
    },
}

/// A counter that many nodes share. A node whose call fails decides by a counter of its own.
pub trait SharedVelocity: Send + Sync + fmt::Debug + 'static {
    /// Counts one more operation of `key`, if `rate` allows it.
    fn take(
        &self,
        key: [u8; 32],
        rate: Rate,
    ) -> BoxFuture<'_, Result<VelocityDecision, StoreError>>;

    /// Takes back an operation that was counted and did not run.
    fn give_back(&self, key: [u8; 32], rate: Rate) -> BoxFuture<'_, Result<(), StoreError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Rate, RateError> {
        text.parse()
    }

    #[test]
    fn rates_are_read() {
        for (text, count, seconds) in
            [("5/min", 5, 60), ("100/s", 100, 1), (" 1000 / h", 1000, 3_600), ("1/d", 1, 86_400)]
        {
            let rate = read(text).unwrap();
            assert_eq!((rate.count().get(), rate.per().as_secs()), (count, seconds), "{text}");
            assert_eq!(read(&rate.to_string()).unwrap(), rate);
        }
        assert_eq!(read("5/min").unwrap().interval(), Duration::from_secs(12));
        assert_eq!(read("3/s").unwrap().interval(), Duration::from_nanos(333_333_334));
    }

    #[test]
    fn what_is_no_rate_is_told_so() {
        for text in ["", "5", "min", "/min", "five/min", "-5/min", "+5/min", "1.5/s"] {
            assert!(matches!(read(text), Err(RateError::Form { .. })), "{text}");
        }
        for text in ["0/s", "4294967296/s"] {
            assert!(matches!(read(text), Err(RateError::Count { .. })), "{text}");
        }
        for text in ["5/", "5/minute", "5/m", "5/10s"] {
            assert!(matches!(read(text), Err(RateError::Unit { .. })), "{text}");
        }
        assert!(matches!(read("1000001/s"), Err(RateError::TooHigh { .. })));
        let one = NonZeroU32::MIN;
        for per in [Duration::ZERO, Duration::from_secs(32 * 86_400)] {
            assert_eq!(Rate::new(one, per), Err(RateError::Per { per }));
        }
        let told = read("5/minute").unwrap_err().to_string();
        assert_eq!(told, "the unit in \"5/minute\" must be s, min, h or d, such as \"5/min\"");
    }
}
