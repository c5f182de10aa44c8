//! Tests of delivery to endpoints that misbehave.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use onetake_core::{Clock, SystemClock};
use onetake_relay::{RelayOptions, WebhookOptions, WebhookSecret, WebhookSink};
use onetake_sim::servers::until;
use tokio::net::{TcpListener, TcpSocket};

use super::{World, hurried, parse};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const HANGING: u32 = 1;
const REDIRECTING: u32 = 2;
const LONG_WINDED: u32 = 3;
const BROKEN: u32 = 4;
const GONE: u32 = 5;
const SULKING: u32 = 6;
const ENDLESS: u32 = 7;
const HOPELESS: u32 = 100;

/// The timeout for endpoints that answer, also on a slow machine.
const PATIENT: Duration = Duration::from_secs(20);

/// The body of an endpoint's answer: some bytes, and then perhaps no end.
struct Said {
    text: Option<Bytes>,
    ends: bool,
}

impl Default for Said {
    fn default() -> Self {
        Self { text: None, ends: true }
    }
}

impl Said {
    fn text(text: impl Into<Bytes>) -> Self {
        Self { text: Some(text.into()), ends: true }
    }

    fn and_on(self) -> Self {
        Self { ends: false, ..self }
    }
}

impl hyper::body::Body for Said {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        match (self.text.take(), self.ends) {
            (Some(text), _) => std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(text)))),
            (None, true) => std::task::Poll::Ready(None),
            (None, false) => std::task::Poll::Pending,
        }
    }
}

/// The received calls by key: the ids of the calls and the accepted numbers.
#[derive(Default)]
struct Endpoint {
    calls: Mutex<HashMap<u32, Vec<String>>>,
    accepted: Mutex<HashMap<u32, Vec<u32>>>,
    elsewhere: Mutex<usize>,
}

