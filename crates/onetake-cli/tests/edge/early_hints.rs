//! Informational responses, and real clients and proxies that take them for the final response.

use std::path::Path;

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::servers::{BalancedNode, Balancer, BalancerServer, Interpreter, interpreter};

use crate::common::raw_http::RawUpstream;
use crate::common::{InProcess, configuration};

/// The number of requests on one connection.
const REQUESTS: usize = 3;

/// Python's `http.client` returns the hint as the response, and the response for that of the next
/// request. nginx does so before 1.29.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_know_hints_get_the_response() {
    let hint = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let upstream = RawUpstream::start(format!("{hint}{answer}")).await;
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/edge/requests_http_client.py");
    let mut command = tokio::process::Command::new(interpreter(Interpreter::Python));
    command.arg(Path::new(script)).arg(gateway.address().to_string()).arg(REQUESTS.to_string());
    let output = command.kill_on_drop(true).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "200 ok\n".repeat(REQUESTS), "{output:?}");

    let node = BalancedNode { address: gateway.address(), admin: gateway.admin() };
    for balancer in [Balancer::Nginx, Balancer::HaProxy] {
        let server = BalancerServer::start(balancer, &[node]).await;
        let client = Client::new(server.address());
        for number in 0..REQUESTS {
            let key = format!("early-hints-{balancer:?}-{number}");
            let got = client.post("/any/charge").key(&key).send().await.unwrap();
            assert_eq!((got.status(), got.text()), (200, "ok".to_owned()), "{balancer:?}");
        }
    }
}
