//! A saga: a trip is a flight and a hotel, booked with two other services. If the hotel is full,
//! the flight is cancelled. It is cancelled once, even if the trip is retried and attempts die at
//! any point.
//!
//! `cargo run -p onetake --example saga --features axum`, then twice `curl -i localhost:3000/trips
//! -X POST -H 'Idempotency-Key: 5e8c4f0b-7a21-4d3c-b6f8-2a7e9d4c1e03'`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use onetake::engine::DerivedKey;
use onetake::prelude::*;
use tower::ServiceExt;

/// The calls that the services received, and the paths whose next response is lost.
#[derive(Clone, Default)]
pub(crate) struct World {
    pub(crate) flights_booked: Arc<AtomicU32>,
    pub(crate) flights_cancelled: Arc<AtomicU32>,
    pub(crate) hotels_asked: Arc<AtomicU32>,
    pub(crate) lost: Arc<Mutex<Vec<&'static str>>>,
    services: Router,
}

impl World {
    /// Creates the services, each behind its own layer. They deduplicate by the key of a call.
    pub(crate) fn new(engine: &Engine) -> Result<Self, PolicyError> {
        let layer = |name: &str| {
            OnetakeLayer::new(engine.clone(), Policy::new().key_required().namespace(name))
        };
        let count = |State(counter): State<Arc<AtomicU32>>| async move {
            counter.fetch_add(1, Ordering::SeqCst);
            "done"
        };
        let is_full = |State(counter): State<Arc<AtomicU32>>| async move {
            counter.fetch_add(1, Ordering::SeqCst);
            (StatusCode::UNPROCESSABLE_ENTITY, "no room")
        };
        let mut world = Self::default();
        world.services = Router::new()
            .route("/flights", post(count).with_state(Arc::clone(&world.flights_booked)))
            .route("/cancelled", post(count).with_state(Arc::clone(&world.flights_cancelled)))
            .layer(layer("flights")?)
            .route(
                "/hotels",
                post(is_full).with_state(Arc::clone(&world.hotels_asked)).layer(layer("hotels")?),
            );
        Ok(world)
    }

    /// Calls a service. The service answers a known key with the recorded response.
    async fn call(&self, path: &str, key: DerivedKey) -> Result<StatusCode, Crashed> {
        let request = Request::post(path).header("idempotency-key", key.to_string());
        let request = request.body(Body::empty()).map_err(|_| Crashed)?;
        let answer = self.services.clone().oneshot(request).await.map_err(|_| Crashed)?;
        // The service has done its work. This call may still lose the response.
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match lost.iter().position(|name| *name == path) {
            Some(at) => {
                lost.remove(at);
                Err(Crashed)
            }
            None => Ok(answer.status()),
        }
    }
}

/// The attempt died, and its effects are unknown. The next attempt makes the same calls with the
/// same keys.
pub(crate) struct Crashed;

impl axum::response::IntoResponse for Crashed {
    fn into_response(self) -> axum::response::Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

async fn book(
    State(world): State<World>,
    DownstreamKey(key): DownstreamKey,
) -> Result<(StatusCode, &'static str), Crashed> {
    let flight = key.step("book-flight");
    done(world.call("/flights", flight).await?)?;
    // Only a 422 of the hotel cancels the flight. A busy or unreachable hotel has not said that it
    // is full.
    let hotel = world.call("/hotels", key.step("book-hotel")).await?;
    if hotel != StatusCode::UNPROCESSABLE_ENTITY {
        done(hotel)?;
        return Ok((StatusCode::CREATED, "have a good trip\n"));
    }
    done(world.call("/cancelled", flight.compensation()).await?)?;
    Ok((StatusCode::UNPROCESSABLE_ENTITY, "no room; the flight was cancelled\n"))
}

/// Requires success. Otherwise the next attempt makes the same call again, with the same key.
fn done(answer: StatusCode) -> Result<(), Crashed> {
    if answer.is_success() { Ok(()) } else { Err(Crashed) }
}

pub(crate) fn app(engine: Engine, world: World) -> Result<Router, PolicyError> {
    // A second run is safe, because the calls are deduplicated. No outcome has to stay unknown.
    let policy = Policy::new().key_required().namespace("trips").on_unknown(OnUnknown::Retry);
    let layer = OnetakeLayer::new(engine, policy)?;
    Ok(Router::new().route("/trips", post(book)).with_state(world).layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(Arc::new(EmbeddedStore::open("./onetake-data/saga")?));
    let world = World::new(&engine)?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app(engine, world)?).await?;
    Ok(())
}
