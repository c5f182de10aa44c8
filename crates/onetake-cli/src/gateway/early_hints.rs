//! Informational responses on their way from an upstream to an HTTP/1.1 client, such as
//! `103 Early Hints`.
//!
//! hyper's server cannot send them. So the stream beneath it writes them (`client_stream.rs`), at
//! moments at which no response is on the wire.
//!
//! They are forwarded only if the operator says so. HTTP/1.1 clients must accept them (RFC 9110,
//! 15.2), but Python's `http.client`, urllib3 and nginx before 1.29 take them for the final
//! response, and the final response for that of the next request.
//!
//! They belong to one request of a connection. An operation can outlive its request: its client got
//! a 202, or went away. So each request has a number, and hints with another number are dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures_util::task::AtomicWaker;
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode};
use metrics::{counter, describe_counter};
use onetake_http::recording::strip_hop_by_hop;

/// Maximum size of the hints of one request that wait for its client. Hints above it are dropped.
const WAITING_BYTES_MAX: usize = 16 << 10;

/// Name of the metric of dropped hints.
const DROPPED: &str = "onetake_early_hints_dropped_total";

/// Registers the metric of dropped hints.
pub(super) fn describe_metrics() {
    describe_counter!(
        DROPPED,
        "Informational responses of upstreams that were dropped because their client did not read."
    );
    counter!(DROPPED).increment(0);
}

/// The informational responses of a client's connection.
#[derive(Debug, Default)]
pub(super) struct EarlyHints {
    /// Changes when a request begins, and when its response begins.
    moment: AtomicU64,
    is_any_waiting: AtomicBool,
    waiting: Mutex<Waiting>,
    /// The task of the connection.
    connection: AtomicWaker,
}

#[derive(Debug, Default)]
struct Waiting {
    moment: Moment,
    bytes: Vec<u8>,
}

/// A time span of a connection: that of a request before its response, or that between two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment(u64);

impl EarlyHints {
    /// A request or a response begins. The connection's task alone calls this.
    pub(super) fn advance(&self) -> Moment {
        Moment(self.moment.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn moment(&self) -> Moment {
        Moment(self.moment.load(Ordering::Relaxed))
    }

    /// The connection's task is woken by hints from now on.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.connection.register(cx.waker());
    }

    /// Takes the hints of this moment. Those of others are dropped.
    pub(super) fn take(&self, moment: Moment) -> Vec<u8> {
        if !self.is_any_waiting.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut waiting = self.lock();
        self.is_any_waiting.store(false, Ordering::Relaxed);
        let bytes = std::mem::take(&mut waiting.bytes);
        if waiting.moment == moment { bytes } else { Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way of hints to the client of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct HintSender<'a> {
    hints: &'a EarlyHints,
    request: Moment,
}

impl<'a> HintSender<'a> {
    pub(super) fn new(hints: &'a EarlyHints, request: Moment) -> Self {
        Self { hints, request }
    }

    /// Sends an informational response, unless the final response has begun.
    pub(super) fn send(self, mut hint: Response<()>) {
        // The gateway itself asks the client to continue.
        if hint.status() == StatusCode::CONTINUE {
            return;
        }
        strip_hop_by_hop(hint.headers_mut());
        hint.headers_mut().remove(CONTENT_LENGTH);
        let bytes = encode(&hint);
        let mut waiting = self.hints.lock();
        // An operation that goes on after its request must not remove the hints of the next one.
        if self.hints.moment() != self.request {
            return;
        }
        if waiting.moment != self.request {
            *waiting = Waiting { moment: self.request, bytes: Vec::new() };
        }
        if waiting.bytes.len() + bytes.len() > WAITING_BYTES_MAX {
            counter!(DROPPED).increment(1);
            return;
        }
        waiting.bytes.extend_from_slice(&bytes);
        self.hints.is_any_waiting.store(true, Ordering::Release);
        drop(waiting);
        self.hints.connection.wake();
    }
}

/// The bytes of an informational response. Headers with which the gateway speaks about keys are left
/// out.
fn encode(hint: &Response<()>) -> Vec<u8> {
    let status = hint.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in hint.headers() {
        if !name.as_str().starts_with("idempoten") {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(status: u16, link: &str) -> Response<()> {
        Response::builder().status(status).header("link", link).body(()).unwrap()
    }

    #[test]
    fn hints_are_for_one_request() {
        let hints = EarlyHints::default();
        let first = hints.advance();
        let sender = HintSender::new(&hints, first);
        sender.send(hint(103, "a"));
        sender.send(hint(100, "b"));
        sender.send(hint(102, "c"));
        let text = String::from_utf8(hints.take(first)).unwrap();
        let expected = "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n\
                        HTTP/1.1 102 Processing\r\nlink: c\r\n\r\n";
        assert_eq!(text, expected);
        assert!(hints.take(first).is_empty(), "taken");
        sender.send(hint(103, "before the response"));
        let answered = hints.advance();
        sender.send(hint(103, "behind it"));
        assert!(hints.take(answered).is_empty());
        let second = hints.advance();
        sender.send(hint(103, "of the first"));
        assert!(hints.take(second).is_empty());
    }

    #[test]
    fn hints_for_a_client_that_does_not_read_are_dropped() {
        let hints = EarlyHints::default();
        let request = hints.advance();
        for _ in 0..100 {
            HintSender::new(&hints, request).send(hint(103, &"x".repeat(1000)));
        }
        let waiting = hints.take(request).len();
        assert!((WAITING_BYTES_MAX - 2000..=WAITING_BYTES_MAX).contains(&waiting), "{waiting}");
    }

    #[test]
    fn headers_of_one_connection_and_of_the_gateway_are_left_out() {
        let hint = Response::builder().status(103).header("link", "a");
        let hint = hint.header("connection", "x-own, close").header("x-own", "1");
        let hint = hint.header("transfer-encoding", "chunked").header("content-length", "5");
        let hint = hint.header("idempotent-replayed", "true").header("idempotency-reference", "r");
        let hints = EarlyHints::default();
        let request = hints.advance();
        HintSender::new(&hints, request).send(hint.body(()).unwrap());
        let text = String::from_utf8(hints.take(request)).unwrap();
        assert_eq!(text, "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n");
    }
}
