//! Typed results: stored as values, and built into responses again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::helpers::{Answered, KEY, logs, post_of, send};
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use onetake_core::{Engine, MemoryStore, RecordId, State as Recorded};
use onetake_http::extract::RunningAttempt;
use onetake_http::typed::json;
use onetake_http::{InFlight, OnetakeLayer, Policy, Stored, Typed};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The result of a charge.
#[derive(Clone, Serialize, Deserialize)]
struct Receipt {
    charge: u64,
    /// The card's number. It is used for the charge and is not stored.
    #[serde(skip)]
    card: String,
}

impl Typed for Receipt {
    const NAME: &'static str = "receipt";

    fn respond(&self) -> Response<Bytes> {
        let mut response = json(StatusCode::CREATED, self);
        let location = format!("/charges/{}", self.charge);
        let headers = response.headers_mut();
        headers.insert("location", HeaderValue::from_str(&location).unwrap());
        headers.insert("x-card", HeaderValue::from_str(&format!("[{}]", self.card)).unwrap());
        headers.insert("set-cookie", HeaderValue::from_static("session=1"));
        response
    }
}

/// Counts charges. Each run makes a new one.
#[derive(Clone, Default)]
struct Charges {
    made: Arc<AtomicU64>,
    first: Arc<OnceLock<RecordId>>,
    finish: Arc<Notify>,
}

impl Charges {
    fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    fn router<T: Typed + From<Receipt>>(&self, layer: OnetakeLayer) -> Router {
        Router::new()
            .route("/charges", post(charge::<T>))
            .route("/slow", post(slow::<T>))
            .with_state(self.clone())
            .layer(layer)
    }
}

async fn charge<T: Typed + From<Receipt>>(
    State(charges): State<Charges>,
    RunningAttempt(attempt): RunningAttempt,
) -> Stored<T> {
    charges.first.get_or_init(|| attempt.id);
    let charge = charges.made.fetch_add(1, Ordering::SeqCst) + 1;
    Stored(Receipt { charge, card: "4242".to_owned() }.into())
}

async fn slow<T: Typed + From<Receipt>>(
    State(charges): State<Charges>,
    attempt: RunningAttempt,
) -> Stored<T> {
    charges.finish.notified().await;
    charge(State(charges), attempt).await
}

fn engine(store: &MemoryStore) -> Engine {
    Engine::new(Arc::new(store.clone()))
}

fn layer(store: &MemoryStore) -> OnetakeLayer {
    OnetakeLayer::new(engine(store), Policy::new()).unwrap()
}

/// Makes a charge as `Receipt`, with a layer that has the type registered. Then retries it with
/// another version of the service.
async fn replayed_by(version: impl FnOnce(&Charges, OnetakeLayer) -> Router) -> Answered {
    let (store, charges) = (MemoryStore::new(), Charges::default());
    let old = charges.router::<Receipt>(layer(&store).typed::<Receipt>());
    assert_eq!(send(&old, post_of("alice", "/charges", KEY)).await.status, 201);
    let new = version(&charges, layer(&store));
    let again = send(&new, post_of("alice", "/charges", KEY)).await;
    assert_eq!(charges.made(), 1, "whatever becomes of its response, it is not run again");
    again
}

