//! Key sets over https: an outage at the start, rotation, an outage later, and floods.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use axum::Router;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use serde_json::json;
use tokio::net::TcpListener;

use super::certificates::{Authority, replace};
use super::configuration;
use super::front::{Front, Rules};
use super::roots_of;
use crate::common::InProcess;

/// A signer of tokens, and the name of its key.
struct Issuer {
    kid: &'static str,
    pair: EcdsaKeyPair,
}

impl Issuer {
    fn new(kid: &'static str) -> Self {
        Self { kid, pair: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap() }
    }

    fn jwk(&self) -> serde_json::Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        json!({ "kty": "EC", "crv": "P-256", "kid": self.kid, "x": text(x), "y": text(y) })
    }

    fn token(&self, kid: &str) -> String {
        let expires = SystemClock.now().as_micros() / 1_000_000 + 600;
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = part(json!({ "alg": "ES256", "kid": kid }));
        let signed = format!("{head}.{}", part(json!({ "sub": "alice", "exp": expires })));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// An endpoint of a key set.
#[derive(Clone)]
struct Endpoint {
    /// The text that it answers with; nothing: 500.
    says: Arc<Mutex<Option<String>>>,
    fetches: Arc<AtomicUsize>,
}

impl Endpoint {
    async fn start() -> (Self, std::net::SocketAddr) {
        let endpoint = Self { says: Arc::default(), fetches: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = endpoint.clone();
        let router = Router::new().fallback(move || {
            let endpoint = answering.clone();
            async move {
                endpoint.fetches.fetch_add(1, Ordering::SeqCst);
                match endpoint.says.lock().unwrap().clone() {
                    Some(text) => (StatusCode::OK, text),
                    None => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
                }
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        (endpoint, address)
    }

    fn says(&self, issuers: &[&Issuer]) {
        let keys: Vec<_> = issuers.iter().map(|issuer| issuer.jwk()).collect();
        *self.says.lock().unwrap() = Some(json!({ "keys": keys }).to_string());
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }
}

async fn pay(client: &Client, key: &str, token: &str) -> ClientResponse {
    let call = client.post("/any/charge").without("authorization").key(key);
    call.header("authorization", &format!("Bearer {token}")).send().await.unwrap()
}

async fn get(address: std::net::SocketAddr, path: &str) -> ClientResponse {
    Client::new(address).post(path).method("GET").send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_set_is_fetched_rotated_and_kept_through_outages() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let (endpoint, address) = Endpoint::start().await;
    let front = Front::start(address, &authority.issue("localhost"), Rules::default()).await;
    let upstream = Upstream::start().await.unwrap();
    let lines = format!("upstream = \"{}\"\n{}", upstream.url(), roots_of(folder.path()));
    let url = format!("https://localhost:{}/keys?p=secret", front.address.port());
    let gateway = InProcess::start(format!(
        "{}[defaults]\ntenant = {{ jwt = {{ jwks_url = \"{url}\" }} }}\n",
        configuration(&lines)
    ))
    .await;
    let client = Client::new(gateway.address());
    let (old, new, stranger) = (Issuer::new("old"), Issuer::new("new"), Issuer::new("old"));

    // The endpoint is away at the start: nothing is refused for good, and nothing runs.
    let answer = pay(&client, "jwks-key-00000001", &old.token("old")).await;
    assert_eq!((answer.status(), answer.code().as_str()), (503, "auth_unavailable"));
    assert!(["2", "3", "4"].contains(&answer.header("retry-after")));
    let ready = get(gateway.admin(), "/readyz").await;
    assert_eq!(ready.status(), 503);
    assert!(ready.text().contains("key set"), "{}", ready.text());
    let metrics = get(gateway.admin(), "/metrics").await.text();
    assert!(metrics.contains("onetake_jwks_failing{url=\"https://localhost"), "{metrics}");
    assert!(!metrics.contains("p=secret"), "{metrics}");
    let symmetric = pay(&client, "jwks-key-00000001", "eyJhbGciOiJIUzI1NiJ9.e30.AAAA").await;
    assert_eq!(symmetric.status(), 401, "no key set can help it");

    endpoint.says(&[&old]);
    until("the key set was fetched", async || {
        pay(&client, "jwks-key-00000001", &old.token("old")).await.status() == 201
    })
    .await;
    assert_eq!(get(gateway.admin(), "/readyz").await.status(), 200);
    let forged = pay(&client, "jwks-key-00000001", &stranger.token("old")).await;
    assert_eq!((forged.status(), upstream.runs_in_all()), (401, 1));

    // The answer is too large: the keys from before stay, and a new key may exist.
    *endpoint.says.lock().unwrap() = Some(" ".repeat(300 << 10));
    until("an unknown key is told from a wrong one", async || {
        pay(&client, "jwks-key-00000002", &new.token("new")).await.status() == 503
    })
    .await;
    let kept = pay(&client, "jwks-key-00000001", &old.token("old")).await;
    assert!(kept.is_replay(), "{}", kept.text());

    endpoint.says(&[&old, &new]);
    until("the rotated key is fetched", async || {
        pay(&client, "jwks-key-00000001", &new.token("new")).await.is_replay()
    })
    .await;
    assert_eq!(upstream.runs_in_all(), 1);

    // Whatever clients send, the endpoint is asked once in a while.
    let (before, began) = (endpoint.fetches(), SystemClock.monotonic());
    let tokens: Vec<String> = (0..60).map(|at| stranger.token(&format!("unknown-{at}"))).collect();
    let all = join_all(tokens.iter().map(|token| pay(&client, "jwks-key-00000003", token))).await;
    assert!(all.iter().all(|answer| answer.status() == 401));
    let seconds = (SystemClock.monotonic() - began).as_secs();
    let fetches = endpoint.fetches() - before;
    assert!(fetches as u64 <= 1 + seconds / 5, "{fetches} fetches in {seconds} s");
    assert_eq!(upstream.runs_in_all(), 1);
}
