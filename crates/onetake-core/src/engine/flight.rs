//! The operations that this process is working on, one flight per record.
//!
//! The caller that opens a flight claims the key in the store. All other callers of this process
//! with the same key join the flight and never reach the store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::record::Record;
use crate::scope::RecordId;

use super::latest::{Backlog, Latest, Reader};
use super::{EngineError, Inner};

/// The number of shards, which reduces contention between threads.
const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Flights {
    shards: [Mutex<HashMap<RecordId, Arc<Flight>>>; SHARDS],
}

/// One record's flight.
#[derive(Debug)]
pub(crate) struct Flight {
    phase: Latest<Phase>,
    /// The decision between a promise of an outcome and a release. The first of the two excludes
    /// the other.
    ending: AtomicU8,
}

/// No outcome was promised, and no release was decided.
const OPEN: u8 = 0;
/// An outcome was promised to a caller that returns for it.
const PROMISED: u8 = 1;
/// The attempt is being released.
const RELEASED: u8 = 2;

/// The progress of a flight.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// The claim is on its way, and the store has not answered yet.
    Claiming,
    /// An attempt of this process owns the lease.
    Running(Fingerprint),
    /// The flight is over.
    Landed(Landing),
}

/// The result of a flight.
#[derive(Clone, Debug)]
pub(crate) enum Landing {
    /// The record that the store returned, with the store's time.
    Record(Arc<Record>, Timestamp),
    /// The store did not answer.
    Failed(EngineError),
    /// Nothing is known: the waiters try again.
    Nothing,
}

/// The result of entering a flight.
pub(crate) enum Entered {
    /// There was no flight: the caller leads a new one.
    Leader(Arc<Flight>),
    /// A flight is under way.
    Joiner(Reader<Phase>),
    /// The flight has too many waiters already.
    Full,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    pub(crate) fn enter(&self, id: RecordId, joiners_max: usize) -> Entered {
        match self.shard(&id).entry(id) {
            Entry::Occupied(flight) if flight.get().phase.readers() >= joiners_max => Entered::Full,
            Entry::Occupied(flight) => Entered::Joiner(flight.get().phase.reader()),
            Entry::Vacant(place) => {
                let flight = Arc::new(Flight::new());
                place.insert(Arc::clone(&flight));
                Entered::Leader(flight)
            }
        }
    }

    /// Returns the flight of a record, if this process is working on it.
    pub(crate) fn get(&self, id: &RecordId) -> Option<Arc<Flight>> {
        self.shard(id).get(id).cloned()
    }

    /// True if there is a flight for this record.
    pub(crate) fn has(&self, id: &RecordId) -> bool {
        self.shard(id).contains_key(id)
    }

    /// True if an attempt of this process owns the record.
    pub(crate) fn runs(&self, id: &RecordId) -> bool {
        let shard = self.shard(id);
        shard.get(id).is_some_and(|flight| matches!(flight.phase.get(), Phase::Running(_)))
    }

    /// Ends a flight. It is removed first, so that no caller can join it; then its waiters get the
    /// result. Returns those that were not woken yet.
    #[must_use = "a backlog that is dropped is woken at once"]
    pub(crate) fn land(
        &self,
        id: RecordId,
        flight: &Arc<Flight>,
        landing: Landing,
    ) -> Option<Backlog<Phase>> {
        let mut shard = self.shard(&id);
        if shard.get(&id).is_some_and(|current| Arc::ptr_eq(current, flight)) {
            shard.remove(&id);
        }
        drop(shard);
        flight.phase.set(Phase::Landed(landing))
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, HashMap<RecordId, Arc<Flight>>> {
        // The last byte selects the shard. The first bytes are visible in references, so an
        // attacker could aim at them.
        let at = id.as_bytes().last().map_or(0, |byte| usize::from(*byte) % SHARDS);
        let shard = self.shards.get(at).unwrap_or(&self.shards[0]);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    fn new() -> Self {
        Self { phase: Latest::new(Phase::Claiming), ending: AtomicU8::new(OPEN) }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Promises an outcome. Returns false if a release was decided before.
    pub(crate) fn promise(&self) -> bool {
        self.decide(PROMISED)
    }

    /// Decides to release. Returns false if an outcome was promised before.
    pub(crate) fn release(&self) -> bool {
        self.decide(RELEASED)
    }

    fn decide(&self, ending: u8) -> bool {
        let before =
            self.ending.compare_exchange(OPEN, ending, Ordering::AcqRel, Ordering::Acquire);
        before.map_or_else(|before| before == ending, |_| true)
    }

    /// Signals to the waiters that an attempt of this process runs. Returns those that were not
    /// woken yet.
    #[must_use = "a backlog that is dropped is woken at once"]
    pub(crate) fn run(&self, fingerprint: Fingerprint) -> Option<Backlog<Phase>> {
        self.phase.set(Phase::Running(fingerprint))
    }
}

impl Inner {
    /// Wakes waiters that a flight left behind, in a task of their own.
    pub(super) fn wake_backlog(&self, backlog: Option<Backlog<Phase>>) {
        if let Some(backlog) = backlog {
            self.tasks.spawn_near(backlog.pace(Arc::clone(&self.clock)));
        }
    }
}
