//! Two nodes, and a node without its store; and the steps that bring a key into a state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Engine, Failure, Limits, ManualClock, RecordId, Recording,
    Settled, Settlement, Store, SystemClock, SystemRng, Timestamp, Transition,
};
use onetake_http::{IssuingKey, OnetakeLayer, OperationContext, Policy, Secrets};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::ServiceExt;

use super::cases::{Ask, Case, Choice, RESPONSE_MAX, Source, State, choices};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The runs of each case, by its number.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<HashMap<usize, Done>>>);

#[derive(Clone, Default)]
struct Done {
    /// Runs by the tested request, without those that prepared its state.
    runs: usize,
    id: Option<RecordId>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

impl Api {
    fn change<T>(&self, number: usize, change: impl FnOnce(&mut Done) -> T) -> T {
        change(self.0.lock().unwrap().entry(number).or_default())
    }
}

/// Responds as headers of the request say. The headers are not part of the fingerprint.
async fn charge(extract::State(api): extract::State<Api>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let said = |name| parts.headers.get(name).map(|value| value.to_str().unwrap());
    let number: usize = said("x-case").unwrap().parse().unwrap();
    let id = OperationContext::of(&parts.extensions).and_then(OperationContext::attempt);
    let id = id.map(|attempt| attempt.id);
    let answer = said("x-answer");
    let done = api.change(number, |done| {
        done.runs += usize::from(answer.is_none());
        done.id = done.id.or(id);
        done.clone()
    });
    let created = [("location", format!("/charges/{number}"))];
    match answer {
        Some("hold") => {
            done.started.notify_one();
            done.finish.notified().await;
            StatusCode::CREATED.into_response()
        }
        Some("429") => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Some("500") => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Some("large") => {
            (StatusCode::CREATED, created, "x".repeat(RESPONSE_MAX + 1)).into_response()
        }
        _ => (StatusCode::CREATED, created, format!("charge {number}")).into_response(),
    }
}

pub(crate) struct World {
    store: Arc<dyn Store>,
    api: Api,
    /// A clock that moves only for waiting requests.
    pub(crate) clock: ManualClock,
    /// The node that gets the tested request.
    here: Router,
    /// The node that brings keys into their states. Its clock is a day behind, so that it can issue
    /// keys that are too old today.
    elsewhere: Router,
    /// A node whose store is unreachable.
    down: Router,
}

pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    /// The number of times that this request ran the operation.
    pub(crate) runs: usize,
}

