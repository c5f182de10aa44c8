//! The first step of a keyed request: reading its head.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Uri};

use onetake_core::clock::Timestamp;
use onetake_core::{Clock, DerivingSecret, Key, Memo, RecordId, Reference, Scope};

use crate::deadline::{self, Arrived, Deadline};
use crate::grpc::CallForm;
use crate::issued::{self, Use};
use crate::key::{as_written, key_of_head};
use crate::layer::LayerState;
use crate::memo::memo;
use crate::policy::{InFlight, KeySource, Policy};
use crate::problem::Problem;
use crate::respond::Refusal;
use crate::tenant::{Caller, Tenant};
use crate::trace::Trace;

/// The head of a keyed request: its policy, scope and deadline, and its key unless that is in the
/// body.
pub(crate) struct Head {
    pub(crate) policy: Arc<Policy>,
    /// Tenant and namespace of the key.
    pub(crate) scope: Scope,
    /// The proof of the caller: [`Caller::proof`].
    pub(crate) proof: Vec<u8>,
    /// `None` if the key is in the body.
    pub(crate) name: Option<Name>,
    /// End of the time in which an issued key may be used for the first time. `None` if the key was
    /// not issued.
    pub(crate) issued_until: Option<Timestamp>,
    pub(crate) deadline: Option<Deadline>,
    /// The form of a gRPC call. `None` for other requests.
    pub(crate) form: Option<CallForm>,
}

/// The key of an operation and the id of its record. The id is derived from the key once.
pub(crate) struct Name {
    pub(crate) key: Key,
    pub(crate) id: RecordId,
}

impl Name {
    pub(crate) fn new(scope: &Scope, key: Key) -> Self {
        Self { id: RecordId::derive(scope, &key), key }
    }

    /// The reference by which clients and operators name the operation.
    pub(crate) fn reference(&self) -> Reference {
        self.id.reference()
    }
}

impl Head {
    /// Reads the head. Returns `None` if the request is not keyed and passes through untouched.
    pub(crate) async fn read(
        shared: &LayerState,
        parts: &Parts,
        trace: &Trace,
    ) -> Result<Option<Box<Self>>, Refusal> {
        let policy = shared.policies.try_resolve(parts).map_err(|ambiguous| {
            let policy = shared.policies.resolve(parts).unwrap_or_default();
            Refusal::new(&policy, ambiguous.into())
        })?;
        let Some(policy) = policy else {
            return Ok(None);
        };
        trace.route(&policy.label);
        let refused = |problem| Refusal::new(&policy, problem);
        shared.check_policy(&policy, &parts.method).map_err(refused)?;
        if !policy.is_keyed(&parts.method) {
            return Ok(None);
        }
        shared.check_fit(&policy, parts).map_err(refused)?;
        let key = key_of_head(parts, &policy).map_err(refused)?;
        if key.is_none() && !policy.key.source.is_in_body() {
            return Ok(None);
        }
        let clock = &**shared.engine.clock();
        let arrived = parts.extensions.get::<Arrived>().copied();
        let deadline = match Deadline::of(&parts.headers, arrived, clock) {
            Ok(deadline) => deadline,
            Err(problem) => {
                // The request is refused in any case, so no other service is asked for the tenant.
                let caller = policy.tenant.resolve_now(parts, clock).and_then(Result::ok);
                let name = caller
                    .zip(key)
                    .map(|(caller, key)| Name::new(&scope(&policy, caller.tenant), key));
                return Err(refused(problem).referring(name.as_ref()));
            }
        };
        let Caller { tenant, proof } =
            caller(&policy.tenant, parts, deadline, clock).await.map_err(refused)?;
        let scope = scope(&policy, tenant);
        let name = key.map(|key| Name::new(&scope, key));
        let form = CallForm::of(&parts.headers);
        let mut head = Self { policy, scope, proof, name, issued_until: None, deadline, form };
        head.verify_issued(shared, parts)?;
        Ok(Some(Box::new(head)))
    }

