//! gRPC-Web and Connect: ordinary HTTP. The status of a gRPC-Web call is in its body.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use onetake_sim::blackbox::Target;
use onetake_sim::client::{Call, Client};
use onetake_sim::grpc::{framed, framed_as};

use crate::common::InProcess;

const CHARGE: &str = "/billing.v1.Payments/Charge";

/// Answers in the form of the call, with the status that the call asks for.
async fn charge(State(runs): State<Arc<AtomicUsize>>, headers: HeaderMap) -> Response {
    runs.fetch_add(1, Ordering::AcqRel);
    let form = headers["content-type"].clone();
    let status = headers["x-status"].to_str().unwrap().to_owned();
    if form.to_str().unwrap().starts_with("application/grpc-web") {
        let trailers = format!("grpc-status:{status}\r\ngrpc-message:as asked\r\n");
        let body = [framed(b"charged"), framed_as(0x80, trailers.as_bytes())].concat();
        return ([("content-type", form)], body).into_response();
    }
    let status = axum::http::StatusCode::from_bytes(status.as_bytes()).unwrap();
    (status, [("content-type", form)], "{\"charged\":true}").into_response()
}

struct World {
    _gateway: InProcess,
    client: Client,
    runs: Arc<AtomicUsize>,
}

impl World {
    async fn start() -> Self {
        let runs = Arc::<AtomicUsize>::default();
        let router = Router::new().route(CHARGE, post(charge)).with_state(Arc::clone(&runs));
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = listener.await.unwrap();
        let upstream = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let gateway = InProcess::start(format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{upstream}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n[[route]]\nmatch = \"grpc billing.v1.Payments/Charge\"\nkey = {{ required = true }}\n"
        ))
        .await;
        Self { client: Client::new(gateway.address()), _gateway: gateway, runs }
    }

    fn call(&self, form: &str, key: &str, status: &str) -> Call {
        let call = self.client.post(CHARGE).key(key).header("content-type", form);
        call.header("x-status", status).body(framed(b"10"))
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Acquire)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_web_is_settled_by_the_status_in_its_body() {
    let form = "application/grpc-web+proto";
    let world = World::start().await;
    let send = |key: &'static str, status: &'static str| world.call(form, key, status).send();
    let first = send("grpc-web-that-succeeds", "0").await.unwrap();
    let again = send("grpc-web-that-succeeds", "0").await.unwrap();
    assert!(again.is_replay() && again.body == first.body && again.header("content-type") == form);
    assert_eq!(world.runs(), 1);
    // UNAVAILABLE is HTTP 200 here, and yet the retry runs.
    send("grpc-web-that-is-busy-1", "14").await.unwrap();
    assert!(!send("grpc-web-that-is-busy-1", "14").await.unwrap().is_replay());
    assert_eq!(world.runs(), 3);
    // A client of gRPC-Web reads the HTTP status of a problem.
    let missing = world.call(form, "none", "0").without("idempotency-key").send().await.unwrap();
    assert_eq!((missing.status(), missing.code().as_str()), (400, "idempotency_key_missing"));
    assert_eq!(world.runs(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_is_settled_by_its_http_status() {
    for form in ["application/json", "application/proto"] {
        let world = World::start().await;
        let send = |key: &'static str, status: &'static str| world.call(form, key, status).send();
        let first = send("connect-that-succeeds", "200").await.unwrap();
        let again = send("connect-that-succeeds", "200").await.unwrap();
        assert!(again.is_replay() && again.body == first.body, "{form}");
        send("connect-that-is-unavailable", "503").await.unwrap();
        assert!(!send("connect-that-is-unavailable", "503").await.unwrap().is_replay());
        assert_eq!(world.runs(), 3, "{form}");
        let other = world.call(form, "connect-that-succeeds", "200").body("other");
        assert_eq!(other.send().await.unwrap().status(), 422, "{form}");
    }
}
