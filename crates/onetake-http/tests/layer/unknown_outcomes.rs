//! Unknown outcomes in programs: reconciliation, and a rollback hook before a retry.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{key, send};
use axum::Router;
use axum::body::Body;
use axum::routing::post;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use onetake_core::{
    Engine, Inquiry, MemoryStore, OnRetry, OnUnknown, Reconcile, ReconcileAnswer, ReconcileOptions,
    Record,
};
use onetake_http::recording::record_response;
use onetake_http::{InFlight, MemoField, MemoValues, OnetakeLayer, Policy, Tenant};

/// A reconciler that keeps the memos of the records that it was asked about.
#[derive(Debug, Default)]
struct Desk(Mutex<Vec<MemoValues>>);

impl Reconcile for Desk {
    fn inquiry(&self, _: &Record) -> Option<Inquiry> {
        Some(Inquiry { after: Duration::ZERO, ..Inquiry::default() })
    }

    fn ask(&self, record: Arc<Record>) -> BoxFuture<'_, ReconcileAnswer> {
        self.0.lock().unwrap().push(MemoValues::of(&record.origin.memo));
        Box::pin(async {
            let mut found = Response::new(Body::from("found"));
            *found.status_mut() = StatusCode::CREATED;
            ReconcileAnswer::Completed(record_response(found, 100).await.unwrap())
        })
    }
}

fn request(number: usize) -> Request<Body> {
    let request = Request::post("/pay").header("x-account", "acme");
    request.header("idempotency-key", written(number)).body("pay 10".into()).unwrap()
}

/// A key in the syntax of the IETF draft: a quoted string.
fn written(number: usize) -> String {
    format!("\"{}\"", key(number))
}

fn policy() -> Policy {
    Policy::new().tenant(Tenant::Header("x-account".parse().unwrap()))
}

#[tokio::test]
async fn an_operation_is_asked_for_by_what_was_remembered_of_it() {
    let asynchronous = InFlight::Async(Duration::from_secs(5));
    let all = [MemoField::Key, MemoField::Tenant, MemoField::DerivedKey];
    for (number, in_flight) in [InFlight::Reject, asynchronous].into_iter().enumerate() {
        let engine = Engine::new(Arc::new(MemoryStore::new()));
        let policy = policy().on_unknown(OnUnknown::Reconcile).remember(all).in_flight(in_flight);
        let (layer, _) =
            OnetakeLayer::builder(engine.clone()).policy(policy).build_with_endpoints().unwrap();
        let sent = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&sent);
        let pay = move |headers: HeaderMap| {
            let derived = headers.get("idempotency-derived-key").unwrap();
            *seen.lock().unwrap() = Some(derived.to_str().unwrap().to_owned());
            std::future::ready(StatusCode::INTERNAL_SERVER_ERROR)
        };
        let router = Router::new().route("/pay", post(pay)).layer(layer);
        assert_eq!(send(&router, request(number)).await.status, 500);
        let pending = send(&router, request(number)).await;
        assert_eq!((pending.status, &*pending.code()), (409, "outcome_unknown"));

        let desk = Desk::default();
        assert_eq!(engine.reconcile(&desk, ReconcileOptions::default()).await, 1);
        let known = desk.0.lock().unwrap().pop().unwrap();
        assert_eq!(known.derived_key.map(|key| key.to_string()), sent.lock().unwrap().take());
        assert_eq!(known.key.unwrap(), written(number), "as the service behind was told it");
        assert_eq!(known.tenant.as_deref(), Some(&b"acme"[..]));
        let replay = send(&router, request(number)).await;
        assert_eq!((replay.status, &*replay.body), (201, &b"found"[..]));
        assert!(replay.is_replay());
    }
}

#[tokio::test]
async fn what_was_left_half_done_is_rolled_back_before_it_runs_again() {
    let (runs, rolled_back) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (ran, hook) = (Arc::clone(&runs), Arc::clone(&rolled_back));
    let on_retry = OnRetry::new(move |again| {
        let hook = Arc::clone(&hook);
        async move {
            hook.fetch_add(again.earlier.len(), Ordering::SeqCst);
            Ok(())
        }
    });
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let layer = OnetakeLayer::new(engine, policy().on_unknown(OnUnknown::Retry).on_retry(on_retry))
        .unwrap();
    let pay = move || {
        let is_first = ran.fetch_add(1, Ordering::SeqCst) == 0;
        let failed = StatusCode::INTERNAL_SERVER_ERROR;
        std::future::ready(if is_first { failed } else { StatusCode::OK })
    };
    let router = Router::new().route("/pay", post(pay)).layer(layer);
    assert_eq!(send(&router, request(1)).await.status, 500);
    assert_eq!(rolled_back.load(Ordering::SeqCst), 0, "there was nothing before");
    assert_eq!(send(&router, request(1)).await.status, 200);
    assert_eq!(rolled_back.load(Ordering::SeqCst), 1);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}
