//! What whoever steals the disks of a gateway's store finds there.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use std::path::{Path, PathBuf};

use common::{InProcess, migrated};
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::servers::{Postgres, Redis, until};
use onetake_sim::upstream::Upstream;

const CARD: &str = "4242424242424242";
const KEY: &str = "key-of-a-shop-0000000001";
const CREDENTIAL: &str = "live-credential-of-a-shop";
/// In the answer alone.
const ANSWER: &str = "charged {";

/// Pays through a gateway on this store, and has the answer replayed.
async fn pay(store: &str, secrets: &str) {
    let upstream = Upstream::start().await.unwrap();
    let configuration = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\n{store}\n{secrets}",
        upstream.url()
    );
    let gateway = InProcess::start(configuration).await;
    let client = Client::new(gateway.address());
    let call = || {
        let call = client.post("/charge").without("authorization").key(KEY);
        let call = call.header("authorization", &format!("Bearer {CREDENTIAL}"));
        call.body(format!("{{\"card\":\"{CARD}\"}}")).send()
    };
    let first = call().await.unwrap();
    assert!(first.status() == 201 && first.text().contains(ANSWER), "{}", first.text());
    let again = call().await.unwrap();
    assert!(again.is_replay() && again.body == first.body);
}

const ENCRYPTED: &str = "[secrets]\nfingerprint = [{ id = \"f1\", key = \"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\" }]\n\
    encryption = [{ id = \"k1\", key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]\n";

/// Which of the secrets stand in the files below a folder.
fn found(folder: &Path) -> Vec<&'static str> {
    let files = files(folder);
    assert!(!files.is_empty());
    let holds = |text: &&str| {
        files.iter().any(|file| {
            let bytes = std::fs::read(file).unwrap_or_default();
            bytes.windows(text.len()).any(|at| at == text.as_bytes())
        })
    };
    [CARD, KEY, CREDENTIAL, ANSWER].into_iter().filter(holds).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// What an open store shows: the search works.
const OPEN: [&str; 2] = [CARD, ANSWER];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_folder() {
    for (secrets, expected) in [("", &OPEN[..]), (ENCRYPTED, &[])] {
        let folder = tempfile::tempdir().unwrap();
        pay(&format!("url = \"embedded:{}\"", folder.path().display()), secrets).await;
        assert_eq!(found(folder.path()), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_sqlite_file() {
    for (secrets, expected) in [("", &OPEN[..]), (ENCRYPTED, &[])] {
        let folder = tempfile::tempdir().unwrap();
        pay(&format!("url = \"sqlite:{}\"", folder.path().join("db").display()), secrets).await;
        assert_eq!(found(folder.path()), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_postgres_and_the_redis_in_front_of_it() {
    for (secrets, expected) in [("", &OPEN[..]), (ENCRYPTED, &[])] {
        let (postgres, redis) = (Postgres::start().await, Redis::start().await);
        let url = migrated(postgres.database()).await;
        pay(&format!("url = \"{url}\"\nfilter = \"{}\"", redis.url()), secrets).await;
        until("the filter knows it", async || redis.cli(&["DBSIZE"]).trim() != "0").await;
        // Tables, log of writes, and what the servers said of them.
        assert_eq!(found(postgres.folder()), expected);
        assert_eq!(found(redis.folder()), expected);
    }
}
