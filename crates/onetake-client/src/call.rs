//! One call: attempts, delays and polls until there is a result or a limit is reached.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::error::{BoxError, EndReason, Error, Failure, Kind};
use crate::keys::{Intent, KEY_HEADER};
use crate::verdict::{Answer, UNANSWERED, Verdict};
use crate::{CallEvent, CallReport, Onetake};

/// The header that carries the rest of the deadline, in milliseconds.
const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// The time between two polls, if the server does not name one.
const POLL_PAUSE: Duration = Duration::from_secs(1);

/// A request of a call.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The location of the handle, as the server sent it. `None` in attempts of the operation.
    pub(crate) handle: Option<String>,
    /// Headers that replace those of the caller's request.
    pub(crate) headers: HeaderMap,
}

/// A way to send a request any number of times.
pub(crate) trait Exchange: Send {
    /// Sends one request and reads the whole answer. Fails if the connection breaks.
    fn send(
        &mut self,
        attempt: Attempt,
    ) -> impl Future<Output = Result<http::Response<Bytes>, BoxError>> + Send;
}

/// One call.
pub(crate) struct Call<'a, E> {
    onetake: &'a Onetake,
    exchange: E,
    intent: Intent,
    key: HeaderValue,
    /// The end of the call, by the monotonic clock.
    deadline: Duration,
    attempts: u32,
}

/// The result of one request: an answer, or the error of the connection.
type Tried = Result<Answer, BoxError>;

impl<'a, E: Exchange> Call<'a, E> {
    /// Makes a call with a deadline of its own, or that of the client.
    pub(crate) fn new(
        onetake: &'a Onetake,
        exchange: E,
        intent: Intent,
        time: Option<Duration>,
    ) -> Result<Self, Error> {
        let time = time.unwrap_or(onetake.limits().deadline);
        let deadline = onetake.clock().monotonic().saturating_add(time);
        let key = intent.header_value()?;
        Ok(Self { onetake, exchange, intent, key, deadline, attempts: 0 })
    }

    /// Runs the call. The response holds a [`CallReport`] in its extensions.
    pub(crate) async fn run(mut self) -> Result<http::Response<Bytes>, Error> {
        self.onetake.budget().earn();
        loop {
            self.attempts = self.attempts.saturating_add(1);
            let left = self.left();
            self.onetake.observe(CallEvent::Attempt { attempt: self.attempts, left });
            let mut headers = HeaderMap::new();
            headers.insert(KEY_HEADER, self.key.clone());
            let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
            headers.insert(TIMEOUT_HEADER, HeaderValue::from(millis));
            let tried = self.send(None, headers).await;
            match tried.as_ref().map_or(UNANSWERED, Answer::verdict) {
                Verdict::Poll(handle) => return self.poll(handle, tried).await,
                Verdict::Retry(kind) => self.back_off(kind, tried).await?,
                Verdict::Finish => return self.finish(tried),
                Verdict::Fail(kind) => return self.fail(kind, tried),
            }
        }
    }

    /// Waits before the next attempt, or ends the call if a limit is reached.
    async fn back_off(&mut self, kind: Kind, tried: Tried) -> Result<(), Error> {
        let limits = self.onetake.limits();
        let doublings = self.attempts.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let backoff = limits.backoff_base.saturating_mul(factor).min(limits.backoff_max);
        let delay = self.jitter(backoff).saturating_add(self.asked(&tried));
        if self.attempts >= limits.attempts_max {
            return Err(self.failure(kind, tried, Some(EndReason::Attempts)));
        }
        if delay >= self.left() {
            return Err(self.failure(kind, tried, Some(EndReason::Deadline)));
        }
        if !self.onetake.budget().spend() {
            return Err(self.failure(kind, tried, Some(EndReason::Budget)));
        }
        let (status, error) = match &tried {
            Ok(answer) => (Some(answer.response.status()), None),
            Err(error) => (None, Some(error)),
        };
        self.onetake.observe(CallEvent::Retry { attempt: self.attempts, delay, status, error });
        self.onetake.clock().sleep(delay).await;
        Ok(())
    }

