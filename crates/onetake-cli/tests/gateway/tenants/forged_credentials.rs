//! Trust: forged tokens, addresses and tenant headers.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use onetake_core::{Clock, SystemClock};
use serde_json::{Value, json};

use super::{KEY, World};
use crate::common::forward_auth_service::assert_tells_nothing;

const STRANGERS: &str = "trusted_proxies = []";

fn route(tenant: &str) -> String {
    format!("[[route]]\nmatch = \"POST /pay/{{*rest}}\"\ntenant = {tenant}")
}

#[tokio::test]
async fn a_forged_address_changes_nothing() {
    let world = World::start(STRANGERS, &route("\"client-ip\"")).await;
    let from = async |claimed: &str| {
        let call = world.pay(KEY).header("x-forwarded-for", claimed).header("x-real-ip", claimed);
        call.header("forwarded", &format!("for={claimed}")).send().await.unwrap()
    };
    assert_eq!(from("192.0.2.1").await.status(), 201);
    for claimed in ["192.0.2.2", "127.0.0.1", "rubbish", ""] {
        assert!(from(claimed).await.is_replay(), "{claimed:?} is still the same client");
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_trusted_proxy_tells_clients_apart() {
    let world = World::start("trusted_proxies = [\"127.0.0.1\"]", &route("\"client-ip\"")).await;
    let from = async |claimed: &str| {
        world.pay(KEY).header("x-forwarded-for", claimed).send().await.unwrap()
    };
    assert_eq!(from("192.0.2.1").await.status(), 201);
    assert!(!from("192.0.2.2").await.is_replay(), "somebody else");
    // A client's own entries are to the left of its address.
    assert!(from("192.0.2.9, 192.0.2.1").await.is_replay());
    assert!(from("::ffff:192.0.2.1").await.is_replay());
    assert_eq!(world.runs(), 2);
    let rubbish = from("rubbish").await;
    assert_eq!((rubbish.status(), rubbish.code().as_str()), (401, "tenant_unresolved"));
    assert_tells_nothing(&rubbish);
}

#[tokio::test]
async fn a_forged_tenant_header_names_nobody() {
    let world = World::start(STRANGERS, &route("{ header = \"X-Account\" }")).await;
    for call in [world.pay(KEY), world.pay(KEY).header("x-account", "victim")] {
        let answer = call.send().await.unwrap();
        assert_eq!((answer.status(), answer.code().as_str()), (401, "tenant_unresolved"));
    }
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn a_credential_that_changes_with_every_request_is_refused() {
    let world = World::start("", &route("\"credential\"")).await;
    let sigv4 = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu/s3/aws4_request, SignedHeaders=host, Signature=ab";
    let answer = world.pay(KEY).header("authorization", sigv4).send().await.unwrap();
    assert_eq!((answer.status(), answer.code().as_str()), (400, "tenant_unstable"));
    assert!(answer.text().contains("such as Bearer"), "it says what to do: {}", answer.text());
    assert!(!answer.text().contains("AKIA") && !answer.text().contains("tenant ="));
    assert_eq!(world.runs(), 0);
}

/// A token with this header and these claims, signed with HMAC and this secret.
fn token(secret: &[u8], header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

#[tokio::test]
async fn forged_tokens_are_refused_and_refreshed_ones_are_the_same_tenant() {
    let secret = [7; 32];
    let key = STANDARD.encode(secret);
    let jwt = format!(
        "{{ jwt = {{ issuer = \"https://id\", audience = \"pay\", leeway = \"0s\", verification_key = \"{key}\" }} }}"
    );
    let world = World::start("", &route(&jwt)).await;
    let now = SystemClock.now().as_micros() / 1_000_000;
    let claims =
        |sub: &str, exp: u64| json!({ "iss": "https://id", "aud": "pay", "sub": sub, "exp": exp });
    let head = json!({ "alg": "HS256" });
    let alice = claims("alice", now + 600);
    let first = world.pay_as(&token(&secret, &head, &alice)).await;
    assert_eq!((first.status(), world.runs()), (201, 1));
    let none = token(&secret, &json!({ "alg": "none" }), &alice);
    let unsigned = format!("{}.", none.rsplit_once('.').unwrap().0);
    let mut other_issuer = alice.clone();
    other_issuer["iss"] = json!("https://evil");
    for forged in [
        none,
        unsigned,
        token(&[8; 32], &head, &alice),
        token(&secret, &json!({ "alg": "RS256" }), &alice),
        token(&secret, &head, &claims("alice", now - 1)),
        token(&secret, &head, &json!({ "iss": "https://id", "aud": "pay", "sub": "alice" })),
        token(&secret, &head, &other_issuer),
        "alice".to_owned(),
    ] {
        let answer = world.pay_as(&forged).await;
        assert_eq!((answer.status(), answer.code().as_str()), (401, "tenant_unresolved"));
        assert!(answer.header("www-authenticate").starts_with("Bearer"));
        assert!(!answer.text().contains(&forged), "{}", answer.text());
        assert_tells_nothing(&answer);
    }
    let refreshed = world.pay_as(&token(&secret, &head, &claims("alice", now + 999))).await;
    assert!(refreshed.is_replay() && world.runs() == 1);
    let bob = world.pay_as(&token(&secret, &head, &claims("bob", now + 600))).await;
    assert!(!bob.is_replay() && world.runs() == 2);
}
