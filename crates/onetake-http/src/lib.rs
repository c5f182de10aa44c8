//! A tower layer that makes HTTP services safe to retry.
//!
//! ```text
//! request → policy → key → tenant → body (bounded) → fingerprint → engine → inner service
//!                                                        ↘ replay, or a problem
//! ```
//!
//! [`OnetakeLayer`] is generic over bodies and inner services: it wraps axum routers, tonic servers,
//! hyper services and the gateway's proxy alike. What a route wants is its [`Policy`]; the statuses
//! and codes that clients see are in [`problem`].

pub mod body;
mod bypass;
pub mod fingerprint;
pub mod json;
pub mod key;
mod layer;
pub mod policy;
pub mod problem;
pub mod recording;
mod run;
mod service;
pub mod status;
pub mod tenant;

pub use body::{RequestBody, ResponseBody};
pub use fingerprint::FingerprintMode;
pub use layer::{HttpLimits, OnetakeLayer, Resolve};
pub use policy::{KeyPolicy, OnStoreDown, Policy};
pub use problem::{Code, Problem};
pub use service::{IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE, Onetake};
pub use status::{Disposition, StatusRules};
pub use tenant::Tenant;

/// Any error that a body may end with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
