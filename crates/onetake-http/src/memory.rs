//! The memory for keyed requests: one budget in bytes, shared fairly.
//!
//! A request takes memory for what has arrived, not for what it announces. A thousand requests
//! without a body take as little as they are. It gives the memory back when its outcome is settled,
//! and its service does not hold it any more
//! ([`OperationContext::memory`](crate::OperationContext::memory)).
//!
//! The budget has shares: one for each tenant, and one for each [`BodyShare`], which the gateway
//! gives to each client connection. A request takes more memory only if the other requests of its
//! shares hold little in relation to what is free:
//!
//! - The others of its tenant hold at most twice what is free. So one tenant gets two thirds.
//! - The others of its connection hold at most the cube of the free part ([`fair_share`]): all of
//!   it if everything is free, an eighth if half of it is free.
//!
//! Something stays free for a connection that holds nothing, without a lock and without a list of
//! connections. Switches share their packet buffers in this way (dynamic thresholds).
//!
//! An eighth on top is for retries of recorded operations, for which there is no other memory. They
//! are answered even if nothing new can run. It is a budget of its own, with shares of its own.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::request::Parts;
use metrics::{Counter, counter};

use crate::layer::HttpLimits;

/// The factor between the free memory and the most that one tenant may have.
const TENANT_SHARE: usize = 2;
/// The memory of a request without its headers and its body, in bytes: futures, URI, key,
/// operation.
const REQUEST_BYTES: usize = 4 << 10;
/// The part of the memory that is kept on top for replays: an eighth.
const REPLAYS_SHARE: usize = 8;
/// The number of counters for tenants. Tenants with the same counter share their share.
const TENANTS: usize = 4_096;

/// Returns the most that one connection may hold of a limit, by the part of it that is free. It is
/// at least 1, unless nothing is free.
///
/// It is the cube of the free part: everything if all is free, an eighth if half is free. One
/// connection alone gets about a third of the limit. Several connections, one after the other, get
/// less and less: twenty of them leave about a seventh to those that hold nothing.
#[must_use]
pub fn fair_share(free: usize, max: usize) -> usize {
    let part = free as f64 / max.max(1) as f64;
    (part * part * part * max as f64).ceil() as usize
}

/// A share of the memory for keyed requests, as an extension of requests.
///
/// Requests with clones of one share are limited together. The gateway gives one share to all
/// requests of a connection, so that one connection cannot use up the memory of all.
#[derive(Clone, Debug, Default)]
pub struct BodyShare(Arc<[AtomicUsize; PURPOSES]>);

impl BodyShare {
    /// The bytes that its requests hold of one budget.
    fn of(&self, purpose: Purpose) -> &AtomicUsize {
        let [any, replays] = &*self.0;
        match purpose {
            Purpose::Any => any,
            Purpose::Replay => replays,
        }
    }
}

/// The memory of one layer.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    all: Budget,
    /// For retries of recorded operations.
    replays: Budget,
    hasher: RandomState,
    refused: Counter,
}

#[derive(Debug)]
struct Budget {
    max: usize,
    used: AtomicUsize,
    tenants: Box<[AtomicUsize]>,
}

/// The number of purposes, each with a budget.
const PURPOSES: usize = 2;

/// The purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Any request.
    Any,
    /// A retry of a recorded operation.
    Replay,
}

/// There is no memory for more of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The memory of one request. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    memory: Arc<BodyMemory>,
    purpose: Purpose,
    bytes: usize,
    /// The index of the tenant's counter.
    tenant: usize,
    connection: Option<BodyShare>,
}

impl BodyMemory {
    pub(crate) fn new(limits: &HttpLimits) -> Arc<Self> {
        Arc::new(Self {
            all: Budget::new(limits.body_bytes_max),
            replays: Budget::new(limits.body_bytes_max / REPLAYS_SHARE),
            hasher: RandomState::new(),
            refused: counter!("onetake_overloaded_total", "reason" => "body_memory"),
        })
    }

    /// The bytes that are taken now.
    pub(crate) fn used(&self) -> usize {
        self.all.used() + self.replays.used()
    }

    /// Counts a request that was refused.
    pub(crate) fn count_refused(&self) {
        self.refused.increment(1);
    }

    fn budget(&self, purpose: Purpose) -> &Budget {
        match purpose {
            Purpose::Any => &self.all,
            Purpose::Replay => &self.replays,
        }
    }

