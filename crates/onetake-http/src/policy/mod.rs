//! What a route wants.

mod builder;
mod check;
mod preset;

use std::time::Duration;

use http::Method;

use onetake_core::key::KEY_LENGTH_MIN_DEFAULT;
use onetake_core::{OnRetry, Terms};

use crate::fingerprint::FingerprintPolicy;
use crate::json::Pointer;
use crate::problem::{Dialect, ProblemFormat, ProblemStatuses};
use crate::remember::Remembered;
use crate::status::{Disposition, StatusPattern, StatusRules};
use crate::tenant::Tenant;
use crate::velocity::Velocity;

pub use check::{CHANGING_HEADERS, Mistake, NEVER_KEYED, PolicyError, is_namespace};
pub use preset::{Preset, PresetValues};

/// One mebibyte.
const MIB: usize = 1 << 20;

/// The policy of a route: its keys, its tenants, and what becomes of its attempts.
///
/// The defaults are those of the gateway for a request that no route matches:
///
/// | option | default |
/// | --- | --- |
/// | key | the header `Idempotency-Key`, 16 to 255 characters, optional |
/// | methods | POST and PATCH; if a key is required, all but GET, HEAD, OPTIONS, TRACE and CONNECT |
/// | tenant | the credential if there is one, else everybody is one tenant; cookies alone are refused |
/// | fingerprint | method, path, query, content type and the body, byte by byte |
/// | ttl, lease, grace | 24 hours, 30 seconds, 30 seconds |
/// | in_flight | `Reject`: 409 |
/// | on_unknown | `Fail`: never run again |
/// | on_store_down | `FailClosed`: 503 |
/// | upstream_timeout | 30 seconds |
/// | max_request_body, max_response_body | 1 MiB each |
/// | statuses | 2xx, 3xx and 4xx are recorded; 401, 403, 408, 409, 421, 423, 425, 429 and 503 are released; other 5xx are unknown |
///
/// **Warning:** requests of other methods than these pass through untouched, with or without a key.
///
/// Methods take plain text where the gateway's file does (`.release(["5xx"])`). A text that is wrong is refused where
/// the layer is built: see [`check`](Self::check).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// How logs call the route; `-` by default.
    pub label: String,
    /// The methods that are keyed; `None`: POST and PATCH or, if a key is required, all but
    /// [`NEVER_KEYED`].
    pub methods: Option<Vec<Method>>,
    /// Where the key comes from.
    pub key: KeyPolicy,
    /// Whose key it is.
    pub tenant: Tenant,
    /// A word that separates this route's keys from others'; empty by default.
    pub namespace: String,
    /// How two requests are told apart.
    pub fingerprint: FingerprintPolicy,
    /// Lease, grace, ttl, and what to do with an unknown outcome.
    pub terms: Terms,
    /// Whether every effect of the operation commits with its outcome. `transactional` sets it
    /// (feature `axum`).
    pub is_transactional: bool,
    /// What is kept with the record, for whoever is asked what became of an attempt; nothing by default.
    pub remember: Vec<Remembered>,
    /// What is called before an operation runs again whose earlier attempt may have left work half done.
    pub on_retry: Option<OnRetry>,
    /// How many new operations there may be in a while. All limits hold, and known keys are never
    /// counted or refused.
    pub velocity: Vec<Velocity>,
    /// What to do while the operation runs.
    pub in_flight: InFlight,
    /// What to do while the store is away.
    pub on_store_down: OnStoreDown,
    /// For how long the operation may run.
    pub upstream_timeout: Duration,
    /// What becomes of an attempt, by its status.
    pub outcomes: StatusRules,
    /// The format of problems.
    pub errors: Dialect,
    /// Other statuses for some problems.
    pub statuses: ProblemStatuses,
    /// The largest request body, in bytes.
    pub max_request_body: usize,
    /// The largest response body that is recorded, in bytes.
    pub max_response_body: usize,
    /// How long the request's body may take to arrive.
    pub request_timeout: Duration,
    /// Mistakes that were found while it was put together.
    mistakes: Vec<Mistake>,
    /// The statuses that `record`, `release` and `mark_unknown` named.
    listed: Listed,
}

