//! A webhook over TLS, with the settings of upstreams: nothing is sent before the receiver is
//! verified.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use onetake_core::{
    Completion, Engine, Fingerprint, Key, Message, Operation, Outbox, Recording, Scope,
};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use onetake_stores::SqliteStore;
use onetake_stores::sqlite::Transactional;

use super::certificates::{Authority, replace};
use super::front::{Front, Rules};
use super::roots_of;

/// A relay process; killed when dropped.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_called_once_its_certificate_is_right() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let file = folder.path().join("payments.db");
    let store = Arc::new(SqliteStore::open(&file).unwrap());
    let outbox: Arc<dyn Outbox> = Arc::clone(&store) as _;
    let transactional = Transactional::open(Engine::new(store), &file).unwrap();
    let key = Key::new("a-payment").unwrap();
    let operation = Operation::new(&Scope::new("t"), &key, Fingerprint::of(b"pay"));
    let paid = transactional.run(operation, |_, _| {
        let completion = Completion::new(Recording::new("paid"));
        Ok::<_, String>(completion.with_message(Message::new("paid", "a", "10 cents")))
    });
    assert!(paid.await.unwrap().recording().is_some());
    let endpoint = Upstream::start().await.unwrap();
    for (pair, is_right) in
        [(Authority::new().issue("localhost"), false), (authority.issue("localhost"), true)]
    {
        let front = Front::start(endpoint.address(), &pair, Rules::default()).await;
        let config = folder.path().join("relay.toml");
        let text = format!(
            "[gateway]\n{}\n[store]\nurl = \"sqlite:{}\"\n[relay]\nsink = \"https://localhost:{}/any/charge\"\n\
             secrets = [\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]\nbackoff_max = \"200ms\"\n",
            roots_of(folder.path()),
            file.display(),
            front.address.port(),
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.args(["relay", "--config"]).arg(&config).stdout(Stdio::null());
        let _relay = Relay(command.env("ONETAKE_LOG", "error").spawn().unwrap());
        let waiting = async || outbox.counts().await.unwrap().waiting;
        if is_right {
            until("it is delivered", async || waiting().await == 0).await;
        } else {
            until("it is tried some times", async || front.connections() > 3).await;
            assert_eq!(waiting().await, 1);
        }
        assert_eq!(endpoint.runs_in_all(), usize::from(is_right));
    }
    assert!(outbox.parked(0, 1).await.unwrap().is_empty());
}
