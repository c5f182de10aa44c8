//! The policy of a route: its options, defaults, presets and validation.

mod builder;
mod check;
mod key;
mod preset;

use std::sync::OnceLock;
use std::time::Duration;

use http::Method;

use onetake_core::{OnRetry, Terms};

use crate::duplicates::DuplicatePayload;
use crate::fingerprint::FingerprintPolicy;
use crate::memo::MemoField;
use crate::problem::{Dialect, ProblemFormat, ProblemStatuses};
use crate::routes::{PathPattern, PathRules};
use crate::status::{Disposition, StatusPattern, StatusRules};
use crate::tenant::Tenant;
use crate::velocity::Velocity;

pub use check::{
    CHANGING_HEADERS, Mistake, NEVER_KEYED, PolicyError, TENANT_NOT_NAMED, is_namespace,
};
pub use key::{KeyFormat, KeyPolicy, KeySource, RequestValue};
pub use preset::{Preset, PresetValues};

const MIB: usize = 1 << 20;

/// The policy of a route: the source of its keys and tenants, and the rules for its attempts.
///
/// The defaults are those of the gateway for a request that no route matches:
///
/// | option | default |
/// | --- | --- |
/// | key | the header `Idempotency-Key`, 16 to 255 characters, optional |
/// | methods | POST and PATCH; with a required key, all but [`NEVER_KEYED`] |
/// | path_case, trailing_slash | letter case counts, a slash at the end does not |
/// | tenant | the credential, else one public tenant; cookies alone are refused |
/// | fingerprint | method, path, query, content type and the body, byte by byte |
/// | ttl, lease, grace | 24 hours, 30 seconds, 30 seconds |
/// | duplicate_payload | the same payload under another key is not looked for |
/// | in_flight | `Reject`: 409 |
/// | on_unknown | `Fail`: never run again |
/// | on_store_down | `FailClosed`: 503 |
/// | request_timeout, upstream_timeout | 30 seconds each |
/// | max_request_body, max_response_body | 1 MiB each |
/// | recorded statuses | 2xx, 3xx and 4xx, except the released ones |
/// | released statuses | 401, 403, 408, 409, 421, 423, 425, 429 and 503 |
/// | unknown statuses | 5xx except 503 |
///
/// **Warning:** requests with other methods pass through untouched, with or without a key.
///
/// Methods take plain text where the gateway's file does (`.release(["5xx"])`). Invalid text is
/// refused when the layer is built: see [`check`](Self::check). A field has the name of the method
/// that sets it, unless its documentation names other methods.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// The name of the route in logs; `-` by default.
    pub label: String,
    /// The methods that are keyed. `None` means POST and PATCH or, if a key is required, every
    /// method except [`NEVER_KEYED`].
    pub methods: Option<Vec<Method>>,
    /// The rules by which the paths of the route are compared: [`path_case`](Self::path_case) and
    /// [`trailing_slash`](Self::trailing_slash).
    pub paths: PathRules,
    /// The path of the route, from which path parameters are read. [`Routes`](crate::Routes) sets
    /// it.
    pub path: Option<PathPattern>,
    /// The source and the format of keys: [`key_from`](Self::key_from),
    /// [`key_required`](Self::key_required), [`key_format`](Self::key_format) and
    /// [`key_min_length`](Self::key_min_length).
    pub key: KeyPolicy,
    /// The tenant that owns a key.
    pub tenant: Tenant,
    /// The namespace, which separates the keys of this route from those of other routes; empty by
    /// default.
    pub namespace: String,
    /// The parts of a request that make its fingerprint: [`fingerprint`](Self::fingerprint) and
    /// [`fingerprint_headers`](Self::fingerprint_headers).
    pub fingerprint: FingerprintPolicy,
    /// Lease, grace, ttl, and the treatment of unknown outcomes: [`ttl`](Self::ttl),
    /// [`lease`](Self::lease), [`grace`](Self::grace), [`on_unknown`](Self::on_unknown), or
    /// [`terms`](Self::terms) for all of them.
    pub terms: Terms,
    /// True if every effect of the operation commits with its outcome. `transactional` sets it
    /// (feature `axum`).
    pub is_transactional: bool,
    /// Values that are kept in the record, by which a reconciler asks for the outcome of an
    /// attempt; none by default.
    pub remember: Vec<MemoField>,
    /// A hook that is called before an operation runs again if an earlier attempt may have left
    /// partial work.
    pub on_retry: Option<OnRetry>,
    /// Limits of new operations per time. All limits apply. Requests with a known key are never
    /// counted or refused.
    pub velocity: Vec<Velocity>,
    /// The treatment of a payload that the same tenant sent under another key a short time ago. It
    /// is not looked for by default.
    pub duplicate_payload: Option<DuplicatePayload>,
    /// The answer to a request whose operation is still running.
    pub in_flight: InFlight,
    /// The behaviour while the store is unreachable.
    pub on_store_down: OnStoreDown,
    /// The longest time that the operation may run.
    pub upstream_timeout: Duration,
    /// The rules that record or release an attempt, or make it unknown, by the status of its
    /// response: [`record`](Self::record), [`release`](Self::release) and
    /// [`mark_unknown`](Self::mark_unknown).
    pub outcomes: StatusRules,
    /// The format of problems.
    pub errors: Dialect,
    /// Replacements for the statuses of some problems.
    pub statuses: ProblemStatuses,
    /// The largest request body, in bytes.
    pub max_request_body: usize,
    /// The largest response body that is recorded, in bytes.
    pub max_response_body: usize,
    /// The longest time that the request's body may take to arrive.
    pub request_timeout: Duration,
    /// True if the tenant is the guess of a preset that requires a named one.
    is_tenant_guessed: bool,
    /// Mistakes that the builder methods found.
    mistakes: Vec<Mistake>,
    /// The statuses that `record`, `release` and `mark_unknown` named.
    listed: Uncompared<Vec<(StatusPattern, Disposition)>>,
    /// True if the grace was set. Otherwise it follows the lease.
    is_grace_set: Uncompared<bool>,
    /// The result of the check of this policy, which happens once.
    checked: Checked,
}

