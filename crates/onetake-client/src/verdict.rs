//! Decisions about answers: a result, a poll, a retry or an error.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use crate::error::{Kind, Problem};

/// A response whose body has been read completely.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: http::Response<Bytes>,
}

/// The decision about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The answer is the result.
    Finish,
    /// The operation goes on. Its handle is asked.
    Poll(String),
    /// The operation is sent again. The kind is that of the error if no retry is left.
    Retry(Kind),
    /// The answer is final, and not a success.
    Fail(Kind),
}

/// The decision about a request without an answer.
pub(crate) const UNANSWERED: Verdict = Verdict::Retry(Kind::Unavailable);

/// A part of the path of every handle.
const HANDLE_PATH: &str = "/.onetake/operations/";

impl Answer {
    /// Decides what follows the answer to an operation.
    pub(crate) fn verdict(&self) -> Verdict {
        let status = self.response.status().as_u16();
        let problem = self.problem();
        let code = problem.as_ref().map(Problem::code).unwrap_or_default();
        if code == "idempotency_payload_mismatch" {
            return Verdict::Fail(Kind::Mismatch);
        }
        // A recorded answer is the outcome, whatever its status: a retry would get it again.
        if self.is_replayed() {
            return if status < 400 { Verdict::Finish } else { Verdict::Fail(Kind::Refused) };
        }
        if let Some(handle) = self.handle() {
            return Verdict::Poll(handle);
        }
        if status < 400 {
            return Verdict::Finish;
        }
        match (code, status) {
            ("request_in_progress" | "in_progress_timeout", _) => Verdict::Retry(Kind::InProgress),
            ("outcome_unknown" | "outcome_pending", _) => Verdict::Retry(Kind::OutcomeUnknown),
            ("previous_attempt_failed", _) => Verdict::Fail(Kind::OutcomeUnknown),
            ("misconfigured", _) => Verdict::Fail(Kind::Refused),
            (_, 408 | 425 | 429 | 502 | 503 | 504) => Verdict::Retry(Kind::Unavailable),
            (_, ..500) => Verdict::Fail(Kind::Refused),
            // Any other 5xx leaves the outcome open, unless the answer says that the key was
            // released.
            _ if self.header("onetake-outcome") == "release" => Verdict::Retry(Kind::Unavailable),
            _ => Verdict::Fail(Kind::OutcomeUnknown),
        }
    }

    /// Decides what follows the answer to a poll of a handle.
    pub(crate) fn poll_verdict(&self) -> Verdict {
        let says_running =
            || self.json().is_some_and(|json| json.get("status") == Some(&"running".into()));
        if self.response.status() == StatusCode::OK && !self.is_replayed() && says_running() {
            return Verdict::Retry(Kind::InProgress);
        }
        // The outcome has expired or belongs to another caller. Sending the operation again could
        // run it twice.
        if self.problem().is_some_and(|problem| problem.code() == "operation_not_found") {
            return Verdict::Fail(Kind::OutcomeUnknown);
        }
        match self.verdict() {
            Verdict::Poll(_) => Verdict::Retry(Kind::InProgress),
            verdict => verdict,
        }
    }

    /// Returns true if the answer is a recorded one.
    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }

    /// Returns the name of the operation for support.
    pub(crate) fn reference(&self) -> Option<String> {
        let header = Some(self.header("idempotency-reference")).filter(|text| !text.is_empty());
        header.map(str::to_owned).or_else(|| self.problem()?.reference().map(str::to_owned))
    }

    /// Returns the problem document, also in Stripe's format.
    pub(crate) fn problem(&self) -> Option<Problem> {
        if self.response.status().as_u16() < 400 {
            return None;
        }
        Problem::from_json(self.json()?)
    }

    /// Returns the time for which the server asks to wait, or zero.
    pub(crate) fn wait(&self, now: SystemTime) -> Duration {
        let headers = self.response.headers();
        retry_after(self.header(header::RETRY_AFTER.as_str()), now).max(rate_limit(headers))
    }

    fn handle(&self) -> Option<String> {
        let location = self.header(header::LOCATION.as_str());
        let has_handle =
            self.response.status() == StatusCode::ACCEPTED && location.contains(HANDLE_PATH);
        has_handle.then(|| location.to_owned())
    }

    fn json(&self) -> Option<Value> {
        let is_json = self.header(header::CONTENT_TYPE.as_str()).contains("json");
        is_json.then(|| serde_json::from_slice(self.response.body()).ok()).flatten()
    }

    /// Returns the value of a header, or an empty text.
    fn header(&self, name: &str) -> &str {
        text(self.response.headers(), name)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim()
}

/// Reads seconds or a date.
fn retry_after(text: &str, now: SystemTime) -> Duration {
    seconds(text).unwrap_or_else(|| {
        let date = httpdate::parse_http_date(text).unwrap_or(now);
        date.duration_since(now).unwrap_or_default()
    })
}

/// Reads `RateLimit: "policy";r=0;t=5`, and the older `RateLimit-Remaining` and `-Reset`.
fn rate_limit(headers: &HeaderMap) -> Duration {
    let values = headers.get_all("ratelimit").into_iter().filter_map(|value| value.to_str().ok());
    let waits = values.flat_map(|value| value.split(',')).filter_map(|item| {
        let member =
            |name: &str| item.split(';').skip(1).find_map(|part| part.trim().strip_prefix(name));
        (member("r=")? == "0").then(|| seconds(member("t=")?)).flatten()
    });
    let is_used_up = text(headers, "ratelimit-remaining") == "0";
    let reset = is_used_up.then(|| seconds(text(headers, "ratelimit-reset"))).flatten();
    waits.chain(reset).max().unwrap_or_default()
}

/// Reads a number of seconds. More than a `u64` can hold counts as for ever.
fn seconds(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn waits(headers: &[(&'static str, &str)]) -> u64 {
        let mut response = http::Response::new(Bytes::new());
        for (name, value) in headers {
            response.headers_mut().append(*name, value.parse().unwrap());
        }
        Answer { response }.wait(UNIX_EPOCH + Duration::from_secs(1_000)).as_secs()
    }

    #[test]
    fn waits_of_the_server_are_read_and_nonsense_is_not() {
        assert_eq!(waits(&[("retry-after", " 7 ")]), 7);
        assert_eq!(waits(&[("retry-after", "Thu, 01 Jan 1970 00:16:44 GMT")]), 4);
        // A date in the past, by a clock that is ahead, is no reason to wait.
        assert_eq!(waits(&[("retry-after", "Thu, 01 Jan 1970 00:00:44 GMT")]), 0);
        for nonsense in ["-1", "1.5", "soon", "", "1e3"] {
            assert_eq!(waits(&[("retry-after", nonsense)]), 0, "{nonsense}");
        }
        assert_eq!(waits(&[("retry-after", "99999999999999999999999")]), u64::MAX);
        assert_eq!(waits(&[("ratelimit", r#""a";r=0;t=5, "b"; r=0; t=9"#)]), 9);
        assert_eq!(waits(&[("ratelimit", r#""a";r=1;t=5"#), ("ratelimit", r#""b";r=0;t=3"#)]), 3);
        assert_eq!(waits(&[("ratelimit", r#""a";r=05;t=5"#)]), 0);
        assert_eq!(waits(&[("ratelimit-remaining", "0"), ("ratelimit-reset", "6")]), 6);
        assert_eq!(waits(&[("ratelimit-remaining", "1"), ("ratelimit-reset", "6")]), 0);
        assert_eq!(waits(&[("retry-after", "2"), ("ratelimit", r#""a";r=0;t=5"#)]), 5);
    }
}