    /// Takes memory for the head of a request. `announced` bytes are to follow: if there is no room
    /// for them now, the request is refused before they are sent.
    pub(crate) fn begin(
        self: &Arc<Self>,
        purpose: Purpose,
        parts: &Parts,
        tenant: &[u8],
        announced: usize,
    ) -> Result<BodyPermit, Exhausted> {
        let tenant = self.hasher.hash_one(tenant);
        let tenant = usize::try_from(tenant % TENANTS as u64).unwrap_or_default();
        let connection = parts.extensions.get::<BodyShare>().cloned();
        let memory = Arc::clone(self);
        let mut permit = BodyPermit { memory, purpose, bytes: 0, tenant, connection };
        let headers = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        permit.take(REQUEST_BYTES + headers.sum::<usize>())?;
        if announced > 0 && !permit.has_room_for(announced) {
            return Err(Exhausted);
        }
        Ok(permit)
    }
}

impl Budget {
    fn new(max: usize) -> Self {
        let tenants = (0..TENANTS).map(|_| AtomicUsize::new(0)).collect();
        Self { max, used: AtomicUsize::new(0), tenants }
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn free(&self) -> usize {
        self.max.saturating_sub(self.used())
    }
}

impl BodyPermit {
    /// Takes memory for bytes that have arrived. The permit counts them after an error too, so the
    /// request must then end, or [move](Self::move_to_replays).
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.bytes = self.bytes.saturating_add(bytes);
        let budget = self.budget();
        let used = budget.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        for share in self.shares() {
            share.fetch_add(bytes, Ordering::Relaxed);
        }
        let free = budget.max.checked_sub(used).ok_or(Exhausted)?;
        if self.is_fair(free) { Ok(()) } else { Err(Exhausted) }
    }

    /// Moves a request that may be a retry of a recorded operation to the memory for those. Such
    /// requests get at most half of it, because most of them may be new ones.
    ///
    /// # Errors
    /// If there is no room for it, or it is there already.
    pub(crate) fn move_to_replays(&mut self) -> Result<(), Exhausted> {
        let (bytes, replays) = (self.bytes, &self.memory.replays);
        let is_room = replays.used().saturating_add(bytes) <= replays.max / 2;
        if self.purpose == Purpose::Replay || !is_room {
            return Err(Exhausted);
        }
        self.give_back();
        self.purpose = Purpose::Replay;
        self.take(bytes)
    }

