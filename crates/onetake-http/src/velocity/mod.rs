//! Velocity limits on the new operations of a route, by tenant and by values in the payload.
//!
//! Only *fresh* keys count: keys that neither this process nor the store knows. A known key is
//! replayed, joined or refused as usual, whatever the limits are. If a counted operation is not
//! claimed, its count is undone. So one key counts once, also if many requests with it arrive at
//! the same time.
//!
//! **Warning:** operations are counted before the inner service has checked a credential. A client
//! that can name a tenant can use up the limit of that tenant.
//!
//! Operations are counted in this process, or in a place that many nodes share
//! ([`LayerBuilder::shared_velocity`](crate::LayerBuilder::shared_velocity)). While the shared
//! place is unavailable, each node counts by itself.
//!
//! The number of values that this process remembers is bounded
//! ([`velocity_values_max`](crate::HttpLimits::velocity_values_max)). The debt of a value is the
//! time until its limit is fully available again. A value without debt is forgotten, which changes
//! nothing.
//!
//! If there are too many values, the process forgets the value with the least debt, of the rate
//! with the most values, and logs a warning. No value becomes unlimited by that. The least debt is
//! hardly ever more than one operation. And the bound is reached only if as many operations with
//! other values were allowed in the time for one operation. If new values were refused instead, a
//! client that invents values could lock out all others.

mod counter;
mod local;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use onetake_core::engine::{EngineError, KeyUse, Operation};
use onetake_core::{Fingerprinter, Scope};

pub use onetake_core::velocity::{Rate, RateError, SharedVelocity, VelocityDecision};

use crate::fail_open;
use crate::json::{self, Pointer};
use crate::layer::LayerState;
use crate::payload::Payload;
use crate::policy::Policy;
use crate::problem::from_engine::problem_of_error;
use crate::problem::{Code, Problem};
use crate::secrets::Secrets;

pub(crate) use counter::Counter;
use counter::{CountDecision, PendingOperation};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A limit on new operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Velocity {
    /// The values by which operations are counted separately. Each combination has its own limit.
    /// If there are none, the whole route has one limit.
    pub by: Vec<By>,
    /// The rate that is allowed for each combination.
    pub limit: Rate,
}

impl Velocity {
    /// Creates a limit for each combination of these values.
    #[must_use]
    pub fn new(by: impl IntoIterator<Item = By>, limit: Rate) -> Self {
        Self { by: by.into_iter().collect(), limit }
    }
}

/// A value by which new operations are counted separately.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum By {
    /// The tenant.
    Tenant,
    /// The value at this place in the JSON body. A missing value or an empty body counts as `null`.
    Json(Pointer),
}

/// One limit for one combination of values. The key is a digest of the values and the rate, so that
/// neither this process nor the shared place keeps card numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    key: [u8; 32],
    rate: Rate,
}

/// The permission of the velocity limits. The counts for it are undone on drop, unless `keep` was
/// called.
#[derive(Clone, Default)]
pub(crate) enum Pass {
    /// The route has no limits.
    #[default]
    Unlimited,
    /// The key is known, and nothing was counted. `is_taken` is true if it has a record that excludes
    /// another run.
    Known { is_taken: bool },
    /// The decision is shared with other requests for the same operation.
    Decided(Arc<PendingOperation>),
}

impl Pass {
    /// Keeps the counts. Call it if the operation runs, or has a record without having run: its key
    /// is known from then on.
    pub(crate) fn keep(&self) {
        if let Some(CountDecision::Counted { taken, .. }) = self.decision() {
            taken.keep();
        }
    }

    /// Returns a guard for the time in which the engine is asked.
    pub(crate) fn asking(&self) -> CountGuard<'_> {
        CountGuard(Some(self))
    }

    /// Returns the store's error, if the operation was counted while the store was unavailable. The
    /// caller need not ask the store again.
    pub(crate) fn store_error(&self) -> Option<EngineError> {
        match self.decision() {
            Some(CountDecision::Counted { away, .. }) => away.clone(),
            _ => None,
        }
    }

    /// Returns true if the key was seen to have a record that excludes another run.
    pub(crate) fn is_taken(&self) -> bool {
        match self {
            Self::Unlimited => false,
            Self::Known { is_taken } => *is_taken,
            Self::Decided(_) => {
                matches!(self.decision(), Some(CountDecision::Known { is_taken: true }))
            }
        }
    }

    fn decision(&self) -> Option<&CountDecision> {
        match self {
            Self::Unlimited | Self::Known { .. } => None,
            Self::Decided(entry) => entry.decision(),
        }
    }
}