impl Endpoint {
    async fn start(self: &Arc<Self>) -> http::Uri {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let endpoint = Arc::clone(&endpoint);
                let service = service_fn(move |request| {
                    let endpoint = Arc::clone(&endpoint);
                    async move { Ok::<_, hyper::Error>(endpoint.answer(request).await) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        format!("http://{address}/hook").parse().unwrap()
    }

    /// The first few messages of the odd keys are treated as their names say.
    async fn answer(&self, request: Request<Incoming>) -> Response<Said> {
        if request.uri().path() != "/hook" {
            *self.elsewhere.lock().unwrap() += 1;
            return Response::new(Said::default());
        }
        let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(request.method(), "POST");
        let (id, at, signature) =
            (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
        assert!(id.parse::<onetake_core::MessageId>().is_ok(), "{id}");
        let now = SystemClock.now().as_micros() / 1_000_000;
        assert!(now.abs_diff(at.parse().unwrap()) < 60);
        assert!(signature.starts_with("v1,") && signature.len() == 47, "{signature}");
        assert_eq!(header("onetake-topic"), "paid");
        assert_eq!(header("content-type"), "application/json");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let (key, number) = parse(&body);
        let tries = {
            let mut calls = self.calls.lock().unwrap();
            let calls = calls.entry(key).or_default();
            calls.push(id);
            calls.len()
        };
        let answer = |status: u16| Response::builder().status(status);
        if key == HOPELESS {
            return answer(500).body(Said::text("no \u{1b}[31m luck")).unwrap();
        }
        if tries <= 3 && number == 0 {
            let misbehaved = match key {
                HANGING => std::future::pending().await,
                REDIRECTING => answer(307).header("location", "/elsewhere").body(Said::default()),
                LONG_WINDED => answer(500).body(Said::text(vec![b'x'; 10 << 20])),
                BROKEN => answer(500).body(Said::text("no luck")),
                GONE => answer(410).body(Said::default()),
                SULKING => answer(429).header("retry-after", "86400").body(Said::default()),
                _ => Ok(self.accept(key, number)),
            };
            return misbehaved.unwrap();
        }
        self.accept(key, number)
    }

    fn accept(&self, key: u32, number: u32) -> Response<Said> {
        self.accepted.lock().unwrap().entry(key).or_default().push(number);
        // One successful answer is very long.
        let said = Said::text(vec![b'x'; if number == 1 { 10 << 20 } else { 0 }]);
        // And one never ends.
        Response::new(if key == ENDLESS { said.and_on() } else { said })
    }

    fn sink(&self, url: http::Uri, answer_timeout: Duration) -> Arc<WebhookSink> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let options = WebhookOptions { answer_timeout, at_once: 16 };
        let secrets = vec![SECRET.parse::<WebhookSecret>().unwrap()];
        Arc::new(WebhookSink::new(url, secrets, Arc::new(client), Arc::new(SystemClock), options))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_misbehaviour_is_its_own_and_the_others_go_on() {
    let (world, endpoint) = (World::start().await, Arc::new(Endpoint::default()));
    let url = endpoint.start().await;
    world.write("paid", 0..20, 0..3, 0);
    // An endpoint that hangs does so for three times as long.
    let relay = world.relay(endpoint.sink(url, Duration::from_secs(2)), hurried());
    let good = "SELECT count(*) FROM onetake_outbox WHERE state = 1 AND ordering NOT IN
        ('key 1', 'key 2', 'key 3', 'key 4', 'key 5', 'key 6')";
    until("the others are delivered", async || world.sql(good) == "42").await;
    world.drained().await;
    relay.stop().await;
    let parked = world.parked().await;
    assert_eq!(parked.len(), 1, "{parked:?}");
    assert_eq!(parse(&parked[0].waiting.message.payload), (GONE, 0));
    assert_eq!(parked[0].error, "the endpoint no longer exists (410 Gone)");
    // After an answer that came too late, the endpoint is called once more with the same id.
    let mut accepted = endpoint.accepted.lock().unwrap();
    for key in 0..20 {
        let expected: &[u32] = if key == GONE { &[1, 2] } else { &[0, 1, 2] };
        let accepted = accepted.get_mut(&key).unwrap();
        accepted.dedup();
        assert_eq!(accepted, expected, "key {key}: in order");
    }
    let mut calls = endpoint.calls.lock().unwrap();
    for key in [HANGING, REDIRECTING, LONG_WINDED, BROKEN, SULKING] {
        let calls = calls.get_mut(&key).unwrap();
        assert!(calls.len() >= 6, "key {key}: three failures and three deliveries");
        assert!(calls[..4].iter().all(|id| *id == calls[0]), "the same id every time");
        calls.dedup();
        assert_eq!(calls.len(), 3, "key {key}: an id for each message");
    }
    assert_eq!(*endpoint.elsewhere.lock().unwrap(), 0, "no redirect is followed");
}

/// No endpoint listens at the address: no message is at fault, and no try is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_cannot_be_reached_is_waited_for() {
    let (world, endpoint) = (World::start().await, Arc::new(Endpoint::default()));
    // The port is bound and does not listen, so that no other program can use it.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let url = format!("http://{}/hook", nobody.local_addr().unwrap()).parse().unwrap();
    world.write("paid", 10..20, 0..3, 0);
    let options = RelayOptions { tries_max: Some(1), ..hurried() };
    let relay = world.relay(endpoint.sink(url, PATIENT), options.clone());
    world.tried_meanwhile().await;
    relay.stop().await;
    assert_eq!(
        world.sql("SELECT count(*) FROM onetake_outbox WHERE state = 0 AND tries = 0"),
        "30"
    );
    let relay = world.relay(endpoint.sink(endpoint.start().await, PATIENT), options);
    world.drained().await;
    relay.stop().await;
    assert!(world.parked().await.is_empty());
}

/// A failure is reported in plain text. With `tries_max` the message is parked, because the others
/// are delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_too_often_parks_only_where_that_is_asked_for() {
    let (world, endpoint) = (World::start().await, Arc::new(Endpoint::default()));
    let url = endpoint.start().await;
    world.write("paid", HOPELESS..HOPELESS + 1, 0..1, 0);
    world.write("paid", 10..60, 0..3, 0);
    let relay = world.relay(
        endpoint.sink(url, PATIENT),
        RelayOptions { tries_max: Some(2), batch_items: 10, ..hurried() },
    );
    let mut number = 3;
    until("it is parked", async || {
        // Other messages have to be delivered between its tries.
        world.write("paid", 10..11, number..number + 1, 0);
        number += 1;
        !world.parked().await.is_empty()
    })
    .await;
    world.drained().await;
    relay.stop().await;
    let parked = world.parked().await;
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0].error, "the endpoint answered (500): no  [31m luck");
    // At its second try, unless no other message was delivered since the one before.
    assert!((2..number).contains(&parked[0].waiting.tries), "{}", parked[0].waiting.tries);
}
