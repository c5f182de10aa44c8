//! A tower layer that makes HTTP services safe to retry.
//!
//! ```text
//! request → policy → key → deadline → tenant → body (bounded) → fingerprint
//!         → duplicates → velocity → engine → inner service
//!                         ↘ replay, 202, or a problem
//! ```
//!
//! [`OnetakeLayer`] is generic over bodies and inner services. It wraps axum routers, tonic
//! servers, hyper services and the gateway's proxy. The options of a route are its [`Policy`]. The
//! statuses and codes that clients see are in [`problem`].

mod accepted;
mod admit;
mod advice;
mod answered_attempt;
pub mod body;
mod content_type;
mod context;
mod deadline;
pub mod duplicates;
mod endpoints;
pub mod extract;
mod fail_open;
pub mod fingerprint;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod grpc;
mod handle;
mod head;
mod identify;
mod issued;
pub mod json;
pub mod key;
mod layer;
pub mod memo;
mod memory;
mod payload;
mod pipeline;
pub mod policy;
mod prefer;
pub mod problem;
pub mod recording;
mod respond;
pub mod routes;
mod run;
mod secrets;
mod service;
pub mod status;
pub mod tenant;
pub mod text;
mod trace;
pub mod transaction;
pub mod typed;
mod upload;
pub mod velocity;

pub use body::{RequestBody, ResponseBody};
pub use context::{AttemptReport, OperationContext, OperationMemory};
pub use deadline::Arrived;
pub use duplicates::{DuplicateAction, DuplicatePayload, ONETAKE_ALLOW_DUPLICATE};
pub use endpoints::{Endpoints, OPERATIONS};
pub use fingerprint::{FingerprintMode, FingerprintPolicy};
pub use grpc::GrpcCode;
pub use issued::{IssuingKey, TOKENS};
pub use layer::{HttpLimits, LayerBuilder, OnetakeLayer, Resolve};
pub use memo::{MemoField, MemoValues};
pub use memory::{BodyShare, fair_share};
pub use policy::{
    InFlight, KeyFormat, KeyPolicy, KeySource, Mistake, OnStoreDown, Policy, PolicyError, Preset,
    PresetValues, RequestValue,
};
pub use problem::{Code, Dialect, Problem, ProblemFormat, ProblemStatuses, UpstreamFailure};
pub use routes::{AmbiguousRequest, IntoRouteTable, PathCase, RouteTable, Routes, TrailingSlash};
pub use secrets::Secrets;
pub use service::{ATTEMPT_HEADERS, IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE, Onetake};
pub use status::{Disposition, StatusRules};
#[cfg(feature = "jwt")]
pub use tenant::jwt::{Jwt, JwtKey, JwtKeySet};
pub use tenant::{Ask, ClientIp, Tenant};
pub use trace::method_word;
pub use typed::{Stored, Typed};
pub use velocity::{By, Velocity};

/// A boxed error, such as the error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
