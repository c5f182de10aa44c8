//! The examples, run as users run them.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onetake::prelude::{EmbeddedStore, Engine, PolicyError};
use onetake_sim::client::{Client, ClientResponse};
use tempfile::TempDir;

#[path = "../../examples/axum.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "its `main` is not called here")]
mod axum_example;
#[path = "../../examples/payments.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "its `main` is not called here")]
mod payments_example;
#[path = "../../examples/saga.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "its `main` is not called here")]
mod saga_example;

/// A running example, which ends with its test.
struct Example {
    client: Client,
    _folder: TempDir,
}

impl Example {
    async fn start(app: impl FnOnce(Engine) -> Result<axum::Router, PolicyError>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path().join("data")).unwrap();
        let app = app(Engine::new(Arc::new(store))).unwrap();
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await;
        let listener = listener.unwrap();
        let client = Client::new(listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { client, _folder: folder }
    }

    async fn post(&self, path: &str, key: &str, body: &'static str) -> ClientResponse {
        let call = self.client.post(path).key(key).header("content-type", "application/json");
        call.body(body).send().await.unwrap()
    }
}

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

#[tokio::test]
async fn the_smallest_api() {
    let example = Example::start(axum_example::app).await;
    let first = example.post("/charges", KEY, "10").await;
    assert_eq!((first.status(), first.text().as_str()), (200, "charge 1 of 10\n"));
    let again = example.post("/charges", KEY, "10").await;
    assert!(again.is_replay() && again.body == first.body);
    let other = example.post("/charges", KEY, "11").await;
    assert_eq!(other.code(), "idempotency_payload_mismatch");
    let next = example.post("/charges", "6f1c8d6a-3a09-4b6e-9c8f-000000000002", "10").await;
    assert_eq!(next.text(), "charge 2 of 10\n");
}

#[tokio::test]
async fn the_api_that_charges_cards() {
    let example = Example::start(payments_example::app).await;
    let first = example.post("/charges", KEY, r#"{"cents": 1999}"#).await;
    assert_eq!((first.status(), &*first.text()), (201, r#"{"charge":1,"cents":1999}"#));
    let again = example.post("/charges", KEY, r#"{ "cents" : 1999.0 }"#).await;
    assert!(again.is_replay() && again.body == first.body, "the same payload, in other words");
    let other = example.post("/charges", KEY, r#"{"cents": 1}"#).await;
    assert_eq!(other.code(), "idempotency_payload_mismatch");
    let unkeyed = example.client.post("/charges").body("{}").send().await.unwrap();
    assert_eq!(unkeyed.code(), "idempotency_key_missing");
    let nobody = example.client.post("/charges").without("authorization").key(KEY);
    assert_eq!(nobody.send().await.unwrap().status(), 401, "payments have a tenant");
    assert_eq!(example.post("/signups", KEY, "").await.text(), "welcome, once\n");
    assert!(example.post("/signups", KEY, "").await.is_replay());
    let unkeyed = example.client.post("/signups").send().await.unwrap();
    assert_eq!(unkeyed.text(), "welcome\n");
}

#[tokio::test]
async fn the_trip_that_is_compensated_once() {
    let steps = ["/flights", "/hotels", "/cancelled"];
    for subset in 0..8_usize {
        let lost: Vec<_> = (0..3)
            .filter(|at| subset >> at & 1 == 1)
            .filter_map(|at| steps.get(at).copied())
            .collect();
        let crashes = lost.len();
        let seen = Arc::new(std::sync::OnceLock::new());
        let keep = Arc::clone(&seen);
        let example = Example::start(move |engine| {
            let world = saga_example::World::new(&engine)?;
            world.lost.lock().unwrap().clone_from(&lost);
            let _first = keep.set(world.clone());
            saga_example::app(engine, world)
        })
        .await;
        for _ in 0..crashes {
            assert_eq!(example.post("/trips", KEY, "").await.status(), 500);
        }
        let outcome = example.post("/trips", KEY, "").await;
        assert_eq!((outcome.status(), outcome.is_replay()), (422, false), "{subset:b} lost");
        let again = example.post("/trips", KEY, "").await;
        assert!(again.is_replay() && again.body == outcome.body);
        let world = seen.get().unwrap();
        for (what, count) in [
            ("flights booked", &world.flights_booked),
            ("hotels asked", &world.hotels_asked),
            ("flights cancelled", &world.flights_cancelled),
        ] {
            assert_eq!(count.load(Ordering::SeqCst), 1, "{what}, {subset:b} lost");
        }
    }
}
