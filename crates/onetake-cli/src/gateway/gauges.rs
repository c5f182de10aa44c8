//! Gauges of connections, requests and memory. They are read when the metrics are, so that no
//! request pays for them.

use std::sync::{Arc, OnceLock};

use metrics::{Gauge, describe_gauge, gauge};
use onetake_http::OnetakeLayer;
use tokio::sync::Semaphore;

use super::descriptors::Descriptors;
use super::in_flight::Gates;
use super::response_memory::ResponseMemory;
use super::server::ServerLimits;
use super::upstream::Census;

/// The gauges. They are empty until the gateway listens.
#[derive(Debug, Default)]
pub(super) struct Gauges(OnceLock<Watched>);

#[derive(Debug)]
struct Watched {
    connections_max: usize,
    places: Arc<Semaphore>,
    gates: Arc<Gates>,
    layer: OnetakeLayer,
    census: Arc<Census>,
    connections: Gauge,
    in_flight: Gauge,
    queued: Gauge,
    responses: Arc<ResponseMemory>,
    body_bytes: Gauge,
    response_bytes: Gauge,
}

impl Gauges {
    /// Watches these, and tells the limits that are in force.
    pub(super) fn watch(
        &self,
        limits: &ServerLimits,
        of: Descriptors,
        (layer, responses): (OnetakeLayer, Arc<ResponseMemory>),
        census: Arc<Census>,
    ) {
        let configured = &limits.configured;
        describe_gauge!("onetake_limit", "The limits in force, by the name of the option.");
        for (name, limit) in [
            ("max_connections", of.connections_max),
            ("max_requests", configured.max_requests),
            ("max_requests_per_connection", configured.max_requests_per_connection),
            ("max_requests_per_upstream", configured.max_requests_per_upstream),
            ("max_upstream_sockets", of.upstream_requests_max),
            ("max_queued_requests", configured.max_queued_requests),
            ("max_body_memory", configured.max_body_memory),
            ("max_response_memory", configured.max_response_memory),
        ] {
            gauge!("onetake_limit", "limit" => name).set(limit as f64);
        }
        let made = |name: &'static str, about: &'static str| {
            describe_gauge!(name, about);
            gauge!(name)
        };
        let watched = Watched {
            connections_max: of.connections_max,
            places: Arc::clone(&limits.places),
            gates: Arc::clone(&limits.gates),
            layer,
            responses,
            census,
            connections: made("onetake_connections", "Client connections."),
            in_flight: made("onetake_requests_in_flight", "Requests in flight."),
            queued: made("onetake_requests_queued", "Requests that wait for a limit."),
            body_bytes: made("onetake_body_memory_bytes", "Memory of keyed requests."),
            response_bytes: made(
                "onetake_response_memory_bytes",
                "Memory of responses to keyed requests that clients have not read.",
            ),
        };
        let _once = self.0.set(watched);
    }

    /// Sets the gauges to the values of now.
    pub(super) fn update(&self) {
        let Some(watched) = self.0.get() else { return };
        let free = watched.places.available_permits();
        watched.connections.set(watched.connections_max.saturating_sub(free) as f64);
        watched.in_flight.set(watched.gates.in_flight() as f64);
        watched.queued.set(watched.gates.queued() as f64);
        watched.body_bytes.set(watched.layer.body_bytes() as f64);
        watched.response_bytes.set(watched.responses.used() as f64);
        watched.census.update();
    }
}
