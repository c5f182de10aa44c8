//! Key sets that are replaced while they are in use.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use futures_util::FutureExt;
use http::Request;
use http::request::Parts;
use onetake_core::{Clock, Engine, Limits, ManualClock, MemoryStore, SystemRng};
use onetake_http::tenant::jwt::{
    JWKS_KEYS_MAX, JWKS_REFRESH_PAUSE, JWKS_WAIT_MAX, JwksError, JwtKeySet,
};
use onetake_http::{Jwt, OnetakeLayer, Policy, Tenant};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::issuers::Issuer;

/// A tenant by tokens whose keys come from a set.
struct World {
    set: JwtKeySet,
    tenant: Tenant,
    clock: ManualClock,
}

impl World {
    fn new() -> Self {
        let set = JwtKeySet::new("https://id.example/keys");
        let tenant = Tenant::Jwt(Arc::new(Jwt::new([]).with_key_set(set.clone())));
        Self { set, tenant, clock: ManualClock::default() }
    }

    fn replace(&self, keys: &[Value]) -> Result<usize, JwksError> {
        self.set.replace(json!({ "keys": keys }).to_string().as_bytes(), &self.clock)
    }

    fn request(&self, issuer: &Issuer, kid: &str) -> Parts {
        let now = self.clock.now().as_micros() / 1_000_000;
        let header = json!({ "alg": issuer.algorithm(), "kid": kid });
        let token = issuer.token_with(&header, &json!({ "sub": "alice", "exp": now + 600 }));
        let request = Request::post("/charges").header("authorization", format!("Bearer {token}"));
        request.body(()).unwrap().into_parts().0
    }

    /// Returns the status of an answer that needs no wait; 200 if the token is accepted.
    fn status(&self, issuer: &Issuer, kid: &str) -> u16 {
        let parts = self.request(issuer, kid);
        status(self.tenant.resolve(&parts, &self.clock).now_or_never().unwrap())
    }
}

fn status<T>(resolved: Result<T, onetake_http::Problem>) -> u16 {
    let Err(problem) = resolved else { return 200 };
    let response = problem.into_response(None);
    if response.status() == 503 {
        let wait = response.headers()["retry-after"].to_str().unwrap();
        assert!(["2", "3", "4"].contains(&wait), "{wait}");
    }
    response.status().as_u16()
}

#[test]
fn keys_of_a_set_are_for_their_own_algorithm() {
    let [hs, rs, es, ed] = Issuer::all();
    let world = World::new();
    let all = [hs.jwk("hs"), rs.jwk("rs"), es.jwk("es"), ed.jwk("ed")];
    assert_eq!(world.replace(&all), Ok(3), "the symmetric key is left out");
    for (issuer, kid) in [(&rs, "rs"), (&es, "es"), (&ed, "ed")] {
        assert_eq!(world.status(issuer, kid), 200, "{kid}");
        // A key of another algorithm or of another owner verifies nothing.
        assert_eq!(world.status(issuer, "hs"), 401, "{kid}");
        let forger = Issuer::Hs256(issuer.der());
        assert_eq!(world.status(&forger, kid), 401, "{kid}");
    }
    assert_eq!(world.status(&hs, "hs"), 401);
    assert_eq!(world.status(&Issuer::es256(), "es"), 401);
}

#[test]
fn keys_that_are_of_no_use_are_left_out() {
    let (good, other) = (Issuer::es256(), Issuer::rs256());
    let world = World::new();
    let with = |mut key: Value, name: &str, value: &str| {
        key[name] = json!(value);
        key
    };
    let bad = [
        with(good.jwk("a"), "use", "enc"),
        with(good.jwk("a"), "alg", "RS256"),
        with(other.jwk("a"), "alg", "PS256"),
        with(other.jwk("a"), "n", &"A".repeat(100)),
        with(other.jwk("a"), "n", &format!("{}{}", "A".repeat(300), "B".repeat(100))),
        with(good.jwk("a"), "crv", "P-384"),
        with(good.jwk("a"), "x", "AAAA"),
        json!({ "kty": "unheard-of" }),
        json!(7),
    ];
    for key in &bad {
        assert_eq!(world.replace(std::slice::from_ref(key)), Err(JwksError::NoKey), "{key}");
    }
    assert_eq!(world.replace(&[&bad[..], &[good.jwk("b")]].concat()), Ok(1));
    for text in ["", "[]", "{}", "{\"keys\":7}", "not json"] {
        let refused = world.set.replace(text.as_bytes(), &world.clock);
        assert_eq!(refused, Err(JwksError::Malformed), "{text}");
    }
    let many = vec![good.jwk("c"); JWKS_KEYS_MAX + 1];
    assert_eq!(world.replace(&many), Err(JwksError::TooMany));
    assert_eq!(world.status(&good, "b"), 200, "refused sets leave the keys alone");
}

