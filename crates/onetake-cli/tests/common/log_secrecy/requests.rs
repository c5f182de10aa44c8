//! Requests with every possible result, each with its own secrets.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use onetake_sim::client::{Call, Client, ClientResponse};
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use serde_json::json;

pub(crate) const KEY: &str = "kEy/of+a~ShopThatNobodyShouldSee";
pub(crate) const BEARER: &str = "bEaReR-cReDeNtIaL-77aa";
pub(crate) const BASIC_USER: &str = "bAsIc-UsEr-88bb";
pub(crate) const BASIC_PASSWORD: &str = "bAsIc-PaSsWoRd-99cc";
pub(crate) const API_KEY: &str = "aPi-KeY-of-a-shop-11dd";
pub(crate) const SIGNATURE: &str = "sIgNaTuRe-22ee";
pub(crate) const SUBJECT: &str = "sUbJeCt-of-a-token-33ff";
pub(crate) const CARD: &str = "4929123412341234";
pub(crate) const QUERY: &str = "qUeRy-SeCrEt-44ab";
pub(crate) const SEGMENT: &str = "sEgMeNt-of-a-path-55bc";
pub(crate) const JSON_KEY: &str = "jSoN-KeY-66cd";
pub(crate) const COOKIE: &str = "cOoKiE-77de";
pub(crate) const HOST: &str = "hOsT-with-a-user-88ef";
pub(crate) const METHOD: &str = "MEtHOdSeCrEt99AB";
pub(crate) const DATE: &str = "dEaDlInE-00bc";

pub(crate) const SENT_ALONG: &str = "sEnT-aLoNg-11cd";

/// A member of a body, which only the response to its own client may name.
pub(crate) const MEMBER: &str = "mEmBeR-of-a-body-22de";

/// Text that occurs only in the responses of the sim's upstream.
pub(crate) const ANSWERED: [&str; 2] = ["charged {\"card\"", "session=secret"];

/// Secrets that only clients and upstreams may hold.
pub(crate) const ALL: [&str; 16] = [
    KEY,
    BEARER,
    BASIC_USER,
    BASIC_PASSWORD,
    API_KEY,
    SIGNATURE,
    SUBJECT,
    CARD,
    QUERY,
    SEGMENT,
    JSON_KEY,
    COOKIE,
    HOST,
    METHOD,
    DATE,
    SENT_ALONG,
];

