//! The service between the gateway and the network. It passes the derived key on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::Client;
use onetake_sim::servers::until;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Dice;

/// A merchant's service, which is killed and restarted on the same port.
pub(crate) struct Merchant {
    pub(crate) address: SocketAddr,
    router: Router,
    life: Mutex<Life>,
}

/// One run of the service, until it is killed.
struct Life {
    over: CancellationToken,
    serving: JoinHandle<()>,
}

struct Inside {
    network: Client,
    dice: Mutex<Dice>,
}

impl Merchant {
    pub(crate) async fn start(network: SocketAddr) -> Self {
        let inside = Inside { network: Client::new(network), dice: Mutex::new(Dice::new(7)) };
        let router = Router::new().route("/pay", post(pay)).with_state(Arc::new(inside));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let life = Mutex::new(Life::start(listener, router.clone()));
        Self { address, router, life }
    }

    /// Ends the service in the middle of its work.
    pub(crate) fn kill(&self) {
        self.life.lock().unwrap().over.cancel();
    }

    pub(crate) async fn restart(&self) {
        let is_over = || self.life.lock().unwrap().serving.is_finished();
        until("nobody listens any more", async || is_over()).await;
        let listener = TcpListener::bind(self.address).await.unwrap();
        *self.life.lock().unwrap() = Life::start(listener, self.router.clone());
    }
}

impl Life {
    fn start(listener: TcpListener, router: Router) -> Self {
        let over = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, router, over.clone()));
        Self { over, serving }
    }
}

async fn serve(listener: TcpListener, router: Router, life: CancellationToken) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            () = life.cancelled() => return,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        let life = life.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ended = connection => {}
                () = life.cancelled() => {}
            }
        });
    }
}

async fn pay(State(inside): State<Arc<Inside>>, headers: HeaderMap, number: String) -> Response {
    let (before, after) = {
        let mut dice = inside.dice.lock().unwrap();
        (dice.millis(5, 60), dice.millis(5, 60))
    };
    let derived = headers.get("idempotency-derived-key").unwrap().to_str().unwrap();
    SystemClock.sleep(before).await;
    let charge = inside.network.post("/charge").header("idempotency-key", derived).body(number);
    let charged = charge.send().await.unwrap();
    SystemClock.sleep(after).await;
    (StatusCode::CREATED, charged.body).into_response()
}
