//! One client's connection: its requests, its timeouts and its end.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::mem;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use onetake_core::Clock;
use onetake_http::{BoxError, Code, ProblemFormat};

use super::activity::{Activity, Running};
use super::client_body::ClientBody;
use super::client_http::{CONNECTION_WINDOW_BYTES, ClientHttp, Protocols};
use super::client_stream::ClientStream;
use super::client_upgrade::PendingUpgrade;
use super::early_hints;
use super::edge::{ConnectionPermit, TwoLengths};
use super::eviction::{self, Eviction};
use super::peer_stream::PeerStream;
use super::phase::Phase;
use super::tidy;
use super::timeouts::{CutReason, Known, Step, Timeouts, next_step};
use super::tls::Acceptor;

/// How long a TLS handshake may go on if the gateway stops meanwhile.
const HANDSHAKE_AT_STOP: Duration = Duration::from_secs(1);

/// Name of the metric of connections that were not ended in order.
const CUT: &str = "onetake_connections_cut_total";

/// Name of the metric of problems.
const PROBLEMS: &str = "onetake_problems_total";

/// Counts a problem that a client gets. Every refusal of the gateway is one.
pub(super) fn count_problem(code: Code) {
    metrics::counter!(PROBLEMS, "code" => code.as_str()).increment(1);
}

/// Registers the metrics of connections.
pub(super) fn describe_metrics() {
    early_hints::describe_metrics();
    eviction::describe_metrics();
    metrics::describe_counter!(PROBLEMS, "Problems that clients got as answers, by code.");
    for code in Code::ALL {
        metrics::counter!(PROBLEMS, "code" => code.as_str()).increment(0);
    }
    metrics::describe_counter!(CUT, "Client connections that were cut off, by reason.");
    for reason in CutReason::ALL {
        metrics::counter!(CUT, "reason" => reason.label()).increment(0);
    }
}

/// A service that answers the requests of connections.
pub(super) trait Answer: Send + Sync + 'static {
    /// Maximum number of concurrent requests on one HTTP/2 connection, in place of the configured
    /// one.
    const STREAMS_MAX: Option<usize> = None;

    /// Bytes that one HTTP/2 connection may send before its requests are read.
    const CONNECTION_WINDOW_BYTES: u32 = CONNECTION_WINDOW_BYTES;

    /// The body of a response.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static;

    /// The form of problems of requests without a plan.
    fn answers(&self) -> ProblemFormat;

    /// Handles one request of a peer.
    fn answer(
        self: &Arc<Self>,
        peer: SocketAddr,
        place: ConnectionPermit,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Response<Self::Body>>;
}

/// One client's connection.
pub(super) struct ClientConnection<E> {
    pub(super) edge: Arc<E>,
    pub(super) peer: SocketAddr,
    pub(super) stop: CancellationToken,
    pub(super) phase: Arc<Phase>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) place: ConnectionPermit,
    pub(super) timeouts: Timeouts,
}

