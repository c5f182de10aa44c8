//! `on_unknown = "reconcile"`: the gateway asks for the outcomes of unknown attempts.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod accepted_202;
mod configuration;
mod failing_reconcilers;
mod found_outcomes;
pub(crate) mod interrupted_upstream;
pub(crate) mod reconciliation_service;
mod timing;

pub(crate) use configuration::{PATIENT, config};
use interrupted_upstream::Shop;
use onetake_sim::blackbox::Target;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::until;
use reconciliation_service::Desk;
use serde_json::Value;

use crate::common::InProcess;

/// A gateway in front of a shop that breaks off once for each key, and a desk that knows the
/// outcomes.
pub(crate) struct World {
    pub(crate) shop: Shop,
    pub(crate) desk: Desk,
    pub(crate) client: Client,
    pub(crate) gateway: InProcess,
}

impl World {
    pub(crate) async fn start(more: &str, lines: &str) -> Self {
        Self::start_with(Shop::start().await, more, lines).await
    }

    pub(crate) async fn start_with(shop: Shop, more: &str, lines: &str) -> Self {
        let desk = Desk::start().await;
        let gateway = InProcess::start(config(&shop, &desk, "memory:", more, lines)).await;
        let client = Client::new(gateway.address());
        Self { shop, desk, client, gateway }
    }

    pub(crate) async fn pay(&self, key: &str) -> ClientResponse {
        let call = self.client.post("/pay").without("authorization");
        call.header("idempotency-key", key).send().await.unwrap()
    }

    /// Pays, and loses the response.
    pub(crate) async fn lose(&self, key: &str) {
        let lost = self.pay(key).await;
        assert_eq!(lost.code(), "upstream_interrupted", "{}", lost.text());
    }

    /// The final response that retries get.
    pub(crate) async fn settled(&self, key: &str) -> ClientResponse {
        let mut last = None;
        until("it is settled", async || {
            let answer = self.pay(key).await;
            let is_settled = answer.code() != "outcome_unknown";
            last = Some(answer);
            is_settled
        })
        .await;
        last.unwrap()
    }

    /// A response of the admin API.
    pub(crate) async fn admin(&self, path: &str) -> ClientResponse {
        let admin = Client::new(self.gateway.admin());
        admin.post(path).method("GET").body("").send().await.unwrap()
    }

    pub(crate) async fn admin_json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.admin(path).await.body).unwrap()
    }
}
