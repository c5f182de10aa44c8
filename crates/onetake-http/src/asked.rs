//! What a request asks for, as far as its head tells.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Method, Uri};

use onetake_core::InFlight as Engaged;
use onetake_core::clock::Timestamp;
use onetake_core::engine::Operation;
use onetake_core::{
    Clock, DerivingSecret, Fingerprint, Key, Memo, Origin, RecordId, Reference, Scope,
};

use crate::admit::Refused;
use crate::deadline::{self, Deadline};
use crate::issued::{self, Use};
use crate::key::{as_written, key};
use crate::later::Later;
use crate::layer::Shared;
use crate::policy::{InFlight, KeySource, Policy};
use crate::prefer::Prefer;
use crate::remember::memo;
use crate::tenant::{Caller, Tenant};
use crate::trace::Trace;

/// The shortest lease that a deadline leads to: a shorter one would be nothing but heartbeats.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// How much longer a record lives than the key that was issued for it, at least (S15): the route may have had
/// another ttl when it was issued, and nodes' clocks differ.
const OUTLIVES: Duration = Duration::from_secs(60);

/// What can be told of a request by its head: what applies to it, and who asks.
pub(crate) struct Asked {
    pub(crate) policy: Arc<Policy>,
    pub(crate) caller: Caller,
    /// `None`: it is in the body.
    pub(crate) key: Option<Key>,
    /// Until when it may be used for the first time, if it was issued.
    issued_until: Option<Timestamp>,
    pub(crate) deadline: Option<Deadline>,
}

impl Asked {
    /// `None`: the request is not keyed, and passes through untouched.
    pub(crate) async fn of(
        shared: &Shared,
        parts: &Parts,
        trace: &Trace,
    ) -> Result<Option<Self>, (Refused, Arc<Policy>)> {
        let Some(policy) = shared.policies.resolve(parts) else {
            return Ok(None);
        };
        trace.route(&policy.label);
        if !policy.methods.contains(&parts.method) || parts.method == Method::GET {
            return Ok(None);
        }
        let asked = Self::under(&policy, parts, shared).await;
        asked.map_err(|refused| (refused, policy))
    }

    async fn under(
        policy: &Arc<Policy>,
        parts: &Parts,
        shared: &Shared,
    ) -> Result<Option<Self>, Refused> {
        let key = match policy.key.source {
            KeySource::Header | KeySource::Issued => match key(&parts.headers, &policy.key) {
                Ok(Some(key)) => Some(key),
                Ok(None) => return Ok(None),
                Err(problem) => return Err((problem, None)),
            },
            KeySource::Json(_) | KeySource::Derive(_) => None,
        };
        let refer =
            |caller: &Caller| key.as_ref().map(|key| reference(&scope(policy, caller), key));
        let clock = &**shared.engine.clock();
        let deadline = match Deadline::of(&parts.headers, clock) {
            Ok(deadline) => deadline,
            Err(problem) => {
                // Nobody is asked about what is refused in any case.
                let caller = policy.tenant.resolve_now(parts, clock).and_then(Result::ok);
                return Err((problem, caller.as_ref().and_then(refer)));
            }
        };
        let resolved = match (&policy.tenant, deadline) {
            // Somebody else is asked, who may take longer than the client has.
            (Tenant::Asked(_), Some(deadline)) => tokio::select! {
                biased;
                resolved = policy.tenant.resolve(parts, clock) => resolved,
                () = clock.sleep(deadline.left(clock)) => Err(deadline::over()),
            },
            (tenant, _) => tenant.resolve(parts, clock).await,
        };
        let caller = resolved.map_err(|problem| (problem, None))?;
        let issued_until = match (&policy.key.source, &key) {
            (KeySource::Issued, Some(key)) => {
                let (method, path) = (&parts.method, uri(parts).path());
                let used = Use::of(policy, &caller.tenant, method, path);
                let until = issued::verify(&shared.secrets.issued_keys, &used, key);
                Some(until.ok_or_else(|| (issued::invalid(), refer(&caller)))?)
            }
            _ => None,
        };
        let policy = Arc::clone(policy);
        Ok(Some(Self { policy, caller, key, issued_until, deadline }))
    }

