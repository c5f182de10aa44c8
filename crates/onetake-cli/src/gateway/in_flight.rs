//! Limits on the requests in flight: in all, per connection, and per upstream.
//!
//! A [`Gate`] is one limit. A request that passes it gets a permit, and holds it to the end of the
//! response. That takes two counters and no lock. If a gate is full, requests wait in its queue,
//! which is bounded in number and in time. Further requests are refused with 503.
//!
//! A gate is shared fairly by connections: the fewer permits are free, the fewer one connection may
//! hold ([`fair_share`]). A single connection gets about a third of a gate. If many connections
//! take as much as they can, one after the other, the last permits go to those that hold none. The
//! queue is shared in the same way.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use metrics::{Counter, counter};
use onetake_core::Clock;
use onetake_http::{Arrived, BodyShare, Code, Problem, fair_share};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::early_hints::EarlyHints;
use super::forwarding::Hop;
use super::response_memory::ResponseShare;

/// `Retry-After` of a refused request, in seconds.
const RETRY_AFTER_SECONDS: u64 = 1;

/// The gate of all requests.
pub(super) const REQUESTS: usize = 0;
/// The gate of all requests to upstreams. Each of them has a socket.
pub(super) const UPSTREAM_SOCKETS: usize = 1;

/// All gates: [`REQUESTS`], [`UPSTREAM_SOCKETS`], and one for each upstream.
#[derive(Debug)]
pub(super) struct Gates {
    gates: Vec<Gate>,
    queue_max: usize,
    queue_timeout: Duration,
    clock: Arc<dyn Clock>,
}

/// The numbers by which gates are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateLimits {
    pub(super) requests_max: usize,
    pub(super) requests_per_connection_max: usize,
    pub(super) upstream_sockets_max: usize,
    pub(super) requests_per_upstream_max: usize,
    pub(super) queue_max: usize,
    pub(super) queue_timeout: Duration,
}

/// One limit on concurrent requests.
#[derive(Debug)]
struct Gate {
    max: usize,
    per_connection_max: usize,
    used: AtomicUsize,
    /// The length of the queue.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    refused: Counter,
    /// Counts refusals by `per_connection_max`.
    refused_connection: Counter,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    last_number: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    connection: Arc<Connection>,
    grant: oneshot::Sender<Permit>,
}

/// A client's connection: its place among all connections, and what its requests hold.
#[derive(Debug)]
pub(super) struct Connection {
    _place: Option<OwnedSemaphorePermit>,
    gates: Arc<Gates>,
    /// The permits that its requests hold, for each gate.
    held: Box<[AtomicUsize]>,
    /// Its requests in queues.
    waiting: AtomicUsize,
    bodies: BodyShare,
    /// The bytes of its responses that are in memory.
    pub(super) response_bytes: AtomicUsize,
    /// The forwarding headers of its requests with the host of the first one.
    pub(super) hop: OnceLock<Hop>,
    pub(super) hints: EarlyHints,
}

/// The right of one request to pass a gate, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    connection: Arc<Connection>,
    gate: usize,
}

/// A gate was full for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Full {
    /// The problem of a refused request of which nothing was sent.
    pub(super) fn problem(self) -> Problem {
        let detail = "Too many requests are in flight. Nothing was sent to the upstream. Retry after Retry-After, with the same key if the request has one.";
        Problem::new(Code::Overloaded, detail).retry_after(RETRY_AFTER_SECONDS)
    }
}

impl Gates {
    /// Makes the gates for this number of upstreams.
    pub(super) fn new(limits: GateLimits, upstreams: usize, clock: Arc<dyn Clock>) -> Arc<Self> {
        let sockets = limits.upstream_sockets_max;
        let mut gates = vec![
            Gate::new("requests", limits.requests_max, limits.requests_per_connection_max),
            Gate::new("descriptors", sockets, usize::MAX),
        ];
        let one =
            |_| Gate::new("requests_per_upstream", limits.requests_per_upstream_max, usize::MAX);
        gates.extend((0..upstreams).map(one));
        let GateLimits { queue_max, queue_timeout, .. } = limits;
        Arc::new(Self { gates, queue_max, queue_timeout, clock })
    }

