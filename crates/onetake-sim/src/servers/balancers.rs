//! Load balancers in front of gateways.

use std::net::SocketAddr;
use std::path::PathBuf;

use tempfile::TempDir;

use super::child::Child;
use super::{free_port, loopback, program, until};

/// A load balancer that other people wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancer {
    /// nginx. It has no probes: it learns of a stopped node by a refused connection.
    Nginx,
    /// HAProxy, with probes of `/readyz`.
    HaProxy,
}

/// A node behind a load balancer.
#[derive(Clone, Copy, Debug)]
pub struct BalancedNode {
    /// The address for requests.
    pub address: SocketAddr,
    /// The address for probes.
    pub admin: SocketAddr,
}

/// A running load balancer.
#[derive(Debug)]
pub struct BalancerServer {
    _child: Child,
    folder: TempDir,
    port: u16,
}

impl BalancerServer {
    /// Starts a load balancer in front of these nodes.
    pub async fn start(balancer: Balancer, nodes: &[BalancedNode]) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let port = free_port();
        let (name, template) = match balancer {
            Balancer::Nginx => ("nginx", include_str!("balancers/nginx.conf")),
            Balancer::HaProxy => ("haproxy", include_str!("balancers/haproxy.cfg")),
        };
        let of_node = |(number, node): (usize, &BalancedNode)| match balancer {
            Balancer::Nginx => format!("server {} max_fails=0;\n", node.address),
            Balancer::HaProxy => {
                let (ip, admin) = (node.admin.ip(), node.admin.port());
                format!("    server node{number} {} addr {ip} port {admin}\n", node.address)
            }
        };
        let nodes = nodes.iter().enumerate().map(of_node).collect::<String>();
        let text = template.replace("PORT", &port.to_string()).replace("NODES\n", &nodes);
        let text = text.replace("FOLDER", &folder.path().display().to_string());
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("the folder can be written");
        let sbin = PathBuf::from("/usr/sbin");
        let command = [
            program(name, &[sbin]),
            match balancer {
                Balancer::Nginx => "-c".into(),
                Balancer::HaProxy => "-f".into(),
            },
        ];
        let mut command = command.map(|word| word.display().to_string()).to_vec();
        command.push(file.display().to_string());
        let child = Child::start(&command, &folder.path().join("log"), None);
        until(&format!("{balancer:?} starts"), async || {
            std::net::TcpStream::connect(loopback(port)).is_ok()
        })
        .await;
        Self { _child: child, folder, port }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Returns its log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}