    /// Whether its key was issued, and may not be used for the first time any more.
    pub(crate) fn is_expired(&self, clock: &dyn Clock) -> bool {
        self.issued_until.is_some_and(|until| until <= clock.now())
    }

    pub(crate) fn scope(&self) -> Scope {
        scope(&self.policy, &self.caller)
    }

    /// How long something may take that may take `max` by itself.
    pub(crate) fn within(&self, max: Duration, clock: &dyn Clock) -> Duration {
        self.deadline.map_or(max, |deadline| deadline.left(clock).min(max))
    }

    pub(crate) fn operation(&self, key: &Key, print: Fingerprint, shared: &Shared) -> Operation {
        let clock = &**shared.engine.clock();
        let policy = &self.policy;
        let (current, earlier) = shared.secrets.seal(print);
        let mut terms = policy.kept_terms();
        if let Some(until) = self.issued_until {
            terms.ttl = terms.ttl.max(until.since(clock.now()).saturating_add(OUTLIVES));
        }
        // Nobody waits for what runs longer, so nobody should wait for its lease either; unless they come
        // back for it.
        if !self.is_async() {
            terms.lease = self.within(terms.lease, clock).max(LEASE_MIN.min(terms.lease));
        }
        let in_flight = match policy.in_flight {
            InFlight::Wait(wait) | InFlight::Async(wait) => Engaged::Wait(self.within(wait, clock)),
            InFlight::Reject => Engaged::Reject,
        };
        let tenant = shared.secrets.tenant(&self.caller.tenant);
        let origin = Origin::new(tenant, &policy.label);
        let operation = Operation::new(&self.scope(), key, current)
            .earlier(earlier)
            .terms(terms)
            .origin(origin)
            .in_flight(in_flight)
            .run_max(self.run_max(clock));
        match &policy.on_retry {
            Some(hook) => operation.on_retry(hook.clone()),
            None => operation,
        }
    }

    /// What the record is to keep for whoever reconciles it.
    pub(crate) fn memo(&self, key: &Key, deriving: &DerivingSecret, headers: &HeaderMap) -> Memo {
        let written = match &self.key {
            Some(_) => as_written(headers),
            None => None, // It is in the body.
        };
        let written = written.unwrap_or(key.as_str().as_bytes());
        match &*self.policy.remember {
            [] => Memo::default(),
            wanted => memo(wanted, &self.scope(), (key, written), deriving, self.policy.run_max),
        }
    }

    fn is_async(&self) -> bool {
        matches!(self.policy.in_flight, InFlight::Async(_))
    }

    /// For how long the operation may run if it begins now. Where the client need not wait for it, its
    /// deadline is how long it waits for an answer.
    pub(crate) fn run_max(&self, clock: &dyn Clock) -> Duration {
        let max = self.policy.run_max;
        if self.is_async() { max } else { self.within(max, clock) }
    }

    /// Whether it is too late to begin.
    pub(crate) fn is_over(&self, clock: &dyn Clock) -> bool {
        self.run_max(clock).is_zero() || self.within(Duration::MAX, clock).is_zero()
    }

    /// What an async route owes this client.
    pub(crate) fn later(
        &self,
        operation: &Operation,
        parts: &Parts,
        shared: &Shared,
    ) -> Option<Box<Later>> {
        let InFlight::Async(wait) = self.policy.in_flight else {
            return None;
        };
        let clock = &**shared.engine.clock();
        let fingerprints = std::iter::once(&operation.fingerprint).chain(&operation.earlier);
        let handle = shared.handles.of(operation.id, &self.caller, fingerprints);
        let left = self.deadline.map(|deadline| deadline.left(clock));
        let waits = (wait, Prefer::of(&parts.headers));
        let later = Later::new(operation.clone(), handle, waits, left, clock.monotonic());
        Some(Box::new(later))
    }
}

fn scope(policy: &Policy, caller: &Caller) -> Scope {
    Scope::new(caller.tenant.clone()).namespace(&policy.namespace)
}

/// What the client asked for. Inside of axum's `nest`, the request itself has lost the beginning of it.
pub(crate) fn uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// What people call the operation.
pub(crate) fn reference(scope: &Scope, key: &Key) -> Reference {
    RecordId::derive(scope, key).reference()
}