/// A guard that keeps the counts of a request that is cancelled while the engine is asked. Its
/// claim may have been granted. Then the key is known, and its retries are not counted.
pub(crate) struct CountGuard<'a>(Option<&'a Pass>);

impl CountGuard<'_> {
    /// Ends the guard, because the engine has answered.
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.0 {
            pass.keep();
        }
    }
}

/// Counts the operation, if its key is fresh.
///
/// # Errors
/// A problem for the client: a limit is reached, the body cannot be read, or the store is
/// unavailable.
pub(crate) async fn pass(
    shared: &LayerState,
    policy: &Policy,
    limits: &Result<Vec<Limit>, Problem>,
    operation: &Operation,
) -> Result<Pass, Problem> {
    if policy.velocity.is_empty() {
        return Ok(Pass::default());
    }
    let failed = |error: &EngineError| problem_of_error(error, operation.id.reference());
    let limits = match limits {
        Ok(limits) => limits,
        // A known key is answered, even if the body of this request cannot be read.
        Err(problem) => {
            return match shared.engine.key_use(operation).await {
                Ok(KeyUse::Unused) => Err(problem.clone()),
                Ok(found) => Ok(Pass::Known { is_taken: counter::is_taken(found) }),
                Err(error) if fail_open::is_open(policy, &error) => Err(problem.clone()),
                Err(error) => Err(failed(&error)),
            };
        }
    };
    let runs_anyway = |error: &EngineError| fail_open::is_open(policy, error);
    let entry = shared.velocity.enter(operation, limits);
    match entry.decide(operation, limits, runs_anyway).await {
        CountDecision::Known { .. } | CountDecision::Counted { .. } => Ok(Pass::Decided(entry)),
        CountDecision::Refused { rate, retry_after } => Err(exceeded(*rate, *retry_after)),
        CountDecision::Away(error) => Err(failed(error)),
    }
}

/// Returns the limits of an operation, each with the value that it counts by.
///
/// # Errors
/// A problem for the client: the body cannot be read.
pub(crate) fn limits(
    policy: &Policy,
    scope: &Scope,
    payload: &Payload,
    secrets: &Secrets,
) -> Result<Vec<Limit>, Problem> {
    let mut limits = Vec::with_capacity(policy.velocity.len());
    for velocity in &policy.velocity {
        let rate = velocity.limit;
        let mut digest = Fingerprinter::new()
            .part(b"velocity")
            .part(policy.label.as_bytes())
            .part(policy.namespace.as_bytes())
            .part(&rate.count().get().to_be_bytes())
            .part(&rate.per().as_nanos().to_be_bytes());
        for by in &velocity.by {
            digest = match by {
                By::Tenant => digest.part(b"tenant").part(scope.tenant()),
                By::Json(pointer) => {
                    let empty = payload.data().is_empty();
                    let body = if empty { None } else { Some(payload.json()?) };
                    let mut canonical = Vec::new();
                    match body.and_then(|body| body.get(pointer)) {
                        Some(value) => value.canonical(&mut canonical),
                        None => canonical.extend_from_slice(json::NULL),
                    }
                    digest.part(b"json").part(pointer.as_str().as_bytes()).part(&canonical)
                }
            };
        }
        // Sealed with a secret, if there is one. Card numbers could be guessed from a plain digest.
        let (sealed, _) = secrets.seal(digest.finish());
        let limit = Limit { key: *sealed.digest(), rate };
        // A limit that is configured twice counts once.
        if !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    Ok(limits)
}

fn exceeded(rate: Rate, retry_after: Duration) -> Problem {
    let (seconds, window) = (whole_seconds(retry_after), whole_seconds(rate.per()));
    let detail = format!(
        "The limit of new operations on this route is exceeded ({rate}). Nothing was run. Retry with the same key in {seconds} s."
    );
    let policy = format!("\"default\";q={};w={window}", rate.count());
    let mut problem = Problem::new(Code::VelocityLimitExceeded, detail).retry_after(seconds);
    for (name, text) in
        [(RATELIMIT_POLICY, policy), (RATELIMIT, format!("\"default\";r=0;t={seconds}"))]
    {
        if let Ok(value) = HeaderValue::from_str(&text) {
            problem = problem.header(name, value);
        }
    }
    problem
}

/// Returns the seconds, rounded up, and at least 1.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)).max(1)
}