    fn give_back(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.budget().used.fetch_sub(bytes, Ordering::Relaxed);
        for share in self.shares() {
            share.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns true if `bytes` more would be granted now.
    fn has_room_for(&self, bytes: usize) -> bool {
        self.budget().free().checked_sub(bytes).is_some_and(|free| self.is_fair(free))
    }

    /// True if the other requests of the shares hold little enough.
    fn is_fair(&self, free: usize) -> bool {
        let others = |share: &AtomicUsize| share.load(Ordering::Relaxed).saturating_sub(self.bytes);
        let budget = self.budget();
        let tenant = budget.tenants.get(self.tenant).map_or(0, others);
        let connection = self.connection.as_ref().map_or(0, |share| others(share.of(self.purpose)));
        tenant <= TENANT_SHARE.saturating_mul(free) && connection <= fair_share(free, budget.max)
    }

    fn shares(&self) -> impl Iterator<Item = &AtomicUsize> {
        let connection = self.connection.as_ref().map(|share| share.of(self.purpose));
        self.budget().tenants.get(self.tenant).into_iter().chain(connection)
    }

    fn budget(&self) -> &Budget {
        self.memory.budget(self.purpose)
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn memory(bytes: usize) -> Arc<BodyMemory> {
        BodyMemory::new(&HttpLimits::default().body_bytes_max(bytes))
    }

    fn parts(share: Option<&BodyShare>) -> Parts {
        let mut request = Request::post("/").body(()).unwrap();
        request.extensions_mut().extend(
            share
                .cloned()
                .map(|share| {
                    let mut extensions = http::Extensions::new();
                    extensions.insert(share);
                    extensions
                })
                .unwrap_or_default(),
        );
        request.into_parts().0
    }

    /// Takes memory in small steps until there is none.
    fn fill(memory: &Arc<BodyMemory>, tenant: &str, share: Option<&BodyShare>) -> Vec<BodyPermit> {
        let begin = || memory.begin(Purpose::Any, &parts(share), tenant.as_bytes(), 0);
        std::iter::from_fn(|| begin().ok()).collect()
    }

    #[test]
    fn memory_is_given_back() {
        let memory = memory(1 << 20);
        let mut permit = memory.begin(Purpose::Any, &parts(None), b"a", 0).unwrap();
        permit.take(1_000).unwrap();
        assert_eq!(memory.used(), REQUEST_BYTES + 1_000);
        assert_eq!(permit.take(1 << 20), Err(Exhausted));
        drop(permit);
        assert_eq!(memory.used(), 0);
        assert!(memory.all.tenants.iter().all(|share| share.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn headers_count() {
        let memory = memory(1 << 20);
        let mut parts = parts(None);
        parts.headers.insert("x-long", "v".repeat(10_000).parse().unwrap());
        let _permit = memory.begin(Purpose::Any, &parts, b"a", 0).unwrap();
        assert_eq!(memory.used(), REQUEST_BYTES + 10_006);
    }

    /// One connection leaves more than half, and ten of them a seventh. One tenant leaves a third.
    #[test]
    fn no_share_takes_everything() {
        let all = 30 << 20;
        for connections in [1, 10] {
            let memory = memory(all);
            let shares: Vec<_> = (0..connections).map(|_| BodyShare::default()).collect();
            let mut taken = Vec::new();
            // Each connection uses a new tenant for each request, or each tenant a new connection.
            for number in 0..10 {
                for share in &shares {
                    taken.extend(fill(&memory, &format!("tenant {number}"), Some(share)));
                }
            }
            let free = memory.all.free();
            assert!(free >= if connections == 1 { all / 2 } else { all / 8 }, "{free}");
            let honest = memory.begin(
                Purpose::Any,
                &parts(Some(&BodyShare::default())),
                b"honest",
                free / 4,
            );
            honest.unwrap().take(free / 4).unwrap();
        }
        let memory = memory(all);
        let taken = fill(&memory, "one tenant", None);
        assert!(memory.all.free() >= all / 3 - 2 * REQUEST_BYTES, "{}", taken.len());
        assert!(memory.begin(Purpose::Any, &parts(None), b"another tenant", all / 8).is_ok());
    }

    #[test]
    fn a_body_that_cannot_fit_is_refused_before_it_is_sent() {
        let memory = memory(3 << 20);
        assert!(memory.begin(Purpose::Any, &parts(None), b"a", 2 << 20).is_ok());
        assert_eq!(memory.begin(Purpose::Any, &parts(None), b"a", 3 << 20).unwrap_err(), Exhausted);
        assert_eq!(
            memory.begin(Purpose::Any, &parts(None), b"a", usize::MAX).unwrap_err(),
            Exhausted
        );
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn replays_have_memory_of_their_own() {
        let memory = memory(1 << 20);
        let _taken: Vec<_> = (0..100).flat_map(|n| fill(&memory, &format!("{n}"), None)).collect();
        assert!(memory.begin(Purpose::Any, &parts(None), b"", 30_000).is_err());
        let replay = memory.begin(Purpose::Replay, &parts(None), b"", 30_000);
        replay.unwrap().take(30_000).unwrap();
        assert!(memory.begin(Purpose::Replay, &parts(None), b"", 200_000).is_err());
        assert_eq!(memory.replays.used(), 0);
    }

    /// Behind a load balancer, new requests and retries share one connection.
    #[test]
    fn a_connection_that_used_up_its_share_still_gets_replays() {
        let (memory, share) = (memory(1 << 20), BodyShare::default());
        let _taken = fill(&memory, "a tenant", Some(&share));
        assert!(memory.begin(Purpose::Any, &parts(Some(&share)), b"another", 0).is_err());
        let replay = memory.begin(Purpose::Replay, &parts(Some(&share)), b"another", 30_000);
        replay.unwrap().take(30_000).unwrap();
    }

    #[test]
    fn a_request_moves_to_the_memory_for_replays_with_its_bytes() {
        let (memory, share) = (memory(1 << 20), BodyShare::default());
        let mut permit = memory.begin(Purpose::Any, &parts(Some(&share)), b"a", 0).unwrap();
        assert_eq!(permit.take(1 << 20), Err(Exhausted));
        assert_eq!(permit.move_to_replays(), Err(Exhausted), "an eighth is not enough");
        drop(permit);
        let mut permit = memory.begin(Purpose::Any, &parts(Some(&share)), b"a", 0).unwrap();
        permit.take(1_000).unwrap();
        permit.move_to_replays().unwrap();
        let bytes = REQUEST_BYTES + 1_000;
        assert_eq!((memory.all.used(), memory.replays.used()), (0, bytes));
        let held = |purpose| share.of(purpose).load(Ordering::Relaxed);
        assert_eq!((held(Purpose::Any), held(Purpose::Replay)), (0, bytes));
        assert_eq!(permit.move_to_replays(), Err(Exhausted), "it is there already");
        let mut other = memory.begin(Purpose::Any, &parts(None), b"b", 0).unwrap();
        other.take(60_000).unwrap();
        assert_eq!(other.move_to_replays(), Err(Exhausted), "half is for known retries");
        let known = memory.begin(Purpose::Replay, &parts(None), b"b", 60_000);
        known.unwrap().take(60_000).unwrap();
        drop((permit, other));
        assert_eq!((memory.used(), held(Purpose::Replay)), (0, 0));
    }
}
