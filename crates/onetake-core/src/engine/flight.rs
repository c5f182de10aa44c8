//! The operations that this process is busy with, one flight per record.
//!
//! Whoever opens a flight asks the store; everybody else in this process who comes with the same
//! key meanwhile joins it and never reaches the store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::record::Record;
use crate::scope::RecordId;

use super::EngineError;
use super::latest::{Latest, Reader};

/// Enough to keep many threads out of each other's way.
const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Flights {
    shards: [Mutex<HashMap<RecordId, Arc<Flight>>>; SHARDS],
}

/// One record's flight.
#[derive(Debug)]
pub(crate) struct Flight {
    phase: Latest<Phase>,
    /// Whether somebody was promised an outcome, or it was decided that there will be none. The first
    /// of the two stands: they exclude each other.
    ending: AtomicU8,
}

/// Nobody was promised anything, and nothing was decided.
const OPEN: u8 = 0;
/// Somebody was told to come back for the outcome.
const PROMISED: u8 = 1;
/// It is being released.
const RELEASED: u8 = 2;

/// How far a flight has come.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// The store has been asked, and has not answered yet.
    Claiming,
    /// An attempt of this process owns the lease.
    Running(Fingerprint),
    /// It is over.
    Landed(Landing),
}

/// How a flight ended.
#[derive(Clone, Debug)]
pub(crate) enum Landing {
    /// The record as the store told it, at its time.
    Record(Arc<Record>, Timestamp),
    /// The store could not be asked.
    Failed(EngineError),
    /// Nothing is known: ask again.
    Nothing,
}

/// What somebody who comes with a key finds.
pub(crate) enum Entered {
    /// Nobody: the flight is now theirs to fly.
    Leader(Arc<Flight>),
    /// A flight that is under way.
    Joiner(Reader<Phase>),
    /// A flight that too many have joined already.
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

    /// The flight of a record, if this process is busy with it.
    pub(crate) fn get(&self, id: &RecordId) -> Option<Arc<Flight>> {
        self.shard(id).get(id).cloned()
    }

    /// Whether there is a flight for this record.
    pub(crate) fn has(&self, id: &RecordId) -> bool {
        self.shard(id).contains_key(id)
    }

    /// Whether an attempt of this process owns the record.
    pub(crate) fn runs(&self, id: &RecordId) -> bool {
        let shard = self.shard(id);
        shard.get(id).is_some_and(|flight| matches!(flight.phase.get(), Phase::Running(_)))
    }

    /// Ends a flight: first nobody can join it, then those who had are told.
    pub(crate) fn land(&self, id: RecordId, flight: &Arc<Flight>, landing: Landing) {
        let mut shard = self.shard(&id);
        if shard.get(&id).is_some_and(|current| Arc::ptr_eq(current, flight)) {
            shard.remove(&id);
        }
        drop(shard);
        flight.phase.set(Phase::Landed(landing));
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, HashMap<RecordId, Arc<Flight>>> {
        // The last byte: the first ones are what an attacker who reads references could aim at.
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

    /// Promises that there will be an outcome; `false` if it was decided that there will be none.
    pub(crate) fn promise(&self) -> bool {
        self.decide(PROMISED)
    }

    /// Decides that there will be no outcome; `false` if one was promised.
    pub(crate) fn release(&self) -> bool {
        self.decide(RELEASED)
    }

    fn decide(&self, ending: u8) -> bool {
        let before =
            self.ending.compare_exchange(OPEN, ending, Ordering::AcqRel, Ordering::Acquire);
        before.map_or_else(|before| before == ending, |_| true)
    }

    /// Tells the others that an attempt of this process runs.
    pub(crate) fn run(&self, fingerprint: Fingerprint) {
        self.phase.set(Phase::Running(fingerprint));
    }
}