/// Routes for all requests; the upstream of one does not exist.
pub(crate) const ROUTES: &str = r#"
[defaults]
tenant = "credential"
[[route]]
match = "POST /required/{*rest}"
key = { required = true }
[[route]]
match = "POST /json/{*rest}"
key = { from = "json", pointer = "/id" }
tenant = "credential"
fingerprint = { mode = "json" }
[[route]]
match = "POST /issued/{*rest}"
key = { from = "issued" }
[[route]]
match = "POST /jwt/{*rest}"
tenant = { jwt = { verification_key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" } }
[[route]]
match = "POST /asked/{*rest}"
tenant = { forward_auth = "http://127.0.0.1:1/" }
[[route]]
match = "POST /limited/{*rest}"
key = { required = true }
velocity = [{ by = ["tenant", "json:/card"], limit = "1/min" }]
[[route]]
match = "POST /async/{*rest}"
in_flight = "async"
wait_timeout = "20ms"
[[route]]
match = "POST /down/{*rest}"
upstream = "http://127.0.0.1:1"
[[route]]
match = "POST /lost/{*rest}"
tenant = "public"
upstream_timeout = "2s"
grace = "0s"
on_unknown = "reconcile"
reconcile = { request = "GET http://127.0.0.1:1/{key}/{derived_key}/{tenant}", request_headers = { X-Desk = "sEnT-aLoNg-11cd" } }
[[route]]
match = "POST /open/{*rest}"
on_store_down = "fail-open"
[[route]]
match = "POST /stripe/{*rest}"
errors = "stripe"
"#;

/// Sends requests, and keeps the responses.
pub(crate) struct Sender {
    client: Client,
    http2: Client,
    pub(crate) answers: Vec<ClientResponse>,
    /// Issued keys and handles: secrets that are created during the test.
    pub(crate) made: Vec<String>,
}

impl Sender {
    pub(crate) fn new(address: std::net::SocketAddr) -> Self {
        let (client, http2) = (Client::new(address), Client::http2(address));
        Self { client, http2, answers: Vec::new(), made: Vec::new() }
    }

    /// A call with every secret of a valid one.
    pub(crate) fn call(&self, path: &str, number: usize) -> Call {
        dressed(&self.client, path).header("idempotency-key", &format!("{KEY}-{number}"))
    }

    /// Sends a call, and checks the status and code of its response.
    pub(crate) async fn send(&mut self, call: Call, status: u16, code: &str) -> ClientResponse {
        let answer = call.send().await.unwrap();
        assert_eq!((answer.status(), &*answer.code()), (status, code), "{}", answer.text());
        self.answers.push(answer.clone());
        answer
    }

    /// Everything that can happen while upstream and store work.
    pub(crate) async fn everything(&mut self, upstream: &Upstream) {
        for _executed_then_replayed in 0..2 {
            let charge = self.call("/any/charge", 1);
            self.send(charge, 201, "").await;
        }
        assert!(self.answers[1].is_replay() && self.answers[0].text().contains(ANSWERED[0]));
        let other = self.call("/any/charge", 1).body(format!("{{\"card\":\"0{CARD}\"}}"));
        self.send(other, 422, "idempotency_payload_mismatch").await;
        let unknown = ["/any/500", "/any/close", "/any/broken", "/stripe/500"];
        for (number, path) in unknown.into_iter().enumerate() {
            let call = |sender: &Self| sender.call(path, 10 + number);
            self.answers.push(call(self).send().await.unwrap());
            let again = call(self).send().await.unwrap();
            assert_eq!(again.status(), 500, "{}", again.text());
            self.answers.push(again);
        }
        self.in_flight(upstream).await;
        self.bad_keys().await;
        self.bad_credentials().await;
        self.refused_by_the_edge().await;
        for (path, number, status, code) in [
            ("/down/charge", 30, 502, "upstream_unreachable"),
            ("/asked/charge", 31, 503, "auth_unavailable"),
            ("/lost/500", 34, 500, ""),
            ("/lost/500", 34, 409, "outcome_unknown"),
        ] {
            let call = self.call(path, number);
            self.send(call, status, code).await;
        }
        self.too_many().await;
        self.keys_in_bodies().await;
        self.issued().await;
        self.later(upstream).await;
        // HTTP/2 encodes all of this differently, with other libraries.
        for (path, status, code) in
            [("/any/charge", 201, ""), ("/required/charge", 400, "idempotency_key_missing")]
        {
            let call = dressed(&self.http2, path);
            self.send(call, status, code).await;
        }
    }

    async fn in_flight(&mut self, upstream: &Upstream) {
        let gate = |sender: &Self| sender.call("/any/gate", 2).header("x-case", "gate");
        let running = tokio::spawn(gate(self).send());
        upstream.ran("gate", 1).await;
        self.send(gate(self), 409, "request_in_progress").await;
        // The client of this request disconnects, and the operation goes on.
        running.abort();
        upstream.open("gate");
    }

    async fn bad_keys(&mut self) {
        let bare = dressed(&self.client, "/required/charge");
        self.send(bare.clone(), 400, "idempotency_key_missing").await;
        let long = format!("{KEY}{}", "x".repeat(300));
        let spaced = format!("{KEY} with spaces");
        for bad in [&KEY[..12], &long, &spaced, "\"kEy/of+a~ShopThatNobodyShouldSee"] {
            let call = bare.clone().header("idempotency-key", bad);
            self.send(call, 400, "idempotency_key_invalid").await;
        }
        let twice =
            bare.header("idempotency-key", KEY).header("x-idempotency-key", "another-key-0000");
        self.send(twice, 400, "idempotency_key_invalid").await;
        let late = self.call("/any/charge", 40).header("grpc-timeout", DATE);
        self.answers.push(late.send().await.unwrap());
        let late = self.call("/any/charge", 41).header("request-deadline", DATE);
        self.answers.push(late.send().await.unwrap());
        let prefer = self.call("/async/charge", 42).header("prefer", &format!("wait={DATE}"));
        self.answers.push(prefer.send().await.unwrap());
    }

    async fn bad_credentials(&mut self) {
        let basic = STANDARD.encode(format!("{BASIC_USER}:{BASIC_PASSWORD}"));
        let call = |sender: &Self, path: &str, number: usize, credential: &str| {
            let call = sender.call(path, number).without("authorization");
            call.header("authorization", credential)
        };
        let token = |algorithm: &str, signature: &str| {
            let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let claims = json!({ "sub": SUBJECT, "iss": SUBJECT, "exp": 4_000_000_000_u64 });
            let head = part(json!({ "alg": algorithm, "typ": "JWT" }));
            format!("Bearer {head}.{}.{signature}", part(claims))
        };
        let sigv4 = format!("AWS4-HMAC-SHA256 Credential={SIGNATURE}/x, Signature={SIGNATURE}");
        for (path, number, credential, status, code) in [
            ("/any/charge", 50, format!("Basic {basic}"), 201, ""),
            ("/any/charge", 51, format!("Basic {BASIC_PASSWORD}"), 401, "tenant_unresolved"),
            ("/any/charge", 52, sigv4, 400, "tenant_unstable"),
            ("/jwt/charge", 53, token("HS256", SIGNATURE), 401, "tenant_unresolved"),
            ("/jwt/charge", 54, token("none", ""), 401, "tenant_unresolved"),
            ("/jwt/charge", 55, format!("Bearer {BEARER}"), 401, "tenant_unresolved"),
        ] {
            let call = call(self, path, number, &credential);
            self.send(call, status, code).await;
        }
        let api =
            self.call("/any/charge", 56).without("authorization").header("x-api-key", API_KEY);
        self.send(api, 201, "").await;
    }

    async fn refused_by_the_edge(&mut self) {
        let call = self.call(&format!("/any/../{SEGMENT}"), 60);
        self.send(call, 400, "request_refused").await;
        let call = self.call("/any/charge", 61).header("host", &format!("{HOST}@localhost"));
        self.send(call, 400, "request_refused").await;
        let call = self.call("/any/charge", 62).method(METHOD);
        self.send(call, 201, "").await;
        let call = self.call(&format!("/any/{SEGMENT}/charge"), 63);
        self.send(call, 201, "").await;
    }

    /// One request per minute is allowed; and one more, if the shared counter did not respond in
    /// time.
    async fn too_many(&mut self) {
        for number in 100.. {
            let answer = self.call("/limited/charge", number).send().await.unwrap();
            self.answers.push(answer.clone());
            if answer.status() == 429 {
                assert_eq!(answer.code(), "velocity_limit_exceeded");
                return;
            }
            assert_eq!(answer.status(), 201, "{}", answer.text());
            assert!(number < 102, "nothing is refused");
        }
    }

    async fn keys_in_bodies(&mut self) {
        let repeated = format!(",\"{MEMBER}\":{{\"a\":1,\"a\":2}}}}");
        let body = |rest: &str| format!("{{\"id\":\"{JSON_KEY}\",\"card\":\"{CARD}\"{rest}");
        for (text, status, code) in [
            (body("}"), 201, ""),
            (body(",\"more\":1}"), 422, "idempotency_payload_mismatch"),
            (body(",\"more\":tru}"), 400, "request_body_invalid"),
            (body(",\"card\":2}"), 400, "request_body_invalid"),
            (body(&repeated), 400, "request_body_invalid"),
            (format!("{{\"id\":[\"{JSON_KEY}\"]}}"), 400, "idempotency_key_invalid"),
        ] {
            let call = dressed(&self.client, "/json/charge").body(text);
            self.send(call, status, code).await;
        }
        let zipped = dressed(&self.client, "/json/charge").header("content-encoding", "gzip");
        self.send(zipped, 400, "request_body_invalid").await;
    }

    async fn issued(&mut self) {
        let wanted = json!({ "method": "POST", "path": "/issued/charge" }).to_string();
        let answer =
            dressed(&self.client, "/idempotency-tokens").body(wanted).send().await.unwrap();
        let key: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let key = key["key"].as_str().unwrap().to_owned();
        for (key, status, code) in [
            (key.clone(), 201, ""),
            (format!("{key}x"), 400, "idempotency_key_invalid"),
            (format!("{KEY}-70"), 400, "idempotency_key_invalid"),
        ] {
            let call = dressed(&self.client, "/issued/charge").header("idempotency-key", &key);
            self.send(call, status, code).await;
        }
        let bad = dressed(&self.client, "/idempotency-tokens").body(format!("{{\"{CARD}\": tru}}"));
        self.send(bad, 400, "request_body_invalid").await;
        let repeated = format!("{{\"{MEMBER}\": {{\"a\":1,\"a\":2}}}}");
        let bad = dressed(&self.client, "/idempotency-tokens").body(repeated);
        self.send(bad, 400, "request_body_invalid").await;
        self.made.push(key);
    }

    async fn later(&mut self, upstream: &Upstream) {
        let call = self.call("/async/gate", 80).header("x-case", "later");
        let accepted = self.send(call, 202, "").await;
        let handle = accepted.header("location").to_owned();
        let look = dressed(&self.client, &handle).method("GET").body("");
        self.send(look.clone(), 200, "").await;
        let stranger = look.clone().without("authorization").header("authorization", "Bearer bob");
        self.send(stranger, 404, "operation_not_found").await;
        upstream.open("later");
        until("it is done", async || look.clone().send().await.unwrap().is_replay()).await;
        self.made.push(handle.rsplit('/').next().unwrap().to_owned());
    }
}

/// A call with every secret but a key.
fn dressed(client: &Client, path: &str) -> Call {
    let call = client.post(&format!("{path}?secret={QUERY}")).without("authorization");
    let call = call.header("authorization", &format!("Bearer {BEARER}"));
    call.header("cookie", &format!("session={COOKIE}"))
        .header("content-type", "application/json")
        .body(format!("{{\"card\":\"{CARD}\"}}"))
}
