//! Tokens: which are accepted, and the answers to the others.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::signature::KeyPair;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::FutureExt;
use http::Request;
use onetake_core::{Clock, ManualClock};
use onetake_http::tenant::jwt::JwtKeyError;
use onetake_http::{Jwt, JwtKey, Tenant};
use serde_json::{Value, json};

use super::issuers::{Issuer, pem};

/// The time of the tests' clock, in seconds.
fn now() -> u64 {
    ManualClock::default().now().as_micros() / 1_000_000
}

fn claims(sub: &str) -> Value {
    json!({ "iss": "https://id.example", "sub": sub, "exp": now() + 600, "aud": "payments" })
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
        value => claims[name] = value,
    }
    claims
}

/// Returns the tenant of a request with these headers, or the text of its refusal.
fn told(jwt: &Jwt, authorization: &[&str]) -> Result<Vec<u8>, String> {
    let mut request = Request::post("/charges");
    for value in authorization {
        request = request.header("authorization", *value);
    }
    let parts = request.body(()).unwrap().into_parts().0;
    let tenant = Tenant::Jwt(Arc::new(jwt.clone()));
    let clock = ManualClock::default();
    let resolved = tenant.resolve(&parts, &clock).now_or_never().unwrap();
    resolved.map(|caller| caller.tenant).map_err(|problem| {
        assert_eq!(problem.code().as_str(), "tenant_unresolved");
        let response = problem.into_response(None);
        assert_eq!(response.status(), 401);
        let challenge = response.headers()["www-authenticate"].to_str().unwrap();
        assert!(challenge.starts_with("Bearer"));
        let text = String::from_utf8(response.body().to_vec()).unwrap();
        for value in authorization {
            for part in value.split(['.', ' ']).filter(|part| part.len() > 8) {
                assert!(!text.contains(part), "it repeats the token: {text}");
            }
        }
        text
    })
}

fn told_of(jwt: &Jwt, token: &str) -> Result<Vec<u8>, String> {
    told(jwt, &[&format!("Bearer {token}")])
}

#[track_caller]
fn refused(jwt: &Jwt, token: &str, why: &str) {
    let said = told_of(jwt, token).unwrap_err();
    assert!(said.contains(why), "{why}: {said}");
}

#[test]
fn each_algorithm_is_verified_and_a_refreshed_token_is_the_same_tenant() {
    for issuer in Issuer::all() {
        let jwt = Jwt::new([issuer.key()]).issuer("https://id.example").audience("payments");
        let alice = told_of(&jwt, &issuer.token(&claims("alice"))).unwrap();
        let refreshed = with(claims("alice"), "exp", json!(now() + 9999));
        let refreshed = with(refreshed, "jti", json!("another"));
        assert_eq!(told_of(&jwt, &issuer.token(&refreshed)).unwrap(), alice);
        assert_ne!(told_of(&jwt, &issuer.token(&claims("bob"))).unwrap(), alice);
        let lower = format!("bearer   {}", issuer.token(&claims("alice")));
        assert_eq!(told(&jwt, &[&lower]).unwrap(), alice);
    }
}

#[test]
fn no_bit_of_a_token_can_be_changed() {
    for issuer in Issuer::all() {
        let jwt = Jwt::new([issuer.key()]);
        let token = issuer.token(&claims("alice"));
        let step = token.len() / 40;
        for at in (0..token.len()).step_by(step).chain([token.len() - 1]) {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'Q' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(told_of(&jwt, &changed).is_err(), "{} {at}", issuer.algorithm());
            assert!(told_of(&jwt, &token[..at]).is_err(), "{} cut {at}", issuer.algorithm());
        }
    }
}

