//! A gateway in this process, as a target for the suites.

use std::net::SocketAddr;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_sim::blackbox::Target;

/// A gateway that runs until it is dropped.
pub(crate) struct InProcess {
    gateway: Gateway,
}

impl InProcess {
    /// Starts one with a configuration.
    pub(crate) async fn start(configuration: String) -> Self {
        let config = config::load(
            Some(&configuration),
            "test.toml",
            std::iter::empty(),
            Overrides::default(),
        );
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        Self { gateway: Gateway::start(config).await.unwrap() }
    }
}

impl Target for InProcess {
    fn address(&self) -> SocketAddr {
        self.gateway.address()
    }
}