/// A fact about the calls that made a policy. It is no part of the comparison of policies: two
/// policies with the same rules are equal, whichever calls made them.
#[derive(Clone, Copy, Debug, Default)]
struct Uncompared<T>(T);

impl<T> PartialEq for Uncompared<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The mistakes of a policy, once it was checked. It is no part of the comparison of policies. A
/// clone is not checked, because builder methods can change it.
#[derive(Debug, Default)]
struct Checked(OnceLock<Vec<Mistake>>);

impl Clone for Checked {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Checked {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The answer to a request whose operation is still running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// Answers at once with the problem `request_in_progress`.
    #[default]
    Reject,
    /// Waits for the outcome, for at most this long.
    Wait(Duration),
    /// Waits for the outcome, for at most this long. Then it answers 202 with a handle, by which
    /// the client fetches the outcome later. This applies also to the request that runs the
    /// operation.
    ///
    /// After a 202, and in any case after the wait, the attempt is not released any more: any
    /// response of the operation is recorded. A client can ask for a shorter wait
    /// (`Prefer: respond-async, wait=N`). The client's deadline also limits only the wait. The
    /// operation may take all of [`upstream_timeout`](Policy::upstream_timeout) and does not learn
    /// of the deadline.
    Async(Duration),
}

/// The behaviour for keyed requests while the store is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreDown {
    /// Refuses the request. Nothing runs.
    #[default]
    FailClosed,
    /// Runs the request as if it had no key. It is counted and logged, and never recorded (S10).
    ///
    /// **Warning:** a retry runs again, and so can a duplicate at the same moment.
    FailOpen,
}

impl Policy {
    /// The format of the problems of this route.
    #[must_use]
    pub fn problem_format(&self) -> ProblemFormat {
        ProblemFormat { dialect: self.errors, statuses: self.statuses }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            label: "-".to_owned(),
            methods: None,
            paths: PathRules::default(),
            path: None,
            key: KeyPolicy::default(),
            tenant: Tenant::default(),
            namespace: String::new(),
            fingerprint: FingerprintPolicy::default(),
            terms: Terms::default(),
            is_transactional: false,
            remember: Vec::new(),
            on_retry: None,
            velocity: Vec::new(),
            duplicate_payload: None,
            in_flight: InFlight::default(),
            on_store_down: OnStoreDown::default(),
            upstream_timeout: Duration::from_secs(30),
            outcomes: StatusRules::new(),
            errors: Dialect::default(),
            statuses: ProblemStatuses::default(),
            max_request_body: MIB,
            max_response_body: MIB,
            request_timeout: Duration::from_secs(30),
            is_tenant_guessed: false,
            mistakes: Vec::new(),
            listed: Uncompared::default(),
            is_grace_set: Uncompared::default(),
            checked: Checked::default(),
        }
    }
}