/// Statuses by the lists that named them. Policies with the same rules are equal, however they were put together.
#[derive(Clone, Debug, Default)]
struct Listed(Vec<(StatusPattern, Disposition)>);

impl PartialEq for Listed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// What to do with a request whose operation runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// Say so at once.
    #[default]
    Reject,
    /// Wait for its outcome, for at most this long.
    Wait(Duration),
    /// Wait for its outcome, for at most this long; then answer 202 with a handle by which the outcome is
    /// fetched later. That goes for the request that runs the operation as well.
    ///
    /// After a 202, and in any case when the wait is over, the attempt is not released any more, whatever
    /// the operation answers: that is recorded. A client may prefer a shorter wait
    /// (`Prefer: respond-async, wait=N`). Its deadline, too, is how long it waits for an answer: the
    /// operation itself may take all of [`upstream_timeout`](Policy::upstream_timeout), and does not hear of the deadline.
    Async(Duration),
}

/// What to do with a keyed request while the store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreDown {
    /// Refuse it: nothing runs.
    #[default]
    FailClosed,
    /// Run it as if it had no key. It is counted and logged, and never recorded (S10): a retry runs
    /// again, and so may a duplicate at the same moment.
    FailOpen,
}

/// Where the key comes from, and what it has to look like.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyPolicy {
    /// Where it comes from.
    pub source: KeySource,
    /// Whether a request without a key is refused. If not, it passes through untouched.
    pub required: bool,
    /// What a key from a header has to look like.
    pub format: KeyFormat,
    /// The shortest key that is accepted from a header.
    pub min_length: usize,
}

/// Where a key comes from.
///
/// Two mistakes are classic, and both run one operation where two were meant: a key that is made once
/// for a session, not for each thing that the user does in it; and a number that people reuse, such as
/// that of a purchase order of which two deliveries are paid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The header `Idempotency-Key`, or its alias.
    #[default]
    Header,
    /// A string or an integer in the JSON body.
    Json(Pointer),
    /// What names the operation already: a digest of these members of the JSON body.
    Derive(Vec<Pointer>),
    /// The header, and only keys that this side issued for the same tenant, method and path.
    Issued,
}

/// What a key from a header has to look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFormat {
    /// Visible ASCII.
    #[default]
    Any,
    /// A UUID, in its usual form of 36 characters.
    Uuid,
}

impl Policy {
    /// The format of the problems of this route.
    #[must_use]
    pub fn problem_format(&self) -> ProblemFormat {
        ProblemFormat { dialect: self.errors, statuses: self.statuses }
    }
}

impl Default for KeyPolicy {
    fn default() -> Self {
        Self {
            source: KeySource::default(),
            required: false,
            format: KeyFormat::default(),
            min_length: KEY_LENGTH_MIN_DEFAULT,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            label: "-".to_owned(),
            methods: None,
            key: KeyPolicy::default(),
            tenant: Tenant::default(),
            namespace: String::new(),
            fingerprint: FingerprintPolicy::default(),
            terms: Terms::default(),
            is_transactional: false,
            remember: Vec::new(),
            on_retry: None,
            velocity: Vec::new(),
            in_flight: InFlight::default(),
            on_store_down: OnStoreDown::default(),
            upstream_timeout: Duration::from_secs(30),
            outcomes: StatusRules::new(),
            errors: Dialect::default(),
            statuses: ProblemStatuses::default(),
            max_request_body: MIB,
            max_response_body: MIB,
            request_timeout: Duration::from_secs(30),
            mistakes: Vec::new(),
            listed: Listed::default(),
        }
    }
}
