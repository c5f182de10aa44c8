//! TLS with upstreams.

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::grpc::client::GrpcClient;
use onetake_sim::grpc::service::GrpcService;
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use rustls::version::{TLS12, TLS13};

use super::certificates::{Authority, replace};
use super::front::{Front, Rules, hold_back};
use super::gateway;
use crate::common::process::Process;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_known_is_spoken_with() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let roots = format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.path().display());
    let upstream = Upstream::start().await.unwrap();
    for (host, version) in [("localhost", &TLS13), ("127.0.0.1", &TLS13), ("localhost", &TLS12)] {
        let rules = Rules { versions: &[version], ..Rules::default() };
        let front = Front::start(upstream.address(), &authority.issue(host), rules).await;
        let gateway = gateway(&format!("{}\n{roots}", front.upstream(host))).await;
        let client = Client::new(gateway.address());
        let key = format!("known-upstream-{host}-{version:?}");
        let first = client.post("/any/charge").key(&key).send().await.unwrap();
        assert_eq!(first.status(), 201, "{}", first.text());
        let retry = client.post("/any/charge").key(&key).send().await.unwrap();
        assert!(retry.is_replay() && retry.body == first.body);
        for number in 2..=10 {
            let other = client.post("/any/charge").key(&format!("{key}-{number}")).send().await;
            assert_eq!(other.unwrap().status(), 201);
        }
        assert!(front.connections() < 10, "no connection is used again");
        assert_eq!(upstream.runs(&key), 1);
    }
}

