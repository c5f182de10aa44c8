//! The phone: sends each tap, and retries until the payment is confirmed.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio::sync::Semaphore;

use onetake_core::Clock;

use super::relay::DeadSpot;
use super::tap::{Press, Reception, Tap, Try};

/// The header that names the tenant; the gateway's configuration names the same one.
pub(super) const ACCOUNT: &str = "x-account";
/// Maximum number of concurrent requests. Each takes up to six file descriptors of this process,
/// and many systems allow 1024.
const REQUESTS_MAX: usize = 64;
/// How long the phone waits for a response, unless the plan says otherwise.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an idle connection is kept: a short time, as phones do.
const IDLE: Duration = Duration::from_secs(2);
/// Maximum size of a response body. A real one has a few lines.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// All phones of one side. They share their server and their dead spot.
#[derive(Debug)]
pub(super) struct Phone {
    server: SocketAddr,
    dead_spot: DeadSpot,
    clear: Client<HttpConnector, Full<Bytes>>,
    flaky: Client<HttpConnector, Full<Bytes>>,
    places: Semaphore,
    clock: Arc<dyn Clock>,
    receipts: Mutex<Vec<Receipt>>,
    counts: PhoneCounts,
}

/// The confirmed charges of one tap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) order: u64,
    pub(super) amount_cents: u64,
    /// The charges that responses named, without duplicates.
    pub(super) told: Vec<String>,
}

/// Counters of the phone so far.
#[derive(Debug, Default)]
pub(super) struct PhoneCounts {
    pub(super) requests: AtomicU64,
    /// Requests that never got a response.
    pub(super) unheard: AtomicU64,
    /// Responses that are not a charge.
    pub(super) refused: AtomicU64,
    /// Responses that the gateway marked as replays.
    pub(super) replayed: AtomicU64,
}

impl Phone {
    /// A phone that pays at `server`.
    pub(super) async fn new(server: SocketAddr, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Ok(Self {
            server,
            dead_spot: DeadSpot::start(server, Arc::clone(&clock)).await?,
            clear: client(REQUESTS_MAX),
            // Connections through the dead spot are cut after one request, so none can be reused.
            flaky: client(0),
            places: Semaphore::new(REQUESTS_MAX),
            clock,
            receipts: Mutex::default(),
            counts: PhoneCounts::default(),
        })
    }

    pub(super) fn counts(&self) -> &PhoneCounts {
        &self.counts
    }

    pub(super) fn receipts(&self) -> Vec<Receipt> {
        self.book().clone()
    }

    pub(super) fn taps(&self) -> u64 {
        u64::try_from(self.book().len()).unwrap_or(u64::MAX)
    }

    /// Numbers of the taps without any confirmed charge.
    pub(super) fn unfinished(&self) -> Vec<u64> {
        let book = self.book();
        let silent = book.iter().filter(|receipt| receipt.told.is_empty());
        silent.map(|receipt| receipt.order).collect()
    }

    /// Notes the tap before anything is sent. Taps arrive in the order of their numbers.
    pub(super) fn note(&self, tap: &Tap) {
        self.book().push(Receipt {
            order: tap.number,
            amount_cents: tap.amount_cents,
            told: Vec::new(),
        });
    }

    /// Pays over the network that was planned for this tap.
    pub(super) async fn pay(&self, tap: &Tap) {
        join_all(tap.presses.iter().map(|press| self.press(tap, press))).await;
    }

    async fn press(&self, tap: &Tap, press: &Press) {
        self.clock.sleep(press.after).await;
        for attempt in &press.tries {
            if self.attempt(tap, attempt).await {
                return;
            }
        }
    }

    /// Pays with clear reception, for a tap that all planned tries left without a charge.
    pub(super) async fn finish(&self, tap: &Tap, tries_max: u32) {
        let attempt = Try { reception: Reception::Clear, pause: Duration::from_millis(250) };
        for _ in 0..tries_max {
            if self.attempt(tap, &attempt).await {
                return;
            }
        }
    }

    /// Sends the request once. Returns true if the response names a charge.
    async fn attempt(&self, tap: &Tap, attempt: &Try) -> bool {
        let answer = self.send(tap, attempt.reception).await;
        if let Some(charge) = answer {
            self.told(tap, charge);
            return true;
        }
        self.clock.sleep(attempt.pause).await;
        false
    }

    async fn send(&self, tap: &Tap, reception: Reception) -> Option<String> {
        let _place = self.places.acquire().await.ok()?;
        let (client, address, patience) = match reception {
            Reception::Clear => (&self.clear, self.server, PATIENCE),
            Reception::HangUp(after) => (&self.clear, self.server, after),
            Reception::AnswerLost => (&self.flaky, self.dead_spot.address(), PATIENCE),
        };
        let request = request(tap, self.server, address)?;
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let exchange = async {
            let response = client.request(request).await.ok()?;
            read(response).await
        };
        // Dropping the exchange closes its connection, as a phone does that hangs up.
        let answer = tokio::select! {
            answer = exchange => answer,
            () = self.clock.sleep(patience) => None,
        };
        let Some(answer) = answer else {
            self.counts.unheard.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if answer.replayed {
            self.counts.replayed.fetch_add(1, Ordering::Relaxed);
        }
        if answer.charge.is_none() {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        answer.charge
    }

    fn told(&self, tap: &Tap, charge: String) {
        let mut book = self.book();
        let place = usize::try_from(tap.number).unwrap_or(usize::MAX);
        if let Some(receipt) = book.get_mut(place)
            && !receipt.told.contains(&charge)
        {
            receipt.told.push(charge);
        }
    }

    fn book(&self) -> MutexGuard<'_, Vec<Receipt>> {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client(idle_max: usize) -> Client<HttpConnector, Full<Bytes>> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(idle_max)
        .pool_timer(TokioTimer::new())
        .set_host(false)
        // Only the phone itself retries.
        .retry_canceled_requests(false)
        .build(connector)
}

/// The request, which is the same on every try, over either network.
fn request(tap: &Tap, server: SocketAddr, through: SocketAddr) -> Option<Request<Full<Bytes>>> {
    Request::post(format!("http://{through}/charges"))
        .header(HOST, server.to_string())
        .header(CONTENT_TYPE, "application/json")
        .header("idempotency-key", &tap.key)
        .header(ACCOUNT, &tap.account)
        .body(Full::new(tap.body()))
        .ok()
}

struct PhoneResponse {
    /// The charge that the response names, if it is a success.
    charge: Option<String>,
    replayed: bool,
}

/// Reads a response; `None` if it broke off.
async fn read(response: Response<Incoming>) -> Option<PhoneResponse> {
    let created = response.status() == StatusCode::CREATED;
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    let bytes = body.collect().await.ok()?.to_bytes();
    let value: Option<Value> = serde_json::from_slice(&bytes).ok();
    let id = value.as_ref().and_then(|value| value.get("id")?.as_str());
    let charge = id.filter(|_| created).map(str::to_owned);
    Some(PhoneResponse { charge, replayed })
}