#[tokio::test]
async fn a_rotated_key_is_waited_for() {
    let (old, new) = (Issuer::es256(), Issuer::rs256());
    let world = World::new();
    world.replace(&[old.jwk("old")]).unwrap();
    world.clock.advance(JWKS_REFRESH_PAUSE);
    let parts = world.request(&new, "new");
    let mut waiting = std::pin::pin!(world.tenant.resolve(&parts, &world.clock));
    assert!(waiting.as_mut().now_or_never().is_none(), "it does not wait for the new key");
    world.set.wanted().now_or_never().expect("a refresh is wanted");
    assert_eq!(world.status(&old, "old"), 200, "others do not wait");
    world.replace(&[old.jwk("old"), new.jwk("new")]).unwrap();
    assert_eq!(status(waiting.await), 200);
}

#[tokio::test]
async fn a_flood_of_unknown_keys_causes_one_refresh() {
    let world = World::new();
    let (known, stranger) = (Issuer::es256(), Issuer::es256());
    world.replace(&[known.jwk("known")]).unwrap();
    // Right after a refresh, a request does not wait for another one.
    assert_eq!(world.status(&stranger, "unknown"), 401);
    assert!(world.set.wanted().now_or_never().is_none(), "a refresh so soon");
    world.clock.advance(JWKS_REFRESH_PAUSE);
    for round in 0..3 {
        let parts: Vec<Parts> =
            (0..50).map(|at| world.request(&stranger, &format!("{round}-{at}"))).collect();
        let mut waiting: Vec<_> =
            parts.iter().map(|parts| Box::pin(world.tenant.resolve(parts, &world.clock))).collect();
        for waiter in &mut waiting {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        world.set.wanted().now_or_never().expect("a refresh is wanted");
        assert!(world.set.wanted().now_or_never().is_none(), "a second refresh");
        world.replace(&[known.jwk("known")]).unwrap();
        for waiter in waiting {
            assert_eq!(status(waiter.await), 401);
        }
        assert_eq!(world.status(&stranger, "another"), 401);
        assert!(world.set.wanted().now_or_never().is_none(), "a refresh so soon");
        world.clock.advance(JWKS_REFRESH_PAUSE);
    }
}

#[tokio::test]
async fn an_outage_is_no_refusal_and_old_keys_stay() {
    let world = World::new();
    let (known, rotated) = (Issuer::es256(), Issuer::es256());
    assert!(!world.set.is_loaded());
    world.set.failed(&world.clock);
    assert_eq!(world.status(&known, "known"), 503, "no key was ever fetched");
    world.replace(&[known.jwk("known")]).unwrap();
    assert!(world.set.is_loaded());
    assert_eq!(world.status(&known, "known"), 200);
    world.set.failed(&world.clock);
    assert_eq!(world.status(&known, "known"), 200);
    assert_eq!(world.status(&rotated, "rotated"), 503);
    assert_eq!(world.status(&rotated, "known"), 401, "its key is known, and the signature wrong");
    assert_eq!(world.status(&Issuer::hs256(7), "known"), 401, "a set never has such a key");
    // A request waits at most `JWKS_WAIT_MAX`, even if the fetcher never ends.
    world.clock.advance(JWKS_REFRESH_PAUSE);
    let parts = world.request(&rotated, "rotated");
    let mut waiting = std::pin::pin!(world.tenant.resolve(&parts, &world.clock));
    assert!(waiting.as_mut().now_or_never().is_none());
    world.clock.advance(JWKS_WAIT_MAX - Duration::from_millis(1));
    assert!(waiting.as_mut().now_or_never().is_none());
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(status(waiting.await), 503);
}

/// A client that waits for 200 ms gets its answer after 200 ms, and not after `JWKS_WAIT_MAX`.
#[tokio::test]
async fn the_wait_for_a_key_ends_at_the_deadline() {
    let world = World::new();
    let (known, rotated) = (Issuer::es256(), Issuer::es256());
    world.replace(&[known.jwk("known")]).unwrap();
    world.clock.advance(JWKS_REFRESH_PAUSE);
    let clock = Arc::new(world.clock.clone());
    let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>));
    let engine = Engine::with(store, clock, Arc::new(SystemRng), Limits::default());
    let policy = Policy::new().tenant(world.tenant.clone());
    let layer = OnetakeLayer::new(engine, policy).unwrap();
    let app = Router::new().route("/charges", post(|| async {})).layer(layer);
    let mut parts = world.request(&rotated, "rotated");
    for (name, value) in
        [("idempotency-key", "a-key-that-is-long-enough"), ("x-request-timeout-ms", "200")]
    {
        parts.headers.insert(name, value.parse().unwrap());
    }
    let request = Request::from_parts(parts, Body::empty());
    let mut answer = std::pin::pin!(app.oneshot(request));
    assert!(answer.as_mut().now_or_never().is_none(), "it does not wait for the key");
    world.clock.advance(Duration::from_millis(199));
    assert!(answer.as_mut().now_or_never().is_none(), "it ends too early");
    world.clock.advance(Duration::from_millis(1));
    let answer = answer.now_or_never().expect("it ends at the deadline").unwrap();
    assert_eq!(answer.status(), 504);
}
