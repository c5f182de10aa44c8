//! TLS with clients and with upstreams.
//!
//! ```text
//! files (PEM, and what is wrong with it) → reload (again when they change) → acceptor: clients
//!                                                                          → connector: upstreams
//! ```
//!
//! A connection keeps what it was opened with; whatever changes on disk is for those after it.

mod acceptor;
mod connector;
mod files;
mod reload;

use std::sync::Arc;

use rustls::Error;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub(super) use acceptor::Acceptor;
pub(crate) use connector::Connector;
pub(super) use connector::was_refused;
pub use files::TlsFailed;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// What rustls says, without the parts that only its authors understand.
fn plain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => format!("the certificate is not valid: {why:?}"),
        Error::General(why) => why.clone(),
        other => other.to_string(),
    }
}
