//! Interpretation of a reconciliation response.

use http::header::HeaderName;
use http::{HeaderMap, StatusCode};
use onetake_http::Disposition;
use onetake_http::recording::ONETAKE_OUTCOME;

/// The status of the operation's own response, if it differs from the status of this response.
const ONETAKE_STATUS: HeaderName = HeaderName::from_static("onetake-status");

/// The meaning of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// The response is the operation's outcome, with this status.
    Outcome(StatusCode),
    /// The operation had no effect, and will not have one.
    NotExecuted,
    /// The outcome is still unknown, with the reason.
    Nothing(String),
}

/// Interprets a response: first by its `Onetake-Outcome`, then by the route's `not_executed`. A 2xx
/// is the outcome.
pub(super) fn means(status: StatusCode, headers: &HeaderMap, not_executed: &[StatusCode]) -> Means {
    match single(headers, &ONETAKE_OUTCOME).map(|word| word.and_then(|word| word.parse().ok())) {
        Some(Some(Disposition::Record)) => outcome(status, headers),
        Some(Some(Disposition::Release)) => Means::NotExecuted,
        Some(Some(Disposition::Unknown)) => Means::Nothing(
            "the service does not know the outcome (Onetake-Outcome: unknown)".to_owned(),
        ),
        Some(None) => Means::Nothing(
            "the response has an invalid Onetake-Outcome: it must be record, release or unknown"
                .to_owned(),
        ),
        None if not_executed.contains(&status) => Means::NotExecuted,
        None if status.is_success() => outcome(status, headers),
        None if status.is_redirection() => Means::Nothing(format!(
            "the service answered {}, and redirects are not followed",
            status.as_u16()
        )),
        None => Means::Nothing(format!("the service answered {}", status.as_u16())),
    }
}

fn outcome(status: StatusCode, headers: &HeaderMap) -> Means {
    let Some(said) = single(headers, &ONETAKE_STATUS) else { return Means::Outcome(status) };
    // A status below 200 does not end a response.
    let digits = said.map(str::trim).filter(|text| text.len() == 3);
    let said = digits.and_then(|text| text.parse().ok()).filter(|code| (200..=599).contains(code));
    match said.and_then(|code: u16| StatusCode::from_u16(code).ok()) {
        Some(said) => Means::Outcome(said),
        None => Means::Nothing(
            "the response has an invalid Onetake-Status: it must be a number from 200 to 599"
                .to_owned(),
        ),
    }
}

/// Removes the headers that are meant for the gateway and not for clients.
pub(super) fn strip(headers: &mut HeaderMap) {
    headers.remove(ONETAKE_OUTCOME);
    headers.remove(ONETAKE_STATUS);
}

/// Returns the value of a header, if present. The inner value is `None` if it is not text or occurs
/// more than once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    Some(first.to_str().ok().filter(|_| values.next().is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, lines: &[(&str, &str)]) -> Means {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        means(StatusCode::from_u16(status).unwrap(), &headers, &[StatusCode::GONE])
    }

    #[test]
    fn what_is_clear_and_what_is_not() {
        let outcome = |code| Means::Outcome(StatusCode::from_u16(code).unwrap());
        for (status, lines, meant) in [
            (200, &[][..], outcome(200)),
            (204, &[], outcome(204)),
            (200, &[("onetake-status", "201")], outcome(201)),
            (200, &[("onetake-status", " 402 ")], outcome(402)),
            (200, &[("onetake-outcome", "record")], outcome(200)),
            (404, &[("onetake-outcome", "record")], outcome(404)),
            (410, &[("onetake-outcome", "record"), ("onetake-status", "200")], outcome(200)),
            (200, &[("onetake-outcome", "release")], Means::NotExecuted),
            (404, &[("onetake-outcome", "release")], Means::NotExecuted),
            (410, &[], Means::NotExecuted),
        ] {
            assert_eq!(told(status, lines), meant, "{status} {lines:?}");
        }
        for (status, lines) in [
            (200, &[("onetake-outcome", "unknown")][..]),
            (410, &[("onetake-outcome", "unknown")]),
            (200, &[("onetake-outcome", "maybe")]),
            (200, &[("onetake-outcome", "record"), ("onetake-outcome", "release")]),
            (200, &[("onetake-status", "99")]),
            (200, &[("onetake-status", "100")]),
            (200, &[("onetake-status", "600")]),
            (200, &[("onetake-status", "+20")]),
            (200, &[("onetake-status", "ok")]),
            (200, &[("onetake-status", "200"), ("onetake-status", "201")]),
            (404, &[("onetake-status", "200")]),
            (404, &[]),
            (301, &[]),
            (401, &[]),
            (503, &[]),
            (100, &[]),
        ] {
            let meant = told(status, lines);
            assert!(matches!(meant, Means::Nothing(_)), "{status} {lines:?}: {meant:?}");
        }
    }
}