    /// Checks that the key was issued by this layer's secrets, if the route takes only issued keys.
    fn verify_issued(&mut self, shared: &LayerState, parts: &Parts) -> Result<(), Refusal> {
        if let (KeySource::Issued, Some(name)) = (&self.policy.key.source, &self.name) {
            let (method, path) = (&parts.method, uri(parts).path());
            let used = Use::of(&self.policy, self.scope.tenant(), method, path);
            let until = issued::verify(&shared.secrets.issued_keys, &used, &name.key);
            self.issued_until = Some(until.ok_or_else(|| self.refused(issued::invalid()))?);
        }
        Ok(())
    }

    /// Creates a refusal, with the operation's reference if it is known.
    pub(crate) fn refused(&self, problem: Problem) -> Refusal {
        Refusal::new(&self.policy, problem).referring(self.name.as_ref())
    }

    /// Returns true if the key was issued and may no longer be used for the first time.
    pub(crate) fn is_expired(&self, clock: &dyn Clock) -> bool {
        self.issued_until.is_some_and(|until| until <= clock.now())
    }

    /// Returns `max`, or the time left until the deadline if that is shorter.
    pub(crate) fn within(&self, max: Duration, clock: &dyn Clock) -> Duration {
        self.deadline.map_or(max, |deadline| deadline.left(clock).min(max))
    }

    /// Returns true if the request may be answered with 202. A gRPC call may not: it waits.
    pub(crate) fn is_async(&self) -> bool {
        matches!(self.policy.in_flight, InFlight::Async(_)) && !self.is_grpc()
    }

    /// Returns true for a gRPC call. A call of gRPC-Web is ordinary HTTP here.
    pub(crate) fn is_grpc(&self) -> bool {
        self.form == Some(CallForm::Grpc)
    }

    /// Returns how long the operation may run if it starts now.
    ///
    /// On an async route the deadline does not limit the run: it limits only how long the client
    /// waits for an answer.
    pub(crate) fn run_max(&self, clock: &dyn Clock) -> Duration {
        let max = self.policy.upstream_timeout;
        if self.is_async() { max } else { self.within(max, clock) }
    }

    /// Returns true if it is too late to start.
    pub(crate) fn is_over(&self, clock: &dyn Clock) -> bool {
        self.run_max(clock).is_zero() || self.within(Duration::MAX, clock).is_zero()
    }

    /// Returns the memo that the record keeps for reconciliation.
    pub(crate) fn memo(&self, key: &Key, deriving: &DerivingSecret, headers: &HeaderMap) -> Memo {
        if self.policy.remember.is_empty() {
            return Memo::default();
        }
        let written = as_written(headers, &self.policy.key.source);
        let written = written.unwrap_or(key.as_str().as_bytes());
        memo(
            &self.policy.remember,
            &self.scope,
            (key, written),
            deriving,
            self.policy.upstream_timeout,
        )
    }
}

/// Resolves the caller. A service that is asked for the tenant, or for the keys of a token, can take
/// longer than the client's deadline, so the call ends at the deadline.
async fn caller(
    tenant: &Tenant,
    parts: &Parts,
    deadline: Option<Deadline>,
    clock: &dyn Clock,
) -> Result<Caller, Problem> {
    let Some(deadline) = deadline.filter(|_| tenant.is_verified()) else {
        return tenant.resolve(parts, clock).await;
    };
    tokio::select! {
        biased;
        resolved = tenant.resolve(parts, clock) => resolved,
        () = clock.sleep(deadline.left(clock)) => Err(deadline::exceeded()),
    }
}

fn scope(policy: &Policy, tenant: Vec<u8>) -> Scope {
    Scope::new(tenant).namespace(&policy.namespace)
}

/// Returns the URI that the client sent. Inside axum's `nest`, the URI of the request itself lacks
/// its beginning.
pub(crate) fn uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}
