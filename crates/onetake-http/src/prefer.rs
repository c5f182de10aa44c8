//! `Prefer: respond-async, wait=N` (RFC 7240): the wait that a client prefers.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName};

const PREFER: HeaderName = HeaderName::from_static("prefer");
/// The response header that names the preferences that were followed.
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The preferences of a client. Preferences that cannot be read are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefer {
    /// The client prefers a 202 over waiting for the outcome.
    pub(crate) respond_async: bool,
    /// The longest wait that the client prefers, in seconds.
    pub(crate) wait: Option<u32>,
}

impl Prefer {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut prefer = Self::default();
        let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
        for preference in lines.flat_map(|line| line.split(',')) {
            // Parameters follow a semicolon. Neither of the two preferences has any.
            let preference = preference.split(';').next().unwrap_or_default();
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            let name = name.trim();
            if name.eq_ignore_ascii_case("respond-async") {
                prefer.respond_async = true;
            } else if name.eq_ignore_ascii_case("wait") && prefer.wait.is_none() {
                // The first of several `wait` preferences counts.
                prefer.wait = seconds(value.trim());
            }
        }
        prefer
    }

    /// Returns the route's wait, or the preferred wait if that is shorter.
    pub(crate) fn shorten(self, wait: Duration) -> Duration {
        self.wait.map_or(wait, |seconds| wait.min(Duration::from_secs(seconds.into())))
    }

    /// Returns the value of `Preference-Applied` for a 202, given the route's `wait`. A preferred
    /// wait was followed only if it is shorter than the route's.
    pub(crate) fn applied(self, wait: Duration) -> Option<String> {
        if self.respond_async {
            return Some("respond-async".to_owned());
        }
        let seconds = self.wait.filter(|_| self.shorten(wait) < wait)?;
        Some(format!("wait={seconds}"))
    }
}

fn seconds(text: &str) -> Option<u32> {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> (bool, Option<u32>) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, line.parse().unwrap());
        }
        let prefer = Prefer::of(&headers);
        (prefer.respond_async, prefer.wait)
    }

    #[test]
    fn preferences_are_read_as_they_are_written() {
        assert_eq!(read(&["respond-async, wait=10"]), (true, Some(10)));
        assert_eq!(read(&["Respond-Async", "Wait = \"3\""]), (true, Some(3)));
        assert_eq!(read(&["return=minimal; foo=bar, wait=0;x=1"]), (false, Some(0)));
        assert_eq!(read(&["wait=1, wait=9"]), (false, Some(1)));
        assert_eq!(read(&["wait=99999999999999"]), (false, Some(u32::MAX)));
        for nothing in ["", "wait", "wait=", "wait=-1", "wait=1.5", "wait=\"", "waits=1", "async"] {
            assert_eq!(read(&[nothing]), (false, None), "{nothing}");
        }
    }

    #[test]
    fn a_wait_is_never_lengthened() {
        let (route, prefer) =
            (Duration::from_secs(5), |wait| Prefer { respond_async: false, wait });
        assert_eq!(prefer(Some(2)).shorten(route), Duration::from_secs(2));
        assert_eq!(prefer(Some(2)).applied(route).as_deref(), Some("wait=2"));
        assert_eq!(prefer(Some(60)).shorten(route), route);
        assert_eq!(prefer(Some(60)).applied(route), None);
    }
}
