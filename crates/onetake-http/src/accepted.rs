//! 202 answers of async routes (`in_flight = "async"`).
//!
//! An operation that takes longer than the route's wait is answered with 202. The client fetches
//! the outcome by a handle.
//!
//! A 202 promises an outcome: the attempt is no longer released, its response is recorded instead.
//! For an attempt of this process, the 202 comes with a promise ([`Engine::promise`]), which
//! excludes a release. A node cannot promise an attempt of another node. Such an attempt counts as
//! promised once it has lasted as long as the route's whole wait. A client gets a 202 for it only
//! after it has waited that long itself, and (as long as clocks agree) only after the attempt has
//! lasted that long.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;
use tokio::sync::oneshot;

use onetake_core::clock::Timestamp;
use onetake_core::engine::{Answer, EngineError, Executed, Operation, Promise, Work};
use onetake_core::{Engine, RecordId, State, WhileRunning};

use crate::body::ResponseBody;
use crate::endpoints::OPERATIONS;
use crate::identify::Identity;
use crate::layer::LayerState;
use crate::policy::InFlight;
use crate::prefer::{PREFERENCE_APPLIED, Prefer};
use crate::problem::{insert, insert_reference};
use crate::tenant::Caller;

/// `Retry-After` of a 202, and of a handle whose operation still runs, in seconds.
const RETRY_SECONDS: u64 = 1;

/// The wait of one client of an async route, and its 202 answer.
pub(crate) struct AsyncWait {
    handle: String,
    applied: Option<String>,
    /// End of this client's wait, by the monotonic clock.
    until: Duration,
    /// End of the route's whole wait, by the monotonic clock.
    pub(crate) due: Duration,
    /// End of the longest possible wait, by the monotonic clock: twice the route's wait. It holds
    /// even if the attempt seems younger by the store's clock.
    latest: Duration,
    /// The client's deadline, by the monotonic clock.
    deadline: Duration,
}

/// Result of the wait of a client of an async route.
pub(crate) enum Awaited<'a, W: Work> {
    Executed(Executed<W>),
    /// The operation runs longer than the client waits.
    Accepted(&'a AsyncWait),
}

impl AsyncWait {
    /// Computes the wait of a request. Returns `None` if the route does not answer 202.
    pub(crate) fn of(identity: &Identity, shared: &LayerState) -> Option<Self> {
        let Identity { head, parts, operation, .. } = identity;
        let wait = match head.policy.in_flight {
            InFlight::Async(wait) if head.is_async() => wait,
            _ => return None,
        };
        let clock = &**shared.engine.clock();
        let fingerprints = std::iter::once(&operation.fingerprint).chain(&operation.earlier);
        let caller = Caller { tenant: head.scope.tenant().to_vec(), proof: head.proof.clone() };
        let handle = shared.handles.of(operation.id, &caller, fingerprints);
        let (now, prefer) = (clock.monotonic(), Prefer::of(&parts.headers));
        let left = head.deadline.map(|deadline| deadline.left(clock));
        let deadline = left.map_or(Duration::MAX, |left| now.saturating_add(left));
        let until = now.saturating_add(prefer.shorten(wait)).min(deadline);
        let due = now.saturating_add(wait);
        let (latest, applied) = (due.saturating_add(wait), prefer.applied(wait));
        Some(Self { handle, applied, until, due, latest, deadline })
    }

