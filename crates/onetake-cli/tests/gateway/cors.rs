//! CORS: preflights, and the headers that let pages read answers.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use axum::Router;
use axum::http::{HeaderMap, Method};
use axum::response::IntoResponse;
use onetake_sim::blackbox::Target;
use onetake_sim::client::{Call, Client, ClientResponse};
use tokio::net::TcpListener;

use crate::common::InProcess;
use crate::common::raw_http::RawClient;

const APP: &str = "https://app.example.com";
const OTHER: &str = "https://other.example.com";
const STRANGER: &str = "https://stranger.example.com";
const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
const EXPOSED: [&str; 7] = [
    "Idempotency-Reference",
    "Idempotent-Replayed",
    "X-Idempotency-Replayed",
    "Retry-After",
    "RateLimit",
    "RateLimit-Policy",
    "Location",
];

/// An upstream that allows the origin that asks, as many frameworks do.
async fn echo_origin(method: Method, headers: HeaderMap) -> impl IntoResponse {
    let origin = headers.get("origin").map_or("", |origin| origin.to_str().unwrap()).to_owned();
    let headers = [
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", "X-Upstream".to_owned()),
        ("access-control-allow-credentials", "true".to_owned()),
        ("vary", "Accept".to_owned()),
        ("x-upstream", method.to_string()),
    ];
    (headers, "done")
}

struct World {
    client: Client,
    gateway: InProcess,
}

impl World {
    async fn start(cors: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = listener.local_addr().unwrap();
        let app = Router::new().fallback(echo_origin);
        tokio::spawn(async move { axum::serve(listener, app).await });
        let gateway = InProcess::start(format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{upstream}\"\n{cors}\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
             [[route]]\nmatch = \"POST /issued\"\nkey = {{ from = \"issued\" }}\n\
             [[route]]\nmatch = \"POST,PUT /pay\"\nkey = {{ required = true }}\ntenant = \"public\"\n"
        ))
        .await;
        Self { client: Client::new(gateway.address()), gateway }
    }

    async fn allowing(origins: &str) -> Self {
        Self::start(&format!("cors = {{ origins = [{origins}] }}")).await
    }

    fn call(&self, method: &str, path: &str, origin: &str) -> Call {
        let call = self.client.post(path).method(method).without("authorization");
        if origin.is_empty() { call } else { call.header("origin", origin) }
    }

    async fn preflight(&self, method: &str, path: &str, origin: &str) -> ClientResponse {
        let call = self.call("OPTIONS", path, origin).body("");
        let call = call.header("access-control-request-method", method);
        let call = call.header("access-control-request-headers", "content-type,idempotency-key");
        call.send().await.unwrap()
    }

    async fn pay(&self, key: &str, origin: &str) -> ClientResponse {
        self.call("POST", "/pay", origin).key(key).send().await.unwrap()
    }
}

/// Checks that a page of this origin can read the response, and the headers of the gateway.
fn is_readable(answer: &ClientResponse, origin: &str) {
    let allowed: Vec<_> = answer.headers.get_all("access-control-allow-origin").iter().collect();
    assert_eq!(allowed, [origin], "{:?}", answer.headers);
    let exposed = answer.headers.get_all("access-control-expose-headers").iter();
    let exposed: Vec<_> = exposed.map(|value| value.to_str().unwrap().to_owned()).collect();
    for name in EXPOSED {
        assert!(exposed.join(", ").contains(name), "{name}: {exposed:?}");
    }
}

fn is_hidden(answer: &ClientResponse) {
    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{:?}", answer.headers);
}

fn varies_by_origin(answer: &ClientResponse) -> bool {
    let values = answer.headers.get_all("vary").iter();
    values.flat_map(|value| value.to_str().unwrap().split(", ")).any(|name| name == "Origin")
}

