//! Tests of services that use the library: their lifecycle, and the examples. No server is needed.

#[cfg(feature = "embedded")]
mod examples;
#[cfg(feature = "embedded")]
mod grpc_example;
mod lifecycle;
#[cfg(feature = "embedded")]
mod tonic_embedded;
#[cfg(feature = "embedded")]
mod tonic_layer;

#[cfg(feature = "embedded")]
use tonic_embedded::open_store;
