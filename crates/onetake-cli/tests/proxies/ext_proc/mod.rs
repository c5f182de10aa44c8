//! onetake as an external processor of a real Envoy, with the configuration of the example.

mod blackbox;
mod connections;
mod faults;
mod grpc;
mod kills;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_core::Store;
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::servers::{ProxyProgram, ProxyServer};
use onetake_sim::upstream::Upstream;

/// The file that the documentation describes.
const EXAMPLE: &str = include_str!("../../../../../examples/envoy-ext-proc.yaml");

/// The example, with addresses of a test.
pub(crate) fn envoy_file(port: u16, upstream: SocketAddr, processor: SocketAddr) -> String {
    let text = EXAMPLE.replace("port_value: 10000", &format!("port_value: {port}"));
    let text = text.replace("port_value: 3000", &format!("port_value: {}", upstream.port()));
    text.replace("port_value: 9002", &format!("port_value: {}", processor.port()))
}

/// Replaces a text of a file. Panics if the file does not have it.
pub(crate) fn with(file: &str, text: &str, other: &str) -> String {
    assert!(file.contains(text), "the file has no {text}");
    file.replace(text, other)
}

/// A processor in this process.
pub(crate) async fn processor(
    routes: &str,
    store: &str,
    decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
) -> Gateway {
    let text = format!(
        "[ext_proc]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nurl = \"{store}\"\n{routes}"
    );
    let config =
        config::load_ext_proc(Some(&text), "test", std::iter::empty(), Overrides::default());
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    Gateway::start_ext_proc(config, decorate).await.unwrap()
}

/// A processor in this process, an Envoy and an upstream.
pub(crate) struct World {
    pub(crate) envoy: ProxyServer,
    pub(crate) processor: Gateway,
    pub(crate) upstream: Upstream,
    pub(crate) client: Client,
}

impl World {
    pub(crate) async fn start(routes: &str) -> Self {
        Self::start_with(routes, "memory:", |store| store, |file| file).await
    }

    /// Starts it on a store and a decorator of it. `change` changes Envoy's file.
    pub(crate) async fn start_with(
        routes: &str,
        store: &str,
        decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let processor = processor(routes, store, decorate).await;
        let envoy = ProxyServer::start(ProxyProgram::Envoy, |port, _| {
            change(envoy_file(port, upstream.address(), processor.address()))
        });
        let envoy = envoy.await;
        let client = Client::new(envoy.address());
        Self { envoy, processor, upstream, client }
    }

    /// The metrics of the processor.
    pub(crate) async fn metrics(&self) -> String {
        let admin = Client::new(self.processor.admin_address());
        admin.post("/metrics").method("GET").body("").send().await.unwrap().text()
    }
}

impl Target for World {
    fn address(&self) -> SocketAddr {
        self.envoy.address()
    }
}
