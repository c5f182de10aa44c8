//! TLS between Envoy and the processor, client addresses, and the added latency.

use std::time::Duration;

use onetake_cli::config::{Forwarder, Input};
use onetake_cli::gateway::Gateway;
use onetake_core::{Clock, SystemClock};

use super::{World, with};

#[tokio::test(flavor = "multi_thread")]
async fn envoy_connects_with_tls() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["onetake.test".to_owned()]).unwrap();
    std::fs::write(file("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(file("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let text = format!(
        "[ext_proc]\nlisten = \"127.0.0.1:0\"\n\
         tls = {{ certificate = \"{}\", private_key = \"{}\" }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
        file("cert.pem"),
        file("key.pem")
    );
    let config = Input { text: Some(&text), ..Input::default() }.config(Forwarder::Envoy);
    let processor = Gateway::start_ext_proc(config.unwrap(), |store| store).await.unwrap();
    let context = format!(
        "    transport_socket:\n      name: envoy.transport_sockets.tls\n      typed_config:\n        \
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n        \
         sni: onetake.test\n        common_tls_context:\n          alpn_protocols: [h2]\n          \
         validation_context: {{ trusted_ca: {{ filename: {} }} }}\n    circuit_breakers:",
        file("cert.pem")
    );
    let address = processor.address();
    let change = |file: String| with(&file, "    circuit_breakers:", &context);
    let world = World::around(processor, address, change).await;
    let call = || world.client.post("/any/charge").key("over-tls-000000001").send();
    let first = call().await.unwrap();
    assert_eq!(first.status(), 201, "{} {}", first.text(), world.envoy.log());
    assert!(call().await.unwrap().is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_tells_the_address_of_its_client() {
    let routes = "[[route]]\nmatch = \"POST /address/{*rest}\"\ntenant = \"client-ip\"\n";
    for (attributes, status) in [("[source.address]", 201), ("[]", 401)] {
        let change = |file: String| {
            let changed = format!("request_attributes: {attributes}");
            with(&file, "request_attributes: [source.address]", &changed)
        };
        let world = World::start_with(routes, "memory:", |store| store, change).await;
        let call = world.client.post("/address/charge").key("by-address-0000000001");
        let answer = call.without("authorization").send().await.unwrap();
        assert_eq!(answer.status(), status, "{attributes}: {}", answer.text());
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The latency that the processor adds, beside the same Envoy without the filter, in one run. The
/// bound is far above the figures in docs/ENVOY.md, because test machines are busy.
#[tokio::test(flavor = "multi_thread")]
async fn the_added_latency_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let plain = "              - match: { prefix: \"/plain/\" }\n                route: { cluster: api }\n                typed_per_filter_config:\n                  envoy.filters.http.ext_proc:\n                    \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute\n                    disabled: true\n";
    let change = |file: String| {
        with(&file, "              routes:\n", &format!("              routes:\n{plain}"))
    };
    let store = format!("embedded:{}", folder.path().display());
    let world = World::start_with("", &store, |store| store, change).await;
    let timed = async |path: &str, key: Option<String>| {
        let mut call = world.client.post(path);
        if let Some(key) = &key {
            call = call.key(key);
        }
        let from = SystemClock.monotonic();
        assert_eq!(call.send().await.unwrap().status(), 201);
        SystemClock.monotonic() - from
    };
    let mut times = [(); 4].map(|()| Vec::new());
    for nth in 0..200 {
        let key = format!("added-latency-{nth:06}");
        times[0].push(timed("/plain/charge", None).await);
        times[1].push(timed("/any/charge", None).await);
        times[2].push(timed("/any/charge", Some(key.clone())).await);
        times[3].push(timed("/any/charge", Some(key)).await);
    }
    let [plain, unkeyed, fresh, replay] = times.map(median);
    println!("plain {plain:?}, without a key {unkeyed:?}, fresh {fresh:?}, replay {replay:?}");
    for (what, median) in [("unkeyed", unkeyed), ("fresh", fresh), ("replay", replay)] {
        let added = median.saturating_sub(plain);
        assert!(added < Duration::from_millis(250), "{what} adds {added:?} to {plain:?}");
    }
}
