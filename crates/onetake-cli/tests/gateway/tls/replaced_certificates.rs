//! Certificates that are replaced under a running gateway.

use onetake_sim::client::{Call, Client};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;

use super::certificates::{Authority, certificate, replace};
use super::peer::Peer;
use crate::common::process::Process;

const NOT_USED: &str = "the new TLS files are invalid";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_connections_use_new_certificates_and_old_ones_go_on() {
    let (folder, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, successor) = (Authority::new(), Authority::new());
    let [first, second, third] = ["localhost"; 3].map(|name| authority.issue(name));
    first.write(files.path());
    let upstream = Upstream::start().await.unwrap();
    let file = |name| files.path().join(name).display().to_string();
    let tls = format!(
        "[gateway.tls]\ncertificate = \"{}\"\nprivate_key = \"{}\"\n",
        file("cert.pem"),
        file("key.pem")
    );
    let mut gateway = Process::start(folder.path(), &tls, &upstream.url()).await;
    let address = gateway.address;
    let mut olds = Vec::new();
    for alpn in ["http/1.1", "h2"] {
        olds.push(Peer::connect(address, &authority, &[alpn]).await.unwrap());
    }
    assert!(olds.iter().all(|peer| peer.certificate == certificate(&first.certificate)));

    second.write(files.path());
    let mut newer = seen(&gateway, &authority, &second.certificate).await;
    assert_eq!(newer.post("/any/charge", "under-a-new-certificate").await.unwrap().status(), 201);
    go_on(&mut olds).await;

    let metrics = Client::new(gateway.admin).post("/metrics").method("GET").body("");
    let refused =
        |is_refused| format!("onetake_tls_refused{{field=\"gateway.tls\"}} {is_refused}\n");
    let seen_by_others = text(&metrics).await;
    assert!(seen_by_others.contains(&refused(0)), "{seen_by_others}");
    // The first second of the year 4096, which is when certificates of tests expire.
    let expires = "onetake_tls_expires_seconds{field=\"gateway.tls\"} 67090118400\n";
    assert!(seen_by_others.contains(expires), "{seen_by_others}");

    // A truncated certificate that stays: the old pair stays in use, and a warning is logged once.
    replace(files.path(), "cert.pem", &third.certificate[..100]);
    told(&gateway, NOT_USED, 1).await;
    go_on(&mut olds).await;
    until("others see it", async || text(&metrics).await.contains(&refused(1))).await;
    let peer = Peer::connect(address, &authority, &["h2"]).await.unwrap();
    assert_eq!(peer.certificate, certificate(&second.certificate));
    // The new key is still missing.
    replace(files.path(), "cert.pem", &third.certificate);
    told(&gateway, NOT_USED, 2).await;
    go_on(&mut olds).await;
    let peer = Peer::connect(address, &authority, &["h2"]).await.unwrap();
    assert_eq!(peer.certificate, certificate(&second.certificate));
    replace(files.path(), "key.pem", &third.key);
    let _newest = seen(&gateway, &authority, &third.certificate).await;
    go_on(&mut olds).await;
    until("others see it", async || text(&metrics).await.contains(&refused(0))).await;

    // Another authority, and back again: every change of the files is found.
    let fourth = successor.issue("localhost");
    fourth.write(files.path());
    let _newest = seen(&gateway, &successor, &fourth.certificate).await;
    go_on(&mut olds).await;
    first.write(files.path());
    let _newest = seen(&gateway, &authority, &first.certificate).await;
    go_on(&mut olds).await;
    assert_eq!(upstream.runs("under-a-new-certificate"), 1);
    assert!(gateway.terminate().await.success());
    let logs = gateway.logs.lock().unwrap().clone();
    assert_eq!(logs.matches(NOT_USED).count(), 2, "each fault is told once: {logs}");
    for pair in [&first, &second, &third, &fourth] {
        let secret = pair.key.lines().nth(1).unwrap();
        assert!(!logs.contains(&secret[..16]), "a key is in the logs");
    }
}

/// Uses old connections before their idle timeout.
async fn go_on(olds: &mut [Peer]) {
    for old in olds {
        let answer = old.post("/any/charge", "under-a-new-certificate").await.unwrap();
        assert!(answer.is_replay(), "the old connections go on: {}", answer.text());
    }
}

async fn text(call: &Call) -> String {
    call.clone().send().await.unwrap().text()
}

/// Connects until the gateway presents this certificate.
async fn seen(gateway: &Process, authority: &Authority, expected: &str) -> Peer {
    let mut found = None;
    until("the certificate is in use", async || {
        let peer = Peer::connect(gateway.address, authority, &["h2"]).await.ok();
        found = peer.filter(|peer| peer.certificate == certificate(expected));
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// Waits until the gateway has logged a text this many times.
async fn told(gateway: &Process, what: &str, times: usize) {
    let count = || gateway.logs.lock().unwrap().matches(what).count();
    until("it is logged", async || count() >= times).await;
}
