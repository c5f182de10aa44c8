//! The state of one client connection, shared by its stream, its requests and its timeouts.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};

use onetake_core::Clock;
use onetake_core::clock::micros;

/// The activity of a connection. All of it happens on one core.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Number of requests without a response.
    running: AtomicUsize,
    /// Number of responses whose body is not complete.
    sending: AtomicUsize,
    /// Number of requests whose body may not have been read to its end.
    unread: AtomicUsize,
    /// Number of requests so far.
    requests: AtomicU64,
    /// The number of the request of HTTP/1.1 with two lengths, counted from one; zero if there is
    /// none.
    two_lengths_in: AtomicU64,
    /// The end of the last response, or of its request if that came later, in microseconds of the
    /// monotonic clock; zero if there is none.
    answered_at: AtomicU64,
    /// Number of bytes that the peer has accepted.
    accepted: AtomicU64,
    /// Number of bytes that the peer has sent.
    received: AtomicU64,
    /// The responses over HTTP/2 whose last part waits until the peer makes room for it: since when,
    /// and the number of the request.
    offered: Mutex<BTreeSet<(Duration, u64)>>,
    /// Number of bytes that were read and discarded after the end of the connection.
    discarded: AtomicU64,
    is_http2: AtomicBool,
    /// True if a part of a request's head has arrived.
    has_head: AtomicBool,
    /// True if a message of HTTP itself, not of a request, refused what the peer sent.
    is_refused: AtomicBool,
    /// True once this side has begun to end the connection.
    is_ending: AtomicBool,
    /// True once this side has ended the connection and waits for the end of the other side.
    lingers: AtomicBool,
    /// True if no more requests are wanted on this connection.
    is_leaving: AtomicBool,
    /// True if the connection is a WebSocket now.
    is_upgraded: AtomicBool,
    /// True if the peer accepts no more bytes at the moment.
    is_blocked: AtomicBool,
    /// True if something is to be written or flushed.
    is_unflushed: AtomicBool,
    /// True if the connection is parked: hyper has no part in it until the next byte.
    is_parked: AtomicBool,
    /// True if something behind the last request has been read that is not a whole request.
    has_rest: AtomicBool,
    /// True during the TLS handshake.
    is_handshaking: AtomicBool,
    /// True if the connection is to end once it is idle, because its place is needed.
    is_evicted: AtomicBool,
    /// Wakes the connection's task for that.
    evicting: AtomicWaker,
}

macro_rules! flags {
    ($($name:ident, $set:ident;)+) => {
        $(
            pub(super) fn $name(&self) -> bool {
                self.$name.load(Ordering::Relaxed)
            }

            pub(super) fn $set(&self, value: bool) {
                self.$name.store(value, Ordering::Relaxed);
            }
        )+
    };
}

impl Activity {
    flags! {
        is_http2, set_http2;
        has_head, set_head;
        is_refused, set_refused;
        is_ending, set_ending;
        lingers, set_lingers;
        is_leaving, set_leaving;
        is_upgraded, set_upgraded;
        is_blocked, set_blocked;
        is_unflushed, set_unflushed;
        is_parked, set_parked;
        has_rest, set_rest;
        is_handshaking, set_handshaking;
        is_evicted, set_evicted;
    }

    /// True if nothing is in progress on a connection of HTTP/1.1, so that it can be parked. hyper
    /// may have yet to notice it.
    pub(super) fn can_park(&self) -> bool {
        !self.is_http2() && !self.is_parked() && self.is_free()
    }

    /// True if no request or response is in progress, not even a part of one, and the connection is
    /// open for more.
    fn is_free(&self) -> bool {
        let is_busy = self.is_running()
            || self.is_sending()
            || self.has_unread()
            || self.has_head()
            || self.is_unflushed();
        let is_other = self.is_upgraded()
            || self.is_refused()
            || self.is_leaving()
            || self.is_ending()
            || self.has_rest();
        !is_busy && !is_other
    }

    /// Since when nothing has been in progress on a connection that was opened at this time, if so.
    /// A TLS handshake is in progress from its first byte on.
    pub(super) fn idle_since(&self, opened: Duration) -> Option<Duration> {
        let is_idle = match self.is_handshaking() {
            true => self.received() == 0,
            false => self.is_free(),
        };
        is_idle.then(|| self.answered_at().unwrap_or(opened))
    }

    /// Asks the connection to end if it is still idle.
    pub(super) fn evict(&self) {
        self.set_evicted(true);
        self.evicting.wake();
    }

    /// The connection's task is woken by [`evict`](Self::evict) from now on.
    pub(super) fn register_for_eviction(&self, cx: &Context<'_>) {
        self.evicting.register(cx.waker());
    }