#[test]
fn unsigned_tokens_are_refused() {
    for issuer in Issuer::all() {
        let jwt = Jwt::new([issuer.key()]);
        let payload = URL_SAFE_NO_PAD.encode(claims("alice").to_string());
        for word in ["none", "None", "NONE", "nOnE", ""] {
            let header = URL_SAFE_NO_PAD.encode(json!({ "alg": word }).to_string());
            refused(&jwt, &format!("{header}.{payload}."), "no key for");
            refused(&jwt, &issuer.token_with(&json!({ "alg": word }), &claims("alice")), "no key");
        }
        for header in [json!({}), json!({ "alg": null }), json!({ "alg": [issuer.algorithm()] })] {
            refused(&jwt, &issuer.token_with(&header, &claims("alice")), "no key for");
        }
        refused(&jwt, &format!("{payload}.{payload}"), "not a signed");
        refused(&jwt, &payload, "not a signed");
    }
}

#[test]
fn another_key_or_algorithm_is_refused() {
    let (ours, theirs) = (Issuer::all(), Issuer::all());
    for (at, issuer) in ours.iter().enumerate() {
        let jwt = Jwt::new([issuer.key()]);
        for (other, stranger) in ours.iter().chain(&theirs).enumerate() {
            if other == at || matches!((issuer, stranger), (Issuer::Hs256(_), Issuer::Hs256(_))) {
                continue;
            }
            // The stranger's token names its own algorithm first, and then the algorithm of our
            // key.
            assert!(told_of(&jwt, &stranger.token(&claims("alice"))).is_err());
            let lying =
                stranger.token_with(&json!({ "alg": issuer.algorithm() }), &claims("alice"));
            refused(&jwt, &lying, "signature of the token is invalid");
        }
    }
    let jwt = Jwt::new([Issuer::hs256(7).key()]);
    refused(&jwt, &Issuer::hs256(8).token(&claims("alice")), "signature of the token is invalid");
}

#[test]
fn a_public_key_is_never_a_secret() {
    for issuer in &Issuer::all()[1..] {
        let jwt = Jwt::new([issuer.key()]);
        // An attacker knows the public key, in every form that it can have.
        let forms = [issuer.text().into_bytes(), issuer.text().trim().into(), issuer.der()];
        for secret in forms {
            let forger = Issuer::Hs256(secret);
            refused(&jwt, &forger.token(&claims("alice")), "no key for");
            let alg = json!({ "alg": issuer.algorithm() });
            refused(
                &jwt,
                &forger.token_with(&alg, &claims("alice")),
                "signature of the token is invalid",
            );
        }
        // A public key cannot be configured as a secret either.
        let bare = STANDARD.encode(issuer.der());
        assert_eq!(JwtKey::parse(&bare).unwrap_err(), JwtKeyError::PublicAsSecret);
    }
    let Issuer::Rs256(rsa) = Issuer::rs256() else { unreachable!() };
    let bare = STANDARD.encode(rsa.public_key().as_ref());
    assert_eq!(JwtKey::parse(&bare).unwrap_err(), JwtKeyError::PublicAsSecret);
    let Issuer::Es256(ec) = Issuer::es256() else { unreachable!() };
    let bare = STANDARD.encode(ec.public_key().as_ref());
    assert_eq!(JwtKey::parse(&bare).unwrap_err(), JwtKeyError::PublicAsSecret);
}

#[test]
fn time_is_checked_with_leeway() {
    let issuer = Issuer::hs256(7);
    let jwt = Jwt::new([issuer.key()]).leeway(Duration::from_secs(60));
    let at = |name: &str, value: Value| issuer.token(&with(claims("alice"), name, value));
    assert!(told_of(&jwt, &at("exp", json!(now() - 59))).is_ok());
    refused(&jwt, &at("exp", json!(now() - 60)), "expired");
    refused(&jwt, &at("exp", json!(0)), "expired");
    refused(&jwt, &at("exp", Value::Null), "no expiry time");
    refused(&jwt, &at("exp", json!("2099-01-01")), "exp of the token is not a time");
    refused(&jwt, &at("exp", json!(-1)), "exp of the token is not a time");
    refused(&jwt, &at("exp", json!(f64::MAX)), "exp of the token is not a time");
    assert!(told_of(&jwt, &at("exp", json!(now() as f64 + 0.5))).is_ok());
    refused(&jwt, &at("exp", json!(now() as f64 - 60.5)), "expired");
    assert!(told_of(&jwt, &at("exp", json!(u64::MAX))).is_ok());
    assert!(told_of(&jwt, &at("nbf", json!(now() + 60))).is_ok());
    refused(&jwt, &at("nbf", json!(now() + 61)), "not valid yet");
    refused(&jwt, &at("nbf", json!("soon")), "nbf of the token is not a time");
    let strict = jwt.leeway(Duration::ZERO);
    refused(&strict, &at("exp", json!(now())), "expired");
    assert!(told_of(&strict, &at("exp", json!(now() + 1))).is_ok());
}

