//! Isolation: a tenant can learn nothing about another tenant (S8).
//!
//! A tenant must see exactly what it would see if the other tenant did not exist. Each case
//! therefore runs twice, with the other tenant and without it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::without_identifier;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use onetake_core::{Engine, Limits, ManualClock, MemoryStore, SystemRng};
use onetake_http::{
    InFlight, IssuingKey, KeySource, OnetakeLayer, Policy, Resolve, Secrets, Tenant,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;
use tower::ServiceExt;

use super::kinds::{Mode, Who, anybody, who};

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
const TOKEN: &str = "{\"method\":\"POST\",\"path\":\"/issued\"}";
/// The number of cases for each mode.
const CASES: u32 = 40;

/// An API whose response names the tenant, with a counter of runs for each tenant.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<Mutex<HashMap<String, usize>>>,
}

async fn work(State(api): State<Api>, headers: HeaderMap, body: String) -> Response {
    let whose = headers["x-whose"].to_str().unwrap().to_owned();
    *api.runs.lock().unwrap().entry(whose.clone()).or_default() += 1;
    if headers.contains_key("x-hold") {
        std::future::pending::<()>().await;
    }
    match body.as_str() {
        "500" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "429" => StatusCode::TOO_MANY_REQUESTS.into_response(),
        _ => (StatusCode::CREATED, [("x-result", whose.clone())], format!("the secret of {whose}"))
            .into_response(),
    }
}

/// Two routes: `/work` takes keys from a header, and `/issued` takes issued keys.
struct Routes(Arc<Policy>, Arc<Policy>);

impl Routes {
    fn of(tenant: &Tenant) -> Self {
        let policy = Policy::new().tenant(tenant.clone());
        let work = policy.clone().in_flight(InFlight::Async(Duration::from_secs(5)));
        let mut issued = policy;
        issued.key.source = KeySource::Issued;
        Self(Arc::new(work), Arc::new(issued))
    }
}

impl Resolve for Routes {
    fn resolve(&self, parts: &Parts) -> Option<Arc<Policy>> {
        Some(Arc::clone(if parts.uri.path() == "/issued" { &self.1 } else { &self.0 }))
    }

    fn handle_tenants(&self) -> Vec<Tenant> {
        vec![self.0.tenant.clone()]
    }
}

/// One store, with a layer for each mode in front of it.
struct World {
    api: Api,
    engine: Engine,
}