    /// Notes the number of a request with two lengths.
    pub(super) fn set_two_lengths(&self, request: u64) {
        self.two_lengths_in.store(request, Ordering::Relaxed);
    }

    /// True if the request that began last has two lengths.
    pub(super) fn has_two_lengths(&self) -> bool {
        self.two_lengths_in.load(Ordering::Relaxed) == self.requests()
    }

    /// Number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending.load(Ordering::Relaxed) > 0
    }

    /// True if the body of a request may not have been read to its end.
    pub(super) fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed) > 0
    }

    /// The end of the last response, or of its request if that came later.
    pub(super) fn answered_at(&self) -> Option<Duration> {
        let at = self.answered_at.load(Ordering::Relaxed);
        (at > 0).then(|| Duration::from_micros(at))
    }

    fn set_answered(&self, clock: &dyn Clock) {
        self.answered_at.store(micros(clock.monotonic()).max(1), Ordering::Relaxed);
    }

    pub(super) fn add_accepted(&self, bytes: usize) {
        self.accepted.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn offered(&self) -> MutexGuard<'_, BTreeSet<(Duration, u64)>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when a response over HTTP/2 has waited for the peer to make room for its next part.
    pub(super) fn offered_since(&self) -> Option<Duration> {
        let is_http2 = self.is_http2();
        is_http2.then(|| self.offered().first().map(|(since, _)| *since)).flatten()
    }

    /// Counts discarded bytes, and returns how many there are now.
    pub(super) fn add_discarded(&self, bytes: usize) -> u64 {
        let bytes = bytes as u64;
        self.discarded.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes)
    }

    pub(super) fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }
}

/// A request until its response begins.
pub(super) struct Running {
    activity: Arc<Activity>,
    clock: Arc<dyn Clock>,
    /// The number of the request on its connection.
    number: u64,
}

impl Running {
    pub(super) fn new(activity: &Arc<Activity>, clock: &Arc<dyn Clock>) -> Self {
        activity.set_head(false);
        activity.set_rest(false);
        activity.running.fetch_add(1, Ordering::Relaxed);
        let number = activity.requests.fetch_add(1, Ordering::Relaxed);
        Self { activity: Arc::clone(activity), clock: Arc::clone(clock), number }
    }

    /// The request has a response now, which is in progress until its body ends.
    pub(super) fn respond<B>(self, body: B) -> InProgress<B> {
        self.activity.sending.fetch_add(1, Ordering::Relaxed);
        let (activity, clock) = (Arc::clone(&self.activity), Arc::clone(&self.clock));
        let sending = Sending { activity, clock, number: self.number, offered_since: None };
        InProgress { body, sending }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.activity.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a request that may not have been read to its end.
#[derive(Debug)]
pub(super) struct Unread {
    activity: Arc<Activity>,
    clock: Arc<dyn Clock>,
}

impl Unread {
    pub(super) fn new(activity: &Arc<Activity>, clock: &Arc<dyn Clock>) -> Self {
        activity.unread.fetch_add(1, Ordering::Relaxed);
        Self { activity: Arc::clone(activity), clock: Arc::clone(clock) }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let activity = &self.activity;
        // The end of a response that goes on is noted by the response.
        if !activity.is_running() && !activity.is_sending() {
            activity.set_answered(&*self.clock);
        }
        activity.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response until its body ends.
struct Sending {
    activity: Arc<Activity>,
    clock: Arc<dyn Clock>,
    /// The number of the request on its connection.
    number: u64,
    /// When its last part was offered to the peer, over HTTP/2. `None` if that part is on its way,
    /// and the next one is not here yet.
    offered_since: Option<Duration>,
}

impl Sending {
    /// Notes that a part of the body was taken. hyper asks for the next one when the peer has made
    /// room for this one. Over HTTP/1.1, the stream notices a peer that makes no room.
    fn offer(&mut self) {
        self.accept();
        if self.activity.is_http2() {
            let now = self.clock.monotonic();
            self.offered_since = Some(now);
            self.activity.offered().insert((now, self.number));
        }
    }

    /// Notes that nothing waits for the peer.
    fn accept(&mut self) {
        if let Some(since) = self.offered_since.take() {
            self.activity.offered().remove(&(since, self.number));
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.accept();
        self.activity.set_answered(&*self.clock);
        self.activity.sending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response that counts as activity until it ends.
pub(super) struct InProgress<B> {
    body: B,
    sending: Sending,
}

impl<B: Body + Unpin> Body for InProgress<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(_))) => self.sending.offer(),
            _ => self.sending.accept(),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