    /// Runs the operation or waits for it, but no longer than the client waits. `started` resolves
    /// when the operation runs in this process.
    pub(crate) async fn execute<W: Work>(
        &self,
        engine: &Engine,
        operation: &mut Operation,
        mut work: W,
        mut started: oneshot::Receiver<()>,
    ) -> Awaited<'_, W> {
        let mut until = self.until;
        let mut runs_elsewhere = false;
        loop {
            let wait = until.saturating_sub(engine.clock().monotonic());
            operation.in_flight = WhileRunning::Wait(wait);
            let executed = tokio::select! {
                biased;
                executed = engine.execute(operation, work) => executed,
                () = self.is_due(engine, operation, &mut started) => return Awaited::Accepted(self),
            };
            let answer = match executed {
                Executed::Answered(answer @ (Answer::InFlight | Answer::WaitTimeout), unused) => {
                    work = unused;
                    answer
                }
                // The operation was seen to run on another node. So an unreachable store is no reason
                // to run it here as well (S10).
                Executed::Failed(_, Some(unused)) if runs_elsewhere => {
                    return Awaited::Executed(Executed::Answered(Answer::WaitTimeout, unused));
                }
                executed => return Awaited::Executed(executed),
            };
            runs_elsewhere = true;
            let answered = |answer, work| Awaited::Executed(Executed::Answered(answer, work));
            let now = engine.clock().monotonic();
            match (engine.promise(operation), answer) {
                (Promise::Given, _) => return Awaited::Accepted(self),
                (Promise::Refused, _) => return answered(Answer::InFlight, work),
                // Too early for a 202 about another node's attempt. Wait longer, even if the client
                // prefers a shorter wait.
                (Promise::Elsewhere, Answer::WaitTimeout) if now < self.due.min(self.deadline) => {
                    until = self.due.min(self.deadline);
                }
                (Promise::Elsewhere, answer @ Answer::WaitTimeout) if now >= self.due => {
                    // The operation is known to run on another node. So an unreachable store is no
                    // reason to run it here as well (S10).
                    let Ok(young) = self.wait_left(engine, operation.id).await else {
                        return answered(answer, work);
                    };
                    if now >= self.latest || young == Some(Duration::ZERO) {
                        return Awaited::Accepted(self);
                    }
                    if now >= self.deadline {
                        return answered(answer, work);
                    }
                    // `None` means that the attempt has just ended: the next round gets its answer.
                    let more = now.saturating_add(young.unwrap_or_default());
                    until = more.min(self.latest).min(self.deadline);
                }
                (Promise::Elsewhere, answer) => return answered(answer, work),
            }
        }
    }

    /// Time until the other node's attempt has lasted as long as the route's wait. `None` if no
    /// attempt runs any more.
    ///
    /// The attempt can be a later one than the attempt that this client first waited for. A fence
    /// is the store's time at the claim of the attempt.
    async fn wait_left(
        &self,
        engine: &Engine,
        id: RecordId,
    ) -> Result<Option<Duration>, EngineError> {
        let record = engine.look(id).await?;
        let running = record.filter(|record| matches!(record.state, State::Running { .. }));
        let wait = self.latest.saturating_sub(self.due);
        Ok(running.map(|record| {
            let claimed_at = Timestamp::from_micros(record.fence.get());
            wait.saturating_sub(engine.clock().now().since(claimed_at))
        }))
    }

    /// Resolves when the client's wait has ended and an attempt of this process has promised its
    /// outcome: the client must get its 202.
    ///
    /// Never resolves if that attempt is being released or has just ended, because its answer is
    /// about to arrive.
    async fn is_due(
        &self,
        engine: &Engine,
        operation: &Operation,
        started: &mut oneshot::Receiver<()>,
    ) {
        let clock = engine.clock();
        clock.sleep(self.until.saturating_sub(clock.monotonic())).await;
        // The attempt may be granted and not started yet: a rollback can come first.
        if engine.promise(operation) == Promise::Given
            || started.await.is_ok() && engine.promise(operation) == Promise::Given
        {
            return;
        }
        std::future::pending().await
    }

    /// The 202 response, with the URL of the handle.
    pub(crate) fn accepted<Res>(&self, id: RecordId) -> Response<ResponseBody<Res>> {
        let location = format!("{OPERATIONS}{}", self.handle);
        let mut response = running(id, Some(&location));
        *response.status_mut() = StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        insert(headers, LOCATION, &location);
        if let Some(applied) = &self.applied {
            insert(headers, PREFERENCE_APPLIED, applied);
        }
        response
    }
}

/// The response for an operation that still runs, with status 200.
pub(crate) fn running<Res>(id: RecordId, location: Option<&str>) -> Response<ResponseBody<Res>> {
    let reference = id.reference().to_string();
    let mut body = json!({ "status": "running", "reference": reference });
    if let (Some(location), Some(members)) = (location, body.as_object_mut()) {
        members.insert("operation".to_owned(), json!(location));
    }
    let mut response = Response::new(ResponseBody::whole(Bytes::from(body.to_string()), None));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
    insert_reference(headers, id.reference());
    response
}
