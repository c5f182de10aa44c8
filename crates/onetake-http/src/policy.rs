//! What a route wants.

use std::time::Duration;

use http::{HeaderName, Method};

use onetake_core::Rate;
use onetake_core::Terms;
use onetake_core::key::KEY_LENGTH_MIN_DEFAULT;

use crate::fingerprint::{FingerprintMode, FingerprintPolicy};
use crate::json::Pointer;
use crate::problem::{Answers, Dialect};
use crate::status::StatusRules;
use crate::tenant::Tenant;
use crate::velocity::{By, Velocity};

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
    pub fingerprint: FingerprintPolicy,
    /// Lease, grace, ttl, and what to do with an unknown outcome.
    pub terms: Terms,
    /// How many new operations there may be in a while. All limits hold, and known keys are never
    /// counted or refused.
    pub velocity: Vec<Velocity>,
    /// What to do while the operation runs.
    pub in_flight: InFlight,
    /// What to do while the store is away.
    pub on_store_down: OnStoreDown,
    /// For how long the operation may run.
    pub run_max: Duration,
    /// What becomes of an attempt, by its status.
    pub statuses: StatusRules,
    /// In which words and statuses clients are told that there is no outcome.
    pub answers: Answers,
    /// The largest request body, in bytes.
    pub request_body_max: usize,
    /// The largest response body that is recorded, in bytes.
    pub response_body_max: usize,
    /// How long the request's body may take to arrive.
    pub request_timeout: Duration,
}

/// What to do with a request whose operation runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// operation itself may take all of [`run_max`](Policy::run_max), and does not hear of the deadline.
    Async(Duration),
}

impl From<onetake_core::InFlight> for InFlight {
    fn from(in_flight: onetake_core::InFlight) -> Self {
        match in_flight {
            onetake_core::InFlight::Reject => Self::Reject,
            onetake_core::InFlight::Wait(wait) => Self::Wait(wait),
        }
    }
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

/// Where the key comes from, and what it has to look like.
#[derive(Clone, Debug)]
pub struct KeyPolicy {
    /// Where it comes from.
    pub source: KeySource,
    /// Whether a request without a key is refused. If not, it passes through untouched.
    pub required: bool,
    /// What a key from a header has to look like.
    pub format: KeyFormat,
    /// The shortest key that is accepted from a header.
    pub length_min: usize,
}

/// Where a key comes from.
///
/// Two mistakes are classic, and both run one operation where two were meant: a key that is made once
/// for a session, not for each thing that the user does in it; and a number that people reuse, such as
/// that of a purchase order of which two deliveries are paid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
pub enum KeyFormat {
    /// Visible ASCII.
    #[default]
    Any,
    /// A UUID, in its usual form of 36 characters.
    Uuid,
}

impl Default for KeyPolicy {
    fn default() -> Self {
        Self {
            source: KeySource::default(),
            required: false,
            format: KeyFormat::default(),
            length_min: KEY_LENGTH_MIN_DEFAULT,
        }
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
            fingerprint: FingerprintPolicy::default(),
            terms: Terms::default(),
            velocity: Vec::new(),
            in_flight: InFlight::default(),
            on_store_down: OnStoreDown::default(),
            run_max: Duration::from_secs(30),
            statuses: StatusRules::new(),
            answers: Answers::default(),
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

    /// Sets where the key comes from. Where it is not a header, a key is required.
    #[must_use]
    pub fn key_from(mut self, source: KeySource) -> Self {
        self.key.required |= source != KeySource::Header;
        self.key.source = source;
        self
    }

    /// Sets what a key from a header has to look like.
    #[must_use]
    pub fn key_format(mut self, format: KeyFormat) -> Self {
        self.key.format = format;
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
    pub fn in_flight(mut self, in_flight: impl Into<InFlight>) -> Self {
        self.in_flight = in_flight.into();
        self
    }

    /// Adds a limit to how many new operations there may be in a while, for each of what they are
    /// told apart `by`.
    #[must_use]
    pub fn velocity(mut self, by: impl IntoIterator<Item = By>, limit: Rate) -> Self {
        self.velocity.push(Velocity { by: by.into_iter().collect(), limit });
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
        self.fingerprint.mode = mode;
        self
    }

    /// Sets which headers count when two requests are told apart.
    #[must_use]
    pub fn fingerprint_headers(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.fingerprint.headers = headers.into_iter().collect();
        self
    }

    /// Sets in which dialect problems are told.
    #[must_use]
    pub fn errors(mut self, dialect: Dialect) -> Self {
        self.answers.dialect = dialect;
        self
    }

    /// Sets what becomes of an attempt, by its status.
    #[must_use]
    pub fn statuses(mut self, statuses: StatusRules) -> Self {
        self.statuses = statuses;
        self
    }
}
