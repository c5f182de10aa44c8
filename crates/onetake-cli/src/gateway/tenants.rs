//! Tenants of the layer, as configured.

use std::sync::Arc;

use onetake_core::{SystemClock, SystemRng};
use onetake_http::Tenant;

use super::Connector;
use super::forward_auth::ForwardAuth;
use crate::config::{self, Settings};

/// Builds tenants. Routes with the same `forward_auth` settings share one client: its connections,
/// its limit and its cache.
pub(super) struct Tenants {
    connector: Connector,
    asked: Vec<(config::ForwardAuth, Arc<ForwardAuth>)>,
}

impl Tenants {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, asked: Vec::new() }
    }

    pub(super) fn of(&mut self, settings: &Settings) -> Tenant {
        match &settings.forward_auth {
            Some(auth) => Tenant::Asked(self.asked(auth)),
            None => settings.policy.tenant.clone(),
        }
    }

    fn asked(&mut self, config: &config::ForwardAuth) -> Arc<ForwardAuth> {
        if let Some((_, asked)) = self.asked.iter().find(|(known, _)| known == config) {
            return Arc::clone(asked);
        }
        let connector = self.connector.clone();
        let clock = Arc::new(SystemClock);
        let asked = Arc::new(ForwardAuth::new(config.clone(), connector, clock, &SystemRng));
        self.asked.push((config.clone(), Arc::clone(&asked)));
        asked
    }
}
