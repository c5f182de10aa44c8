//! Reconciliation over TLS, with the settings of upstreams: nothing is sent before the service is
//! verified.

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::servers::until;

use super::certificates::{Authority, replace};
use super::front::{Front, Rules};
use super::roots_of;
use crate::common::InProcess;
use crate::reconcile::interrupted_upstream::Shop;
use crate::reconcile::reconciliation_service::{Desk, http};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_knows_the_outcome_is_asked_if_its_certificate_is_right() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    for (pair, is_right) in
        [(Authority::new().issue("localhost"), false), (authority.issue("localhost"), true)]
    {
        let (shop, desk) = (Shop::start().await, Desk::start().await);
        desk.says("a-payment", http("200 OK\r\nonetake-status: 201", b"charged"));
        let front = Front::start(desk.address, &pair, Rules::default()).await;
        let port = front.address.port();
        let gateway = InProcess::start(format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{}\"\n{}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [store]\nurl = \"memory:\"\n[[route]]\nmatch = \"POST /pay\"\ntenant = \"public\"\n\
             key = {{ min_length = 1 }}\nupstream_timeout = \"2s\"\ngrace = \"100ms\"\non_unknown = \"reconcile\"\n\
             reconcile = {{ request = \"GET https://localhost:{port}/by/{{key}}\", timeout = \"5s\", give_up_after = \"2s\" }}\n",
            shop.address,
            roots_of(folder.path()),
        ))
        .await;
        let client = Client::new(gateway.address());
        let pay = async || {
            let call = client.post("/pay").without("authorization");
            call.header("idempotency-key", "a-payment").send().await.unwrap()
        };
        assert_eq!(pay().await.code(), "upstream_interrupted");
        let mut last = pay().await;
        until("it is settled", async || {
            last = pay().await;
            last.code() != "outcome_unknown"
        })
        .await;
        assert_eq!(shop.runs("a-payment"), 1);
        if is_right {
            assert_eq!((last.status(), last.text().as_str()), (201, "charged"));
            assert_eq!(desk.asked().len(), 1);
        } else {
            assert_eq!(last.code(), "previous_attempt_failed");
            assert!(
                last.text().contains("the connection to the service failed"),
                "{}",
                last.text()
            );
            assert!(desk.asked().is_empty(), "a stranger is told no key");
            assert!(front.connections() > 0);
        }
    }
}
