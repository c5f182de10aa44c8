//! Clients that retry, give up, return, and cut their connections at any moment.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use http::header::LOCATION;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use onetake_http::ResponseBody;
use onetake_http::problem::IDEMPOTENCY_REFERENCE;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::history::{ClientRequest, ReceivedResponse, key_text};
use super::node::Front;
use super::plan::{ClientPlan, Mode, OperationPlan};
use super::simulator::Simulator;
use super::timeline::{MILLISECOND, Micros, SECOND};
use super::upstream::{ARRIVED_AT, PAYLOAD, TENANT};
use super::world::World;

/// The place of the clients' executor.
const CLIENTS: usize = 0;

/// Runs one client, from its first request to its last retry.
pub async fn client(world: Arc<World>, operation: OperationPlan, plan: ClientPlan, stream: String) {
    world.timeline.sleep(plan.starts_at, CLIENTS).await;
    let mut left = plan.tries;
    while left > 0 {
        left -= 1;
        let wait_seconds = plan.wait_seconds;
        let asked = ClientRequest { wait_seconds, ..asked(&world, &operation, plan.payload) };
        let cut = plan.cut_after_polls.filter(|_| left > 0);
        let heard = send(&world, asked, None, plan.patience, cut, &stream).await;
        if let Some(heard) = heard {
            if !plan.insists && (heard.is_outcome() || heard.status == 422) {
                return;
            }
            if let Some(location) = heard.location {
                follow(&world, &operation, plan, location, &stream).await;
            }
        }
        let pause = world.decide(&stream, |random| random.below(plan.pause) + MILLISECOND);
        world.timeline.sleep(pause, CLIENTS).await;
    }
}

/// Fetches an outcome by its handle.
async fn follow(
    world: &Arc<World>,
    operation: &OperationPlan,
    plan: ClientPlan,
    location: String,
    stream: &str,
) {
    for _ in 0..4 {
        world.timeline.sleep(SECOND, CLIENTS).await;
        let asked = asked(world, operation, plan.payload);
        let heard = send(world, asked, Some(location.clone()), plan.patience, None, stream).await;
        if heard.is_some_and(|heard| heard.is_outcome() || heard.code.is_some()) {
            return;
        }
    }
}

/// Sends requests until there is a definite answer, after all faults are over. Returns `None` if
/// there never is one.
pub async fn last_word(
    world: Arc<World>,
    operation: OperationPlan,
    payload: u8,
) -> Option<ReceivedResponse> {
    let stream = format!("last word {}", operation.number);
    let mut heard = None;
    for _ in 0..40 {
        let asked = asked(&world, &operation, payload);
        heard = send(&world, asked, None, 30 * SECOND, None, &stream).await;
        let is_definite = heard.as_ref().is_some_and(|heard| {
            let code = heard.code.as_deref();
            let is_final = [
                "idempotency_payload_mismatch",
                "previous_attempt_failed",
                "response_not_replayable",
            ];
            heard.is_outcome() || code.is_some_and(|code| is_final.contains(&code))
        });
        if is_definite {
            return heard;
        }
        world.timeline.sleep(2 * SECOND, CLIENTS).await;
    }
    let last = heard.map(|heard| (heard.status, heard.code));
    let what = format!("operation {} has no definite answer: {last:?}", operation.number);
    world.history.violate(world.now(), "every key settles", what);
    None
}

fn asked(world: &World, operation: &OperationPlan, payload: u8) -> ClientRequest {
    ClientRequest {
        operation: operation.number,
        mode: operation.mode,
        tenant: operation.tenant,
        key: key_text(operation.number, operation.mode),
        payload,
        wait_seconds: None,
        sent_at: world.now(),
    }
}

/// Sends one request to some node, and waits for its response up to the client's time limit.
async fn send(
    world: &Arc<World>,
    asked: ClientRequest,
    location: Option<String>,
    patience: Micros,
    cut: Option<u32>,
    stream: &str,
) -> Option<ReceivedResponse> {
    let (tell, told) = oneshot::channel();
    let gone = CancellationToken::new();
    let nodes = world.plan.nodes.len();
    let (delay_max, is_calm) = (world.plan.delay_max, world.is_calm());
    let (node, delay, is_lost) = world.decide(stream, |random| {
        let is_lost = !is_calm && random.chance(50);
        (random.index(nodes), random.below(delay_max), is_lost)
    });
    if !is_lost {
        let call =
            RequestInFlight { asked: asked.clone(), location, cut, gone: gone.clone(), tell };
        world.timeline.after(delay, Box::new(move |simulator| simulator.deliver(node, call)));
    }
    let heard = tokio::select! {
        biased;
        heard = told => heard.ok(),
        () = world.timeline.sleep(patience, CLIENTS) => None,
    };
    if heard.is_none() {
        gone.cancel();
        world.mark_busy(node + 1);
    }
    let heard = heard?;
    world.history.heard(world.now(), &asked, &heard);
    Some(heard)
}