#[test]
fn issuer_and_audience_are_checked() {
    let issuer = Issuer::hs256(7);
    let any = Jwt::new([issuer.key()]);
    let jwt = any.clone().issuer("https://id.example").audience("payments");
    let at = |name: &str, value: Value| issuer.token(&with(claims("alice"), name, value));
    for other in [Value::Null, json!("https://id.example/"), json!("")] {
        refused(&jwt, &at("iss", other), "another issuer");
    }
    refused(&jwt, &at("iss", json!(["https://id.example"])), "iss of the token is not a string");
    for other in [Value::Null, json!("Payments"), json!(["a", "b"]), json!([]), json!(7)] {
        refused(&jwt, &at("aud", other), "another audience");
    }
    assert!(told_of(&jwt, &at("aud", json!(["a", "payments"]))).is_ok());
    // Without a required issuer, tokens of different issuers are different tenants.
    let of = |value: Value| told_of(&any, &at("iss", value)).unwrap();
    let all = [of(Value::Null), of(json!("")), of(json!("a")), of(json!("b"))];
    for (at, one) in all.iter().enumerate() {
        assert!(all[..at].iter().all(|other| other != one));
    }
}

#[test]
fn the_claim_is_a_string_or_an_integer() {
    let issuer = Issuer::hs256(7);
    let jwt = Jwt::new([issuer.key()]).claim("account");
    let of = |value: Value| told_of(&jwt, &issuer.token(&with(claims("alice"), "account", value)));
    assert_ne!(of(json!("7")).unwrap(), of(json!(7)).unwrap());
    assert_ne!(of(json!(9_007_199_254_740_993_u64)), of(json!(9_007_199_254_740_992_u64)));
    for bad in [Value::Null, json!(""), json!(["7"]), json!({}), json!(true)] {
        assert!(of(bad).unwrap_err().contains("does not have the claim"));
    }
    assert!(of(json!(1.5)).unwrap_err().contains("nor an integer"));
    // The border between issuer and claim is unambiguous.
    let jwt = Jwt::new([issuer.key()]);
    let of = |iss: &str, sub: &str| {
        told_of(&jwt, &issuer.token(&with(claims(sub), "iss", json!(iss)))).unwrap()
    };
    assert_ne!(of("a", "bc"), of("ab", "c"));
    // Readers differ in how they read a duplicate member.
    let twice = format!("{{\"sub\":\"a\",\"sub\":\"b\",\"exp\":{}}}", now() + 60);
    refused(&jwt, &issuer.token_of("{\"alg\":\"HS256\"}", &twice), "not a signed");
}

#[test]
fn keys_are_rotated_and_named() {
    let (old, new, nameless) = (Issuer::es256(), Issuer::es256(), Issuer::hs256(7));
    let token = |issuer: &Issuer, kid: Value| {
        let header = with(json!({ "alg": issuer.algorithm() }), "kid", kid);
        issuer.token_with(&header, &claims("alice"))
    };
    let both = Jwt::new([new.key().kid("new"), old.key().kid("old"), nameless.key()]);
    let alice = told_of(&both, &token(&old, json!("old"))).unwrap();
    assert_eq!(told_of(&both, &token(&new, json!("new"))).unwrap(), alice);
    assert_eq!(told_of(&both, &token(&new, Value::Null)).unwrap(), alice, "all are tried");
    assert_eq!(told_of(&both, &token(&nameless, json!("whatever"))).unwrap(), alice);
    refused(&both, &token(&old, json!("new")), "signature of the token is invalid");
    refused(&both, &token(&old, json!("older")), "unknown key");
    refused(&both, &token(&old, json!(1)), "kid of the token is not a string");
    let after = Jwt::new([new.key().kid("new")]);
    refused(&after, &token(&old, json!("old")), "unknown key");
    refused(&after, &token(&old, Value::Null), "signature of the token is invalid");
    refused(&Jwt::new([]), &token(&old, Value::Null), "no key for");
}

