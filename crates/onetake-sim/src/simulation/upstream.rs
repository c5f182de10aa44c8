//! The upstream, which has effects, and misbehaves in every way that a service can.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::FromRequestParts;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use onetake_core::clock::micros;
use onetake_core::engine::Attempt;
use onetake_core::store::{Settled, Settlement};
use onetake_core::{Completion, Key, RecordId, Scope, Transition};
use onetake_http::tenant::tenant_named;
use onetake_http::transaction::InTransaction;
use onetake_http::{AttemptReport, Disposition, OperationContext, RequestBody};
use tokio::sync::oneshot;
use tower_service::Service;

use super::history::{Actor, BypassedRun, RunNumber};
use super::plan::{Mode, UpstreamPlan};
use super::random::Random;
use super::timeline::Micros;
use super::world::World;

/// The header with the payload of a request.
pub const PAYLOAD: &str = "x-payload";
/// The header with the tenant of a request.
pub const TENANT: &str = "x-tenant";
/// The header with the time at which a request arrived at its node.
pub const ARRIVED_AT: &str = "x-arrived-at";

/// The behaviour of the upstream in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// It does the work.
    Done,
    /// It refuses permanently, without an effect: 402, which is recorded.
    Declined,
    /// It is too busy: 503, without an effect.
    Busy,
    /// It reports that it had no effect.
    SaysReleased,
    /// It fails with 500, with or without an effect.
    Failed(bool),
    /// It never answers, with or without an effect.
    Hangs(bool),
    /// The connection breaks after the request was sent, with or without an effect.
    Breaks(bool),
    /// It is unreachable: nothing was sent.
    Unreachable,
    /// The handler panics, with or without an effect.
    Panics(bool),
}

/// A run at the upstream, and its answer.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The run.
    pub run: RunNumber,
    /// The behaviour of the upstream.
    pub conduct: Conduct,
    /// The answer.
    pub text: String,
}

impl World {
    /// Sends a run to the upstream. The answer comes through the channel, or never.
    pub fn call_upstream(
        self: &Arc<Self>,
        node: usize,
        run: RunNumber,
        text: &str,
    ) -> (Conduct, oneshot::Receiver<Exchange>) {
        let conduct = self.conduct();
        let (tell, told) = oneshot::channel();
        let exchange = Exchange { run, conduct, text: text.to_owned() };
        if conduct == Conduct::Unreachable {
            self.history.run_ended(self.now(), run);
            let _listens = tell.send(exchange);
            return (conduct, told);
        }
        let times = self.times(node);
        let world = Arc::clone(self);
        self.timeline
            .after(times.arrival, Box::new(move |_| world.work(node, exchange, &times, tell)));
        (conduct, told)
    }

    /// Does the work of a request that has arrived.
    fn work(
        self: &Arc<Self>,
        node: usize,
        exchange: Exchange,
        times: &Times,
        tell: oneshot::Sender<Exchange>,
    ) {
        let (run, conduct) = (exchange.run, exchange.conduct);
        self.history.arrived(self.now(), run);
        let has_effect = match conduct {
            Conduct::Done => true,
            Conduct::Failed(effect)
            | Conduct::Hangs(effect)
            | Conduct::Breaks(effect)
            | Conduct::Panics(effect) => effect,
            _ => false,
        };
        let world = Arc::clone(self);
        let answer_after = times.answer;
        self.timeline.after(
            times.work,
            Box::new(move |_| {
                let now = world.now();
                if has_effect {
                    world.history.effect(now, run);
                }
                world.history.run_ended(now, run);
                if matches!(conduct, Conduct::Hangs(_)) {
                    return;
                }
                let later = Arc::clone(&world);
                world.timeline.after(
                    answer_after,
                    Box::new(move |_| {
                        let _gone = tell.send(exchange);
                        later.mark_busy(node + 1);
                    }),
                );
            }),
        );
    }