impl<E: Answer> ClientConnection<E> {
    pub(super) async fn open(
        self,
        stream: TcpStream,
        tls: Option<Acceptor>,
        protocols: &Protocols,
        activity: Arc<Activity>,
    ) {
        let _best_effort = stream.set_nodelay(true);
        let stream = PeerStream::new(stream, Arc::clone(&activity));
        let Some(tls) = tls else {
            return self.serve(stream, protocols, activity).await;
        };
        let stopped = async {
            self.stop.cancelled().await;
            self.clock.sleep(HANDSHAKE_AT_STOP).await;
        };
        activity.set_handshaking(true);
        let mut eviction = Eviction::new(&activity);
        let opened = tokio::select! {
            biased;
            // Boxed, so that connections without TLS do not hold its future.
            opened = Box::pin(tls.accept(stream)) => opened,
            () = stopped => return,
            () = poll_fn(|cx| eviction.poll(cx)) => return eviction::count_eviction(),
        };
        activity.set_handshaking(false);
        match opened {
            Ok(stream) => self.serve(stream, protocols, activity).await,
            // Scanners, probes, and clients that do not trust our certificate: not errors of the
            // gateway.
            Err(error) => tracing::debug!(%error, "a TLS handshake with a client failed"),
        }
    }

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        protocols: &Protocols,
        activity: Arc<Activity>,
    ) {
        let (place, answers) = (Arc::clone(&self.place), self.edge.answers());
        let stream = ClientStream::new(stream, Arc::clone(&activity), place, answers);
        let upgrade = PendingUpgrade::default();
        let service = service_fn(|mut request: Request<Incoming>| {
            let running = Running::new(&activity, &self.clock);
            upgrade.offer(&mut request);
            if activity.has_two_lengths() {
                request.extensions_mut().insert(TwoLengths);
            }
            let (activity, phase) = (Arc::clone(&activity), Arc::clone(&self.phase));
            let (version, place) = (request.version(), Arc::clone(&self.place));
            let request = ClientBody::of(request, &activity, &self.clock);
            let answer = self.edge.answer(self.peer, Arc::clone(&place), request);
            async move {
                let mut response = answer.await;
                if version < Version::HTTP_2 {
                    place.hints.advance();
                }
                if let Some(code) = Code::of(&response) {
                    count_problem(code);
                }
                mark_end(&mut response, version, phase.is_leaving(), &activity);
                Ok::<_, Infallible>(response.map(|body| running.respond(body)))
            }
        });
        let mut http = ClientHttp::new(protocols, &activity, &upgrade, stream, service);
        let mut stopped = pin!(self.stop.cancelled());
        // The connection is polled at every event. The stop signal is shared by all connections, so
        // it is asked only if it was never asked, or is set.
        let mut is_listening = false;
        // The number of requests when the connection could be parked.
        let mut can_park_after = None;
        let mut watch = Watch::new(&activity, &*self.clock, self.timeouts);
        let mut eviction = Eviction::new(&activity);
        let ended = poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = http.poll(cx) {
                    return Poll::Ready(Ok(ended));
                }
                // hyper has noticed what happened before, and nothing has begun since.
                if can_park_after.take() == Some(activity.requests()) && activity.can_park() {
                    http.park();
                    tidy::memory_freed();
                    continue;
                }
                if !is_listening || self.phase.is_stopping() {
                    is_listening = true;
                    if stopped.as_mut().poll(cx).is_ready() {
                        watch.stop();
                    }
                }
                if watch.is_open() && eviction.poll(cx).is_ready() {
                    eviction::count_eviction();
                    watch.close();
                    http.graceful_shutdown();
                    continue;
                }
                match watch.poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Act::Park) => can_park_after = Some(activity.requests()),
                    Poll::Ready(Act::Close) => http.graceful_shutdown(),
                    Poll::Ready(Act::Drop) => return Poll::Ready(Ok(Ok(()))),
                    Poll::Ready(Act::Cut(reason)) => return Poll::Ready(Err(reason)),
                }
            }
        });
        match ended.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection ended with an error"),
            Err(reason) => {
                metrics::counter!(CUT, "reason" => reason.label()).increment(1);
                tracing::debug!(reason = reason.label(), "a connection was cut off");
            }
        }
        tidy::memory_freed();
    }
}

/// Announces the end of the connection with a response, if this response is the last one.
fn mark_end<B>(
    response: &mut Response<B>,
    version: Version,
    is_leaving: bool,
    activity: &Activity,
) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        activity.set_upgraded(true);
    } else if version == Version::HTTP_2 {
        // The connection sends GOAWAY.
        activity.set_leaving(is_leaving);
    } else if is_leaving || response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        // The rest of a body that is too large is not read, so no request can follow it.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// An action that a connection needs.
enum Act {
    Park,
    Close,
    Drop,
    Cut(CutReason),
}

/// The timeouts of a connection, and its timer.
struct Watch<'a> {
    activity: &'a Activity,
    clock: &'a dyn Clock,
    timeouts: Timeouts,
    known: Known,
    accepted: u64,
    received: u64,
    discarded: u64,
    /// True if something was to be written or flushed at the last look.
    is_unflushed: bool,
    /// The end of the last flush that took a while.
    flushed_at: Duration,
    timer: BoxFuture<'static, ()>,
    /// When the timer ends.
    timer_at: Duration,
}

impl<'a> Watch<'a> {
    fn new(activity: &'a Activity, clock: &'a dyn Clock, timeouts: Timeouts) -> Self {
        let opened = clock.monotonic();
        let known = Known {
            opened,
            can_park: false,
            is_running: false,
            is_sending: false,
            has_unread: false,
            answered_at: None,
            accepted_at: opened,
            received_at: opened,
            blocked_since: None,
            offered_since: None,
            head_since: None,
            stopping_since: None,
            closing_since: None,
            ending_since: None,
            lingers_since: None,
            discarded_at: None,
        };
        let timer = clock.sleep(timeouts.keep_alive);
        let timer_at = opened + timeouts.keep_alive;
        Self {
            activity,
            clock,
            timeouts,
            known,
            accepted: 0,
            received: 0,
            discarded: 0,
            is_unflushed: false,
            flushed_at: Duration::ZERO,
            timer,
            timer_at,
        }
    }

