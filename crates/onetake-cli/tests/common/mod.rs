//! Helpers of the test programs: a gateway in this process, as a target for the suites, and modules
//! for the binary as a process and for services around it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::allow_attributes,
    reason = "not every program uses everything, and tests may panic"
)]

pub(crate) mod admin_api;
pub(crate) mod blackbox;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod forward_auth_service;
pub(crate) mod grpc_world;
#[cfg(feature = "otlp")]
pub(crate) mod log_secrecy;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod raw_http;
pub(crate) mod stolen_disk;

use std::net::SocketAddr;
use std::sync::Arc;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_cli::stores;
use onetake_core::Store;
use onetake_sim::blackbox::Target;
use onetake_sim::servers::Postgres;

/// A gateway that runs until it is dropped.
pub(crate) struct InProcess {
    gateway: Gateway,
}

impl InProcess {
    /// Starts a gateway with a configuration.
    pub(crate) async fn start(configuration: String) -> Self {
        Self::start_with(configuration, |store| store).await
    }

    /// Starts one on a decorator of its store.
    pub(crate) async fn start_with(
        configuration: String,
        decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
    ) -> Self {
        let config = config::load(
            Some(&configuration),
            "test.toml",
            std::iter::empty(),
            Overrides::default(),
        );
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        Self { gateway: Gateway::start_with(config, decorate).await.unwrap() }
    }

    /// The address of probes and metrics.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.gateway.admin_address()
    }
}

/// A configuration on a store in memory, with more lines of `[gateway]` and more sections.
pub(crate) fn configuration(upstream: &str, gateway: &str, sections: &str) -> String {
    format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n{gateway}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n{sections}"
    )
}

impl Target for InProcess {
    fn address(&self) -> SocketAddr {
        self.gateway.address()
    }
}

/// The store of a URL, as configured.
pub(crate) fn store(url: &str) -> config::StoreConfig {
    let overrides = Overrides { store: Some(url.to_owned()), ..Overrides::default() };
    config::Input { overrides, ..config::Input::default() }.store().unwrap()
}

/// Creates a database with the store's tables on the server that this program's tests share.
/// Returns its URL.
pub(crate) async fn migrated_postgres() -> String {
    Postgres::shared().await.migrated(migrated).await
}

/// Migrates the store, and returns its URL.
pub(crate) async fn migrated(url: String) -> String {
    stores::migrate(&store(&url)).await.unwrap();
    url
}
