//! onetake inside Envoy: an external processor (`envoy.service.ext_proc.v3`) around the layer.
//!
//! ```text
//! Envoy's ext_proc filter ⇄ gRPC stream ⇄ Processor → onetake layer → Forward
//!   → Envoy's router → upstream
//! ```
//!
//! The layer is the one of `onetake-http`: there is no second implementation. [`Forward`] is the
//! service behind it. It tells Envoy to go on, and waits for the head of the response. Bodies come
//! only if the layer reads them. docs/ENVOY.md has the configuration of the filter.

mod body;
mod counters;
mod exchange;
mod forward;
mod headers;
mod messages;
mod origin;
mod processor;
mod replies;

pub use body::EnvoyBody;
pub use exchange::StreamEnded;
pub use forward::{Forward, PassedOn};
pub use processor::{Processor, SourceAddress};
