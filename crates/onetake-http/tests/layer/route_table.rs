//! Tables of routes: the policy of a request, and mistakes that are refused before anything runs.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{any, post};
use http::{Method, Request};
use tokio::sync::Notify;
use tower::ServiceExt;

use onetake_core::{Clock, MemoryStore, OnUnknown, SystemClock, Terms};
use onetake_http::policy::TENANT_NOT_NAMED;
use onetake_http::{
    FingerprintMode, InFlight, KeyFormat, KeySource, OnetakeLayer, PathCase, Policy, PolicyError,
    Preset, Routes, Secrets, Tenant, TrailingSlash,
};

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

fn refused(policy: Policy) -> String {
    let error = Routes::new().route("POST /a", policy.clone()).build().unwrap_err();
    assert!(error.mistakes().iter().all(|mistake| mistake.route == "POST /a"), "{error}");
    assert_eq!(error.mistakes().len(), 1, "{error}");
    error.to_string()
}

#[test]
fn each_mistake_is_refused_with_its_fix() {
    let new = Policy::new;
    let json = || new().key_from(KeySource::json("/id"));
    for (policy, said) in [
        (json(), "can be guessed"),
        (new().key_from(KeySource::json("id")), "does not start with"),
        (new().key_from(KeySource::derive::<&str>([])).tenant("public"), "1 to 16 values"),
        (json().tenant("public").key_format(KeyFormat::Uuid), "only to keys from a header"),
        (new().key_min_length(0), "must be from 1 to 255"),
        (new().release(["6xx"]), "release \"6xx\": not a status"),
        (new().release(["5xx"]).record(["5xx"]), "the status is also in another list"),
        (new().tenant("x-account"), "Tenant::header"),
        (new().tenant(Tenant::header("x account")), "not a header name"),
        (new().fingerprint("xml"), "\"bytes\" or \"json\""),
        (new().fingerprint(FingerprintMode::json_only::<&str>([])), "any two bodies"),
        (new().fingerprint_headers(["date"]), "changes with each attempt"),
        (new().key_required().velocity(["card"], "5/min"), "json:"),
        (new().key_required().velocity(["tenant"], "5/year"), "the unit"),
        (new().velocity(["tenant"], "5/min"), "leaving out the key would get around the limit"),
        (new().namespace("two words"), "not a namespace"),
        (new().ttl(Duration::ZERO), "ttl: the duration is zero"),
        (new().request_timeout(Duration::ZERO), "request_timeout: the duration is zero"),
        (
            new().on_unknown(OnUnknown::Reconcile).ttl(Duration::from_secs(60)),
            "expire before its outcome can be reconciled",
        ),
        (new().methods(["PUT"]), "the pattern of the route already has its methods"),
    ] {
        let error = refused(policy);
        assert!(error.contains(said), "{error}\n\ndoes not say: {said}");
    }
}