    /// Commits the effect of a run of mode T with its completion. Returns `None` if the answer was
    /// lost; then it is open whether it committed.
    pub async fn commit(
        self: &Arc<Self>,
        process: (usize, u64),
        run: RunNumber,
        attempt: Attempt,
        done: Completion,
    ) -> Option<bool> {
        // It is the last statement of the transaction that is committed here.
        done.mark_executed();
        let (node, incarnation) = process;
        let (noise, cut) = (self.noise_per_mille(), self.is_cut(node).is_some());
        let (is_lost, is_deaf, is_slow) = self.decide("commit", |random| {
            (random.chance(noise / 4), random.chance(noise), random.chance(noise))
        });
        let times = self.times(node);
        let slow = if is_slow { times.work * 3 } else { 0 };
        if is_lost || cut {
            self.timeline.sleep(times.work, node + 1).await;
            self.history.run_ended(self.now(), run);
            return None;
        }
        let (tell, told) = oneshot::channel();
        let server = Arc::clone(self);
        self.timeline.after(
            times.work + slow,
            Box::new(move |_| {
                let Attempt { id, attempt, .. } = attempt;
                let settlement =
                    Settlement { id, attempt, transition: Transition::Complete(done.recording) };
                let (now, actor) = (server.now(), Actor::Node(node, incarnation));
                let settled = server.backend.settle(&server.history, now, actor, settlement);
                let is_committed = matches!(settled, Ok(Settled::Done { .. }));
                if is_committed {
                    server.history.effect(now, run);
                }
                server.history.run_ended(now, run);
                let _gone = tell.send(is_committed);
                server.mark_busy(node + 1);
            }),
        );
        let is_committed = told.await.ok()?;
        if is_deaf { None } else { Some(is_committed) }
    }

    fn conduct(&self) -> Conduct {
        let planned = if self.is_calm() { UpstreamPlan::default() } else { self.plan.upstream };
        let UpstreamPlan { noise_per_mille: noise, refuses_per_mille, .. } = planned;
        self.decide("upstream", |random| {
            if refuses_per_mille > 0 && random.chance(refuses_per_mille) {
                return random.pick(&[Conduct::Busy, Conduct::SaysReleased], Conduct::Busy);
            }
            if !random.chance(noise) {
                return if random.chance(100) { Conduct::Declined } else { Conduct::Done };
            }
            let effect = random.chance(500);
            match random.below(10) {
                0 | 1 => Conduct::Busy,
                2 => Conduct::SaysReleased,
                3 | 4 => Conduct::Failed(effect),
                5 => Conduct::Hangs(effect),
                6 => Conduct::Breaks(effect),
                7 => Conduct::Unreachable,
                8 => Conduct::Panics(effect),
                _ => Conduct::Done,
            }
        })
    }

    /// Chooses the times of a run. A request arrives within the upstream timeout and half of the
    /// grace, or never: reconciliation relies on that.
    fn times(&self, node: usize) -> Times {
        let Some(planned) = self.plan.nodes.get(node) else { return Times::default() };
        let (run_max, grace) = (micros(planned.run_max), micros(planned.terms.grace));
        let UpstreamPlan { noise_per_mille: noise, slow_per_mille, late_per_mille, .. } =
            self.plan.upstream;
        let (delay_max, is_calm) = (self.plan.delay_max, self.is_calm());
        self.decide("upstream times", |random| {
            let usual = |random: &mut Random| random.below(delay_max);
            let mut times =
                Times { arrival: usual(random), work: usual(random), answer: usual(random) };
            if !is_calm && random.chance(noise / 2) {
                times.arrival = random.below(run_max + grace / 2);
            }
            if !is_calm && random.chance(noise) {
                times.work = random.below(2 * run_max);
            }
            if !is_calm && slow_per_mille > 0 && random.chance(slow_per_mille) {
                times.work = random.between(run_max / 8, run_max);
            }
            if !is_calm && late_per_mille > 0 && random.chance(late_per_mille) {
                times.arrival = run_max + random.below(grace / 2);
            }
            times
        })
    }
}

/// The durations of the parts of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    arrival: Micros,
    work: Micros,
    answer: Micros,
}

/// The gateway's proxy in a simulated node: the service inside the layer.
#[derive(Clone, Debug)]
pub struct Proxy {
    world: Arc<World>,
    node: usize,
    incarnation: u64,
}

/// The error for a broken connection to the upstream.
#[derive(Debug, thiserror::Error)]
#[error("the connection to the upstream broke")]
pub struct Broken;

impl Proxy {
    /// Creates the proxy of one process.
    #[must_use]
    pub fn new(world: &Arc<World>, node: usize, incarnation: u64) -> Self {
        Self { world: Arc::clone(world), node, incarnation }
    }

    /// Records a run without a record. It ends when the future of the call is dropped.
    fn bypass(
        &self,
        number: RunNumber,
        at: Micros,
        parts: &Parts,
        (tenant, key): (u8, &str),
    ) -> Option<Bypass> {
        let arrived_at = parts.headers.get(ARRIVED_AT)?.to_str().ok()?.parse().ok()?;
        let scope = Scope::new(tenant_named(&format!("header:{tenant}"))?);
        let id = RecordId::derive(&scope, &Key::new(key).ok()?);
        let by = Actor::Node(self.node, self.incarnation);
        self.world.history.bypasses(at, BypassedRun { number, by, id, arrived_at });
        Some(Bypass { world: Arc::clone(&self.world), number })
    }

