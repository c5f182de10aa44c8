//! The HTTP/2 connections to upstreams of all cores, for metrics.
//!
//! Connections are counted when the metrics are read, so that no request pays for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use http::Uri;
use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::http2::Load;

const CONNECTIONS: &str = "onetake_upstream_http2_connections";
const STREAMS: &str = "onetake_upstream_http2_streams";
const ALLOWED: &str = "onetake_upstream_http2_streams_allowed";
const REFUSED: &str = "onetake_upstream_http2_refused_total";

/// The connections of all cores, by their upstream.
#[derive(Debug, Default)]
pub(in super::super) struct Census(Mutex<BTreeMap<String, Vec<Weak<Load>>>>);

/// The reason why a connection, or the pool of them, did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The upstream said that it has not handled the request (REFUSED_STREAM or GOAWAY).
    Upstream,
    /// There are as many connections as may be, and each is full.
    Connections,
}

impl Refusal {
    fn as_str(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Connections => "connections",
        }
    }
}

impl Census {
    pub(in super::super) fn new() -> Arc<Self> {
        describe_gauge!(CONNECTIONS, "HTTP/2 connections to an upstream.");
        describe_gauge!(STREAMS, "Requests in progress on HTTP/2 connections to an upstream.");
        describe_gauge!(ALLOWED, "Requests that those connections can carry at once.");
        describe_counter!(REFUSED, "Requests that an HTTP/2 connection did not take.");
        Arc::default()
    }

    /// Adds a connection. It counts until it is closed.
    pub(super) fn add(&self, upstream: &Uri, load: &Arc<Load>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let loads = all.entry(name(upstream)).or_default();
        loads.retain(|load| load.strong_count() > 0);
        loads.push(Arc::downgrade(load));
    }

    /// Counts a request that was not taken.
    pub(super) fn refused(&self, upstream: &Uri, by: Refusal) {
        counter!(REFUSED, "upstream" => name(upstream), "reason" => by.as_str()).increment(1);
    }

    /// Sets the gauges to the values of now.
    pub(in super::super) fn update(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (upstream, loads) in &mut *all {
            let (mut streams, mut allowed) = (0, 0);
            loads.retain(|load| {
                let Some(load) = load.upgrade() else { return false };
                streams += load.streams();
                allowed += load.streams_max();
                true
            });
            let set = |name: &'static str, value: usize| {
                gauge!(name, "upstream" => upstream.clone()).set(value as f64);
            };
            set(CONNECTIONS, loads.len());
            set(STREAMS, streams);
            set(ALLOWED, allowed);
        }
    }
}

/// The host and the port of an upstream.
fn name(upstream: &Uri) -> String {
    upstream.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default()
}
