//! Secrets at rest: what a thief finds on the disks of a gateway's store.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

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
/// Text that only the response has.
const ANSWER: &str = "charged {";

fn configuration(upstream: &Upstream, store: &str, secrets: &str) -> String {
    format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\n{store}\n{secrets}",
        upstream.url()
    )
}

/// Pays through a gateway on this store, and has the response replayed.
async fn pay(store: &str, secrets: &str) {
    pay_with(KEY, store, secrets).await;
}

async fn pay_with(key: &str, store: &str, secrets: &str) {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream, store, secrets)).await;
    let client = Client::new(gateway.address());
    let call = || {
        let call = client.post("/charge").without("authorization").key(key);
        let call = call.header("authorization", &format!("Bearer {CREDENTIAL}"));
        call.body(format!("{{\"card\":\"{CARD}\"}}")).send()
    };
    let first = call().await.unwrap();
    assert!(first.status() == 201 && first.text().contains(ANSWER), "{}", first.text());
    let again = call().await.unwrap();
    assert!(again.is_replay() && again.body == first.body);
}

const ENCRYPTED: &str = "[secrets]\nrequest_digests = [{ id = \"f1\", secret = \"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\" }]\n\
    encryption = [{ id = \"k1\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]\n";

/// The secrets that occur in the files below a folder.
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

/// Secrets in a store without encryption: they show that the search works.
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
        let store = format!("url = \"{url}\"\nfilter = \"{}\"", redis.url());
        // A record that is settled too late for the filter is not written to it.
        let mut payments = 0;
        until("the filter knows one", async || {
            pay_with(&format!("{KEY}-{payments}"), &store, secrets).await;
            payments += 1;
            redis.cli(&["DBSIZE"]).trim() != "0"
        })
        .await;
        // Tables, write-ahead logs, and the logs of the servers.
        assert_eq!(found(postgres.folder()), expected);
        assert_eq!(found(redis.folder()), expected);
    }
}

/// `[secrets]` with these encryption keys; the first is in use.
fn keys(ids: &[&str]) -> String {
    let key = |id: &&str| {
        let digit = id.bytes().last().unwrap();
        format!(
            "{{ id = \"{id}\", secret = \"{}=\" }}",
            char::from(digit).to_string().repeat(42) + "A"
        )
    };
    let keys: Vec<String> = ids.iter().map(key).collect();
    format!("[secrets]\nencryption = [{}]\n", keys.join(", "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_and_one_that_goes_too_early_is_missed() {
    let (folder, upstream) = (tempfile::tempdir().unwrap(), Upstream::start().await.unwrap());
    let store = format!("url = \"sqlite:{}\"", folder.path().join("db").display());
    let with = |ids: &[&str]| configuration(&upstream, &store, &keys(ids));
    let send = |ids: &[&str], key: &'static str| {
        let configuration = with(ids);
        async move {
            let gateway = InProcess::start(configuration).await;
            Client::new(gateway.address()).post("/charge").key(key).send().await.unwrap()
        }
    };
    let (first, second) = ("rotated-key-00000001", "rotated-key-00000002");
    assert_eq!(send(&["k1"], first).await.status(), 201);
    assert_eq!(send(&["k1", "k2"], first).await.status(), 201);
    assert_eq!(send(&["k2", "k1"], second).await.status(), 201);
    for ids in [&["k2", "k1"][..], &["k1", "k2"]] {
        assert!(send(ids, first).await.is_replay() && send(ids, second).await.is_replay());
    }
    assert!(send(&["k2"], second).await.is_replay());
    let missed = send(&["k2"], first).await;
    assert_eq!((missed.status(), missed.code().as_str()), (503, "idempotency_store_unavailable"));
    assert_eq!((upstream.runs(first), upstream.runs(second)), (1, 1), "nothing ran again");
    assert!(send(&["k2", "k1"], first).await.is_replay(), "and it is there when its key is back");

    let file = folder.path().join("onetake.toml");
    let doctor = |ids: &[&str]| {
        std::fs::write(&file, with(ids)).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_onetake"))
            .args(["doctor", "--config"])
            .arg(&file)
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = doctor(&["k2", "k1"]);
    assert!(said.contains("fine       recordings that need the key `k1`: 1"), "{said}");
    assert!(code == 0 && said.contains("recordings that need the key `k2`: 1"), "{said}");
    let (code, said) = doctor(&["k2"]);
    let missing =
        "broken     recordings that need the key `k1`: 1; it is not in [secrets] encryption";
    assert!(code == 1 && said.contains(missing), "{said}");
}