    /// Polls a handle until the outcome is there. The operation itself is not sent again.
    async fn poll(
        &mut self,
        handle: String,
        accepted: Tried,
    ) -> Result<http::Response<Bytes>, Error> {
        let mut last = accepted;
        loop {
            let asked = Some(self.asked(&last)).filter(|asked| !asked.is_zero());
            let jitter = self.jitter(self.onetake.limits().backoff_base);
            let delay = jitter.saturating_add(asked.unwrap_or(POLL_PAUSE));
            if delay >= self.left() {
                return Err(self.failure(Kind::InProgress, last, Some(EndReason::Deadline)));
            }
            self.onetake.clock().sleep(delay).await;
            self.onetake.observe(CallEvent::Poll);
            last = self.send(Some(handle.clone()), HeaderMap::new()).await;
            match last.as_ref().map_or(UNANSWERED, Answer::poll_verdict) {
                Verdict::Finish => return self.finish(last),
                Verdict::Fail(kind) => return self.fail(kind, last),
                Verdict::Poll(_) | Verdict::Retry(_) => {}
            }
        }
    }

    /// Sends one request within the time for an attempt.
    async fn send(&mut self, handle: Option<String>, headers: HeaderMap) -> Tried {
        let time = self.onetake.limits().attempt_timeout.min(self.left());
        let timeout = self.onetake.clock().attempt_timeout(time);
        let (onetake, exchange) = (self.onetake, &mut self.exchange);
        let exchanged = async {
            let mut all = onetake.headers().await?;
            all.extend(headers);
            exchange.send(Attempt { handle, headers: all }).await
        };
        tokio::select! {
            biased;
            answered = exchanged => answered.map(|response| Answer { response }),
            () = timeout => Err(format!("no answer within {} ms", time.as_millis()).into()),
        }
    }

    fn finish(&self, tried: Tried) -> Result<http::Response<Bytes>, Error> {
        // An answer is there: without one, the verdict is a retry.
        let answer = tried.map_err(Error::Inner)?;
        let report = CallReport {
            intent: self.intent.clone(),
            is_replayed: answer.is_replayed(),
            reference: answer.reference(),
            attempts: self.attempts,
        };
        self.ended(None, report.reference.as_deref());
        let mut response = answer.response;
        response.extensions_mut().insert(report);
        Ok(response)
    }

    fn fail(&self, kind: Kind, tried: Tried) -> Result<http::Response<Bytes>, Error> {
        if kind == Kind::Refused && !self.onetake.refusals_are_errors() {
            return self.finish(tried);
        }
        Err(self.failure(kind, tried, None))
    }

    fn failure(&self, kind: Kind, tried: Tried, reason: Option<EndReason>) -> Error {
        let (answer, cause) = match tried {
            Ok(answer) => (Some(answer), None),
            Err(cause) => (None, Some(cause)),
        };
        let failure = Failure {
            kind,
            intent: self.intent.clone(),
            attempts: self.attempts,
            reason,
            problem: answer.as_ref().and_then(Answer::problem),
            reference: answer.as_ref().and_then(Answer::reference),
            is_replayed: answer.as_ref().is_some_and(Answer::is_replayed),
            response: answer.map(|answer| answer.response),
            cause,
        };
        self.ended(Some(kind), failure.reference.as_deref());
        failure.into()
    }

    fn ended(&self, error: Option<Kind>, reference: Option<&str>) {
        self.onetake.observe(CallEvent::End { attempts: self.attempts, error, reference });
    }

    /// Returns a random part of a time.
    fn jitter(&self, backoff: Duration) -> Duration {
        let part = backoff.as_secs_f64() * self.onetake.rng().fraction();
        Duration::try_from_secs_f64(part).map_or(backoff, |part| part.min(backoff))
    }

    /// Returns the time for which the server asks to wait, or zero.
    fn asked(&self, tried: &Tried) -> Duration {
        tried.as_ref().map_or(Duration::ZERO, |answer| answer.wait(self.onetake.clock().now()))
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.onetake.clock().monotonic())
    }
}
