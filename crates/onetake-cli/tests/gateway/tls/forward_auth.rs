//! `forward_auth` over TLS, with the settings of upstreams: nothing is sent before the service is
//! verified.

use std::path::Path;

use onetake_sim::blackbox::Target;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::upstream::Upstream;
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpListener;

use super::certificates::{Authority, replace};
use super::configuration;
use super::front::{Front, Rules};
use crate::common::InProcess;
use crate::common::forward_auth_service::{Auth, Says, assert_tells_nothing};
use crate::common::process::Process;

const KEY: &str = "asked-behind-tls-0001";

/// A payment with a bearer token, for which the service names alice.
async fn pay(client: &Client) -> ClientResponse {
    let call = client.post("/any/charge").without("authorization").key(KEY);
    call.header("authorization", "Bearer t").send().await.unwrap()
}

async fn auth() -> Auth {
    let auth = Auth::start().await;
    auth.says("t", Says::Allow("alice"));
    auth
}

fn tenant(host: &str, port: u16) -> String {
    let url = format!("https://{host}:{port}/verify?realm=a");
    format!("tenant = {{ forward_auth = {{ url = \"{url}\", cache = \"0s\", timeout = \"5s\" }} }}")
}

fn roots(folder: &Path, more: &str) -> String {
    format!("upstream_tls = {{ roots = \"{}/ca.pem\"{more} }}", folder.display())
}

