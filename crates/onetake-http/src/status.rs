//! Status rules: whether a response is recorded, released or unknown.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use http::StatusCode;

use crate::grpc::GrpcCode;

/// The way in which an attempt with a response is settled.
///
/// The route's status rules decide. An inner service can decide instead: by the header
/// `Onetake-Outcome` (`record`, `release` or `unknown`), or by an
/// [`AttemptReport`](crate::AttemptReport) in the extensions of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The response is the outcome. It is recorded and replayed.
    Record,
    /// The attempt had no effect. The next request with the key runs the operation.
    Release,
    /// The outcome is unknown. The route's `on_unknown` decides how the key is answered.
    Unknown,
}

impl FromStr for Disposition {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "record" => Ok(Self::Record),
            "release" => Ok(Self::Release),
            "unknown" => Ok(Self::Unknown),
            _ => Err(()),
        }
    }
}

/// One status (`503`), a whole class of them (`5xx`), or one code of gRPC (`UNAVAILABLE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusPattern {
    /// One status.
    Exact(StatusCode),
    /// All statuses that begin with this digit.
    Class(u16),
    /// One code of gRPC.
    Grpc(GrpcCode),
}

/// The error of a text that is neither a status nor a class nor a code of gRPC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is neither a status such as \"503\", nor a class from \"2xx\" to \"5xx\", nor a gRPC code such as \"UNAVAILABLE\""
)]
pub struct PatternError(String);

impl FromStr for StatusPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let pattern = match text.as_bytes() {
            [class @ b'2'..=b'5', b'x', b'x'] => Some(Self::Class(u16::from(class - b'0'))),
            [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9'] => text.parse().ok().map(Self::Exact),
            _ => text.parse().ok().map(Self::Grpc),
        };
        pattern.ok_or_else(|| PatternError(text.to_owned()))
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(status) => write!(f, "{}", status.as_u16()),
            Self::Class(class) => write!(f, "{class}xx"),
            Self::Grpc(code) => code.fmt(f),
        }
    }
}

/// The status rules of a route. The most specific rule wins, also if it is a built-in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRules {
    exact: BTreeMap<u16, Disposition>,
    /// The rules for classes, by the first digit of the status.
    classes: BTreeMap<u16, Disposition>,
    /// The rules for gRPC codes that differ from the built-in ones.
    grpc: BTreeMap<GrpcCode, Disposition>,
}

impl StatusRules {
    /// Returns the built-in rules. 2xx, 3xx and 4xx are recorded. Statuses that say that the
    /// request was not handled (401, 403, 408, 409, 421, 423, 425, 429, 503) are released. Other
    /// 5xx are unknown.
    #[must_use]
    pub fn new() -> Self {
        use Disposition::{Record, Release, Unknown};
        let released = [401, 403, 408, 409, 421, 423, 425, 429, 503];
        Self {
            exact: released.map(|status| (status, Release)).into(),
            classes: [(2, Record), (3, Record), (4, Record), (5, Unknown)].into(),
            grpc: BTreeMap::new(),
        }
    }

    /// Adds a rule. It replaces the rule with the same pattern.
    #[must_use]
    pub fn with(mut self, pattern: StatusPattern, disposition: Disposition) -> Self {
        match pattern {
            StatusPattern::Exact(status) => self.exact.insert(status.as_u16(), disposition),
            StatusPattern::Class(class) => self.classes.insert(class, disposition),
            StatusPattern::Grpc(code) => self.grpc.insert(code, disposition),
        };
        self
    }

    /// Sets one disposition for every 5xx, including 503, and for the gRPC codes that stand for
    /// them: UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE and DATA_LOSS.
    #[must_use]
    pub fn with_every_5xx(mut self, disposition: Disposition) -> Self {
        self.exact.retain(|status, _| status / 100 != 5);
        self.classes.insert(5, disposition);
        self.grpc.extend(GrpcCode::SERVER_ERRORS.map(|code| (code, disposition)));
        self
    }

    /// Returns the disposition of an attempt with this status. A status without a rule, such as
    /// 1xx, is unknown.
    #[must_use]
    pub fn classify(&self, status: StatusCode) -> Disposition {
        let status = status.as_u16();
        let found = self.exact.get(&status).or_else(|| self.classes.get(&(status / 100)));
        found.copied().unwrap_or(Disposition::Unknown)
    }

