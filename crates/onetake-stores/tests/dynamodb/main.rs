//! Tests of the DynamoDB store, on a local server.
#![cfg(feature = "dynamodb")]

mod network_faults;
mod store;
