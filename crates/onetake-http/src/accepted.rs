//! `in_flight = "async"`: an operation that takes longer than the wait is answered 202, and its
//! outcome is fetched by a handle.
//!
//! After a 202 the attempt has an outcome: nothing is released any more, but recorded. An attempt of
//! this process is promised to whoever gets a 202 ([`Engine::promise`]), which excludes that it is
//! released. An attempt of another node cannot be promised from here; but it counts as promised by
//! itself once it has lasted as long as the route's whole wait, and nobody gets a 202 for it who has
//! waited for less, or (as long as clocks agree) before it has lasted for as long.

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
use crate::layer::Shared;
use crate::policy::InFlight;
use crate::prefer::{PREFERENCE_APPLIED, Prefer};
use crate::problem::{IDEMPOTENCY_REFERENCE, insert};
use crate::tenant::Caller;

/// `Retry-After` of a 202, and of a handle whose operation still runs, in seconds.
const RETRY_SECONDS: u64 = 1;

/// How long a client of an async route waits, and what it is told then.
pub(crate) struct Waiting {
    handle: String,
    applied: Option<String>,
    /// On our own clock: until when this client waits.
    until: Duration,
    /// On our own clock: from when on the operation has lasted as long as the route waits at all.
    pub(crate) due: Duration,
    /// On our own clock: until when anybody waits, whatever the store's clock makes of it.
    latest: Duration,
    /// On our own clock: the client's deadline.
    deadline: Duration,
}

/// What a client of an async route waited for.
pub(crate) enum Awaited<'a, W: Work> {
    Executed(Executed<W>),
    /// It runs, and takes long.
    Accepted(&'a Waiting),
}

impl Waiting {
    /// `None`: the route does not answer 202.
    pub(crate) fn of(identity: &Identity, shared: &Shared) -> Option<Self> {
        let Identity { head, parts, operation, .. } = identity;
        let InFlight::Async(wait) = head.policy.in_flight else {
            return None;
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

    /// Runs the operation or waits for it, but for no longer than the client does. `started` says that it runs
    /// here.
    pub(crate) async fn execute<W: Work>(
        &self,
        engine: &Engine,
        operation: &mut Operation,
        mut work: W,
        mut started: oneshot::Receiver<()>,
    ) -> Awaited<'_, W> {
        let mut until = self.until;
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
                executed => return Awaited::Executed(executed),
            };
            let answered = |answer, work| Awaited::Executed(Executed::Answered(answer, work));
            let now = engine.clock().monotonic();
            match (engine.promise(operation), answer) {
                (Promise::Given, _) => return Awaited::Accepted(self),
                (Promise::Refused, _) => return answered(Answer::InFlight, work),
                // Too early to be sure of the other node's attempt: wait on, whatever is preferred.
                (Promise::Elsewhere, Answer::WaitTimeout) if now < self.due.min(self.deadline) => {
                    until = self.due.min(self.deadline);
                }
                (Promise::Elsewhere, answer @ Answer::WaitTimeout) if now >= self.due => {
                    // That it runs is known: a store that is away now is no reason to run it here (S10).
                    let Ok(young) = self.young_for(engine, operation.id).await else {
                        return answered(answer, work);
                    };
                    if now >= self.latest || young == Some(Duration::ZERO) {
                        return Awaited::Accepted(self);
                    }
                    if now >= self.deadline {
                        return answered(answer, work);
                    }
                    // It has just ended if it is of no age: then there is an answer.
                    let more = now.saturating_add(young.unwrap_or_default());
                    until = more.min(self.latest).min(self.deadline);
                }
                (Promise::Elsewhere, answer) => return answered(answer, work),
            }
        }
    }

    /// For how long the other node's attempt has not lasted as long as the route waits: it may be another one
    /// than that which was met first. A fence is the store's time when the attempt was claimed.
    /// `None`: none runs any more.
    async fn young_for(
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

    /// Resolves when the client that runs the operation is to be told to come back. Never, if the
    /// attempt is being released, or has just ended: then its answer is about to be there.
    async fn is_due(
        &self,
        engine: &Engine,
        operation: &Operation,
        started: &mut oneshot::Receiver<()>,
    ) {
        let clock = engine.clock();
        if started.await.is_ok() {
            clock.sleep(self.until.saturating_sub(clock.monotonic())).await;
            if engine.promise(operation) == Promise::Given {
                return;
            }
        }
        std::future::pending().await
    }

    /// The answer that the operation takes long.
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

/// The answer that the operation still runs.
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
    insert(headers, IDEMPOTENCY_REFERENCE, &reference);
    response
}
