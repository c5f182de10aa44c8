//! Raw bytes into the gateway and into other proxies, each in front of a server that records its
//! requests.

mod dice;
mod recorder;

use std::net::SocketAddr;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::servers::{ProxyProgram, ProxyServer};

use super::common::InProcess;
pub(crate) use dice::{Dice, mutate};
pub(crate) use recorder::{Recorder, Seen};

/// The number of conversations at once.
pub(crate) const AT_ONCE: u64 = 24;
/// The longest wait for the end of a conversation. A server may wait for bytes that never come.
pub(crate) const WAIT: Duration = Duration::from_millis(400);
/// The same, for a conversation that is looked at again.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(3);

/// The proxies that the gateway is compared with.
pub(crate) const PEERS: [ProxyProgram; 2] = [ProxyProgram::Nginx, ProxyProgram::HaProxy];

/// The version of HTTP that clients speak. The servers behind the proxies speak HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// The gateway and its peers, each with a recorder behind it.
pub(crate) struct Servers {
    pub(crate) gateway: InProcess,
    pub(crate) behind_gateway: Recorder,
    pub(crate) peers: Vec<(ProxyServer, Recorder)>,
}

impl Servers {
    pub(crate) async fn start(protocol: Protocol) -> Self {
        let behind_gateway = Recorder::start().await;
        let gateway = gateway(&behind_gateway).await;
        let mut peers = Vec::new();
        for program in PEERS {
            let recorder = Recorder::start().await;
            let upstream = recorder.address();
            let server = ProxyServer::start(program, |port, folder| match program {
                ProxyProgram::Nginx => nginx(protocol, port, folder, upstream),
                _ => haproxy(protocol, port, upstream),
            });
            peers.push((server.await, recorder));
        }
        Self { gateway, behind_gateway, peers }
    }

    pub(crate) fn gateway_address(&self) -> SocketAddr {
        self.gateway.address()
    }
}

/// Starts a gateway in front of a recorder.
pub(crate) async fn gateway(behind: &Recorder) -> InProcess {
    InProcess::start(format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
        behind.address()
    ))
    .await
}

fn nginx(protocol: Protocol, port: u16, folder: &str, upstream: SocketAddr) -> String {
    let protocol = if protocol == Protocol::Http2 { " http2" } else { "" };
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths = paths.map(|path| format!("{path}_temp_path {folder}/{path};")).join(" ");
    format!(
        "worker_processes 1;\nevents {{ worker_connections 512; }}\n\
         http {{\n  access_log off;\n  {paths}\n  server {{\n\
         listen 127.0.0.1:{port}{protocol};\n\
         location / {{ proxy_pass http://{upstream}; }}\n  }}\n}}\n"
    )
}

fn haproxy(protocol: Protocol, port: u16, upstream: SocketAddr) -> String {
    let protocol = if protocol == Protocol::Http2 { " proto h2" } else { "" };
    format!(
        "global\n  maxconn 512\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 10s\n  \
         timeout server 10s\nfrontend clients\n  bind 127.0.0.1:{port}{protocol}\n  \
         default_backend recorder\nbackend recorder\n  server a {upstream}\n"
    )
}

/// The length of a run: a number of conversations, or a time.
pub(crate) struct Length {
    conversations: u64,
    end: Option<Duration>,
}

impl Length {
    /// The number of conversations, unless the environment names a time in seconds instead.
    pub(crate) fn new(conversations: u64, variable: &str) -> Self {
        let seconds = std::env::var(variable).ok().and_then(|text| text.parse().ok());
        let end = seconds.map(|seconds| SystemClock.monotonic() + Duration::from_secs(seconds));
        Self { conversations, end }
    }

    /// True if more conversations should follow after this number of them.
    pub(crate) fn is_short_of(&self, number: u64) -> bool {
        self.end.map_or(number < self.conversations, |end| SystemClock.monotonic() < end)
    }
}
