//! Clients that share keys, retry, and give up now and then.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::history::upstream::{REQUEST, RUN, mix};
use onetake_sim::history::{Event, Key, OperatorDecision, Policy, Recorder, Response};

/// How long a client waits for a response, unless it is in a hurry.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// How long the final read may take for one key.
const FINAL_MAX: Duration = Duration::from_secs(60);
/// The problem of an outcome that is unknown for good.
const UNKNOWN: &str = "previous_attempt_failed";
/// Concurrent requests of the final read.
const FINAL_AT_ONCE: usize = 24;

/// Reproducible numbers.
#[derive(Debug)]
pub(crate) struct Dice {
    seed: u64,
    rolled: u64,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, rolled: 0 }
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.rolled += 1;
        mix(self.seed, self.rolled) % sides
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.roll(to - from))
    }
}

/// Clients of some gateways, and the keys that they used.
pub(crate) struct Load {
    recorder: Arc<Recorder>,
    clients: Vec<Client>,
    policies: Vec<Policy>,
    seed: u64,
    /// Requests for each key, on average.
    requests_per_key: u64,
    requests: AtomicU64,
    /// The number of the first key: histories on one server use different keys.
    first: u64,
    keys: AtomicU64,
    /// Keys that a client saw as unknown, with their references, for the operator.
    unknown: Mutex<Vec<(Key, String)>>,
    stop: AtomicBool,
}

impl Load {
    pub(crate) fn new(
        recorder: Arc<Recorder>,
        gateways: &[SocketAddr],
        policies: &[Policy],
        seed: u64,
        requests_per_key: u64,
    ) -> Arc<Self> {
        let first = (seed % 90) * 1_000_000 + 1;
        Arc::new(Self {
            recorder,
            clients: gateways.iter().map(|address| Client::new(*address)).collect(),
            policies: policies.to_vec(),
            seed,
            requests_per_key,
            requests: AtomicU64::new(1),
            first,
            keys: AtomicU64::new(first),
            unknown: Mutex::default(),
            stop: AtomicBool::new(false),
        })
    }

