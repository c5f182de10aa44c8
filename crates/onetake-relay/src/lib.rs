//! Delivery of an outbox: at least once, with the same id every time, and in order per ordering
//! key.
//!
//! Operations write messages in the transaction that completes them ([`onetake_core::outbox`]). A
//! [`Relay`] takes messages lane by lane, passes them to a [`Sink`], and reports the result of
//! each. Any number of relays share the work. `onetake relay` is a relay in its own process, and a
//! Rust service may run one inside.
//!
//! | module | content |
//! | --- | --- |
//! | [`relay`] | takes, delivers, settles; backoff, parking, pruning, metrics |
//! | [`sink`] | the contract of destinations, and how to keep the order of messages |
//! | `nats` (feature `nats`) | NATS JetStream |
//! | `webhook` (feature `webhooks`) | signed webhooks, by [Standard Webhooks](https://www.standardwebhooks.com) |

mod counters;
#[cfg(feature = "nats")]
pub mod nats;
mod options;
pub mod relay;
pub mod sink;
#[cfg(feature = "webhooks")]
pub mod webhook;

#[cfg(feature = "nats")]
pub use nats::{NatsOptions, NatsSink, NatsUrlError};
pub use options::RelayOptions;
pub use relay::Relay;
pub use sink::{Sink, SinkError, SinkErrorKind};
#[cfg(feature = "webhooks")]
pub use webhook::{CallError, HttpClient, WebhookOptions, WebhookSecret, WebhookSink};