    /// The gateway stops.
    fn stop(&mut self) {
        let now = self.clock.monotonic();
        if self.known.stopping_since.is_none() {
            self.known.stopping_since = Some(now);
            self.wait(now, now);
        }
    }

    /// Waits until the connection needs an action.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Act> {
        let has_changed = self.note_changes();
        if self.activity.is_leaving() && self.is_open() {
            return Poll::Ready(self.close());
        }
        if !has_changed && self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        loop {
            let now = self.clock.monotonic();
            self.look(now);
            match next_step(&self.known, self.timeouts, now) {
                Step::Cut(reason) => return Poll::Ready(Act::Cut(reason)),
                Step::Close => return Poll::Ready(self.close()),
                Step::Drop => return Poll::Ready(Act::Drop),
                Step::WaitUntil(until) => self.wait(now, until),
                Step::Park => {
                    self.wait(now, now);
                    return Poll::Ready(Act::Park);
                }
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// True if this side has not asked for the end of the connection.
    fn is_open(&self) -> bool {
        self.known.closing_since.is_none()
    }

    fn close(&mut self) -> Act {
        let now = self.clock.monotonic();
        self.known.closing_since = Some(now);
        self.wait(now, now);
        Act::Close
    }

    fn wait(&mut self, now: Duration, until: Duration) {
        self.timer = self.clock.sleep(until - now);
        self.timer_at = until;
    }

    /// Notes what can bring the next timeout nearer. Returns true if there is anything new.
    fn note_changes(&mut self) -> bool {
        let has_head = self.activity.has_head();
        let is_ending = self.activity.is_ending();
        let lingers = self.activity.lingers();
        let is_blocked = self.activity.is_blocked();
        let is_unflushed = self.activity.is_unflushed();
        if mem::replace(&mut self.is_unflushed, is_unflushed) && !is_unflushed {
            self.flushed_at = self.clock.monotonic();
        }
        let is_new = has_head != self.known.head_since.is_some()
            || is_blocked != self.known.blocked_since.is_some()
            || is_ending != self.known.ending_since.is_some()
            || lingers != self.known.lingers_since.is_some();
        if is_new {
            let now = self.clock.monotonic();
            self.known.blocked_since = is_blocked.then(|| self.known.blocked_since.unwrap_or(now));
            self.known.head_since = has_head.then(|| self.known.head_since.unwrap_or(now));
            self.known.ending_since = is_ending.then(|| self.known.ending_since.unwrap_or(now));
            if lingers && self.known.lingers_since.is_none() {
                self.known.lingers_since = Some(now);
                self.known.discarded_at = self.activity.is_refused().then_some(now);
            }
        }
        is_new || self.can_park_earlier() || self.must_cut_earlier()
    }

    /// The end of the last response, when it was flushed.
    fn answered_at(&self) -> Option<Duration> {
        self.activity.answered_at().map(|at| at.max(self.flushed_at))
    }

    /// True if the connection can be parked before the timer ends. If requests follow each other,
    /// that is so about once a second.
    fn can_park_earlier(&mut self) -> bool {
        self.known.answered_at = self.answered_at();
        self.known.can_park = self.activity.can_park();
        self.known.park_at().is_some_and(|park_at| park_at < self.timer_at)
    }

    /// True if a response that waits for the peer over HTTP/2 reaches its timeout before the timer
    /// ends.
    fn must_cut_earlier(&mut self) -> bool {
        self.known.offered_since = self.activity.offered_since();
        let until = self.known.offered_since.map(|since| since + self.timeouts.send);
        until.is_some_and(|until| until < self.timer_at)
    }

    /// Notes everything else that is known.
    fn look(&mut self, now: Duration) {
        let answered_at = self.answered_at();
        let known = &mut self.known;
        known.can_park = self.activity.can_park();
        known.is_running = self.activity.is_running();
        known.is_sending = self.activity.is_sending() || self.activity.is_unflushed();
        known.has_unread = self.activity.has_unread();
        known.answered_at = answered_at;
        known.offered_since = self.activity.offered_since();
        if mem::replace(&mut self.accepted, self.activity.accepted()) != self.accepted {
            known.accepted_at = now;
        }
        if mem::replace(&mut self.received, self.activity.received()) != self.received {
            known.received_at = now;
        }
        if mem::replace(&mut self.discarded, self.activity.discarded()) != self.discarded {
            known.discarded_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests;