#[derive(Debug, PartialEq)]
struct Answered {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        let engine = Engine::with(store, clock, Arc::new(SystemRng), Limits::default());
        Self { api: Api::default(), engine }
    }

    fn router(&self, mode: Mode) -> Router {
        let secrets = Secrets::default().handles([7; 32]).issued_keys([IssuingKey::new(&[9; 32])]);
        let routes = Routes::of(&mode.tenant());
        let engine = self.engine.clone();
        let layer = OnetakeLayer::builder(engine).resolve(routes).secrets(secrets);
        let layer = layer.around_whole_app().build().unwrap();
        let paths = Router::new().route("/work", post(work)).route("/issued", post(work));
        paths.with_state(self.api.clone()).layer(layer)
    }

    async fn send(&self, who: &Who, request: http::request::Builder, body: &str) -> Answered {
        let request = request.body(axum::body::Body::from(body.to_owned())).unwrap();
        let answer = tokio::select! {
            biased;
            answer = self.router(who.mode).oneshot(request) => answer.unwrap(),
            () = a_while() => unreachable!("{who:?} waits for somebody else"),
        };
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = without_identifier(std::str::from_utf8(&body).unwrap());
        Answered { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn post(&self, who: &Who, whose: &str, path: &str, key: &str, body: &str) -> Answered {
        let request = who.post(path).header("idempotency-key", key).header("x-whose", whose);
        self.send(who, request, body).await
    }

    async fn look(&self, who: &Who, location: &str) -> Answered {
        self.send(who, who.dress(Request::get(location)), "").await
    }

    /// Fetches a new issued key.
    async fn issue(&self, who: &Who) -> String {
        let answered = self.send(who, who.post("/idempotency-tokens"), TOKEN).await;
        assert_eq!(answered.status, 201, "{who:?} {answered:?}");
        let body: Value = serde_json::from_str(&answered.body).unwrap();
        body["key"].as_str().unwrap().to_owned()
    }

    fn runs(&self, whose: &str) -> usize {
        self.api.runs.lock().unwrap().get(whose).copied().unwrap_or_default()
    }
}

/// Lets all tasks run that can. The clock stands still, so a task that waits for time never
/// continues.
async fn a_while() {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

/// The traces of the first tenant: a handle and an issued key.
struct Left {
    location: String,
    issued: String,
}

/// Leaves a key in some state, a handle and an issued key, all of the first tenant.
async fn first(world: &World, who: &Who, body: &str, is_held: bool, is_used: bool) -> Left {
    let request = who.post("/work").header("idempotency-key", KEY).header("x-whose", "first");
    let location = if is_held {
        let request = request.header("prefer", "respond-async, wait=0").header("x-hold", "1");
        let accepted = world.send(who, request, body).await;
        assert_eq!(accepted.status, 202, "{who:?} {accepted:?}");
        let location = accepted.headers["location"].to_str().unwrap().to_owned();
        let found = world.look(who, &location).await;
        assert_eq!(found.status, 200, "it is theirs: {who:?} {found:?}");
        location
    } else {
        let began = world.send(who, request, body).await;
        let again = world.post(who, "first", "/work", KEY, body).await;
        let is_replay = again.headers.contains_key("idempotent-replayed");
        assert_eq!(is_replay, began.status == 201, "a retry is theirs: {who:?} {again:?}");
        "/.onetake/operations/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned()
    };
    let issued = world.issue(who).await;
    if is_used {
        assert_eq!(world.post(who, "first", "/issued", &issued, body).await.status / 100, {
            if body == "201" { 2 } else { body.parse::<u16>().unwrap() / 100 }
        });
    }
    Left { location, issued }
}

/// Sends everything that the second tenant can try, and returns the answers.
async fn second(world: &World, who: &Who, body: &str, left: &Left) -> Vec<Answered> {
    let other_body = if body == "other" { "201" } else { "other" };
    let mut seen = vec![
        world.post(who, "second", "/work", KEY, body).await,
        world.post(who, "second", "/work", KEY, other_body).await,
        world.post(who, "second", "/work", KEY, body).await,
        world.look(who, &left.location).await,
        world.post(who, "second", "/issued", &left.issued, body).await,
        world.post(who, "second", "/issued", &left.issued, other_body).await,
    ];
    assert_eq!(seen[3].status, 404, "a handle of somebody else: {who:?}");
    assert_eq!(seen[4].status, 400, "an issued key of somebody else: {who:?} {:?}", seen[4]);
    let own = world.issue(who).await;
    let mut used = world.post(who, "second", "/issued", &own, "201").await;
    assert_eq!(used.status, 201);
    used.headers.remove("idempotency-reference");
    seen.push(used);
    seen
}

async fn check(a: &Who, b: &Who, body: &str, is_held: bool, is_used: bool) {
    let (with, without) = (World::new(), World::new());
    let left = first(&with, a, body, is_held, is_used).await;
    let seen = second(&with, b, body, &left).await;
    let alone = second(&without, b, body, &left).await;
    for (seen, alone) in seen.iter().zip(&alone) {
        assert_eq!(seen, alone, "{b:?} can tell that there is {a:?}");
        assert!(!format!("{seen:?}").contains("first"), "{b:?} sees what {a:?} got");
    }
    assert_eq!(with.runs("second"), without.runs("second"));
    assert!(with.runs("second") >= 2, "its own operations ran");
}

/// A runner with the same cases in each run.
fn runner() -> TestRunner {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// Pairs of a tenant of each mode with another tenant of any mode.
#[test]
fn no_two_tenants_share_anything() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for mode in Mode::ALL {
        let pairs = (who(mode), anybody(), any::<bool>());
        let pairs = pairs.prop_map(|(a, b, swap)| if swap { (b, a) } else { (a, b) });
        let pairs = pairs.prop_filter("one tenant", |(a, b)| a.identity() != b.identity());
        let bodies = proptest::sample::select(&["201", "201", "429", "500"][..]);
        let cases = (pairs, bodies, any::<bool>(), any::<bool>());
        let result = runner().run(&cases, |((a, b), body, is_held, is_used)| {
            runtime.block_on(check(&a, &b, body, is_held, is_used));
            Ok(())
        });
        result.unwrap();
    }
}

/// Pairs of tenants of the same mode, which differ only in their names.
#[test]
fn no_two_tenants_of_one_mode_share_anything() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Public) {
        let pairs = (who(mode), who(mode));
        let pairs = pairs.prop_filter("one tenant", |(a, b)| a.identity() != b.identity());
        let result = runner().run(&(pairs, any::<bool>()), |((a, b), is_held)| {
            runtime.block_on(check(&a, &b, "201", is_held, true));
            Ok(())
        });
        result.unwrap();
    }
}

/// The check can fail: it finds that a tenant shares its keys with itself.
#[test]
fn one_tenant_is_seen() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for mode in Mode::ALL {
        let mut runner = TestRunner::deterministic();
        let a = who(mode).new_tree(&mut runner).unwrap().current();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(check(&a, &a.clone(), "201", false, true));
        }));
        assert!(caught.is_err(), "{mode:?}");
    }
}