/// A gateway that asks the service there. Its upstream is plain HTTP: only the question is
/// encrypted.
async fn gateway(upstream: &Upstream, tls: &str, routes: &str) -> (InProcess, Client) {
    let lines = format!("upstream = \"{}\"\n{tls}", upstream.url());
    let gateway = InProcess::start(format!("{}{routes}\n", configuration(&lines))).await;
    let client = Client::new(gateway.address());
    (gateway, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_allows_and_what_it_revokes_gets_no_recording() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    for (place, host, version) in [
        ("[defaults]", "localhost", &TLS13),
        ("[[route]]\nmatch = \"POST /any/{*rest}\"", "localhost", &TLS12),
        ("[[route]]\nmatch = \"POST /any/{*rest}\"", "127.0.0.1", &TLS13),
    ] {
        let (auth, upstream) = (auth().await, Upstream::start().await.unwrap());
        let rules = Rules { versions: &[version], ..Rules::default() };
        let front = Front::start(auth.address, &authority.issue(host), rules).await;
        let route = format!("{place}\n{}", tenant(host, front.address.port()));
        let (_gateway, client) = gateway(&upstream, &roots(folder.path(), ""), &route).await;
        let first = pay(&client).await;
        assert_eq!((first.status(), upstream.runs_in_all()), (201, 1), "{}", first.text());
        let (target, headers) = auth.asked().remove(0);
        assert_eq!(target, "/verify?realm=a");
        assert_eq!(headers["authorization"], "Bearer t");
        let again = pay(&client).await;
        assert!(again.is_replay() && again.body == first.body);
        for (says, status) in
            [(Says::Refuse, 401), (Says::Forbid, 403), (Says::Break, 503), (Says::Redirect, 503)]
        {
            auth.says("t", says);
            let asked = auth.asked().len();
            let refused = pay(&client).await;
            assert_eq!(refused.status(), status, "{says:?}");
            assert_tells_nothing(&refused);
            assert_eq!(auth.asked().len(), asked + 1, "no redirect is followed: {says:?}");
        }
        auth.says("t", Says::Allow("alice"));
        assert!(pay(&client).await.is_replay(), "it is still there");
        assert_eq!(upstream.runs_in_all(), 1);
        assert!(front.connections() < auth.asked().len(), "no connection is used again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_not_known_is_told_no_credential_and_nothing_runs() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let (auth, upstream) = (auth().await, Upstream::start().await.unwrap());
    let refuses = async |host: &str, port: u16, timeout: &str| {
        let tenant = tenant(host, port).replace("5s", timeout);
        let route = format!("[defaults]\n{tenant}");
        let (_gateway, client) = gateway(&upstream, &roots(folder.path(), ""), &route).await;
        for _ in 0..2 {
            let answer = pay(&client).await;
            assert_eq!((answer.status(), answer.code().as_str()), (503, "auth_unavailable"));
            assert!(["2", "3", "4"].contains(&answer.header("retry-after")));
            assert_tells_nothing(&answer);
        }
    };
    for (pair, host) in [
        (Authority::new().issue("localhost"), "localhost"),
        (authority.issue("other.example"), "localhost"),
        (authority.issue("localhost"), "127.0.0.1"),
        (authority.issue_old("localhost"), "localhost"),
        (authority.issue_early("localhost"), "localhost"),
    ] {
        let front = Front::start(auth.address, &pair, Rules::default()).await;
        refuses(host, front.address.port(), "5s").await;
        assert!(front.connections() >= 2, "{host}");
    }
    // A service without TLS, and one that never responds.
    refuses("localhost", auth.address.port(), "5s").await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    refuses("127.0.0.1", silent.local_addr().unwrap().port(), "100ms").await;
    assert_eq!((auth.asked().len(), upstream.runs_in_all()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateways_own_certificate_is_shown_to_it() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (clients, stranger) = (Authority::new(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let file = |name| folder.path().join(name).display().to_string();
    let shown =
        format!(", certificate = \"{}\", private_key = \"{}\"", file("cert.pem"), file("key.pem"));
    for version in [&TLS12, &TLS13] {
        let (auth, upstream) = (auth().await, Upstream::start().await.unwrap());
        let rules = Rules { clients: Some(&clients), versions: &[version] };
        let front = Front::start(auth.address, &authority.issue("localhost"), rules).await;
        let route = format!("[defaults]\n{}", tenant("localhost", front.address.port()));
        for (issuer, shown, is_right) in
            [(&clients, "", false), (&stranger, &*shown, false), (&clients, &*shown, true)]
        {
            issuer.issue("gateway").write(folder.path());
            let (_gateway, client) = gateway(&upstream, &roots(folder.path(), shown), &route).await;
            let answer = pay(&client).await;
            if is_right {
                assert_eq!(answer.status(), 201, "{}", answer.text());
            } else {
                assert_eq!((answer.status(), answer.code().as_str()), (503, "auth_unavailable"));
            }
            let counts = (auth.asked().len(), upstream.runs_in_all());
            assert_eq!(counts, (usize::from(is_right), usize::from(is_right)), "{version:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_is_not_shown_while_the_service_is_not_trusted() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "right.pem", &authority.certificate);
    replace(folder.path(), "wrong.pem", &Authority::new().certificate);
    let (auth, upstream) = (auth().await, Upstream::start().await.unwrap());
    let pair = authority.issue("localhost");
    let front = Front::start(auth.address, &pair, Rules::default()).await;
    let route = format!("[defaults]\n{}\n", tenant("localhost", front.address.port()));
    // Without configured roots, the system's roots apply.
    for (number, root) in ["right.pem", "wrong.pem", "right.pem"].into_iter().enumerate() {
        let file = folder.path().join(root);
        let variables = [("SSL_CERT_FILE", file.to_str().unwrap())];
        let mut gateway =
            Process::start_with(folder.path(), &route, &upstream.url(), &variables).await;
        let answer = pay(&gateway.client).await;
        if root == "right.pem" {
            assert_eq!((answer.status(), answer.is_replay()), (201, number > 0));
        } else {
            assert_eq!((answer.status(), answer.code().as_str()), (503, "auth_unavailable"));
            assert_tells_nothing(&answer);
        }
        assert!(gateway.terminate().await.success());
        let logs = gateway.logs.lock().unwrap();
        let is_told = logs.contains("the connection failed: invalid peer certificate: Unknown");
        assert_eq!(is_told, root == "wrong.pem", "{logs}");
    }
    assert_eq!((auth.asked().len(), upstream.runs_in_all()), (2, 1));
}
