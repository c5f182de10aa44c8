//! The layer's tenants, as the configuration names them.

use std::sync::Arc;

use onetake_core::{SystemClock, SystemRng};
use onetake_http::Tenant;

use super::Connector;
use super::forward_auth::ForwardAuth;
use crate::config::{self, TenantConfig};

/// Makes tenants. Routes that ask the same service in the same way share it: its connections, its bound
/// and its answers.
pub(super) struct Tenants {
    connector: Connector,
    asked: Vec<(config::ForwardAuth, Arc<ForwardAuth>)>,
}

impl Tenants {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, asked: Vec::new() }
    }

    pub(super) fn of(&mut self, config: &TenantConfig) -> Tenant {
        match config {
            TenantConfig::CredentialOrPublic => Tenant::CredentialOrPublic,
            TenantConfig::Credential => Tenant::Credential,
            TenantConfig::Public => Tenant::Public,
            TenantConfig::ClientIp => Tenant::ClientIp,
            TenantConfig::Header(name) => Tenant::Header(name.clone()),
            TenantConfig::Jwt(jwt) => Tenant::Jwt(Arc::new(jwt.clone())),
            TenantConfig::ForwardAuth(auth) => Tenant::Asked(self.asked(auth)),
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

/// Each way to tell a tenant once.
pub(super) fn distinct<'a>(tenants: impl Iterator<Item = &'a Tenant>) -> Vec<Tenant> {
    let mut found: Vec<Tenant> = Vec::new();
    for tenant in tenants {
        if !found.iter().any(|known| is_same(known, tenant)) {
            found.push(tenant.clone());
        }
    }
    found
}

fn is_same(a: &Tenant, b: &Tenant) -> bool {
    match (a, b) {
        (Tenant::Header(a), Tenant::Header(b)) => a == b,
        (Tenant::Jwt(a), Tenant::Jwt(b)) => a == b,
        (Tenant::Asked(a), Tenant::Asked(b)) => Arc::ptr_eq(a, b),
        (Tenant::Custom(_), _) => false,
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}
