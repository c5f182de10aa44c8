//! Stripe's own SDKs, with their own retries, in front of a Stripe that ignores keys.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::path::Path;

use common::process::Process;
use onetake_sim::client::Client;
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{LocalStripe, StripeSdk, until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Number of responses that are lost in a row.
const LOST: usize = 2;
/// Number of retries of an SDK.
const RETRIES: usize = 3;
/// Number of retries of an SDK that must wait for another request.
const MANY_RETRIES: usize = 10;

const KEY: &str = "signup-of-ada-2041";

/// A gateway in front of a Stripe, and a faulty proxy on each side of it.
struct World {
    stripe: LocalStripe,
    gateway: Process,
    before: FaultProxy,
    behind: FaultProxy,
    _folder: TempDir,
}

impl World {
    async fn start() -> Self {
        let stripe = LocalStripe::start().await;
        let behind = FaultProxy::start(stripe.address()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let words = "[defaults]\nerrors = \"stripe\"\n";
        let upstream = format!("http://{}", behind.address());
        let gateway = Process::start(folder.path(), words, &upstream).await;
        let before = FaultProxy::start(gateway.address).await.unwrap();
        Self { stripe, gateway, before, behind, _folder: folder }
    }

    /// A counter of the gateway.
    async fn count(&self, name: &str) -> u64 {
        let metrics = Client::new(self.gateway.admin).post("/metrics").method("GET").body("");
        let metrics = metrics.send().await.unwrap().text();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }
}

/// Creates customers with an SDK, one after the other. Returns the SDK's result for each.
async fn create(sdk: StripeSdk, server: SocketAddr, calls: Value) -> Vec<Value> {
    create_with(RETRIES, sdk, server, calls).await
}

async fn create_with(
    retries: usize,
    sdk: StripeSdk,
    server: SocketAddr,
    calls: Value,
) -> Vec<Value> {
    let script = match sdk {
        StripeSdk::Python => "customers.py",
        StripeSdk::Node => "customers.cjs",
    };
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stripe"));
    let mut command = sdk.command(&folder.join(script));
    command.arg(format!("http://{server}")).arg(LocalStripe::SECRET_KEY);
    command.arg(retries.to_string()).arg(calls.to_string());
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the script ended with {}: {errors}", output.status);
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn lost_answers_make_one_customer(sdk: StripeSdk) {
    let world = World::start().await;
    world.before.lose_answers(LOST);
    // The SDK generates the key, and uses it for its retries.
    let told = create(sdk, world.before.address(), json!([{ "email": "ada@example.com" }])).await;
    let held = world.stripe.customers().await;
    assert_eq!(held.len(), 1, "{told:?}");
    assert_eq!(told, [json!({ "id": held[0], "replayed": "true" })]);
    assert_eq!(world.before.connections(), LOST + 1, "each lost answer cost a connection");
    assert_eq!(world.count("onetake_executed_total").await, 1);
    assert_eq!(world.count("onetake_replayed_total").await, LOST as u64);
}

/// Shows that the test above can fail.
async fn without_the_gateway_each_lost_answer_makes_one_more(sdk: StripeSdk) {
    let stripe = LocalStripe::start().await;
    let proxy = FaultProxy::start(stripe.address()).await.unwrap();
    proxy.lose_answers(LOST);
    let told = create(sdk, proxy.address(), json!([{ "email": "ada@example.com" }])).await;
    let held = stripe.customers().await;
    assert_eq!(held.len(), LOST + 1, "{told:?}");
    assert!(told[0]["id"].is_string() && told[0]["replayed"].is_null(), "{told:?}");
}

async fn another_payload_is_the_idempotency_error_of_the_sdk(sdk: StripeSdk) {
    let world = World::start().await;
    let call = |email: &str| json!({ "email": email, "key": KEY });
    // From its second call on, an SDK reports on the previous one in a header.
    let calls = json!([call("ada@example.com"), call("ada@example.com"), call("eve@example.com")]);
    let told = create(sdk, world.before.address(), calls).await;
    let [first, again, other] = told.as_slice() else { panic!("{told:?}") };
    let held = world.stripe.customers().await;
    assert_eq!(held.len(), 1, "{told:?}");
    assert_eq!(*first, json!({ "id": held[0], "replayed": null }));
    assert_eq!(*again, json!({ "id": held[0], "replayed": "true" }));
    let class = match sdk {
        StripeSdk::Python => "IdempotencyError",
        StripeSdk::Node => "StripeIdempotencyError",
    };
    assert_eq!(other["raised"], class, "{other}");
    assert_eq!((&other["status"], &other["type"]), (&json!(400), &json!("idempotency_error")));
    assert_eq!(other["code"], "idempotency_payload_mismatch");
    assert!(other["message"].as_str().unwrap().contains("Use a new key for a new operation."));
    assert_eq!(world.count("onetake_mismatches_total").await, 1, "it is final: no retry");
}

async fn while_one_runs_another_tries_again_and_gets_its_outcome(sdk: StripeSdk) {
    let world = World::start().await;
    world.behind.set(Weather::CutBack);
    let calls = json!([{ "email": "ada@example.com", "key": KEY }]);
    let first = tokio::spawn(create(sdk, world.before.address(), calls.clone()));
    until("Stripe has done it", async || {
        assert!(!first.is_finished(), "nothing was answered yet");
        world.stripe.customers().await.len() == 1
    })
    .await;
    let second = tokio::spawn(create_with(MANY_RETRIES, sdk, world.before.address(), calls));
    until("the second was refused", async || {
        world.count("onetake_in_flight_refused_total").await > 0
    })
    .await;
    world.behind.set(Weather::Fair);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let held = world.stripe.customers().await;
    assert_eq!(held.len(), 1, "{first:?} {second:?}");
    assert_eq!(first, [json!({ "id": held[0], "replayed": null })]);
    assert_eq!(second, [json!({ "id": held[0], "replayed": "true" })]);
}

async fn what_has_no_outcome_is_an_error_of_the_sdk(sdk: StripeSdk) {
    let World { stripe, gateway, before, behind, _folder } = World::start().await;
    let call = |key: &str| json!([{ "email": "ada@example.com", "key": key }]);
    behind.lose_answers(1);
    let told = create(sdk, before.address(), call(KEY)).await;
    let class = match sdk {
        StripeSdk::Python => "APIError",
        StripeSdk::Node => "StripeAPIError",
    };
    let expect = |told: &[Value], status: u16, code: &str| {
        let [told] = told else { panic!("{told:?}") };
        assert_eq!(told["raised"], class, "{told}");
        assert_eq!((&told["status"], &told["type"]), (&json!(status), &json!("api_error")));
        assert_eq!(told["code"], code);
    };
    // The SDK retried once, and got the final error.
    expect(&told, 500, "previous_attempt_failed");
    assert_eq!(stripe.customers().await.len(), 1);
    drop(behind);
    let told = create(sdk, before.address(), call("signup-of-eve-2042")).await;
    expect(&told, 502, "upstream_unreachable");
    let read = gateway.client.post("/v1/customers").method("GET").body("").send().await.unwrap();
    let read: Value = serde_json::from_slice(&read.body).unwrap();
    assert_eq!(read["error"]["code"], "upstream_unreachable", "without a key too: {read}");
}

macro_rules! with_every_sdk {
    ($($name:ident: $sdk:expr;)+) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn lost_answers_make_one_customer() {
                super::lost_answers_make_one_customer($sdk).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn without_the_gateway_each_lost_answer_makes_one_more() {
                super::without_the_gateway_each_lost_answer_makes_one_more($sdk).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn another_payload_is_the_idempotency_error_of_the_sdk() {
                super::another_payload_is_the_idempotency_error_of_the_sdk($sdk).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn while_one_runs_another_tries_again_and_gets_its_outcome() {
                super::while_one_runs_another_tries_again_and_gets_its_outcome($sdk).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn what_has_no_outcome_is_an_error_of_the_sdk() {
                super::what_has_no_outcome_is_an_error_of_the_sdk($sdk).await;
            }
        }
    )+};
}

with_every_sdk! {
    python: StripeSdk::Python;
    node: StripeSdk::Node;
}
