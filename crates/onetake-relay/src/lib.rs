//! Delivers what an outbox holds: at least once, with the same id every time, and in order per ordering key.
//!
//! Operations write messages in the transaction that completes them ([`onetake_core::outbox`]). A [`Relay`] takes
//! them lane by lane, hands them to a [`Sink`], and says what became of each. Any number of relays share the
//! work; `onetake relay` is one in a process of its own, and a Rust service may run one inside.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`relay`] | takes, delivers, settles; backoff, parking, pruning, metrics |
//! | [`sink`] | where messages go: the contract, and how to keep their order |
//! | `nats` (feature `nats`) | NATS JetStream |
//! | `webhook` (feature `webhooks`) | signed webhooks, as [Standard Webhooks](https://www.standardwebhooks.com) says |

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