#[tokio::test]
async fn a_value_is_kept_and_its_response_built_again() {
    let (store, charges) = (MemoryStore::new(), Charges::default());
    let onetake = layer(&store).typed::<Receipt>();
    let router = charges.router::<Receipt>(onetake);
    let first = send(&router, post_of("alice", "/charges", KEY)).await;
    let again = send(&router, post_of("alice", "/charges", KEY)).await;
    assert!(!first.is_replay() && again.is_replay());
    assert_eq!((first.status, &*first.body), (201, r#"{"charge":1}"#));
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    for name in ["location", "content-type", "x-card"] {
        assert_eq!(first.headers[name], again.headers[name], "{name}");
    }
    assert_eq!(first.headers["x-card"], "[]", "the first client sees what all others will");
    assert!(first.headers.contains_key("set-cookie") && !again.headers.contains_key("set-cookie"));
    assert_eq!(charges.made(), 1);
}

#[tokio::test]
async fn what_is_stored_is_the_value() {
    let (store, charges) = (MemoryStore::new(), Charges::default());
    let router = charges.router::<Receipt>(layer(&store).typed::<Receipt>());
    send(&router, post_of("alice", "/charges", KEY)).await;
    let id = *charges.first.get().unwrap();
    let record = engine(&store).look(id).await.unwrap().unwrap();
    let Recorded::Completed { recording, .. } = &record.state else { panic!("{record:?}") };
    assert_eq!(recording.body.as_deref(), Some(&br#"{"charge":1}"#[..]));
    assert!(recording.head.ends_with(b"receipt"));
}

/// The same result in a later version of the service.
#[derive(Serialize, Deserialize)]
struct Later {
    charge: u64,
    #[serde(default)]
    currency: Option<String>,
}

impl From<Receipt> for Later {
    fn from(receipt: Receipt) -> Self {
        Self { charge: receipt.charge, currency: Some("EUR".to_owned()) }
    }
}

impl Typed for Later {
    const NAME: &'static str = "receipt";

    fn respond(&self) -> Response<Bytes> {
        let currency = self.currency.as_deref().unwrap_or("unknown");
        let shown = serde_json::json!({ "id": self.charge, "currency": currency });
        json(StatusCode::OK, &shown)
    }
}

/// A later version that cannot read the stored value.
#[derive(Serialize, Deserialize)]
struct Stranger {
    number: u64,
}

impl From<Receipt> for Stranger {
    fn from(receipt: Receipt) -> Self {
        Self { number: receipt.charge }
    }
}

impl Typed for Stranger {
    const NAME: &'static str = "receipt";

    fn respond(&self) -> Response<Bytes> {
        json(StatusCode::OK, self)
    }
}

#[tokio::test]
async fn a_later_version_shows_it_in_its_own_way() {
    let again = replayed_by(|charges, layer| charges.router::<Later>(layer.typed::<Later>())).await;
    assert_eq!((again.status, &*again.body), (200, r#"{"currency":"unknown","id":1}"#));
    assert!(again.is_replay());
}

#[tokio::test]
async fn what_a_version_cannot_show_is_not_run_again() {
    let versions: [fn(&Charges, OnetakeLayer) -> Router; 2] = [
        |charges, layer| charges.router::<Receipt>(layer),
        |charges, layer| charges.router::<Stranger>(layer.typed::<Stranger>()),
    ];
    for version in versions {
        let again = replayed_by(version).await;
        assert_eq!(again.problem(), (410, "response_not_replayable".to_owned()));
        assert!(
            again.body.contains("not run again") && again.body.contains("201"),
            "{}",
            again.body
        );
    }
}

#[tokio::test]
async fn what_the_layer_was_not_told_of_is_kept_as_a_response() {
    // The type is not registered, or another type of the same name was registered first.
    let layers: [fn(OnetakeLayer) -> OnetakeLayer; 2] =
        [|layer| layer, |layer| layer.typed::<Stranger>().typed::<Receipt>()];
    for told in layers {
        let (store, charges) = (MemoryStore::new(), Charges::default());
        let router = charges.router::<Receipt>(told(layer(&store)));
        let first = send(&router, post_of("alice", "/charges", KEY)).await;
        let again = send(&router, post_of("alice", "/charges", KEY)).await;
        assert_eq!((again.status, &again.body), (201, &first.body));
        assert!(again.is_replay() && charges.made() == 1);
    }
}

/// A result whose stored value and response differ in size.
#[derive(Serialize, Deserialize)]
struct Sized {
    kept: String,
    shown: usize,
}

impl Typed for Sized {
    const NAME: &'static str = "sized";

    fn respond(&self) -> Response<Bytes> {
        Response::new(Bytes::from("x".repeat(self.shown)))
    }
}

#[tokio::test]
async fn the_bound_is_for_what_is_kept() {
    for (kept, shown, status) in [(10, 500, 200), (500, 10, 200), (500, 500, 410)] {
        let store = MemoryStore::new();
        let policy = Policy::new().max_response_body(100);
        let handler = move || async move { Stored(Sized { kept: "k".repeat(kept), shown }) };
        let onetake = OnetakeLayer::new(engine(&store), policy).unwrap().typed::<Sized>();
        let router = Router::new().route("/", post(handler)).layer(onetake);
        let first = send(&router, post_of("alice", "/", KEY)).await;
        let again = send(&router, post_of("alice", "/", KEY)).await;
        assert_eq!((first.status, first.body.len()), (200, shown));
        assert_eq!(again.status, status, "{kept} kept, {shown} shown");
        assert_eq!(again.is_replay(), status == 200);
    }
}

/// A result that cannot be written as JSON, because its member names are not strings.
#[derive(Serialize, Deserialize)]
struct Unwritable(std::collections::BTreeMap<(u8, u8), u8>);

impl Typed for Unwritable {
    const NAME: &'static str = "unwritable";

    fn respond(&self) -> Response<Bytes> {
        Response::new(Bytes::from(format!("{} entries", self.0.len())))
    }
}

#[tokio::test]
async fn what_cannot_be_kept_as_a_value_is_kept_as_a_response() {
    let store = MemoryStore::new();
    let handler = || async { Stored(Unwritable([((1, 2), 3)].into())) };
    let onetake = layer(&store).typed::<Unwritable>();
    let router = Router::new().route("/", post(handler)).layer(onetake);
    for is_replay in [false, true] {
        let answered = send(&router, post_of("alice", "/", KEY)).await;
        assert_eq!((answered.status, &*answered.body), (200, "1 entries"));
        assert_eq!(answered.is_replay(), is_replay);
    }
}

#[tokio::test]
async fn a_value_is_fetched_by_its_handle() {
    let (store, charges) = (MemoryStore::new(), Charges::default());
    let policy = Policy::new().in_flight(InFlight::Async(Duration::ZERO));
    let onetake = OnetakeLayer::builder(engine(&store))
        .policy(policy)
        .build_with_endpoints()
        .unwrap()
        .0
        .typed::<Receipt>();
    let router = charges.router::<Receipt>(onetake);
    let accepted = send(&router, post_of("alice", "/slow", KEY)).await;
    assert_eq!(accepted.status, 202);
    charges.finish.notify_one();
    let look = || {
        let request = Request::get(accepted.headers["location"].to_str().unwrap());
        request.header("authorization", "Bearer alice").body(axum::body::Body::empty()).unwrap()
    };
    let found = loop {
        let found = send(&router, look()).await;
        if found.is_replay() {
            break found;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((found.status, &*found.body), (201, r#"{"charge":1}"#));
}

/// A change to a response between the handler and the layer.
type Change = fn(&mut axum::response::Response);

#[tokio::test]
async fn a_response_that_was_changed_on_its_way_is_replayed_as_it_was_shown() {
    let changes: [(&str, Change); 3] = [
        ("status", |response| *response.status_mut() = StatusCode::ACCEPTED),
        ("header", |response| {
            response.headers_mut().insert("x-added", HeaderValue::from_static("1"));
        }),
        ("body", |response| *response.body_mut() = axum::body::Body::from("{\"charge\":9}")),
    ];
    for (what, change) in changes {
        let store = MemoryStore::new();
        let handler = move || async move {
            let shown = Stored(Sized { kept: "k".to_owned(), shown: 12 });
            let mut response = axum::response::IntoResponse::into_response(shown);
            change(&mut response);
            response
        };
        let onetake = layer(&store).typed::<Sized>();
        let router = Router::new().route("/", post(handler)).layer(onetake);
        let first = send(&router, post_of("alice", "/", KEY)).await;
        let again = send(&router, post_of("alice", "/", KEY)).await;
        assert!(again.is_replay(), "{what}");
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{what}");
        assert_eq!(again.headers.get("x-added"), first.headers.get("x-added"), "{what}");
    }
}

/// A result that contains a secret.
#[derive(Serialize, Deserialize)]
struct Paid {
    card: String,
}

impl Typed for Paid {
    const NAME: &'static str = "paid";

    fn respond(&self) -> Response<Bytes> {
        json(StatusCode::CREATED, self)
    }
}

/// A later version, which cannot read the value of the earlier one.
#[derive(Serialize, Deserialize)]
struct PaidLater {
    card: u64,
}

impl Typed for PaidLater {
    const NAME: &'static str = "paid";

    fn respond(&self) -> Response<Bytes> {
        json(StatusCode::CREATED, self)
    }
}

/// A result that is written as a string and read as a number.
#[derive(Deserialize)]
struct Unreadable(u64);

impl Serialize for Unreadable {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(CARD)
    }
}

impl Typed for Unreadable {
    const NAME: &'static str = "unreadable";

    fn respond(&self) -> Response<Bytes> {
        json(StatusCode::OK, &self.0)
    }
}

const CARD: &str = "4242 4242 4242 4242";

/// Parser errors quote the text that they could not read. The logs must not contain it.
#[tokio::test]
async fn logs_hold_nothing_of_a_recording() {
    let (logged, _guard) = logs();
    let store = MemoryStore::new();
    let pays = || async { Stored(Paid { card: CARD.to_owned() }) };
    let router = Router::new().route("/", post(pays)).layer(layer(&store).typed::<Paid>());
    assert_eq!(send(&router, post_of("alice", "/", KEY)).await.status, 201);
    let later = Router::new().route("/", post(pays)).layer(layer(&store).typed::<PaidLater>());
    let again = send(&later, post_of("alice", "/", KEY)).await;
    assert_eq!(again.problem(), (410, "response_not_replayable".to_owned()));
    let reads = || async { Stored(Unreadable(7)) };
    let onetake = layer(&MemoryStore::new()).typed::<Unreadable>();
    let router = Router::new().route("/", post(reads)).layer(onetake);
    assert_eq!(send(&router, post_of("alice", "/", KEY)).await.body, "7");
    let logged = logged.lock().unwrap().join("\n");
    for message in ["cannot be read by this version", "cannot be recorded as a value"] {
        assert!(logged.contains(message), "{logged}");
    }
    assert!(!logged.contains("4242"), "{logged}");
    assert!(!again.body.contains("4242"), "{}", again.body);
}
