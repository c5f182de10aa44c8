//! onetake as an external processor of a real Envoy, with the configuration of the example.

mod accepted_202;
mod blackbox;
mod connections;
mod faults;
mod grpc;
mod grpc_kills;
mod kills;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;

use onetake_cli::config::{Forwarder, Input};
use onetake_cli::gateway::Gateway;
use onetake_core::Store;
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::servers::{ProxyProgram, ProxyServer};
use onetake_sim::upstream::Upstream;

/// The file that the documentation describes.
const EXAMPLE: &str = include_str!("../../../../../examples/envoy-ext-proc.yaml");

/// The example, with addresses of a test. The upstream speaks HTTP or gRPC.
pub(crate) fn envoy_file(port: u16, upstream: SocketAddr, processor: SocketAddr) -> String {
    // A port of the system's choice may be 50051, but none of the others.
    let ports = [
        (50051, upstream.port()),
        (3000, upstream.port()),
        (10000, port),
        (9002, processor.port()),
    ];
    ports.iter().fold(EXAMPLE.to_owned(), |file, (example, port)| {
        with(&file, &format!("port_value: {example} "), &format!("port_value: {port} "))
    })
}

/// Starts Envoy with the example. `change` changes the file.
pub(crate) async fn envoy(
    upstream: SocketAddr,
    processor: SocketAddr,
    change: impl FnOnce(String) -> String,
) -> ProxyServer {
    let file = |port, _: &str| change(envoy_file(port, upstream, processor));
    ProxyServer::start(ProxyProgram::Envoy, file).await
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
    let config = Input { text: Some(&text), ..Input::default() }.config(Forwarder::Envoy);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    Gateway::start_ext_proc(config, decorate).await.unwrap()
}

/// A processor, an Envoy and an upstream. The processor is in this process, or one of its own.
pub(crate) struct World<P = Gateway> {
    pub(crate) envoy: ProxyServer,
    pub(crate) processor: P,
    pub(crate) upstream: Upstream,
    pub(crate) client: Client,
}

impl<P> World<P> {
    /// Starts it around a processor at an address. `change` changes Envoy's file.
    pub(crate) async fn around(
        processor: P,
        address: SocketAddr,
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let envoy = envoy(upstream.address(), address, change).await;
        let client = Client::new(envoy.address());
        Self { envoy, processor, upstream, client }
    }
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
        let processor = processor(routes, store, decorate).await;
        let address = processor.address();
        Self::around(processor, address, change).await
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
