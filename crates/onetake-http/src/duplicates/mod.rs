//! Suspected re-keying: the same payload under another key.
//!
//! A client that makes a new key for each retry runs its operation again. To the layer the retry
//! looks like a new operation with the same payload. A route with
//! [`Policy::duplicate_payload`](crate::Policy::duplicate_payload) logs such requests, or refuses
//! them.
//!
//! It is a detector, and decides nothing about records. It remembers the payloads of recent
//! operations in the memory of this process, within a bound. A restart and another node know
//! nothing of them.
//!
//! | the attempt | its payload |
//! | --- | --- |
//! | did not start, was released, or was refused by the service with 4xx | is forgotten at once |
//! | succeeded, failed, has an unknown outcome, or still runs | is kept for the window |

mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use metrics::{Counter, counter, describe_counter};

use onetake_core::engine::Operation;
use onetake_core::{Clock, Fingerprinter, RecordId, Scope};

use crate::layer::LayerState;
use crate::policy::Policy;
use crate::problem::{Code, Problem};

use table::{Entered, PayloadDigest, PayloadTable};

/// The request header that allows the payload of another key: `Onetake-Allow-Duplicate: true`.
pub const ONETAKE_ALLOW_DUPLICATE: HeaderName = HeaderName::from_static("onetake-allow-duplicate");

const SUSPECTED: &str = "onetake_duplicate_payloads_total";
const EVICTED: &str = "onetake_duplicate_payloads_evicted_total";

/// The treatment of a payload that the same tenant sent under another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DuplicatePayload {
    /// The time after the first request in which a second key is suspicious.
    pub window: Duration,
    /// The treatment of such a request.
    pub action: DuplicateAction,
}

impl DuplicatePayload {
    /// Creates a rule.
    #[must_use]
    pub const fn new(window: Duration, action: DuplicateAction) -> Self {
        Self { window, action }
    }
}

/// The treatment of a request with the payload of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DuplicateAction {
    /// The request runs. It is counted and logged, with the references of both keys.
    Log,
    /// The request is refused with `duplicate_payload`, unless it has the header
    /// `Onetake-Allow-Duplicate: true`.
    Reject,
}

/// The detector of one layer.
pub(crate) struct Detector {
    clock: Arc<dyn Clock>,
    table: Mutex<PayloadTable<RecordId>>,
    logged: Counter,
    rejected: Counter,
    allowed: Counter,
    evicted: Counter,
}

impl Detector {
    pub(crate) fn new(clock: Arc<dyn Clock>, payloads_max: usize) -> Arc<Self> {
        describe_counter!(SUSPECTED, "Requests with the payload of another key, by action.");
        describe_counter!(EVICTED, "Payloads forgotten early because there were too many.");
        let suspected = |action: &'static str| counter!(SUSPECTED, "action" => action);
        Arc::new(Self {
            clock,
            table: Mutex::new(PayloadTable::new(payloads_max)),
            logged: suspected("logged"),
            rejected: suspected("rejected"),
            allowed: suspected("allowed"),
            evicted: counter!(EVICTED),
        })
    }

    fn enter(
        self: &Arc<Self>,
        payload: PayloadDigest,
        id: RecordId,
        window: Duration,
    ) -> Result<PayloadGuard, RecordId> {
        let entered = self.lock().enter(payload, id, self.clock.monotonic(), window);
        match entered {
            Entered::Other(other) => Err(other),
            Entered::Own { evicted } => {
                self.evicted.increment(evicted);
                let held = HeldPayload { detector: Arc::clone(self), payload, id };
                Ok(PayloadGuard(Some(Arc::new(held))))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PayloadTable<RecordId>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The payload of a request that is being decided or run. It is forgotten on drop, unless the
/// operation may have had its effect.
#[derive(Clone, Default)]
pub(crate) struct PayloadGuard(Option<Arc<HeldPayload>>);

struct HeldPayload {
    detector: Arc<Detector>,
    payload: PayloadDigest,
    id: RecordId,
}

impl PayloadGuard {
    /// Notes whether the operation may have had its effect.
    pub(crate) fn set_kept(&self, is_kept: bool) {
        if let Some(held) = &self.0 {
            held.detector.lock().set_kept(&held.payload, held.id, is_kept);
        }
    }
}

impl Drop for HeldPayload {
    fn drop(&mut self) {
        self.detector.lock().leave(&self.payload, self.id);
    }
}

/// Looks for the payload of the operation under another key.
///
/// # Errors
/// A problem for the client, if the route refuses such requests.
pub(crate) async fn check(
    shared: &LayerState,
    policy: &Policy,
    scope: &Scope,
    headers: &HeaderMap,
    operation: &Operation,
) -> Result<PayloadGuard, Problem> {
    let Some(DuplicatePayload { window, action }) = policy.duplicate_payload else {
        return Ok(PayloadGuard::default());
    };
    let detector = &shared.duplicates;
    let earlier = match detector.enter(digest(scope, operation), operation.id, window) {
        Ok(guard) => return Ok(guard),
        Err(earlier) => earlier,
    };
    // A key that is known is retried, whatever other key has the same payload. If the store does
    // not answer, the claim decides.
    if !matches!(shared.engine.is_known(operation).await, Ok(false)) {
        return Ok(PayloadGuard::default());
    }
    let (route, reference, earlier) =
        (&policy.label, operation.id.reference(), earlier.reference());
    if headers.get(ONETAKE_ALLOW_DUPLICATE).is_some_and(|value| value == "true") {
        detector.allowed.increment(1);
        return Ok(PayloadGuard::default());
    }
    match action {
        DuplicateAction::Log => {
            detector.logged.increment(1);
            tracing::warn!(
                route, %reference, %earlier,
                "a tenant sent the payload of an earlier key under a new key: its client may make a new key for each retry"
            );
            Ok(PayloadGuard::default())
        }
        DuplicateAction::Reject => {
            detector.rejected.increment(1);
            tracing::warn!(
                route, %reference, %earlier,
                "a request was refused: its payload was sent under an earlier key. The client may make a new key for each retry"
            );
            Err(duplicate(&earlier.to_string()))
        }
    }
}

/// The payload of one tenant in one namespace. It holds the sealed fingerprint, so that payloads
/// cannot be guessed from a memory dump if there is a secret.
fn digest(scope: &Scope, operation: &Operation) -> PayloadDigest {
    let digest = Fingerprinter::new()
        .part(b"duplicate payload")
        .part(scope.tenant())
        .part(scope.name().as_bytes())
        .part(operation.fingerprint.digest());
    let mut payload = PayloadDigest::default();
    for (to, from) in payload.iter_mut().zip(digest.finish().digest()) {
        *to = *from;
    }
    payload
}

fn duplicate(earlier: &str) -> Problem {
    let detail = format!(
        "The same request was sent a short time ago under another key (reference {earlier}). Nothing was run. To retry it, send its key. If it is meant to run twice, send it with the header Onetake-Allow-Duplicate: true."
    );
    Problem::new(Code::DuplicatePayload, detail)
}
