//! An HTTP/2 connection that keeps as many streams open as it may.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use onetake_core::{Clock, SystemClock};
use onetake_sim::servers::until;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The pause before a stream that was refused is opened again.
const PAUSE: Duration = Duration::from_millis(200);

/// The number of requests of a silent reader that run at once.
const AT_ONCE: usize = 8;

/// The requests of an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attack {
    /// Requests without a key, which the upstream answers after a minute.
    HangingRequests,
    /// Keyed requests whose body never comes.
    MissingBodies,
    /// Requests without a key whose body never ends.
    EndlessBodies,
}

pub(super) struct Attacker {
    attack: Attack,
    connection: SendRequest<Bytes>,
    streams: FuturesUnordered<ResponseFuture>,
    /// Open as long as the body is to come.
    bodies: Vec<SendStream<Bytes>>,
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Attacker {
    /// Connects, and opens this number of streams.
    pub(super) async fn start(address: SocketAddr, attack: Attack, streams: usize) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (connection, driver) = client::handshake(stream).await.unwrap();
        tokio::spawn(async move { drop(driver.await) });
        let streams_open = FuturesUnordered::new();
        let mut attacker = Self { attack, connection, streams: streams_open, bodies: Vec::new() };
        for _ in 0..streams {
            attacker.open().await;
        }
        attacker
    }

    async fn open(&mut self) {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let request = match self.attack {
            Attack::HangingRequests => Request::get("http://a.test/any/slow?ms=60000"),
            Attack::MissingBodies => Request::post("http://a.test/any/charge")
                .header("authorization", format!("Bearer hostile-{number}"))
                .header("idempotency-key", format!("a-hostile-key-{number:08}")),
            Attack::EndlessBodies => Request::put("http://a.test/any/upload"),
        };
        let Ok(mut connection) = self.connection.clone().ready().await else { return };
        let ends = self.attack == Attack::HangingRequests;
        if let Ok((response, body)) = connection.send_request(request.body(()).unwrap(), ends) {
            self.streams.push(response);
            self.bodies.push(body);
        }
    }

    /// The status of the first answer.
    pub(super) async fn first_answer(&mut self) -> u16 {
        self.streams.next().await.unwrap().unwrap().status().as_u16()
    }

    /// Opens a stream again for each one that is answered, for ever.
    pub(super) async fn go_on(mut self) {
        while self.streams.next().await.is_some() {
            SystemClock.sleep(PAUSE / 16).await;
            // Streams that are over count on neither side.
            let is_over = |body: &mut SendStream<Bytes>| {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                body.poll_reset(&mut context).is_ready()
            };
            self.bodies.retain_mut(|body| !is_over(body));
            self.open().await;
        }
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        for body in &mut self.bodies {
            body.send_reset(Reason::CANCEL);
        }
    }
}

/// A key, and the response with its unread body.
type Answered = (String, Response<RecvStream>);

/// An HTTP/2 connection that sends keyed requests, and reads the heads of the responses alone.
pub(super) struct SilentReader {
    responses: Arc<Mutex<Vec<Answered>>>,
    _reading: JoinSet<()>,
}

impl SilentReader {
    /// Connects, and sends this number of requests, a few at a time: the responses of running
    /// operations have a bound of their own.
    pub(super) async fn start(address: SocketAddr, path: &str, requests: usize) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut builder = client::Builder::new();
        builder.initial_window_size(1);
        let (connection, driver) = builder.handshake::<_, Bytes>(stream).await.unwrap();
        let responses = Arc::new(Mutex::new(Vec::new()));
        let mut reading = JoinSet::new();
        reading.spawn(async move { drop(driver.await) });
        for sent in 0..requests {
            until("the requests before are answered", async || {
                responses.lock().unwrap().len() + AT_ONCE > sent
            })
            .await;
            let key = format!("a-silent-reader-{:08}", NUMBER.fetch_add(1, Ordering::Relaxed));
            let request = Request::post(format!("http://a.test{path}"))
                .header("authorization", "Bearer alice")
                .header("idempotency-key", &key)
                .header("x-case", &key);
            let mut ready = connection.clone().ready().await.unwrap();
            let (response, _) = ready.send_request(request.body(()).unwrap(), true).unwrap();
            let responses = Arc::clone(&responses);
            reading.spawn(async move {
                let response = response.await.unwrap();
                responses.lock().unwrap().push((key, response));
            });
        }
        Self { responses, _reading: reading }
    }

    /// The number of responses.
    pub(super) fn answered(&self) -> usize {
        self.responses.lock().unwrap().len()
    }

    /// The keys that were refused.
    pub(super) fn refused(&self) -> Vec<String> {
        let responses = self.responses.lock().unwrap();
        let refused = responses.iter().filter(|(_, response)| response.status() == 503);
        refused.map(|(key, _)| key.clone()).collect()
    }
}