/// An `https://` upstream chooses HTTP/2 or HTTP/1.1 (ALPN).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_chooses_the_protocol() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let roots = format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.path().display());
    let pair = authority.issue("localhost");
    let service = GrpcService::start().await.unwrap();
    let rules = Rules { protocols: &["h2", "http/1.1"], ..Rules::default() };
    let front = Front::start(service.address(), &pair, rules).await;
    let over_http2 = gateway(&format!("{}\n{roots}", front.upstream("localhost"))).await;
    let client = GrpcClient::connect(over_http2.address()).await.unwrap();
    for number in 0..20 {
        let key = format!("grpc-over-tls-number-{number}");
        let call = || client.call("/billing.v1.Payments/Charge").key(&key).send();
        let (first, again) = (call().await.unwrap(), call().await.unwrap());
        assert_eq!((first.code(), again.is_replay()), (Some(0), true), "{first:?}");
        assert_eq!((again.body, service.runs(&key)), (first.body, 1));
    }
    assert!(front.connections() <= 2, "{} connections", front.connections());
    let upstream = Upstream::start().await.unwrap();
    let rules = Rules { protocols: &["http/1.1"], ..Rules::default() };
    let front = Front::start(upstream.address(), &pair, rules).await;
    let over_http1 = gateway(&format!("{}\n{roots}", front.upstream("localhost"))).await;
    let client = Client::new(over_http1.address());
    let answer = client.post("/any/charge").key("http1-over-tls-0001").send().await.unwrap();
    assert_eq!(answer.status(), 201, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_wrong_root_nothing_runs_until_it_is_right() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &Authority::new().certificate);
    let roots = format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.path().display());
    let upstream = Upstream::start().await.unwrap();
    let pair = authority.issue("localhost");
    let front = Front::start(upstream.address(), &pair, Rules::default()).await;
    let gateway = gateway(&format!("{}\n{roots}", front.upstream("localhost"))).await;
    let client = Client::new(gateway.address());
    let key = "behind-a-wrong-root-1";
    let answer = client.post("/any/charge").key(key).send().await.unwrap();
    assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_unreachable"));
    assert_eq!(upstream.runs_in_all(), 0);
    // The right root arrives. Without a restart, the same key runs.
    replace(folder.path(), "ca.pem", &authority.certificate);
    until("the new root is in use", async || {
        let answer = client.post("/any/charge").key(key).send().await.unwrap();
        assert!(!answer.is_replay() && [201, 502].contains(&answer.status()), "{}", answer.text());
        answer.status() == 201
    })
    .await;
    let retry = client.post("/any/charge").key(key).send().await.unwrap();
    assert!(retry.is_replay());
    assert_eq!(upstream.runs(key), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_under_another_name_or_out_of_date_is_not_asked() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let roots = format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.path().display());
    let upstream = Upstream::start().await.unwrap();
    for (pair, host) in [
        (authority.issue("other.example"), "localhost"),
        (authority.issue("localhost"), "127.0.0.1"),
        (authority.issue_old("localhost"), "localhost"),
        (authority.issue_early("localhost"), "localhost"),
    ] {
        let front = Front::start(upstream.address(), &pair, Rules::default()).await;
        let gateway = gateway(&format!("{}\n{roots}", front.upstream(host))).await;
        let client = Client::new(gateway.address());
        for _ in 0..3 {
            let answer = client.post("/any/charge").key("another-name-0001").send().await.unwrap();
            assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_unreachable"));
        }
        let unkeyed = client.post("/any/charge").send().await.unwrap();
        assert_eq!(unkeyed.status(), 502);
    }
    assert_eq!(upstream.runs_in_all(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_is_shown_and_without_one_nothing_was_asked() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (clients, stranger) = (Authority::new(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let upstream = Upstream::start().await.unwrap();
    let file = |name| folder.path().join(name).display().to_string();
    let identity =
        format!(", certificate = \"{}\", private_key = \"{}\"", file("cert.pem"), file("key.pem"));
    for version in [&TLS12, &TLS13] {
        let rules = Rules { clients: Some(&clients), versions: &[version], ..Rules::default() };
        let pair = authority.issue("localhost");
        let front = Front::start(upstream.address(), &pair, rules).await;
        let key = format!("client-certificate-{version:?}");
        for (issuer, identity) in [(&clients, ""), (&stranger, &*identity), (&clients, &*identity)]
        {
            issuer.issue("gateway").write(folder.path());
            let tls = format!("upstream_tls = {{ roots = \"{}\"{identity} }}", file("ca.pem"));
            let gateway = gateway(&format!("{}\n{tls}", front.upstream("localhost"))).await;
            let client = Client::new(gateway.address());
            let is_right = std::ptr::eq(issuer, &raw const clients) && !identity.is_empty();
            for attempt in 0..20 {
                let answer = client.post("/any/charge").key(&key).send().await.unwrap();
                if is_right {
                    assert_eq!((answer.status(), answer.is_replay()), (201, attempt > 0));
                } else {
                    let seen = (answer.status(), answer.code());
                    assert_eq!(
                        seen,
                        (502, "upstream_unreachable".into()),
                        "{version:?} {identity}"
                    );
                }
            }
            assert_eq!(upstream.runs(&key), usize::from(is_right));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_behind_a_certificate_that_is_turned_down_was_never_read() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let clients = Authority::new();
    replace(folder.path(), "ca.pem", &authority.certificate);
    let upstream = Upstream::start().await.unwrap();
    let rules = Rules { clients: Some(&clients), versions: &[&TLS13], ..Rules::default() };
    let front = Front::start(upstream.address(), &authority.issue("localhost"), rules).await;
    // The whole request is on its way before the upstream learns that there is no certificate.
    let held = hold_back(front.address, 20_000).await;
    let lines = format!(
        "upstream = \"https://localhost:{}\"\nupstream_tls = {{ roots = \"{}/ca.pem\" }}",
        held.port(),
        folder.path().display()
    );
    let gateway = gateway(&lines).await;
    let client = Client::new(gateway.address());
    for _ in 0..3 {
        let call = client.post("/any/charge").key("sent-and-never-read-1").body("1".repeat(20_000));
        let answer = call.send().await.unwrap();
        assert_eq!((answer.status(), answer.code().as_str()), (502, "upstream_unreachable"));
    }
    assert_eq!((upstream.runs_in_all(), front.connections()), (0, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_roots_of_its_own_it_is_the_systems_that_count() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let upstream = Upstream::start().await.unwrap();
    let pair = authority.issue("localhost");
    let front = Front::start(upstream.address(), &pair, Rules::default()).await;
    let url = format!("https://localhost:{}", front.address.port());
    let file = folder.path().join("ca.pem");
    let variables = [("SSL_CERT_FILE", file.to_str().unwrap())];
    let mut gateway = Process::start_with(folder.path(), "", &url, &variables).await;
    let answer = gateway.client.post("/any/charge").key("by-the-systems-roots").send().await;
    assert_eq!(answer.unwrap().status(), 201);
    assert!(gateway.terminate().await.success());
}
