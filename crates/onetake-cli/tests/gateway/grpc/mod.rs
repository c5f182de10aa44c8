//! gRPC through the gateway.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

mod bad_input;
mod descriptors;
mod outcomes;
mod streams;
mod upstream_limits;
mod web;

pub(crate) use super::common::grpc_world::{GrpcWorld, PATH};