    /// Does the work of a route whose effect commits with its outcome.
    async fn transact(self, mut parts: Parts, run: RunNumber, text: String) -> Response<Body> {
        let Ok(running) = InTransaction::from_request_parts(&mut parts, &()).await else {
            self.world.history.run_ended(self.world.now(), run);
            return answer(StatusCode::INTERNAL_SERVER_ERROR, "not in a transaction");
        };
        let attempt = *running.attempt();
        let done = answer(StatusCode::OK, &text);
        let Ok((completion, response)) = running.complete(done, Vec::new()).await else {
            self.world.history.run_ended(self.world.now(), run);
            return answer(StatusCode::INTERNAL_SERVER_ERROR, "not recorded");
        };
        match self.world.commit((self.node, self.incarnation), run, attempt, completion).await {
            Some(true) => response,
            Some(false) | None => answer(StatusCode::INTERNAL_SERVER_ERROR, "not committed"),
        }
    }
}

/// A run without a record that has not ended.
struct Bypass {
    world: Arc<World>,
    number: RunNumber,
}

impl Drop for Bypass {
    fn drop(&mut self) {
        self.world.history.bypass_ended(self.number);
    }
}

impl<Req> Service<Request<RequestBody<Req>>> for Proxy
where
    RequestBody<Req>: http_body::Body,
{
    type Response = Response<Body>;
    type Error = Broken;
    type Future = BoxFuture<'static, Result<Response<Body>, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Req>>) -> Self::Future {
        let (parts, body) = request.into_parts();
        // A keyed request was read whole, so its body is available at once.
        let is_whole = body.collect().now_or_never().is_some_and(|read| read.is_ok());
        let asked = asked(&parts);
        let mode = Mode::ALL.into_iter().find(|mode| mode.path() == parts.uri.path());
        let (Some((tenant, key, payload)), Some(mode), true) = (asked, mode, is_whole) else {
            return std::future::ready(Ok(answer(StatusCode::NOT_FOUND, "not a route"))).boxed();
        };
        let context = OperationContext::of(&parts.extensions);
        let attempt = context.and_then(OperationContext::attempt);
        let now = self.world.now();
        let (run, text) =
            self.world.history.started(now, self.node, attempt, (tenant, &key, payload), mode);
        let bypass = attempt.is_none().then(|| self.bypass(run, now, &parts, (tenant, &key)));
        if mode == Mode::Rollback {
            let proxy = self.clone();
            return async move { Ok(proxy.transact(parts, run, text).await) }.boxed();
        }
        let (_, told) = self.world.call_upstream(self.node, run, &text);
        let world = Arc::clone(&self.world);
        async move {
            let _bypass = bypass;
            match told.await {
                Ok(exchange) => {
                    if matches!(exchange.conduct, Conduct::Done | Conduct::Declined) {
                        world.history.answered(world.now(), exchange.run);
                    }
                    respond(&exchange)
                }
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }
}

fn asked(parts: &Parts) -> Option<(u8, String, u8)> {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let tenant = header(TENANT)?.parse().ok()?;
    let payload = header(PAYLOAD)?.parse().ok()?;
    Some((tenant, header("idempotency-key")?.to_owned(), payload))
}

fn respond(exchange: &Exchange) -> Result<Response<Body>, Broken> {
    let text = &*exchange.text;
    Ok(match exchange.conduct {
        Conduct::Done => answer(StatusCode::OK, text),
        Conduct::Declined => answer(StatusCode::PAYMENT_REQUIRED, text),
        Conduct::Busy => answer(StatusCode::SERVICE_UNAVAILABLE, text),
        Conduct::SaysReleased => {
            let mut response = answer(StatusCode::CONFLICT, text);
            let released = HeaderValue::from_static("release");
            response.headers_mut().insert("onetake-outcome", released);
            response
        }
        Conduct::Unreachable => {
            let mut response = answer(StatusCode::BAD_GATEWAY, text);
            AttemptReport::new(Disposition::Release).attach(&mut response);
            response
        }
        Conduct::Failed(_) | Conduct::Hangs(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, text),
        Conduct::Breaks(_) => return Err(Broken),
        #[expect(clippy::panic, reason = "the panic of a handler is what is simulated")]
        Conduct::Panics(_) => panic!("{SIMULATED_PANIC}"),
    })
}

/// The message of a planned panic in a handler.
pub const SIMULATED_PANIC: &str = "a simulated panic of a handler";

fn answer(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = status;
    response
}
