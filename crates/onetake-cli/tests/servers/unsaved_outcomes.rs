//! Outcomes that are unsaved at shutdown.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::{Path, PathBuf};

use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, until};
use onetake_sim::upstream::Upstream;

use crate::common::migrated_postgres;
use crate::common::process::Process;

const KEY: &str = "journal-key-0123456789";
/// A secret of the upstream's response, which must not be on the disk in plain text.
const SECRET: &str = "4242424242424242";

struct World {
    folder: tempfile::TempDir,
    upstream: Upstream,
    server: &'static Postgres,
    database: String,
    proxy: FaultProxy,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (server, url) = (Postgres::shared().await, migrated_postgres().await);
        let (_, database) = url.rsplit_once('/').unwrap();
        let database = database.to_owned();
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        Self { folder, upstream: Upstream::start().await.unwrap(), server, database, proxy }
    }

    async fn gateway(&self, routes: &str) -> Process {
        let url = self.server.url_at(self.proxy.address(), &self.database);
        let variables = [("ONETAKE__STORE__URL", &*url)];
        // The gateway is stopped while the store is unreachable, and waits only a few seconds.
        let arguments = ["--log-format", "json", "--drain-seconds", "3"];
        let (folder, upstream) = (self.folder.path(), self.upstream.url());
        Process::start_as(&arguments, folder, routes, &upstream, &variables).await
    }

    fn journal(&self) -> PathBuf {
        self.folder.path().join("onetake-journal")
    }

    /// Runs an operation, cuts the database off before the outcome is saved, and stops the gateway.
    async fn end_with_an_outcome_in_hand(&self, routes: &str) {
        let mut gateway = self.gateway(routes).await;
        let call = gateway.client.post("/pay/gate").header("x-case", "gate").key(KEY).body(SECRET);
        let call = tokio::spawn(call.send());
        self.upstream.ran("gate", 1).await;
        self.proxy.set(Weather::Dead);
        self.upstream.open("gate");
        until("the outcome is in hand", async || {
            let logs = gateway.logs.lock().unwrap();
            logs.contains("an outcome could not be saved yet")
        })
        .await;
        assert!(gateway.terminate().await.success());
        let answer = call.await.unwrap();
        assert!(!answer.is_ok_and(|answer| answer.status() == 201), "it was shown (S6)");
        let logs = gateway.logs.lock().unwrap();
        assert_eq!(files(&self.journal()).len(), 1, "{logs}");
        // It is tried several times a second, and logged once a minute.
        assert_eq!(logs.matches("an outcome could not be saved yet").count(), 1, "{logs}");
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn holds(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_are_there_after_the_next_start() {
    let world = World::new().await;
    world.end_with_an_outcome_in_hand("").await;
    // The database is reachable again, so the next gateway settles the outcome.
    world.proxy.set(Weather::Fair);
    let gateway = world.gateway("").await;
    until("it is settled", async || files(&world.journal()).is_empty()).await;
    let retry = gateway
        .client
        .post("/pay/gate")
        .header("x-case", "gate")
        .key(KEY)
        .body(SECRET)
        .send()
        .await
        .unwrap();
    assert_eq!(retry.status(), 201, "{}", retry.text());
    assert!(retry.is_replay());
    assert_eq!(world.upstream.runs("gate"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_wait_there_encrypted() {
    let world = World::new().await;
    let key = "[secrets]\nencryption = [{ id = \"k1\", secret = \"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\" }]\n";
    world.end_with_an_outcome_in_hand(key).await;
    let kept = files(&world.journal());
    assert!(holds(&kept[0], "onetake journal"), "the control: this file is what is looked for");
    assert!(!holds(&kept[0], SECRET), "the body lies there in the open");
    world.proxy.set(Weather::Fair);
    let gateway = world.gateway(key).await;
    until("it is settled", async || files(&world.journal()).is_empty()).await;
    let retry = gateway
        .client
        .post("/pay/gate")
        .header("x-case", "gate")
        .key(KEY)
        .body(SECRET)
        .send()
        .await
        .unwrap();
    assert!(retry.is_replay() && retry.text().contains(SECRET), "{}", retry.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_settled_meanwhile_stands() {
    let world = World::new().await;
    world.end_with_an_outcome_in_hand("").await;
    // An operator finds the outcome before the next start, and records it.
    world.server.sql(
        &world.database,
        "UPDATE onetake_records SET state = 2, state_at = claimed_at, expires_at = claimed_at + ttl,
                code = 'told', detail = 'by the bank'",
    );
    world.proxy.set(Weather::Fair);
    let gateway = world.gateway("").await;
    until("it is let go of", async || files(&world.journal()).is_empty()).await;
    let retry = gateway
        .client
        .post("/pay/gate")
        .header("x-case", "gate")
        .key(KEY)
        .body(SECRET)
        .send()
        .await
        .unwrap();
    assert_eq!((retry.status(), &*retry.code()), (500, "previous_attempt_failed"));
    let logs = gateway.logs.lock().unwrap();
    assert!(
        logs.contains("the key has another outcome, or was forgotten"),
        "the difference is logged"
    );
}