    /// Runs this many clients until [`stop`](Self::stop).
    pub(crate) async fn run(self: &Arc<Self>, clients: u64) {
        let clients = (0..clients).map(|number| {
            let load = Arc::clone(self);
            tokio::spawn(async move { load.client(number).await })
        });
        for ended in join_all(clients).await {
            ended.unwrap();
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// The number of the next key.
    fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// The key with this number. Half of all keys have the policy `fail`.
    fn key(&self, number: u64) -> Key {
        let dice = mix(self.seed ^ 0x6b65_7973, number);
        let other = usize::try_from((dice >> 8) % self.policies.len() as u64).unwrap();
        let policy =
            if dice.is_multiple_of(2) { Policy::Fail } else { *self.policies.get(other).unwrap() };
        Key { number, policy }
    }

    async fn client(&self, number: u64) {
        let mut dice = Dice::new(mix(self.seed, 1_000 + number));
        while !self.stop.load(Ordering::SeqCst) {
            // A new key, or one of the latest, which other clients use at the same time.
            let latest = self.keys();
            let key = match dice.roll(self.requests_per_key) {
                0 => self.keys.fetch_add(1, Ordering::Relaxed),
                _ => latest.saturating_sub(1 + dice.roll(10)).max(self.first),
            };
            // The first clients find no key yet.
            self.keys.fetch_max(self.first + 1, Ordering::Relaxed);
            let key = self.key(key);
            let node = usize::try_from(dice.roll(self.clients.len() as u64)).unwrap();
            let payload = if dice.roll(8) == 0 { b'b' } else { b'a' };
            let patience = if dice.roll(25) == 0 { dice.millis(1, 60) } else { PATIENCE };
            let answered = self.request(key, payload, node, false, patience).await;
            // A gateway that is down fails at once.
            let pause = if answered.is_some() { dice.millis(1, 15) } else { dice.millis(10, 60) };
            SystemClock.sleep(pause).await;
        }
    }

    async fn request(
        &self,
        key: Key,
        payload: u8,
        node: usize,
        is_final: bool,
        patience: Duration,
    ) -> Option<Response> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        // Requests wait for running keys with an even number, and are refused for the others.
        let manner = if key.number.is_multiple_of(2) { "wait" } else { "reject" };
        let path = format!("/{}/{manner}", key.policy.word());
        let call = self.clients.get(node).unwrap().post(&path).without("authorization");
        let call = call.header("idempotency-key", &key.text());
        let call = call.header(REQUEST, &request.to_string()).body(vec![payload; 10]);
        self.recorder.record(Event::Sent { request, key, payload, node, is_final });
        let answer = tokio::select! {
            biased;
            answer = call.send() => answer.ok(),
            () = SystemClock.sleep(patience) => None,
        };
        let response = answer.map(|answer| response(&answer));
        if let Some(told) = response.as_ref().filter(|told| told.code == UNKNOWN && !is_final) {
            self.unknown.lock().unwrap().push((key, told.reference.clone()));
        }
        self.recorder.record(Event::Received { request, response: response.clone() });
        response
    }

    /// Lets an operator decide on some of the keys whose outcome is unknown.
    pub(crate) async fn operate(&self, admins: &[SocketAddr]) {
        let mut dice = Dice::new(mix(self.seed, 999));
        let mut decided = HashSet::new();
        while !self.stop.load(Ordering::SeqCst) {
            SystemClock.sleep(dice.millis(50, 250)).await;
            let next = self.unknown.lock().unwrap().pop();
            let Some((key, reference)) = next.filter(|(key, _)| decided.insert(*key)) else {
                continue;
            };
            let node = usize::try_from(dice.roll(admins.len() as u64)).unwrap();
            let admin = Client::new(*admins.get(node).unwrap());
            let decision =
                if dice.roll(2) == 0 { OperatorDecision::Release } else { OperatorDecision::Fail };
            tokio::select! {
                () = self.decide(&admin, key, &reference, decision) => {}
                () = SystemClock.sleep(PATIENCE) => {}
            }
        }
    }

    /// Reads a key, and settles the attempt that it shows.
    async fn decide(&self, admin: &Client, key: Key, reference: &str, decision: OperatorDecision) {
        let path = format!("/v1/keys/{reference}");
        let Ok(life) = admin.post(&path).method("GET").send().await else { return };
        let life: serde_json::Value = serde_json::from_slice(&life.body).unwrap_or_default();
        let Some(attempt) = life.pointer("/key/attempt").and_then(|attempt| attempt.as_str())
        else {
            return;
        };
        let word = match decision {
            OperatorDecision::Release => "release",
            OperatorDecision::Fail => "fail",
        };
        let body = serde_json::json!({ "attempt": attempt, "reason": "a history" }).to_string();
        self.recorder.record(Event::Deciding { key, decision });
        let call = admin.post(&format!("{path}/{word}")).body(body);
        let answer = call.header("content-type", "application/json").send().await;
        if answer.is_ok_and(|answer| answer.status() == 200) {
            self.recorder.record(Event::Decided { key, decision });
        }
    }

    /// Reads every key until it has a definite response.
    ///
    /// Returns the longest time that a key took, for each policy.
    pub(crate) async fn read_all(&self) -> BTreeMap<Policy, Duration> {
        let keys = (self.first..self.keys()).map(|number| self.key(number));
        let reads = futures_util::stream::iter(keys).map(|key| async move {
            let from = SystemClock.monotonic();
            self.read(key).await;
            (key.policy, SystemClock.monotonic() - from)
        });
        let mut longest = BTreeMap::new();
        for (policy, took) in reads.buffer_unordered(FINAL_AT_ONCE).collect::<Vec<_>>().await {
            let longest: &mut Duration = longest.entry(policy).or_default();
            *longest = took.max(*longest);
        }
        longest
    }

    async fn read(&self, key: Key) {
        let abort = SystemClock.monotonic() + FINAL_MAX;
        let nodes = self.clients.len();
        let mut node = usize::try_from(key.number).unwrap() % nodes;
        let (mut payload, mut reads) = (b'a', 0);
        // One key in four is read through a second gateway, too.
        let enough = if key.number.is_multiple_of(4) { 2 } else { 1 };
        while reads < enough && SystemClock.monotonic() < abort {
            let response = self.request(key, payload, node, true, PATIENCE).await;
            let code = response.as_ref().map(|response| response.code.as_str());
            let definite = match code {
                Some("idempotency_payload_mismatch") => {
                    payload = if payload == b'a' { b'b' } else { b'a' };
                    continue;
                }
                Some(UNKNOWN) => true,
                Some("") => response.is_some_and(|answer| matches!(answer.status, 201 | 402)),
                _ => false,
            };
            if definite {
                (reads, node) = (reads + 1, (node + 1) % nodes);
            } else {
                SystemClock.sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn response(answer: &ClientResponse) -> Response {
    let is_problem = answer.header("content-type").starts_with("application/problem+json");
    Response {
        status: answer.status(),
        code: if is_problem { answer.code() } else { String::new() },
        run: answer.header(RUN).parse().ok(),
        body: answer.body.clone(),
        replayed: answer.is_replay(),
        reference: answer.header("idempotency-reference").to_owned(),
    }
}