    /// Returns the disposition of an attempt with this code of gRPC. The built-in rules record
    /// codes that say what is wrong with the call, release those that say that it was not handled
    /// (UNAVAILABLE, RESOURCE_EXHAUSTED, UNAUTHENTICATED), and take others for unknown.
    #[must_use]
    pub fn classify_grpc(&self, code: GrpcCode) -> Disposition {
        self.grpc.get(&code).copied().unwrap_or(code.disposition())
    }
}

impl Default for StatusRules {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(rules: &StatusRules, code: u16) -> Disposition {
        rules.classify(StatusCode::from_u16(code).unwrap())
    }

    #[test]
    fn the_built_in_rules() {
        let rules = StatusRules::new();
        for code in [200, 201, 204, 301, 400, 402, 404, 422] {
            assert_eq!(classify(&rules, code), Disposition::Record, "{code}");
        }
        for code in [401, 403, 408, 409, 421, 423, 425, 429, 503] {
            assert_eq!(classify(&rules, code), Disposition::Release, "{code}");
        }
        for code in [500, 501, 502, 504, 599] {
            assert_eq!(classify(&rules, code), Disposition::Unknown, "{code}");
        }
    }

    #[test]
    fn the_built_in_rules_for_grpc() {
        use GrpcCode as C;
        let rules = StatusRules::new();
        let of = |disposition: Disposition| -> Vec<GrpcCode> {
            let all = GrpcCode::ALL.iter().copied();
            all.filter(|code| rules.classify_grpc(*code) == disposition).collect()
        };
        let recorded = [
            C::Ok,
            C::InvalidArgument,
            C::NotFound,
            C::AlreadyExists,
            C::PermissionDenied,
            C::FailedPrecondition,
            C::OutOfRange,
            C::Unimplemented,
        ];
        assert_eq!(of(Disposition::Record), recorded);
        let released = [C::ResourceExhausted, C::Unavailable, C::Unauthenticated];
        assert_eq!(of(Disposition::Release), released);
        let unknown =
            [C::Cancelled, C::Unknown, C::DeadlineExceeded, C::Aborted, C::Internal, C::DataLoss];
        assert_eq!(of(Disposition::Unknown), unknown);
        let rules = rules.clone().with_every_5xx(Disposition::Release);
        assert_eq!(rules.classify_grpc(C::Internal), Disposition::Release);
        assert_eq!(rules.classify_grpc(C::Aborted), Disposition::Unknown);
        let rules = rules.with("INTERNAL".parse().unwrap(), Disposition::Record);
        assert_eq!(rules.classify_grpc(C::Internal), Disposition::Record);
    }

    #[test]
    fn the_most_specific_entry_wins() {
        let rules = StatusRules::new()
            .with("5xx".parse().unwrap(), Disposition::Release)
            .with("502".parse().unwrap(), Disposition::Unknown)
            .with("4xx".parse().unwrap(), Disposition::Release)
            .with("404".parse().unwrap(), Disposition::Record);
        assert_eq!(classify(&rules, 500), Disposition::Release);
        assert_eq!(classify(&rules, 502), Disposition::Unknown);
        assert_eq!(classify(&rules, 404), Disposition::Record);
        assert_eq!(classify(&rules, 400), Disposition::Release);
        assert_eq!(classify(&rules, 200), Disposition::Record);
        let rules = StatusRules::new().with("4xx".parse().unwrap(), Disposition::Record);
        assert_eq!(
            classify(&rules, 409),
            Disposition::Release,
            "the built-in one is more specific"
        );
        let rules = rules.with_every_5xx(Disposition::Unknown);
        assert_eq!(classify(&rules, 503), Disposition::Unknown);
    }

    #[test]
    fn wrong_patterns_are_refused() {
        let wrong = "|1xx|6xx|xx|20|2000|600|100|199|abc|5XX|-5xx|+5xx|05xx|55xx|5xxx|5x|+404|0404|+40|\
                     404 | 404|40\u{664}|2\u{e9}";
        for text in wrong.split('|') {
            assert!(text.parse::<StatusPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_are_written_as_they_are_read() {
        for text in ["2xx", "3xx", "4xx", "5xx", "200", "404", "599", "OK", "UNAVAILABLE"] {
            assert_eq!(text.parse::<StatusPattern>().unwrap().to_string(), text);
        }
    }
}
