//! TLS for clients and upstreams.
//!
//! ```text
//! files (PEM, and what is wrong with it) → reload (again when they change) → acceptor: clients
//!                                                                          → connector: upstreams
//! ```
//!
//! A connection keeps the certificates that it was opened with. Changes on disk apply to new
//! connections.

mod acceptor;
mod connector;
mod files;
mod reload;

use std::sync::Arc;

use onetake_core::Clock;
use rustls::Error;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::config::Config;

pub(super) use acceptor::Acceptor;
pub(crate) use connector::Connector;
#[cfg(test)]
pub(super) use connector::Resolver;
pub(super) use connector::{Opening, Protocols, Stream};
pub use files::TlsFailed;

/// Checks the files that a gateway with this configuration would read.
pub(super) fn check(config: &Config, clock: &dyn Clock) -> Vec<TlsFailed> {
    let clients = config.gateway.tls.iter().chain(&config.ext_proc.tls);
    let clients = clients.map(|identity| Acceptor::check(identity, clock));
    let upstreams = config.upstream_tls().into_iter().map(|tls| Connector::check(tls, clock));
    clients.chain(upstreams).filter_map(Result::err).collect()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// An error text of rustls for users, without its internal parts.
fn plain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => format!("the certificate is not valid: {why:?}"),
        Error::General(why) => why.clone(),
        other => other.to_string(),
    }
}