#[tokio::test(flavor = "multi_thread")]
async fn preflights_of_keyed_routes_and_endpoints_are_answered() {
    let world = World::allowing(&format!("\"{APP}\", \"{OTHER}\"")).await;
    for (method, path) in [
        ("POST", "/pay"),
        ("PUT", "/pay/"),
        ("POST", "/elsewhere"),
        ("POST", "/idempotency-tokens"),
        ("GET", "/.onetake/operations/a-handle"),
        ("GET", "/.onetake/problems"),
    ] {
        for origin in [APP, OTHER] {
            let permitted = world.preflight(method, path, origin).await;
            assert_eq!(permitted.status(), 204, "{method} {path}");
            assert_eq!(permitted.header("access-control-allow-origin"), origin);
            assert_eq!(permitted.header("access-control-allow-methods"), method);
            let headers = permitted.header("access-control-allow-headers");
            assert_eq!(headers, "content-type,idempotency-key");
            assert_eq!(permitted.header("access-control-max-age"), "600");
            assert_eq!(permitted.header("access-control-allow-credentials"), "");
            assert!(varies_by_origin(&permitted));
            assert_eq!(permitted.header("x-upstream"), "", "the upstream is not asked");
        }
        let stranger = world.preflight(method, path, STRANGER).await;
        assert_eq!(stranger.status(), 204);
        is_hidden(&stranger);
        assert!(varies_by_origin(&stranger));
    }
    // The upstream answers for requests that are never keyed, and plain OPTIONS.
    for (method, path) in [("GET", "/pay"), ("DELETE", "/elsewhere")] {
        let passed = world.preflight(method, path, APP).await;
        assert_eq!(passed.header("x-upstream"), "OPTIONS", "{method} {path}");
    }
    let plain = world.call("OPTIONS", "/pay", APP).body("").send().await.unwrap();
    assert_eq!(plain.header("x-upstream"), "OPTIONS");
}