    /// The number of the gate of an upstream, which is counted from zero.
    pub(super) fn of_upstream(number: usize) -> usize {
        UPSTREAM_SOCKETS + 1 + number
    }

    /// Requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.gates.get(REQUESTS).map_or(0, |gate| gate.used.load(Ordering::Relaxed))
    }

    /// Requests that wait in a queue.
    pub(super) fn queued(&self) -> usize {
        self.gates.iter().map(|gate| gate.waiting.load(Ordering::Relaxed)).sum()
    }
}

impl Gate {
    fn new(reason: &'static str, max: usize, per_connection_max: usize) -> Self {
        const NAME: &str = "onetake_overloaded_total";
        Self {
            max,
            per_connection_max,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            refused: counter!(NAME, "reason" => reason),
            refused_connection: counter!(NAME, "reason" => "requests_per_connection"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a free permit to the first one that waits and whose connection may have one more.
    fn serve_queue(&self, number: usize) {
        let mut queue = self.lock();
        let mut waiters = queue.waiters.iter().enumerate();
        let granted =
            waiters.find_map(|(index, waiter)| Some((index, waiter.connection.try_enter(number)?)));
        let Some((index, permit)) = granted else { return };
        let waiter = queue.waiters.remove(index);
        self.waiting.store(queue.waiters.len(), Ordering::SeqCst);
        drop(queue);
        // If the waiter has just given up, its permit is dropped, which serves the next one.
        let _given_up = waiter.map(|waiter| waiter.grant.send(permit));
    }
}

impl Connection {
    pub(super) fn new(place: OwnedSemaphorePermit, gates: &Arc<Gates>) -> Arc<Self> {
        Self::with_place(Some(place), gates)
    }

    /// The connection of one request. A connection of Envoy has the requests of many clients, so
    /// each of them counts as a connection of its own.
    #[cfg(feature = "ext-proc")]
    pub(super) fn of_one_request(gates: &Arc<Gates>) -> Arc<Self> {
        Self::with_place(None, gates)
    }

    fn with_place(place: Option<OwnedSemaphorePermit>, gates: &Arc<Gates>) -> Arc<Self> {
        Arc::new(Self {
            _place: place,
            gates: Arc::clone(gates),
            held: gates.gates.iter().map(|_| AtomicUsize::new(0)).collect(),
            waiting: AtomicUsize::new(0),
            bodies: BodyShare::default(),
            response_bytes: AtomicUsize::new(0),
            hop: OnceLock::new(),
            hints: EarlyHints::default(),
        })
    }

    /// The share of this connection in the memory for bodies.
    pub(super) fn bodies(&self) -> BodyShare {
        self.bodies.clone()
    }

    /// Passes the gate of all requests, or waits for it in its queue, at most until the client's
    /// deadline.
    ///
    /// # Errors
    /// If the gate is full, and its queue is full or too slow.
    pub(super) async fn admit(self: &Arc<Self>, request: &mut Parts) -> Result<Permit, Problem> {
        match self.try_enter(REQUESTS) {
            Some(permit) => Ok(permit),
            None => Box::pin(self.queue(request)).await,
        }
    }

    async fn queue(self: &Arc<Self>, request: &mut Parts) -> Result<Permit, Problem> {
        let clock = &*self.gates.clock;
        // The layer counts a time left from here, too.
        let arrived = Arrived(clock.monotonic());
        request.extensions.insert(arrived);
        tokio::select! {
            biased;
            entered = self.wait(REQUESTS) => entered.map_err(Full::problem),
            late = arrived.deadline_over(&request.headers, clock) => Err(late),
        }
    }

    /// Passes a gate, or waits for it in its queue.
    ///
    /// # Errors
    /// If the gate is full, and its queue is full or too slow.
    pub(super) async fn enter(self: &Arc<Self>, gate: usize) -> Result<Permit, Full> {
        match self.try_enter(gate) {
            Some(permit) => Ok(permit),
            // Boxed, so that the futures of other requests do not hold it.
            None => Box::pin(self.wait(gate)).await,
        }
    }

    fn try_enter(self: &Arc<Self>, number: usize) -> Option<Permit> {
        let (gate, held) = (self.gates.gates.get(number)?, self.held.get(number)?);
        let used = gate.used.fetch_add(1, Ordering::SeqCst);
        let own = held.fetch_add(1, Ordering::Relaxed);
        let free = gate.max.saturating_sub(used);
        if own < gate.per_connection_max && is_fair(own, free, gate.max) {
            return Some(Permit { connection: Arc::clone(self), gate: number });
        }
        held.fetch_sub(1, Ordering::Relaxed);
        gate.used.fetch_sub(1, Ordering::SeqCst);
        None
    }

    async fn wait(self: &Arc<Self>, number: usize) -> Result<Permit, Full> {
        let Gates { gates, queue_max, queue_timeout, clock } = &*self.gates;
        let gate = gates.get(number).ok_or(Full)?;
        let refused = || {
            let own = self.held.get(number).map_or(0, |held| held.load(Ordering::Relaxed));
            let by_connection = own >= gate.per_connection_max;
            if by_connection { &gate.refused_connection } else { &gate.refused }.increment(1);
            Full
        };
        let (granted, _queued) = Queued::new(self, number, *queue_max).ok_or_else(refused)?;
        // Permits may have become free before the request was in the queue.
        gate.serve_queue(number);
        tokio::select! {
            biased;
            permit = granted => permit.map_err(|_| refused()),
            () = clock.sleep(*queue_timeout) => Err(refused()),
        }
    }
}

/// True if a connection that holds `own` may have one more of `free`.
fn is_fair(own: usize, free: usize, max: usize) -> bool {
    free > 0 && own < fair_share(free, max)
}

/// The place of a request in a queue. It leaves the queue when this is dropped.
struct Queued<'a> {
    connection: &'a Arc<Connection>,
    gate: usize,
    number: u64,
}

impl<'a> Queued<'a> {
    /// Joins the queue, if it has a place.
    fn new(
        connection: &'a Arc<Connection>,
        number: usize,
        queue_max: usize,
    ) -> Option<(oneshot::Receiver<Permit>, Self)> {
        let gate = connection.gates.gates.get(number)?;
        let mut queue = gate.lock();
        let free = queue_max.saturating_sub(queue.waiters.len());
        let own = connection.waiting.load(Ordering::Relaxed);
        if !is_fair(own, free, queue_max) {
            return None;
        }
        connection.waiting.fetch_add(1, Ordering::Relaxed);
        queue.last_number += 1;
        let (grant, granted) = oneshot::channel();
        let waiter =
            Waiter { number: queue.last_number, connection: Arc::clone(connection), grant };
        let place = Self { connection, gate: number, number: queue.last_number };
        queue.waiters.push_back(waiter);
        gate.waiting.store(queue.waiters.len(), Ordering::SeqCst);
        Some((granted, place))
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.connection.waiting.fetch_sub(1, Ordering::Relaxed);
        let Some(gate) = self.connection.gates.gates.get(self.gate) else { return };
        let mut queue = gate.lock();
        queue.waiters.retain(|waiter| waiter.number != self.number);
        gate.waiting.store(queue.waiters.len(), Ordering::SeqCst);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Connection { gates, held, .. } = &*self.connection;
        if let (Some(gate), Some(held)) = (gates.gates.get(self.gate), held.get(self.gate)) {
            held.fetch_sub(1, Ordering::Relaxed);
            gate.used.fetch_sub(1, Ordering::SeqCst);
            if gate.waiting.load(Ordering::SeqCst) > 0 {
                gate.serve_queue(self.gate);
            }
        }
    }
}

/// A body that holds permits until it is dropped.
#[derive(Debug)]
pub(super) struct Held<B> {
    body: B,
    _permits: [Option<Permit>; 2],
    _memory: Option<ResponseShare>,
}

impl<B> Held<B> {
    pub(super) fn new(body: B, permits: [Option<Permit>; 2]) -> Self {
        Self { body, _permits: permits, _memory: None }
    }

    /// Holds memory as well.
    pub(super) fn with_memory(mut self, memory: Option<ResponseShare>) -> Self {
        self._memory = memory;
        self
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Held<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
pub(super) mod tests;
