//! Tests of services that use the library: their lifecycle, and the examples. No server is needed.

#[cfg(feature = "embedded")]
mod examples;
#[cfg(feature = "embedded")]
mod grpc_example;
mod lifecycle;