/// A recording has the CORS headers of the first attempt's origin. A replay to another origin must
/// not repeat them.
#[tokio::test(flavor = "multi_thread")]
async fn every_origin_can_read_a_replay() {
    let world = World::allowing(&format!("\"{APP}\", \"{OTHER}\"")).await;
    let first = world.pay(KEY, APP).await;
    assert!(!first.is_replay());
    for origin in [APP, OTHER] {
        let replay = world.pay(KEY, origin).await;
        assert!(replay.is_replay());
        for answer in [&first, &replay] {
            is_readable(answer, if std::ptr::eq(answer, &first) { APP } else { origin });
            let exposed = answer.headers.get_all("access-control-expose-headers").iter();
            assert!(exposed.into_iter().any(|value| value == "X-Upstream"));
            assert!(!answer.headers.contains_key("access-control-allow-credentials"));
            assert!(varies_by_origin(answer));
        }
    }
    let stranger = world.pay(KEY, STRANGER).await;
    assert!(stranger.is_replay() && varies_by_origin(&stranger));
    is_hidden(&stranger);
    is_hidden(&world.pay(KEY, "").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_can_read_problems() {
    let world = World::allowing(&format!("\"{APP}\"")).await;
    let missing = world.call("POST", "/pay", APP).send().await.unwrap();
    let refused = world.call("POST", "/pay%2fx", APP).key(KEY).send().await.unwrap();
    let unknown = world.call("GET", "/.onetake/operations/x", APP).body("").send().await.unwrap();
    let tokens = world.call("POST", "/idempotency-tokens", APP).body("x").send().await.unwrap();
    for (answer, code) in [
        (missing, "idempotency_key_missing"),
        (refused, "request_refused"),
        (unknown, "operation_not_found"),
        (tokens, "request_body_invalid"),
    ] {
        assert_eq!(answer.code(), code);
        is_readable(&answer, APP);
    }
    // A problem of the gateway on a request that it passes on.
    let hosts = world.call("GET", "/x", APP).header("host", "a@b").body("");
    let hosts = hosts.send().await.unwrap();
    assert_eq!(hosts.code(), "request_refused");
    is_readable(&hosts, APP);
    // Any other response to such a request has the headers of the upstream.
    let passed = world.call("GET", "/x", STRANGER).body("").send().await.unwrap();
    assert_eq!(passed.header("access-control-allow-origin"), STRANGER);
    assert_eq!(passed.header("access-control-expose-headers"), "X-Upstream");
}

/// A gateway that is full still answers preflights, and pages can read that it is full.
#[tokio::test(flavor = "multi_thread")]
async fn pages_can_read_that_the_gateway_is_full() {
    let full = format!(
        "cors = {{ origins = [\"{APP}\"] }}\n[limits]\nmax_requests = 1\nmax_queued_requests = 0"
    );
    let world = World::start(&full).await;
    let mut holder = RawClient::connect(world.gateway.address()).await;
    let head = format!(
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {KEY}\r\nContent-Length: 2\r\n\
         Expect: 100-continue\r\n\r\n"
    );
    holder.write(&head).await;
    let reads = holder.response().await.unwrap();
    assert_eq!(reads.status(), 100, "the only place is taken until the body comes");
    let permitted = world.preflight("POST", "/pay", APP).await;
    assert_eq!(permitted.status(), 204, "{}", permitted.text());
    assert_eq!(permitted.header("access-control-allow-origin"), APP);
    for call in [
        world.call("POST", "/pay", APP).key("a-key-of-a-full-node"),
        world.call("GET", "/x", APP).body(""),
    ] {
        let refused = call.send().await.unwrap();
        assert_eq!((refused.status(), &*refused.code()), (503, "overloaded"));
        is_readable(&refused, APP);
        assert!(varies_by_origin(&refused) && !refused.header("retry-after").is_empty());
    }
    let ambiguous = world.call("POST", "/pay%2fx", APP).send().await.unwrap();
    assert_eq!((ambiguous.status(), &*ambiguous.code()), (400, "request_refused"));
    is_readable(&ambiguous, APP);
    let stranger = world.pay("a-key-of-a-full-node", STRANGER).await;
    assert_eq!(stranger.code(), "overloaded");
    is_hidden(&stranger);
    // A client of gRPC gets an error of gRPC.
    let call = world.call("POST", "/pay", APP).header("content-type", "application/grpc");
    let error = call.key("a-key-of-a-full-node").send().await.unwrap();
    assert_eq!((error.status(), error.header("grpc-status")), (200, "14"), "{:?}", error.headers);
    is_readable(&error, APP);
    holder.write("10").await;
    assert_eq!(holder.response().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_origin_or_credentials_if_the_file_says_so() {
    let world = World::allowing("\"*\"").await;
    let permitted = world.preflight("POST", "/pay", STRANGER).await;
    assert_eq!(permitted.header("access-control-allow-origin"), "*");
    let answer = world.pay(KEY, STRANGER).await;
    is_readable(&answer, "*");
    assert!(!varies_by_origin(&answer));
    let cors = format!("cors = {{ origins = [\"{APP}\"], credentials = true, max_age = \"1h\" }}");
    let world = World::start(&cors).await;
    let permitted = world.preflight("POST", "/pay", APP).await;
    assert_eq!(permitted.header("access-control-allow-credentials"), "true");
    assert_eq!(permitted.header("access-control-max-age"), "3600");
    let stranger = world.pay(KEY, STRANGER).await;
    assert_eq!(stranger.header("access-control-allow-credentials"), "");
    assert_eq!(world.pay(KEY, APP).await.header("access-control-allow-credentials"), "true");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_the_upstream_answers_for_itself() {
    let world = World::start("").await;
    assert_eq!(world.preflight("POST", "/pay", APP).await.header("x-upstream"), "OPTIONS");
    let answer = world.pay(KEY, APP).await;
    assert_eq!(answer.header("access-control-allow-origin"), APP);
    assert_eq!(answer.header("access-control-expose-headers"), "X-Upstream");
    let problem = world.call("POST", "/pay", APP).send().await.unwrap();
    is_hidden(&problem);
}
