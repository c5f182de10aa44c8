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
use crate::config::Config;

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

/// Tells the limits that are in force: every option of `[limits]`, and the limits of `[gateway]`.
pub(super) fn tell_limits(config: &Config, of: Descriptors, streams_max: usize) {
    describe_gauge!(
        "onetake_limit",
        "The limits in force, by the name of the option; sizes in bytes, times in seconds."
    );
    let (limits, gateway) = (&config.limits, &config.gateway);
    for (name, limit) in [
        ("max_connections", of.connections_max),
        ("max_streams", streams_max),
        ("max_headers", limits.max_headers),
        ("max_header_bytes", limits.max_header_bytes),
        ("max_requests", limits.max_requests),
        ("max_requests_per_connection", limits.max_requests_per_connection),
        ("max_requests_per_upstream", limits.max_requests_per_upstream),
        // Not an option: it follows from the open files of the process.
        ("max_upstream_sockets", of.upstream_requests_max),
        ("max_operations", limits.max_operations),
        ("max_queued_requests", limits.max_queued_requests),
        ("max_body_memory", limits.max_body_memory),
        ("max_response_memory", limits.max_response_memory),
        ("min_body_rate", limits.min_body_rate),
        ("max_store_memory", limits.max_store_memory),
    ] {
        gauge!("onetake_limit", "limit" => name).set(limit as f64);
    }
    for (name, limit) in [
        ("header_timeout", limits.header_timeout),
        ("send_timeout", limits.send_timeout),
        ("queue_timeout", limits.queue_timeout),
        ("keep_alive", gateway.keep_alive),
        ("upstream_keep_alive", gateway.upstream_keep_alive),
    ] {
        gauge!("onetake_limit", "limit" => name).set(limit.as_secs_f64());
    }
}

impl Gauges {
    /// Watches these.
    pub(super) fn watch(
        &self,
        limits: &ServerLimits,
        of: Descriptors,
        (layer, responses): (OnetakeLayer, Arc<ResponseMemory>),
        census: Arc<Census>,
    ) {
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