/// A request on its way to a node.
#[derive(Debug)]
pub struct RequestInFlight {
    /// The request.
    pub asked: ClientRequest,
    /// The handle to fetch, if there is one.
    pub location: Option<String>,
    /// The number of polls after which the connection is cut.
    pub cut: Option<u32>,
    /// Cancelled when the client is gone.
    pub gone: CancellationToken,
    /// The channel for the response.
    pub tell: oneshot::Sender<ReceivedResponse>,
}

impl Simulator {
    /// Delivers a request to a node.
    pub fn deliver(&mut self, node: usize, call: RequestInFlight) {
        let world = Arc::clone(&self.world);
        let Some(process) = self.nodes.get(node).and_then(|node| node.process.as_ref()) else {
            return;
        };
        world.mark_busy(node + 1);
        let RequestInFlight { asked, location, cut, gone, tell } = call;
        if asked.mode == Mode::Job {
            let Some(plan) = self.nodes.get(node).map(|node| node.plan) else { return };
            let process_id = (node, process.incarnation);
            let engine = process.engine.clone();
            let job = super::job::job(Arc::clone(&world), process_id, plan, engine, asked);
            process.executor.spawn(answering(world, CutAfter::new(job, cut), gone, tell));
            return;
        }
        let front = process.front.clone();
        let serving = serve(node, front, request(&asked, location, world.now()));
        process.executor.spawn(answering(world, CutAfter::new(serving, cut), gone, tell));
    }
}

/// Sends the response back, unless the connection is cut. Then it drops the serving future, as a
/// server does.
async fn answering(
    world: Arc<World>,
    serving: CutAfter,
    gone: CancellationToken,
    tell: oneshot::Sender<ReceivedResponse>,
) {
    let heard = tokio::select! {
        biased;
        () = gone.cancelled() => None,
        heard = serving => heard,
    };
    let Some(heard) = heard else { return };
    let (delay_max, is_calm) = (world.plan.delay_max, world.is_calm());
    let (delay, is_lost) = world
        .decide("responses", |random| (random.below(delay_max), !is_calm && random.chance(80)));
    if is_lost {
        return;
    }
    let later = Arc::clone(&world);
    world.timeline.after(
        delay,
        Box::new(move |_| {
            let _gone = tell.send(heard);
            later.mark_busy(CLIENTS);
        }),
    );
}

fn request(asked: &ClientRequest, location: Option<String>, arrived_at: Micros) -> Request<Body> {
    let body = format!("payload {}", asked.payload);
    let length = body.len();
    let mut request = Request::new(Body::from(body));
    let is_handle = location.is_some();
    *request.method_mut() = if is_handle { Method::GET } else { Method::POST };
    let path = location.unwrap_or_else(|| asked.mode.path().to_owned());
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    let headers = request.headers_mut();
    headers.insert("content-length", length.into());
    let mut insert = |name: &'static str, value: String| {
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    };
    insert("idempotency-key", asked.key.clone());
    insert(TENANT, asked.tenant.to_string());
    insert(PAYLOAD, asked.payload.to_string());
    insert(ARRIVED_AT, arrived_at.to_string());
    if let Some(seconds) = asked.wait_seconds {
        insert("prefer", format!("wait={seconds}"));
    }
    request
}

async fn serve(node: usize, mut front: Front, request: Request<Body>) -> Option<ReceivedResponse> {
    let response: Response<ResponseBody<Body>> = front.call(request).await.ok()?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    let header = |name: &http::HeaderName| {
        parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let problem: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let word = |name: &str| Some(problem.as_ref()?.get(name)?.as_str()?.to_owned());
    let (code, is_running) = (word("code"), word("status").is_some_and(|it| it == "running"));
    Some(ReceivedResponse {
        node,
        status: parts.status.as_u16(),
        code,
        is_running,
        reference: header(&IDEMPOTENCY_REFERENCE),
        location: header(&LOCATION),
        is_replay: parts.headers.contains_key("idempotent-replayed"),
        body,
    })
}

/// A future that is dropped after a number of polls: a connection can be cut at every await.
pub struct CutAfter {
    serving: Option<Pin<Box<dyn Future<Output = Option<ReceivedResponse>> + Send>>>,
    polls: Option<u32>,
}

impl CutAfter {
    fn new(
        serving: impl Future<Output = Option<ReceivedResponse>> + Send + 'static,
        polls: Option<u32>,
    ) -> Self {
        Self { serving: Some(Box::pin(serving)), polls }
    }
}

impl Future for CutAfter {
    type Output = Option<ReceivedResponse>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReceivedResponse>> {
        if let Some(polls) = &mut self.polls {
            let Some(left) = polls.checked_sub(1) else {
                self.serving = None;
                return Poll::Ready(None);
            };
            *polls = left;
        }
        match &mut self.serving {
            Some(serving) => serving.as_mut().poll(context),
            None => Poll::Ready(None),
        }
    }
}
