//! gRPC through the gateway.

mod bad_input;
mod descriptors;
mod outcomes;
mod streams;
mod web;

pub(crate) use super::common::grpc_world::{GrpcWorld, PATH};
