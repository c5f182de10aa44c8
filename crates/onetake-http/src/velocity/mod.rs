//! How many new operations a route allows in a while, by tenant and by what the payload says.
//!
//! Only *fresh* keys count: those that neither this process nor the store knows. A known key is
//! replayed, joined or refused as ever, whatever the limits say. What was counted and was not claimed
//! is given back, so that one key counts once, however many requests come with it at once.
//!
//! It is counted before the service behind has checked any credential, so a limit by tenant can be
//! used up by whoever is able to name the tenant.
//!
//! Counted is in this process, or where many nodes count together
//! ([`LayerBuilder::shared_velocity`](crate::LayerBuilder::shared_velocity)); while that place does
//! not answer, each node counts by itself.
//!
//! What is remembered in this process is bounded
//! ([`velocity_values_max`](crate::HttpLimits::velocity_values_max)). A value that has no debt left
//! is forgotten, which changes nothing. If there are more values than that, the one that owes the
//! least is, among those of the rate that has the most. So nobody becomes unlimited: a value is
//! forgiven only what would be forgotten next anyway, hardly ever more than one operation, and for
//! that so many others had to be allowed in the time for one. Refusing all new values instead would
//! let whoever makes up values shut out everybody else. It is logged.

mod counter;
mod local;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use onetake_core::engine::{EngineError, Operation};
use onetake_core::{Fingerprinter, Scope};

pub use onetake_core::velocity::{Decision, Rate, RateError, SharedVelocity};

use crate::fail_open;
use crate::json::{Pointer, Value};
use crate::layer::Shared;
use crate::payload::Payload;
use crate::policy::Policy;
use crate::problem::from_engine::problem_of_error;
use crate::problem::{Code, Problem};
use crate::secrets::Secrets;

pub(crate) use counter::Counter;
use counter::{Entry, Ruling};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// A limit on new operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Velocity {
    /// What has a limit of its own: each combination of these. If there are none, the whole route.
    pub by: Vec<By>,
    /// How many there may be of each.
    pub limit: Rate,
}

impl Velocity {
    /// A limit for each combination of these values.
    #[must_use]
    pub fn new(by: impl IntoIterator<Item = By>, limit: Rate) -> Self {
        Self { by: by.into_iter().collect(), limit }
    }
}

/// What new operations are told apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum By {
    /// Whose key it is.
    Tenant,
    /// What the JSON body has here. If it has nothing, or no body, that counts as `null`.
    Json(Pointer),
}

/// What is counted: a digest, so that neither this process nor anybody else keeps card numbers. The
/// rate is part of it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Limit {
    key: [u8; 32],
    rate: Rate,
}

/// The right to go on. What was counted for it is given back, unless it is kept.
#[derive(Clone, Default)]
pub(crate) struct Pass(Option<Arc<Entry>>);

impl Pass {
    /// The operation runs, or has a record without having run: it is known from now on.
    pub(crate) fn keep(&self) {
        if let Some(Ruling::Counted { taken, .. }) = self.ruling() {
            taken.keep();
        }
    }

    /// For the time in which the engine is asked.
    pub(crate) fn asking(&self) -> Asking<'_> {
        Asking(Some(self))
    }

    /// Why it cannot be told whether the key is known: there is no use in asking the store again.
    pub(crate) fn store_error(&self) -> Option<EngineError> {
        match self.ruling() {
            Some(Ruling::Counted { away, .. }) => away.clone(),
            _ => None,
        }
    }

    fn ruling(&self) -> Option<&Ruling> {
        self.0.as_ref()?.ruling()
    }
}

/// Whoever goes away while the engine is asked may have been granted the key all the same, and then it
/// is known, and not counted again: so what was counted stays.
pub(crate) struct Asking<'a>(Option<&'a Pass>);

impl Asking<'_> {
    /// The engine has answered.
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.0 {
            pass.keep();
        }
    }
}

/// Counts the operation, if its key is fresh.
///
/// # Errors
/// A problem for the client: a limit is reached, the body cannot be read, or the store is away.
pub(crate) async fn pass(
    shared: &Shared,
    policy: &Policy,
    scope: &Scope,
    payload: &Payload,
    operation: &Operation,
) -> Result<Pass, Problem> {
    if policy.velocity.is_empty() {
        return Ok(Pass::default());
    }
    let failed = |error: &EngineError| problem_of_error(error, operation.id.reference());
    let limits = match limits(policy, scope, payload, &shared.secrets) {
        Ok(limits) => limits,
        // A known key is answered, whatever comes with it now.
        Err(problem) => {
            return match shared.engine.is_known(operation).await {
                Ok(true) => Ok(Pass::default()),
                Ok(false) => Err(problem),
                Err(error) if fail_open::is_open(policy, &error) => Err(problem),
                Err(error) => Err(failed(&error)),
            };
        }
    };
    let runs_anyway = |error: &EngineError| fail_open::is_open(policy, error);
    let entry = shared.velocity.enter(operation, &limits);
    match entry.decide(operation, &limits, runs_anyway).await {
        Ruling::Known | Ruling::Counted { .. } => Ok(Pass(Some(entry))),
        Ruling::Refused { rate, retry_after } => Err(exceeded(*rate, *retry_after)),
        Ruling::Away(error) => Err(failed(error)),
    }
}

fn limits(
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
                    let value = body.and_then(|body| body.get(pointer)).unwrap_or(&Value::Null);
                    let mut canonical = Vec::new();
                    value.canonical(&mut canonical);
                    digest.part(b"json").part(pointer.as_str().as_bytes()).part(&canonical)
                }
            };
        }
        // Card numbers can be tried out on a plain digest; not where there is a secret.
        let (sealed, _) = secrets.seal(digest.finish());
        let limit = Limit { key: *sealed.digest(), rate };
        // One that is configured twice is still one.
        if !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    Ok(limits)
}

fn exceeded(rate: Rate, retry_after: Duration) -> Problem {
    let (seconds, window) = (whole_seconds(retry_after), whole_seconds(rate.per()));
    let detail = format!(
        "There are more new operations than this route allows ({rate}). Nothing was claimed and nothing was run; retry with the same key in {seconds} s."
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

/// Rounded up, and at least one.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)).max(1)
}
