//! TLS with clients and with upstreams, and certificates that change under a running gateway.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

mod certificates;
mod clients;
mod failing_upstreams;
mod forward_auth;
mod front;
mod invalid_files;
mod jwks;
mod peer;
mod reconcile;
mod replaced_certificates;
mod upstreams;
#[cfg(feature = "sqlite")]
mod webhooks;

use std::path::Path;

use crate::common::InProcess;

/// A gateway in this process, with these lines below `[gateway]`.
async fn gateway(lines: &str) -> InProcess {
    InProcess::start(configuration(lines)).await
}

fn configuration(lines: &str) -> String {
    format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{lines}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n"
    )
}

/// `upstream_tls = { … }` with the root of a folder.
fn roots_of(folder: &Path) -> String {
    format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.display())
}

/// `tls = { … }` with the files of a folder.
fn tls_of(folder: &Path) -> String {
    let file = |name| folder.join(name).display().to_string();
    format!(
        "tls = {{ certificate = \"{}\", private_key = \"{}\" }}",
        file("cert.pem"),
        file("key.pem")
    )
}
