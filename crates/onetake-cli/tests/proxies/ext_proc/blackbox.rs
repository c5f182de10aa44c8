//! The black-box suite through Envoy.

use std::net::SocketAddr;

use onetake_sim::blackbox::{self, Capabilities, Target};
use onetake_sim::servers::ProxyServer;

use super::{envoy, processor, with};
use crate::common::migrated_postgres;

/// The cases that do not apply, with the reason.
const EXCEPT: &[&str] = &[
    // Envoy breaks off a request whose client leaves: the outcome is unknown.
    "outcomes::a_client_that_goes_away_loses_nothing",
    // Envoy breaks off the response to the client.
    "outcomes::an_answer_that_breaks_off_makes_it_unknown",
    // Envoy has rules of its own for connections, hosts and forwarding headers.
    "passing::no_other_upgrade_passes",
    "passing::forwarding_headers_are_honest",
    "passing::what_could_smuggle_is_refused",
];

struct BehindEnvoy {
    envoy: ProxyServer,
    _processor: onetake_cli::gateway::Gateway,
}

impl Target for BehindEnvoy {
    fn address(&self) -> SocketAddr {
        self.envoy.address()
    }
}

/// Starts a processor with the routes of the suite, and an Envoy with its upstreams.
async fn start(configuration: String, store: &str) -> BehindEnvoy {
    let after = |text: &str| -> SocketAddr {
        let (_, rest) = configuration.split_once(text).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let upstream = after("upstream = \"http://");
    let (_, dead) = configuration.rsplit_once("upstream = \"http://").unwrap();
    let dead: SocketAddr = dead.split('"').next().unwrap().parse().unwrap();
    let (_, routes) = configuration.split_once("# Nothing is mistaken").unwrap();
    // The processor sends operations itself that may be answered with 202.
    let sent = format!("in_flight = \"async\"\nupstream = \"http://{upstream}\"");
    let routes = with(routes, "in_flight = \"async\"", &sent);
    let processor = processor(&format!("# {routes}"), store, |store| store).await;
    let envoy = envoy(upstream, processor.address(), |file| {
        // The suite names tenants itself, and has an upstream that is down.
        let file = with(&file, "remove: x-account", "remove: x-nobody");
        let file = with(&file, "message_timeout: 40s", "message_timeout: 400s");
        let to_dead = "              - match: { prefix: \"/dead/\" }\n                route: { cluster: dead }\n";
        let file =
            with(&file, "              routes:\n", &format!("              routes:\n{to_dead}"));
        let cluster = format!(
            "  - name: dead\n    type: STATIC\n    connect_timeout: 2s\n    load_assignment:\n      cluster_name: dead\n      endpoints:\n      - lb_endpoints:\n        - endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {} }} }} }}\n",
            dead.ip(),
            dead.port()
        );
        with(&file, "  clusters:\n", &format!("  clusters:\n{cluster}"))
    });
    BehindEnvoy { envoy: envoy.await, _processor: processor }
}

async fn run(store: &str) {
    let can = Capabilities { adds_content_type: true, except: EXCEPT, ..Capabilities::default() };
    let report = blackbox::run_with(|text| start(text, store), store, can).await;
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    run(&format!("embedded:{}", folder.path().display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    run(&migrated_postgres().await).await;
}
