//! `on_unknown = "reconcile"`: the gateway asks for the outcomes of unknown attempts.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod bad;
#[path = "../common/mod.rs"]
mod common;
mod desk;
mod found;
mod later;
mod shop;
mod when;

use common::InProcess;
use desk::Desk;
use onetake_sim::blackbox::Target;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::until;
use serde_json::Value;
use shop::Shop;

/// A gateway in front of a shop that breaks off once for each key, and a desk that knows the
/// outcomes.
pub(crate) struct World {
    pub(crate) shop: Shop,
    pub(crate) desk: Desk,
    pub(crate) client: Client,
    pub(crate) gateway: InProcess,
}

/// Options of the reconciler in these tests: longer than the tests take, so that no question times
/// out and is repeated.
pub(crate) const PATIENT: &str = "timeout = \"30s\", give_up_after = \"1h\"";

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

/// The configuration: `more` belongs to `reconcile`, and `lines` to the route.
pub(crate) fn config(shop: &Shop, desk: &Desk, store: &str, more: &str, lines: &str) -> String {
    format!(
        r#"
[gateway]
listen = "127.0.0.1:0"
upstream = "http://{}"
[admin]
listen = "127.0.0.1:0"
[store]
url = "{store}"
[[route]]
match = "POST /pay"
tenant = "public"
key = {{ min_length = 1 }}
upstream_timeout = "2s"
grace = "100ms"
on_unknown = "reconcile"
reconcile = {{ request = "GET http://{}/by/{{key}}", {more} }}
{lines}
"#,
        shop.address, desk.address
    )
}