impl World {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let api = Api::default();
        let now = SystemClock.now();
        let clock = ManualClock::new(now);
        let yesterday = Timestamp::from_micros(now.as_micros()).since(Timestamp::default()) - DAY;
        let yesterday = ManualClock::new(Timestamp::default().plus(yesterday));
        let down = Faulty::around(Arc::clone(&store));
        down.fail_claims(StoreFault::Unavailable);
        down.fail_loads(StoreFault::Unavailable);
        Self {
            here: node(Arc::clone(&store), &clock, &api),
            elsewhere: node(Arc::clone(&store), &yesterday, &api),
            down: node(down, &clock, &api),
            store,
            api,
            clock,
        }
    }

    /// Brings the key of a case into its state, and returns the key.
    pub(crate) async fn prepare(&self, case: &Case, number: usize) -> String {
        let name = self.name(case, number, "case").await;
        match case.state {
            State::Absent | State::StoreDown => {}
            State::RunningHere => {
                if case.choice.source == Source::IssuedEarlier {
                    // The key was used in time. Its attempt was released, so the operation can run
                    // here.
                    self.ran(case, number, &name, "429").await;
                }
                let held = self.letter(case, number, &name, &[("x-answer", "hold")]);
                let mut held = tokio::spawn(send(self.here.clone(), held));
                let started = self.api.change(number, |done| Arc::clone(&done.started));
                tokio::select! {
                    () = started.notified() => {}
                    refused = &mut held => panic!("{case:?}: it does not run: {refused:?}"),
                }
            }
            State::Completed => self.ran(case, number, &name, "201").await,
            State::NotReplayable => self.ran(case, number, &name, "large").await,
            State::Released => self.ran(case, number, &name, "429").await,
            State::Unknown => self.ran(case, number, &name, "500").await,
            State::RunningElsewhere => self.settled(case, number, &name, DAY, None).await,
            State::Failed => {
                let failure = Failure { code: "gone".into(), detail: "It is gone.".into() };
                self.settled(case, number, &name, DAY, Some(Transition::Fail(failure))).await;
            }
            State::Expired => {
                let transition = Transition::Complete(Recording::new("expired at once"));
                self.settled(case, number, &name, Duration::ZERO, Some(transition)).await;
            }
        }
        if case.choice.velocity {
            let other = self.name(case, number, "other").await;
            let first = self.letter(case, number, &other, &[("x-answer", "201")]);
            send(self.node(case).clone(), first).await;
        }
        name
    }

    /// Sends the request of a case, and then ends the operation that was held for it.
    pub(crate) async fn ask(&self, case: &Case, number: usize, name: &str) -> Answered {
        let (status, headers, body) =
            send(self.node(case).clone(), self.letter(case, number, name, &[])).await;
        let done = self.api.change(number, |done| done.clone());
        done.finish.notify_one();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Answered { status: status.as_u16(), headers, body, runs: done.runs }
    }

    fn node(&self, case: &Case) -> &Router {
        if case.state == State::StoreDown { &self.down } else { &self.here }
    }

    /// Returns a key that is not used yet.
    async fn name(&self, case: &Case, number: usize, what: &str) -> String {
        let issuer = match case.choice.source {
            Source::IssuedEarlier if what == "case" => &self.elsewhere,
            Source::Issued | Source::IssuedEarlier => &self.here,
            _ => return format!("{what}-number-{number:08}"),
        };
        let wanted = json!({ "method": "POST", "path": "/charges" }).to_string();
        let request = Request::post("/idempotency-tokens")
            .header("authorization", "Bearer alice")
            .header("x-route", case.route)
            .body(Body::from(wanted));
        let (status, _, body) = send(issuer.clone(), request.unwrap()).await;
        assert_eq!(status, 201, "{case:?}");
        let body: Value = serde_json::from_slice(&body).unwrap();
        body["key"].as_str().unwrap().to_owned()
    }

    /// Runs the operation on the other node.
    async fn ran(&self, case: &Case, number: usize, name: &str, answer: &str) {
        let request = self.letter(case, number, name, &[("x-answer", answer)]);
        let (status, headers, _) = send(self.elsewhere.clone(), request).await;
        let wanted = if answer == "large" { "201" } else { answer };
        assert_eq!(status.as_str(), wanted, "{case:?}");
        assert!(!headers.contains_key("idempotent-replayed"), "{case:?}");
    }

    /// Claims the key in the store and settles it with `transition`. An attempt that was released
    /// before provides the record's id and fingerprint.
    async fn settled(
        &self,
        case: &Case,
        number: usize,
        name: &str,
        ttl: Duration,
        transition: Option<Transition>,
    ) {
        self.ran(case, number, name, "429").await;
        let id = self.api.change(number, |done| done.id).unwrap();
        let released = self.store.load(vec![id]).await.remove(0).unwrap().unwrap();
        let attempt = AttemptId::random(&SystemRng);
        let (fingerprint, mut terms) = (released.fingerprint, released.terms);
        terms.ttl = ttl;
        let claim =
            Claim { id, attempt, fingerprint, terms, origin: onetake_core::Origin::default() };
        let claimed = self.store.claim(vec![claim]).await.remove(0).unwrap();
        assert!(matches!(claimed, Claimed::Granted { .. }), "{case:?}");
        if let Some(transition) = transition {
            let settlement = Settlement { id, attempt, transition };
            let settled = self.store.settle(vec![settlement]).await.remove(0).unwrap();
            assert!(matches!(settled, Settled::Done { .. }), "{case:?}");
        }
    }

    /// Returns the request of a case if `lines` are empty, otherwise a request of Alice that
    /// prepares it.
    fn letter(
        &self,
        case: &Case,
        number: usize,
        name: &str,
        lines: &[(&str, &str)],
    ) -> Request<Body> {
        let ask = if lines.is_empty() { case.ask } else { Ask::Same };
        let amount = if ask == Ask::OtherPayload { 2 } else { 1 };
        let mut body = json!({
            "merchant": "m", "order": name, "reference": name, "card": number, "amount": amount,
        });
        let member = match case.choice.source {
            Source::Json => "reference",
            Source::Derive => "order",
            Source::Header | Source::Issued | Source::IssuedEarlier => "",
        };
        let tenant = if ask == Ask::OtherTenant { "Bearer bob" } else { "Bearer alice" };
        let mut request = Request::post("/charges")
            .header("authorization", tenant)
            .header("content-type", "application/json")
            .header("x-route", case.route)
            .header("x-case", number);
        match (ask, member) {
            (Ask::MissingKey, "") => {}
            (Ask::MissingKey, member) => {
                body.as_object_mut().unwrap().remove(member);
            }
            (Ask::MalformedKey, "") => request = request.header("idempotency-key", "short"),
            (Ask::MalformedKey, member) => body[member] = json!([name]),
            (_, "") => request = request.header("idempotency-key", name),
            _ => {}
        }
        if ask == Ask::DeadlineOver {
            request = request.header("x-request-timeout-ms", "0");
        }
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(Body::from(body.to_string())).unwrap()
    }
}

/// A node with all policies. A header of the request chooses one.
fn node(store: Arc<dyn Store>, clock: &ManualClock, api: &Api) -> Router {
    // The manual clock moves independently of the store, so the engine must not give up on the
    // store.
    let limits = Limits { claim_patience: DAY, settle_patience: DAY, ..Limits::default() };
    let engine = Engine::with(store, Arc::new(clock.clone()), Arc::new(SystemRng), limits);
    let policy_of = |choice: &Choice| {
        let policy = choice.policy();
        // The check refuses some of them: no time passes here by itself, so their ttl is as short as
        // their upstream_timeout, and all requests are of one tenant, which they do not name.
        policy.mark_checked();
        Arc::new(policy)
    };
    let policies: Vec<Arc<Policy>> = choices().iter().map(policy_of).collect();
    let policies = move |parts: &Parts| {
        let route: usize = parts.headers.get("x-route")?.to_str().ok()?.parse().ok()?;
        policies.get(route).cloned()
    };
    let secrets = Secrets::default().issued_keys([IssuingKey::new(&[5; 32])]);
    let layer = OnetakeLayer::builder(engine).resolve(policies).secrets(secrets);
    let layer = layer.around_whole_app().build().unwrap();
    Router::new().route("/charges", post(charge)).with_state(api.clone()).layer(layer)
}

async fn send(node: Router, request: Request<Body>) -> (StatusCode, HeaderMap, bytes::Bytes) {
    let (parts, body) = node.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.headers, body)
}