#[test]
fn what_is_no_token_is_refused() {
    let issuer = Issuer::hs256(7);
    let jwt = Jwt::new([issuer.key()]);
    let good = issuer.token(&claims("alice"));
    let giant = issuer.token(&with(claims("alice"), "x", json!("x".repeat(20_000))));
    refused(&jwt, &giant, "longer than 16 KiB");
    refused(&jwt, &"a.".repeat(8_000), "not a signed");
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(2000), "]".repeat(2000));
    refused(&jwt, &issuer.token_of("{\"alg\":\"HS256\"}", &deep), "not a signed");
    for bad in ["a", ".", "..", "...", "a.b.c", "é.é.é"] {
        refused(&jwt, bad, "not a signed");
    }
    refused(&jwt, &format!("{good}="), "not a signed");
    refused(&jwt, &format!("{good}.{good}"), "not a signed");
    let critical = json!({ "alg": "HS256", "crit": ["b64"], "b64": false });
    refused(&jwt, &issuer.token_with(&critical, &claims("alice")), "crit");
    let sigv4 = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu/s3/aws4_request, Signature=ab";
    let bearer = format!("Bearer {good}");
    let basic = format!("Basic {good}");
    for bad in [&[][..], &["Bearer"], &["Bearer "], &[sigv4], &[&basic], &[&bearer, &bearer]] {
        assert!(told(&jwt, bad).unwrap_err().contains("send one Authorization"), "{bad:?}");
    }
}

#[test]
fn what_is_no_key_says_so() {
    let [hs, rs, es, ed] = Issuer::all();
    for issuer in [&rs, &es, &ed] {
        let key = issuer.key();
        assert_eq!(key.algorithm().name(), issuer.algorithm());
        assert_eq!(key, JwtKey::parse(&issuer.text().replace('\n', "\r\n")).unwrap());
        assert!(!format!("{key:?}").contains(&issuer.text()[30..60]));
    }
    let Issuer::Rs256(pair) = &rs else { unreachable!() };
    let pkcs1 = JwtKey::parse(&pem("RSA PUBLIC KEY", pair.public_key().as_ref())).unwrap();
    assert!(told_of(&Jwt::new([pkcs1]), &rs.token(&claims("alice"))).is_ok());
    assert!(!format!("{:?}", hs.key()).contains(&hs.text()));
    let cut = es.text().replace("-----END PUBLIC KEY-----", "");
    for (text, error) in [
        (String::new(), JwtKeyError::ShortSecret),
        ("not base64!".to_owned(), JwtKeyError::Unknown),
        (STANDARD.encode([7; 31]), JwtKeyError::ShortSecret),
        (format!("{}{}", es.text(), ed.text()), JwtKeyError::Several),
        (pem("PRIVATE KEY", b"x"), JwtKeyError::Private),
        (pem("EC PRIVATE KEY", b"x"), JwtKeyError::Private),
        (pem("CERTIFICATE", b"x"), JwtKeyError::Certificate),
        (pem("RSA PUBLIC KEY", &[0; 140]), JwtKeyError::ShortRsa),
        (pem("RSA PUBLIC KEY", &[0; 300]), JwtKeyError::Unsupported),
        (pem("PUBLIC KEY", b"x"), JwtKeyError::Unsupported),
        (pem("PUBLIC KEY", &es.der()[..80]), JwtKeyError::Unsupported),
        (cut, JwtKeyError::Unsupported),
    ] {
        assert_eq!(JwtKey::parse(&text).unwrap_err(), error, "{text}");
    }
}
