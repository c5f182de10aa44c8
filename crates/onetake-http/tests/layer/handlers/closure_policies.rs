//! Policies that a closure returns: the builder of the layer does not see them, so each is checked
//! at its first request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use http::{Method, Request};
use onetake_core::MemoryStore;
use onetake_http::{
    InFlight, IssuingKey, KeySource, OnetakeLayer, Policy, Preset, Routes, Secrets, Tenant,
};

use super::helpers::{KEY, counting, logs, post_of, send};

/// A closure that returns this policy for each request.
fn closure(policy: Policy) -> impl onetake_http::Resolve {
    let policy = Arc::new(policy);
    move |_: &http::request::Parts| Some(Arc::clone(&policy))
}

fn request(method: &Method) -> Request<Body> {
    let mut request = post_of("alice", "/charges", KEY);
    *request.method_mut() = method.clone();
    request
}

#[tokio::test]
async fn a_policy_with_mistakes_runs_nothing_and_is_one_error_in_the_log() {
    let new = Policy::new;
    for (policy, said) in [
        (new().tenant("x-account"), "tenant \"x-account\": not a tenant"),
        (new().release(["6xx"]), "release \"6xx\": not a status"),
        (new().methods(["P OST"]), "methods \"P OST\": not a method"),
        (new().key_from(KeySource::json("/id")), "can be guessed"),
        (new().key_required().tenant("public").key_from(KeySource::path("id")), "only a route"),
        (Policy::preset(Preset::Payment), "must name its tenant"),
        (new().velocity(["tenant"], "5/min"), "leaving out the key would get around the limit"),
        (new().release(["6xx"]).namespace("two words"), "not a namespace"),
    ] {
        let (lines, _guard) = logs();
        let (charge, runs) = counting();
        let policy = policy.label("of the closure");
        let layer = OnetakeLayer::builder(MemoryStore::new()).resolve(closure(policy)).build();
        let app = Router::new().route("/charges", charge.get(|| async { "a page" }));
        let app = app.layer(layer.unwrap());
        let with_key = send(&app, request(&Method::POST)).await;
        assert_eq!(with_key.problem(), (500, "misconfigured".to_owned()), "{said}");
        let keyless = Request::post("/charges").body(Body::empty()).unwrap();
        let keyless = send(&app, keyless).await;
        assert_eq!(keyless.problem(), (500, "misconfigured".to_owned()), "{said}");
        assert_eq!(runs.load(Ordering::Relaxed), 0, "{said}");
        assert_eq!(send(&app, request(&Method::GET)).await.status, 200, "a GET is never keyed");
        let lines = lines.lock().unwrap();
        let errors: Vec<_> = lines.iter().filter(|line| line.starts_with("ERROR")).collect();
        let [error] = errors[..] else { panic!("{said}: {errors:?}") };
        for said in [said, "of the closure", "Policy::check"] {
            assert!(error.replace('\\', "").contains(said), "{said}: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[tokio::test]
async fn a_policy_without_mistakes_is_used_and_stays_equal_to_itself() {
    let (lines, _guard) = logs();
    let policy = || Policy::preset(Preset::Payment).tenant("credential");
    let used = Arc::new(policy());
    let (charge, runs) = counting();
    let layer = OnetakeLayer::builder(MemoryStore::new()).resolve(Arc::clone(&used)).build();
    let app = Router::new().route("/charges", charge).layer(layer.unwrap());
    assert_eq!(send(&app, request(&Method::POST)).await.status, 200);
    assert!(send(&app, request(&Method::POST)).await.is_replay());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(*used, policy());
    assert!(lines.lock().unwrap().iter().all(|line| !line.starts_with("ERROR")));
}

/// A clone can be changed, so it is checked again.
#[tokio::test]
async fn a_changed_clone_of_a_checked_policy_is_checked() {
    let table = Routes::new().route("POST /charges", Policy::new()).build().unwrap();
    let checked = table.policies().next().unwrap();
    let wrong = (**checked).clone().release(["6xx"]);
    let (charge, runs) = counting();
    let layer = OnetakeLayer::builder(MemoryStore::new()).resolve(closure(wrong)).build();
    let app = Router::new().route("/charges", charge).layer(layer.unwrap());
    assert_eq!(send(&app, request(&Method::POST)).await.status, 500);
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn no_key_is_issued_for_a_policy_with_mistakes() {
    let policy = Policy::new().key_from(KeySource::Issued).release(["6xx"]);
    let secrets = Secrets::default().issued_keys([IssuingKey::new(&[7; 32])]);
    let builder = OnetakeLayer::builder(MemoryStore::new()).secrets(secrets);
    let layer = builder.resolve(closure(policy)).build().unwrap();
    let app = Router::new().route("/charges", counting().0).layer(layer);
    let wanted = Body::from(r#"{"method":"POST","path":"/charges"}"#);
    let asked = Request::post("/idempotency-tokens").body(wanted).unwrap();
    assert_eq!(send(&app, asked).await.problem(), (500, "misconfigured".to_owned()));
}

#[tokio::test]
async fn issued_keys_without_a_secret_are_refused_with_a_warning() {
    let (lines, _guard) = logs();
    let policy = Policy::new().key_from(KeySource::Issued);
    let layer = OnetakeLayer::builder(MemoryStore::new()).resolve(closure(policy)).build();
    let (charge, runs) = counting();
    let app = Router::new().route("/charges", charge).layer(layer.unwrap());
    for _ in 0..2 {
        let refused = send(&app, request(&Method::POST)).await;
        assert_eq!(refused.problem(), (500, "misconfigured".to_owned()));
    }
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    let lines = lines.lock().unwrap();
    assert_eq!(lines.iter().filter(|line| line.contains("Secrets")).count(), 1, "{lines:?}");
}

/// The builder takes a table that was built before, and checks it like one that was not.
#[tokio::test]
async fn a_built_table_is_checked_against_the_layer() {
    let issued = Policy::new().key_from(KeySource::Issued);
    let asynchronous = Policy::new().in_flight(InFlight::Async(std::time::Duration::ZERO));
    for (policy, said) in [(issued, "no key can be issued"), (asynchronous, "around_whole_app()")] {
        let table = Routes::new().route("POST /charges", policy).build().unwrap();
        let error = OnetakeLayer::builder(MemoryStore::new()).routes(table).build().unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.to_string().contains("POST /charges"), "{error}");
    }
    let charges = Policy::preset(Preset::Payment).tenant(Tenant::header("x-account"));
    let table = Routes::new().route("POST /charges", charges).build().unwrap();
    assert!(OnetakeLayer::builder(MemoryStore::new()).routes(table).build().is_ok());
}
