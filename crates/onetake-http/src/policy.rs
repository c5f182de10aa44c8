//! What a route wants.

use std::time::Duration;

use http::Method;

use onetake_core::key::KEY_LENGTH_MIN_DEFAULT;
use onetake_core::{InFlight, Terms};

use crate::fingerprint::FingerprintMode;
use crate::status::StatusRules;
use crate::tenant::Tenant;

/// One mebibyte.
const MIB: usize = 1 << 20;

/// What a route wants. The defaults are those of the gateway for a request that no route matches.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How logs call the route; `-` by default.
    pub label: String,
    /// Which methods are keyed. GET never is.
    pub methods: Vec<Method>,
    /// Where the key comes from.
    pub key: KeyPolicy,
    /// Whose key it is.
    pub tenant: Tenant,
    /// A word that separates this route's keys from others'; empty by default.
    pub namespace: String,
    /// How two requests are told apart.
    pub fingerprint: FingerprintMode,
    /// Lease, grace, ttl, and what to do with an unknown outcome.
    pub terms: Terms,
    /// What to do while the operation runs.
    pub in_flight: InFlight,
    /// What to do while the store is away.
    pub on_store_down: OnStoreDown,
    /// For how long the operation may run.
    pub run_max: Duration,
    /// What becomes of an attempt, by its status.
    pub statuses: StatusRules,
    /// The largest request body, in bytes.
    pub request_body_max: usize,
    /// The largest response body that is recorded, in bytes.
    pub response_body_max: usize,
    /// How long the request's body may take to arrive.
    pub request_timeout: Duration,
}

/// What to do with a keyed request while the store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreDown {
    /// Refuse it: nothing runs.
    #[default]
    FailClosed,
    /// Run it as if it had no key. It is counted and logged, and never recorded (S10): a retry runs
    /// again, and so may a duplicate at the same moment.
    FailOpen,
}

/// Where the key comes from: the header `Idempotency-Key`, or its alias.
#[derive(Clone, Debug)]
pub struct KeyPolicy {
    /// Whether a request without a key is refused. If not, it passes through untouched.
    pub required: bool,
    /// The shortest key that is accepted.
    pub length_min: usize,
}

impl Default for KeyPolicy {
    fn default() -> Self {
        Self { required: false, length_min: KEY_LENGTH_MIN_DEFAULT }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            label: "-".to_owned(),
            methods: vec![Method::POST, Method::PATCH],
            key: KeyPolicy::default(),
            tenant: Tenant::default(),
            namespace: String::new(),
            fingerprint: FingerprintMode::default(),
            terms: Terms::default(),
            in_flight: InFlight::default(),
            on_store_down: OnStoreDown::default(),
            run_max: Duration::from_secs(30),
            statuses: StatusRules::new(),
            request_body_max: MIB,
            response_body_max: MIB,
            request_timeout: Duration::from_secs(30),
        }
    }
}

impl Policy {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses requests without a key.
    #[must_use]
    pub fn key_required(mut self) -> Self {
        self.key.required = true;
        self
    }

    /// Sets whose key it is.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// Sets a word that separates this route's keys from others'.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets for how long the operation may run.
    #[must_use]
    pub fn run_max(mut self, run_max: Duration) -> Self {
        self.run_max = run_max;
        self
    }

    /// Sets the largest request and the largest response that is recorded, in bytes.
    #[must_use]
    pub fn body_max(mut self, request: usize, response: usize) -> Self {
        (self.request_body_max, self.response_body_max) = (request, response);
        self
    }

    /// Sets what to do while the operation runs.
    #[must_use]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Sets what to do while the store is away.
    #[must_use]
    pub fn on_store_down(mut self, on_store_down: OnStoreDown) -> Self {
        self.on_store_down = on_store_down;
        self
    }

    /// Sets lease, grace, ttl, and what to do with an unknown outcome.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets how two requests are told apart.
    #[must_use]
    pub fn fingerprint(mut self, mode: FingerprintMode) -> Self {
        self.fingerprint = mode;
        self
    }

    /// Sets what becomes of an attempt, by its status.
    #[must_use]
    pub fn statuses(mut self, statuses: StatusRules) -> Self {
        self.statuses = statuses;
        self
    }
}
