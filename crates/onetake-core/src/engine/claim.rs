//! Claims: requests to the store for the right to run.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::clock::Timestamp;
use crate::record::{AttemptId, Cause, Record, State};
use crate::scope::RecordId;
use crate::store::{Claim, Claimed, Settled, Settlement, StoreError, StoreErrorKind, Transition};

use super::flight::{Flight, Landing};
use super::housekeeping::audit;
use super::lease::{Granted, Lease};
use super::lost_claim;
use super::operation::{EngineError, Operation};
use super::resolve::Led;
use super::{Engine, Inner};

/// Sends a claim to the store, and lands the flight if the claim is not granted.
pub(super) async fn claim(
    engine: Engine,
    operation: Arc<Operation>,
    flight: Arc<Flight>,
) -> Result<Led, EngineError> {
    let mut open = OpenFlight { inner: &engine.inner, id: operation.id, flight: Some(flight) };
    match try_claim(&engine.inner, &operation).await {
        Ok((Ok(granted), permit)) => match open.flight.take() {
            Some(flight) => Ok(Led::Run(Lease::new(&engine, flight, permit, &operation, granted))),
            None => Err(EngineError::Closing),
        },
        Ok((Err((record, now)), _permit)) => {
            open.land(Landing::Record(Arc::clone(&record), now));
            Ok(Led::Found(record, now))
        }
        Err(error) => {
            open.land(Landing::Failed(error.clone()));
            Err(error)
        }
    }
}

/// A flight whose claim is under way. Its waiters get a result even if the claim is dropped.
struct OpenFlight<'a> {
    inner: &'a Inner,
    id: RecordId,
    flight: Option<Arc<Flight>>,
}

impl OpenFlight<'_> {
    fn land(&mut self, landing: Landing) {
        if let Some(flight) = self.flight.take() {
            self.inner.wake_backlog(self.inner.flights.land(self.id, &flight, landing));
        }
    }
}

impl Drop for OpenFlight<'_> {
    fn drop(&mut self) {
        self.land(Landing::Nothing);
    }
}

type ClaimAnswer = Result<Granted, (Arc<Record>, Timestamp)>;

async fn try_claim(
    engine: &Arc<Inner>,
    operation: &Operation,
) -> Result<(ClaimAnswer, OwnedSemaphorePermit), EngineError> {
    let permit = engine.admit()?;
    let attempt = AttemptId::random(&*engine.rng);
    let claim = Claim {
        id: operation.id,
        attempt,
        fingerprint: operation.fingerprint,
        terms: operation.terms,
        origin: operation.origin.clone(),
    };
    let asked_at = engine.clock.monotonic();
    // Shutdown waits until a claim that may be in the store, and that no attempt runs, is handed to
    // the journal.
    let _handed_over = engine.settling.token();
    let answer = tokio::select! {
        biased;
        answer = engine.claims.write(claim) => answer,
        () = engine.stopped.cancelled() => {
            let what = "the engine stopped before the store answered";
            Err(StoreError::new(StoreErrorKind::Indeterminate, what))
        }
    };
    let answer = match answer {
        // The claim may be durable, nothing ran, and the store accepts no release, because a write
        // failed or the engine stopped. The release goes to the journal for the next start.
        Err(error) if error.kind() == StoreErrorKind::Corrupt || is_lost(engine, &error) => {
            let transition = Transition::Release;
            engine.could_not_settle(Settlement { id: operation.id, attempt, transition });
            Err(error)
        }
        Err(error) if error.kind() == StoreErrorKind::Indeterminate => {
            recover(engine, operation, attempt, error).await
        }
        answer => answer,
    };
    match answer {
        Ok(Claimed::Granted { fence }) => Ok((Ok(Granted { attempt, fence, asked_at }), permit)),
        Ok(Claimed::Found { record, now }) => {
            engine.cache.put(&record, now, asked_at);
            // This claim itself made the record unknown.
            if matches!(record.state, State::Unknown { at, cause: Cause::LeaseEnded, .. } if at == now)
            {
                let (engine, record) = (Arc::clone(engine), Arc::clone(&record));
                engine.clone().tasks.spawn(async move { audit(&engine, &record).await });
            }
            Ok((Err((record, now)), permit))
        }
        Err(error) => {
            engine.failed(&error);
            Err(error.into())
        }
    }
}

/// True if a claim may have reached the store, and the engine has stopped.
fn is_lost(engine: &Inner, error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Indeterminate && engine.stopped.is_cancelled()
}

/// Recovers a claim whose answer was lost, by renewing it. The claim may be in the store.
///
/// A read would not be enough: the claim may be visible before it is durable. A renewal is a write,
/// which is answered when it and every write before it are durable. If the renewal fails too,
/// nothing ran, and the claim is released whenever it reaches the store: see [`lost_claim`].
///
/// The claim is not sent again, although a store grants a running attempt once more. A second copy
/// could arrive after its attempt was released and other attempts have had the key. No attempt
/// would run it, and the key would become unknown.
async fn recover(
    engine: &Arc<Inner>,
    operation: &Operation,
    attempt: AttemptId,
    error: StoreError,
) -> Result<Claimed, StoreError> {
    let id = operation.id;
    let renewal = Settlement { id, attempt, transition: Transition::Renew };
    let error = match engine.settles.submit(renewal).await {
        Ok(Settled::Done { record, .. })
            if record.attempt == attempt && matches!(record.state, State::Running { .. }) =>
        {
            return Ok(Claimed::Granted { fence: record.fence });
        }
        // Another attempt has the key. So a caller must not run without a record, although the
        // answer to its claim was lost (S10).
        Ok(Settled::Stale { current: Some(record) })
            if !matches!(record.state, State::Released { .. }) =>
        {
            let what = "the answer to the claim was lost, and another attempt has the key";
            StoreError::new(StoreErrorKind::Busy, what)
        }
        // The claim did not arrive, or not yet. The answer of the store does not say that it works: a
        // renewal that finds no record writes nothing.
        _ => error,
    };
    lost_claim::release(engine, id, attempt);
    Err(error)
}
