//! Payments through a gateway, and a search for their secrets on the disks of its store.

use std::path::{Path, PathBuf};

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::upstream::Upstream;

use super::InProcess;

pub(crate) const CARD: &str = "4242424242424242";
pub(crate) const KEY: &str = "key-of-a-shop-0000000001";
pub(crate) const CREDENTIAL: &str = "live-credential-of-a-shop";
/// Text that only the response has.
pub(crate) const ANSWER: &str = "charged {";

pub(crate) fn configuration(upstream: &Upstream, store: &str, secrets: &str) -> String {
    format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\n{store}\n{secrets}",
        upstream.url()
    )
}

/// Pays through a gateway on this store, and has the response replayed.
pub(crate) async fn pay(store: &str, secrets: &str) {
    pay_with(KEY, store, secrets).await;
}

pub(crate) async fn pay_with(key: &str, store: &str, secrets: &str) {
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

pub(crate) const ENCRYPTED: &str = "[secrets]\nrequest_digests = [{ id = \"f1\", secret = \"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\" }]\n\
    encryption = [{ id = \"k1\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]\n";

/// The secrets that occur in the files below a folder.
pub(crate) fn found(folder: &Path) -> Vec<&'static str> {
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

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Secrets in a store without encryption: they show that the search works.
pub(crate) const OPEN: [&str; 2] = [CARD, ANSWER];