/// A preset never guesses the tenant of payments. The same file of the gateway is refused with the
/// same words.
#[tokio::test]
async fn a_payment_without_a_tenant_is_refused() {
    let payment = || Policy::preset(Preset::Payment);
    let error = refused(payment());
    assert!(error.contains(TENANT_NOT_NAMED), "{error}");
    assert!(error.contains(".tenant(\"credential\")"), "{error}");
    let error = OnetakeLayer::new(MemoryStore::new(), payment()).unwrap_err().to_string();
    assert!(error.contains(TENANT_NOT_NAMED), "{error}");
    for tenant in [Tenant::Credential, Tenant::Public, Tenant::ClientIp] {
        assert_eq!(payment().tenant(tenant).check(), []);
    }
    assert_eq!(payment().tenant(Tenant::extension(String::clone)).check(), []);
    assert!(refused(payment().tenant("x-account")).contains("Tenant::header"));
    for (_, preset) in Preset::ALL {
        let must_name_it = preset == Preset::Payment || preset.values().key_source.is_some();
        assert_eq!(Policy::preset(preset).check().is_empty(), !must_name_it, "{preset}");
        assert_eq!(Policy::preset(preset).tenant(Tenant::Public).check(), [], "{preset}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let error = Routes::new()
        .route("POST /a/{id}", Policy::new().release(["nonsense"]))
        .route("PSOT /b", Policy::new())
        .route("POST /a/1", Policy::new())
        .fallback(Policy::new().methods(["GET"]))
        .build()
        .unwrap_err();
    let routes: Vec<_> = error.mistakes().iter().map(|mistake| &*mistake.route).collect();
    assert_eq!(routes, ["POST /a/{id}", "PSOT /b", "POST /a/1", "fallback"]);
    let text = error.to_string();
    for said in
        ["4 errors", "did you mean `POST`?", "never reached", "GET requests are never keyed"]
    {
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn the_order_of_lease_and_grace_does_not_matter() {
    let [lease, grace, longer] = [10, 20, 90].map(Duration::from_secs);
    let times = |policy: Policy| (policy.terms.lease, policy.terms.grace);
    let new = Policy::new;
    assert_eq!(times(new().lease(lease).grace(grace)), (lease, grace));
    assert_eq!(times(new().grace(grace).lease(lease)), (lease, grace));
    assert_eq!(times(new().lease(lease)), (lease, lease), "the grace follows the lease");
    assert_eq!(times(new().lease(longer).lease(lease)), (lease, lease));
    let terms = Terms { lease, grace, ..Terms::default() };
    assert_eq!(times(new().terms(terms).lease(longer)), (longer, grace));
    assert_eq!(times(new().lease(longer).terms(terms)), (lease, grace));
    assert_eq!(new().lease(lease).grace(grace), new().grace(grace).lease(lease));
}

#[tokio::test]
async fn a_layer_is_refused_that_cannot_work() {
    let builder = || OnetakeLayer::builder(MemoryStore::new());
    let said = |built: Result<OnetakeLayer, PolicyError>| built.unwrap_err().to_string();
    assert!(said(builder().build()).contains("has no policy"));
    let issued = Policy::new().key_from(KeySource::Issued);
    let error = said(builder().policy(issued).secrets(Secrets::default()).build());
    assert!(error.contains("no key can be issued"), "{error}");
    let wrong = Policy::new().release(["nonsense"]);
    assert!(OnetakeLayer::new(MemoryStore::new(), wrong).is_err());
}

/// A layer around a single route gets no request for the outcome.
#[tokio::test]
async fn a_202_needs_a_layer_around_the_whole_app_or_mounted_endpoints() {
    let asynchronous = || Policy::new().in_flight(InFlight::Async(Duration::ZERO));
    let one = || OnetakeLayer::builder(MemoryStore::new()).policy(asynchronous());
    let routes = || Routes::new().route("POST /a", asynchronous());
    let table = || OnetakeLayer::builder(MemoryStore::new()).routes(routes());
    let others = Routes::new().fallback(asynchronous().label("others"));
    let fallback = OnetakeLayer::builder(MemoryStore::new()).routes(others);
    let one_error = one().build().unwrap_err().to_string();
    let table_error = table().build().unwrap_err().to_string();
    let fallback_error = fallback.build().unwrap_err().to_string();
    for error in [&one_error, &table_error, &fallback_error] {
        assert!(error.contains("in_flight"), "{error}");
        assert!(error.contains("around_whole_app()"), "{error}");
        assert!(error.contains("build_with_endpoints()"), "{error}");
    }
    assert!(table_error.contains("POST /a"), "{table_error}");
    assert!(fallback_error.contains("others"), "{fallback_error}");
    assert!(one().around_whole_app().build().is_ok());
    assert!(one().build_with_endpoints().is_ok());
    assert!(table().around_whole_app().build().is_ok());
    assert!(table().build_with_endpoints().is_ok());
}

fn app(layer: OnetakeLayer) -> Router {
    Router::new().route("/{*any}", any(|| async { "done" })).layer(layer)
}

async fn status(app: &Router, method: Method, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_required_key_is_required_of_every_unsafe_method() {
    let required = Policy::new().key_required();
    let whole = app(OnetakeLayer::new(MemoryStore::new(), required.clone()).unwrap());
    let some = required.methods(["POST"]);
    let some = app(OnetakeLayer::new(MemoryStore::new(), some).unwrap());
    for (method, of_whole, of_some) in [
        (Method::POST, 400, 400),
        (Method::PUT, 400, 200),
        (Method::PATCH, 400, 200),
        (Method::DELETE, 400, 200),
        (Method::GET, 200, 200),
        (Method::HEAD, 200, 200),
        (Method::OPTIONS, 200, 200),
        (Method::TRACE, 200, 200),
    ] {
        assert_eq!(status(&whole, method.clone(), "/a", &[]).await, of_whole, "{method}");
        assert_eq!(status(&some, method.clone(), "/a", &[]).await, of_some, "{method}");
    }
}

#[tokio::test]
async fn a_request_has_the_policy_of_its_route() {
    let routes = Routes::new()
        .route(
            "POST /payments",
            Policy::preset(Preset::Payment).tenant(Tenant::header("x-account")),
        )
        .route("* /forms/{id}", Policy::new().key_required());
    let app = app(OnetakeLayer::builder(MemoryStore::new()).routes(routes).build().unwrap());
    let key = ("idempotency-key", KEY);
    for (method, path, headers, expected) in [
        (Method::POST, "/payments", &[][..], 400),
        (Method::POST, "/payments", &[key], 401),
        (Method::POST, "/payments", &[key, ("x-account", "7")], 200),
        (Method::POST, "/%70ayments", &[], 400),
        (Method::DELETE, "/forms/1", &[], 400),
        (Method::DELETE, "/forms/1/2", &[], 200),
        (Method::POST, "/other", &[], 200),
        (Method::POST, "/other", &[("idempotency-key", "short")], 400),
    ] {
        assert_eq!(status(&app, method, path, headers).await, expected, "{path} {headers:?}");
    }
}

/// The status and the code of the answer to a request without a key, for each spelling.
#[tokio::test]
async fn no_spelling_gets_around_a_route_that_requires_a_key() {
    let ignoring_case = Policy::new().key_required().path_case(PathCase::Ignore);
    let exact_slash = Policy::new().key_required().trailing_slash(TrailingSlash::Exact);
    let routes = Routes::new()
        .route("POST /payments", Policy::new().key_required())
        .route("POST /express", ignoring_case)
        .route("POST /strict", exact_slash)
        .pass_others();
    let layer = OnetakeLayer::builder(MemoryStore::new()).routes(routes).build().unwrap();
    let app = Router::new().fallback(|| async { "done" }).layer(layer);
    let (missing, refused) = ((400, "idempotency_key_missing"), (400, "request_refused"));
    let passed = (200, "");
    for (method, path, expected) in [
        ("POST", "/payments", missing),
        ("POST", "//payments", missing),
        ("POST", "/payments/", missing),
        ("POST", "/%70ayments", missing),
        ("POST", "/%2fpayments", refused),
        ("POST", "/a%2fpayments", refused),
        ("POST", "/payments%0a", refused),
        ("POST", "/payments%5c", refused),
        ("POST", "/x/../payments", refused),
        ("POST", "/x/..;/payments", refused),
        ("POST", "/.;/payments", refused),
        ("POST", "/x/..%3b/payments", refused),
        ("POST", "/payments;a=b", refused),
        ("post", "/payments", refused),
        ("POST", "/Payments", passed),
        ("POST", "/EXPRESS", missing),
        ("POST", "/strict", missing),
        ("POST", "/strict/", passed),
        ("GET", "/a%2fpayments", passed),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let code = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
        let code = code["code"].as_str().unwrap_or_default();
        assert_eq!((status, code), expected, "{method} {path}");
    }
}

/// A policy whose tenant [`Resolve::handle_tenants`](onetake_http::Resolve::handle_tenants) of a
/// closure does not name.
fn by_account() -> Policy {
    let by_account =
        |parts: &http::request::Parts| Some(parts.headers.get("x-account")?.as_bytes().to_vec());
    Policy::new()
        .tenant(Tenant::Custom(Arc::new(by_account)))
        .in_flight(InFlight::Async(Duration::ZERO))
}

/// Returns the status of the first answer, and that of the outcome behind its handle.
async fn accepted(layer: OnetakeLayer) -> (u16, u16) {
    let finish = Arc::new(Notify::new());
    let finished = Arc::clone(&finish);
    let slow = move || {
        let finished = Arc::clone(&finished);
        async move {
            finished.notified().await;
            "done"
        }
    };
    let app = Router::new().route("/work", post(slow)).layer(layer);
    let request = Request::post("/work").header("idempotency-key", KEY).header("x-account", "7");
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    finish.notify_one();
    let (first, location) = (response.status().as_u16(), response.headers().get("location"));
    let Some(location) = location.and_then(|location| location.to_str().ok()) else {
        return (first, 0);
    };
    loop {
        match status(&app, Method::GET, location, &[("x-account", "7")]).await {
            202 => SystemClock.sleep(Duration::from_millis(10)).await,
            ended => return (first, ended),
        }
    }
}

#[tokio::test]
async fn the_outcome_after_a_202_is_fetched_or_nothing_runs() {
    let builder = || OnetakeLayer::builder(MemoryStore::new());
    let routes = Routes::new().route("POST /work", by_account());
    let layer = builder().routes(routes).around_whole_app().build().unwrap();
    assert_eq!(accepted(layer).await, (202, 200));
    let one = builder().policy(by_account()).around_whole_app().build().unwrap();
    assert_eq!(accepted(one).await, (202, 200));
    let policy = Arc::new(by_account());
    let closure = move |_: &http::request::Parts| Some(Arc::clone(&policy));
    let layer = builder().resolve(closure).around_whole_app().build().unwrap();
    assert_eq!(accepted(layer).await, (500, 0));
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_nested_layer_answers_202_only_if_its_endpoints_are_mounted() {
    let routes = || Routes::new().route("POST /api/work", by_account());
    let nested = |layer: OnetakeLayer| {
        let inner = Router::new().route("/work", post(|| async { "done" })).layer(layer);
        Router::new().nest("/api", inner)
    };
    let layer = || OnetakeLayer::builder(MemoryStore::new()).routes(routes());
    let headers = [("idempotency-key", KEY), ("x-account", "7")];
    let app = nested(layer().around_whole_app().build().unwrap());
    assert_eq!(status(&app, Method::POST, "/api/work", &headers).await, 500);
    let (layer, endpoints) = layer().build_with_endpoints().unwrap();
    let app = nested(layer).fallback_service(endpoints);
    assert!([200, 202].contains(&status(&app, Method::POST, "/api/work", &headers).await));
}

/// The builder does not know the policies of a closure, so their requests are refused.
#[tokio::test]
async fn a_closure_answers_202_only_if_the_outcome_can_be_fetched() {
    let runs = Arc::new(AtomicUsize::new(0));
    let policy = Arc::new(Policy::new().in_flight(InFlight::Async(Duration::ZERO)));
    let closure = move |_: &http::request::Parts| Some(Arc::clone(&policy));
    let app = |layer: OnetakeLayer| {
        let runs = Arc::clone(&runs);
        let work = async move || runs.fetch_add(1, Ordering::SeqCst).to_string();
        Router::new().route("/work", post(work).layer(layer))
    };
    let builder = || OnetakeLayer::builder(MemoryStore::new()).resolve(closure.clone());
    let headers = [("idempotency-key", KEY), ("authorization", "Bearer alice")];
    let single = app(builder().build().unwrap());
    assert_eq!(status(&single, Method::POST, "/work", &headers).await, 500);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let (layer, endpoints) = builder().build_with_endpoints().unwrap();
    let mounted = app(layer).fallback_service(endpoints);
    assert!([200, 202].contains(&status(&mounted, Method::POST, "/work", &headers).await));
}
