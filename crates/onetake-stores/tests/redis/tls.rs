//! Tests of TLS with the system's roots.

use std::process::Command;

use onetake_core::{Store, StoreErrorKind};
use onetake_sim::servers::{Flavour, Redis, free_port};
use onetake_stores::{RedisOptions, RedisStore};

/// The variable with the server's URL for the client of this test.
const URL: &str = "ONETAKE_TEST_TLS_URL";

/// A server's certificate for `localhost`, and the root that signed it.
fn file(name: &str) -> String {
    format!("{}/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The roots are read from the environment, which a process should not change while it runs. So the
/// test starts itself again as the client.
#[tokio::test]
async fn a_certificate_that_the_system_trusts_is_trusted() {
    if let Ok(url) = std::env::var(URL) {
        let store = RedisStore::open(&url, RedisOptions::default()).await.unwrap();
        super::granted(&store, "a").await;
        store.ready().await.unwrap();
        return;
    }
    let port = free_port().to_string();
    let (certificate, key, root) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let settings = [
        ["--tls-port", port.as_str()],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &root],
        ["--tls-auth-clients", "no"],
    ];
    let _server = Redis::start_with(Flavour::Redis, settings.as_flattened()).await;
    let url = format!("rediss://localhost:{port}");
    let client = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tls::a_certificate_that_the_system_trusts_is_trusted"])
        .env(URL, &url)
        .env("SSL_CERT_FILE", &root)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success() && said.contains("1 passed"), "{said}");

    // With roots of its own, and none of the system's.
    let named = format!("{url}?sslrootcert={root}");
    let store = RedisStore::open(&named, RedisOptions::default()).await.unwrap();
    super::granted(&store, "b").await;
    let other_name = named.replace("localhost", "127.0.0.1");
    let error = RedisStore::open(&other_name, RedisOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");

    let error = RedisStore::open(&url, RedisOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("certificate must be for this host name"), "{error}");
}
