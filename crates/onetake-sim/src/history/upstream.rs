//! An upstream that chooses outcomes by a seed and records its runs.
//!
//! The first segment of a path names the policy of its route (`fail`, `retry`, `reconcile`). A run
//! continues if the gateway that sent it is gone. `GET /by-key/KEY` answers reconcilers.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use onetake_core::{Clock, SystemClock};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{Chosen, Event, Key, Policy, Recorder, UpstreamAnswer};

/// The header that names the client's request.
pub const REQUEST: &str = "x-request";
/// The header that names the run.
pub const RUN: &str = "x-run";

/// Reproducible numbers from a seed and a counter.
#[must_use]
pub fn mix(seed: u64, number: u64) -> u64 {
    // SplitMix64: neighbouring numbers give unrelated results.
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Key {
    /// Returns the key as clients send it.
    #[must_use]
    pub fn text(self) -> String {
        format!("history-{}-{:08}", self.policy.word(), self.number)
    }

    /// Reads a key that [`text`](Self::text) wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (policy, number) = text.strip_prefix("history-")?.rsplit_once('-')?;
        Some(Self { number: number.parse().ok()?, policy: Policy::parse(policy)? })
    }
}

impl Policy {
    /// Returns the policy as configurations write it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Retry => "retry",
            Self::Reconcile => "reconcile",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::Fail, Self::Retry, Self::Reconcile].into_iter().find(|policy| policy.word() == word)
    }
}

/// A running upstream. It stops accepting when it is dropped.
#[derive(Debug)]
pub struct RecordedUpstream {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// The upstream's memory of a key, for reconcilers.
#[derive(Debug, Default)]
struct KnownKey {
    running: usize,
    effect: Option<UpstreamAnswer>,
}

#[derive(Debug)]
struct RecordedState {
    recorder: Arc<Recorder>,
    seed: u64,
    runs: AtomicU64,
    known: Mutex<HashMap<Key, KnownKey>>,
}

/// The plan of a run.
struct RunPlan {
    delay: Duration,
    chosen: Chosen,
    effect: bool,
    closes: bool,
}

impl RecordedUpstream {
    /// Starts an upstream on a free port, which records into `recorder`.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(recorder: Arc<Recorder>, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (runs, known) = (AtomicU64::new(1), Mutex::default());
        let state = Arc::new(RecordedState { recorder, seed, runs, known });
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&state)));
            }
        });
        Ok(Self { address, accepting })
    }

    /// Returns the address as `http://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for RecordedUpstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The error that closes a connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
struct Closed;

async fn serve(stream: TcpStream, state: Arc<RecordedState>) {
    let _best_effort = stream.set_nodelay(true);
    let service = service_fn(move |request| act(request, Arc::clone(&state)));
    let builder = hyper::server::conn::http1::Builder::new();
    let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn act(
    request: Request<Incoming>,
    state: Arc<RecordedState>,
) -> Result<Response<Full<Bytes>>, Closed> {
    if let Some(key) = request.uri().path().strip_prefix("/by-key/") {
        return Key::parse(key).map(|key| state.reconcile(key)).ok_or(Closed);
    }
    let header = |name: &str| {
        let value = request.headers().get(name)?.to_str().ok()?;
        Some(value.trim_matches('"').to_owned())
    };
    let number = |name: &str| header(name)?.parse::<u64>().ok();
    let key = header("idempotency-key").and_then(|key| Key::parse(&key)).ok_or(Closed)?;
    let sender = number(REQUEST).ok_or(Closed)?;
    let fence = number("idempotency-fence").unwrap_or_default();
    let body = request.into_body().collect().await.map_err(|_| Closed)?.to_bytes();
    let payload = body.first().copied().unwrap_or_default();
    let run = state.runs.fetch_add(1, Ordering::Relaxed);
    state.start(key);
    state.recorder.record(Event::Started { run, request: sender, key, payload, fence });
    // The operation runs in its own task, so that it does not end with the connection.
    let ran = tokio::spawn(async move {
        let plan = plan(mix(state.seed, run), run, key);
        SystemClock.sleep(plan.delay).await;
        let RunPlan { chosen, effect, closes, .. } = plan;
        state.finish(key, run, &chosen, effect);
        state.recorder.record(Event::Finished { run, chosen: chosen.clone(), effect });
        if closes { Err(Closed) } else { Ok(response(run, &chosen)) }
    });
    ran.await.map_err(|_| Closed)?
}

/// Chooses the plan of a run: most are recorded, some say "not handled", some leave the outcome
/// unknown.
fn plan(dice: u64, run: u64, key: Key) -> RunPlan {
    let (kind, pace, size) = (dice % 100, (dice >> 8) % 100, (dice >> 16) % 100);
    let millis = match pace {
        0..60 => (dice >> 24) % 5,
        60..85 => 5 + (dice >> 24) % 40,
        _ => 50 + (dice >> 24) % 350,
    };
    let (effect, padding) = ((dice >> 40).is_multiple_of(2), if size < 3 { 70_000 } else { 0 });
    let body = format!("run {run} of {}{}", key.text(), " ".repeat(padding));
    let (chosen, effect, closes) = match kind {
        0..64 => (Chosen::Record { status: 201, body: body.into() }, true, false),
        64..72 => (Chosen::Record { status: 402, body: body.into() }, true, false),
        72..84 => (Chosen::Release, false, false),
        84..92 => (Chosen::Unknown, effect, false),
        _ => (Chosen::Unknown, effect, true),
    };
    RunPlan { delay: Duration::from_millis(millis), chosen, effect, closes }
}

fn response(run: u64, chosen: &Chosen) -> Response<Full<Bytes>> {
    let (status, body) = match chosen {
        Chosen::Record { status, body } => (*status, body.clone()),
        Chosen::Release => (503, Bytes::from_static(b"not handled")),
        Chosen::Unknown => (500, Bytes::from_static(b"something broke")),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    response.headers_mut().insert(RUN, run.into());
    response
}

impl RecordedState {
    fn start(&self, key: Key) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(key).or_default().running += 1;
    }

    fn finish(&self, key: Key, run: u64, chosen: &Chosen, effect: bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry(key).or_default();
        known.running = known.running.saturating_sub(1);
        if effect && known.effect.is_none() {
            let (status, body) = match chosen {
                Chosen::Record { status, body } => (*status, body.clone()),
                _ => (201, format!("run {run} of {}", key.text()).into()),
            };
            known.effect = Some(UpstreamAnswer { run, status, body });
        }
    }

    /// Answers a reconciler: the outcome, "not executed", or "ask again" while the operation runs.
    fn reconcile(&self, key: Key) -> Response<Full<Bytes>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry(key).or_default();
        let found = known.effect.clone();
        let (mut answer, word) = match &found {
            _ if known.running > 0 => (Response::new(Full::default()), "unknown"),
            None => (Response::new(Full::default()), "release"),
            Some(UpstreamAnswer { run, status, body }) => {
                let chosen = Chosen::Record { status: *status, body: body.clone() };
                (response(*run, &chosen), "record")
            }
        };
        answer.headers_mut().insert("onetake-outcome", http::HeaderValue::from_static(word));
        if word != "unknown" {
            self.recorder.record(Event::Reconciled { key, found });
        }
        answer
    }
}
