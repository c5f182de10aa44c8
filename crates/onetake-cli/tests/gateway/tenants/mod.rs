//! Tenants through the gateway: trusted headers, addresses and tokens, and `forward_auth`.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod forged_credentials;
mod forward_auth;
mod forward_auth_metrics;

use onetake_sim::blackbox::Target;
use onetake_sim::client::{Call, Client, ClientResponse};
use onetake_sim::upstream::Upstream;

use crate::common::InProcess;

pub(crate) const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

/// A gateway in front of an upstream.
pub(crate) struct World {
    pub(crate) upstream: Upstream,
    pub(crate) client: Client,
    _gateway: InProcess,
}

impl World {
    /// A gateway with these lines below `[gateway]`, and these routes.
    pub(crate) async fn start(gateway: &str, routes: &str) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let url = upstream.url();
        let gateway = InProcess::start(format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{url}\"\n{gateway}\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n{routes}\n"
        ))
        .await;
        let client = Client::new(gateway.address());
        Self { upstream, client, _gateway: gateway }
    }

    /// A payment without any credential.
    pub(crate) fn pay(&self, key: &str) -> Call {
        self.client.post("/pay/charge").without("authorization").key(key)
    }

    /// A payment with a bearer token.
    pub(crate) async fn pay_as(&self, token: &str) -> ClientResponse {
        let call = self.pay(KEY).header("authorization", &format!("Bearer {token}"));
        call.send().await.unwrap()
    }

    pub(crate) fn runs(&self) -> usize {
        self.upstream.runs_in_all()
    }
}
