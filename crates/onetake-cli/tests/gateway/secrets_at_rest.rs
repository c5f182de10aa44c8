//! Secrets at rest: what a thief finds on the disks of a gateway's store.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::upstream::Upstream;

use crate::common::InProcess;
use crate::common::stolen_disk::{ENCRYPTED, OPEN, configuration, found, pay};

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
        "broken     recordings that need the key `k1`: 1; the key is not in [secrets] encryption";
    assert!(code == 1 && said.contains(missing), "{said}");
}
