//! The example files of proxies in front of two gateways that share a store.

use std::time::Duration;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_sim::client::Client;
use onetake_sim::servers::{ProxyProgram, ProxyServer, until};
use onetake_sim::upstream::Upstream;

use crate::common::migrated_postgres;

const ROUTES: &str = "[[route]]\nmatch = \"POST /account/{*rest}\"\n\
    tenant = { header = \"X-Account\" }\n[[route]]\nmatch = \"POST /wait/{*rest}\"\n\
    in_flight = \"wait\"\nwait_timeout = \"20s\"\n";

/// A gateway with an upstream of its own, which shows where a request went.
struct Node {
    gateway: Gateway,
    upstream: Upstream,
}

impl Node {
    async fn start(store: &str) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n[admin]\n\
             listen = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n{ROUTES}",
            upstream.url()
        );
        let config = config::load(Some(&text), "test", std::iter::empty(), Overrides::default());
        let gateway = Gateway::start(config.unwrap()).await.unwrap();
        Self { gateway, upstream }
    }
}

/// The file of a proxy, with the ports of a test.
fn file(program: ProxyProgram, port: u16, nodes: [&Node; 2]) -> String {
    let text = match program {
        ProxyProgram::Envoy => include_str!("../../../../examples/envoy.yaml"),
        ProxyProgram::Nginx => include_str!("../../../../examples/nginx.conf"),
        ProxyProgram::HaProxy => include_str!("../../../../examples/haproxy.cfg"),
        ProxyProgram::Caddy => include_str!("../../../../examples/Caddyfile"),
    };
    let ports = nodes.map(|node| node.gateway.address().port().to_string());
    let text = text.replace("8080", "{a}").replace("8081", "{b}");
    assert!(text.contains("{a}") && text.contains("{b}") && text.contains("8000"));
    let text = text.replace("8000", &port.to_string());
    text.replace("{a}", &ports[0]).replace("{b}", &ports[1])
}

async fn recipe_of(program: ProxyProgram) {
    let store = migrated_postgres().await;
    let nodes = [Node::start(&store).await, Node::start(&store).await];
    let [a, b] = &nodes;
    let proxy = ProxyServer::start(program, |port, _| file(program, port, [a, b])).await;
    let client = Client::new(proxy.address());
    let runs = |case: &str| (a.upstream.runs(case), b.upstream.runs(case));

    // One run, and the recorded outcome for the retry.
    let key = "through-a-proxy-00001";
    let call = |body: &str| client.post("/any/charge").key(key).body(body.to_owned()).send();
    let first = call("10").await.unwrap();
    assert_eq!(first.status(), 201, "{}\n{}", first.text(), proxy.log());
    let retry = call("10").await.unwrap();
    assert!(retry.is_replay() && retry.body == first.body, "{}", retry.text());
    assert_eq!(call("99").await.unwrap().status(), 422);
    let (at_a, at_b) = runs(key);
    assert_eq!(at_a + at_b, 1);

    // Clients name neither their tenant nor their address.
    let forged = client.post("/account/charge").key("forged-account-000001");
    let forged = forged.header("x-account", "victim").send().await.unwrap();
    assert_eq!((forged.status(), forged.code().as_str()), (401, "tenant_unresolved"));
    let seen = client.post("/any/head").header("x-forwarded-for", "203.0.113.7");
    let seen = seen.header("forwarded", "for=203.0.113.7").send().await.unwrap().text();
    assert!(!seen.contains("203.0.113.7"), "{seen}");

    // Key affinity. A 503 is released, so that every request shows where it goes.
    let keys: Vec<_> = (0..16).map(|nth| format!("affinity-of-a-key-{nth:03}")).collect();
    for key in keys.iter().chain(&keys).chain(&keys) {
        assert_eq!(client.post("/any/503").key(key).send().await.unwrap().status(), 503);
    }
    let placed: Vec<_> = keys.iter().map(|key| runs(key)).collect();
    assert!(placed.iter().all(|runs| [(3, 0), (0, 3)].contains(runs)), "{placed:?}");
    assert!(placed.contains(&(3, 0)) && placed.contains(&(0, 3)), "{placed:?}");

    // Requests without a key do not all go to one gateway.
    for _ in 0..32 {
        let call = client.post("/any/charge").header("x-case", "spread");
        assert_eq!(call.send().await.unwrap().status(), 201);
    }
    let (at_a, at_b) = runs("spread");
    assert!(at_a > 0 && at_b > 0 && at_a + at_b == 32, "{at_a} {at_b}");

    // Affinity is never needed: without its gateway, the key is answered by the other one.
    let [a, b] = nodes;
    let (gone, stays) = if a.upstream.runs(key) == 1 { (a, b) } else { (b, a) };
    gone.gateway.shutdown(Duration::from_secs(10)).await.unwrap();
    if [ProxyProgram::Nginx, ProxyProgram::HaProxy].contains(&program) {
        // A refused connection is no failure: the first request already goes to the other one.
        let retry = client.post("/any/charge").key(key).body("10").send().await.unwrap();
        assert!(retry.is_replay(), "{} {}\n{}", retry.status(), retry.text(), proxy.log());
    }
    until("the other gateway answers", async || {
        let retry = client.post("/any/charge").key(key).body("10").send().await;
        retry.is_ok_and(|retry| retry.is_replay() && retry.body == first.body)
    })
    .await;
    assert_eq!((gone.upstream.runs(key), stays.upstream.runs(key)), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx() {
    recipe_of(ProxyProgram::Nginx).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy() {
    recipe_of(ProxyProgram::HaProxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy() {
    recipe_of(ProxyProgram::Caddy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy() {
    recipe_of(ProxyProgram::Envoy).await;
}
