//! Property tests: spellings of one request are always replayed, and another request never is. The
//! generator of the requests knows which of them are equal.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use http::Request;
use onetake_http::json::Selection;
use onetake_http::{FingerprintMode, Policy};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngSeed, TestCaseError, TestCaseResult, TestRunner};
use tokio::runtime::{Builder, Runtime};

use super::json_model::{Json, json};
use super::request_model::{CHOSEN, json_letter, plain_letter};
use super::seeded_random::Dice;
use super::{Node, Told, mismatch, pointers};

/// The number of requests of each kind, each with all its variants.
const CASES: u32 = 400;

/// The number of further spellings of a request.
const SPELLINGS: usize = 3;

/// A route, with a fresh key for each generated request.
struct Bench {
    runtime: Runtime,
    node: Node,
    keys: AtomicUsize,
}

impl Bench {
    fn new(mode: FingerprintMode) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let policy = Policy::new().fingerprint(mode).fingerprint_headers(CHOSEN);
        let node = runtime.block_on(async { Node::new(policy) });
        Self { runtime, node, keys: AtomicUsize::new(0) }
    }

    fn key(&self) -> String {
        format!("made-up-request-{:06}", self.keys.fetch_add(1, Ordering::SeqCst))
    }

    fn expect(&self, expected: &Told, request: Request<Body>) -> TestCaseResult {
        let shown = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
        let told = self.runtime.block_on(self.node.send(request));
        prop_assert_eq!(&told, expected, "{}", shown);
        Ok(())
    }

    /// Sends the request, which runs; spellings of it, which are replayed; other requests, which
    /// are refused; and one more spelling, which is replayed.
    fn compare(
        &self,
        mut same: impl FnMut() -> Request<Body>,
        others: impl IntoIterator<Item = Request<Body>>,
    ) -> TestCaseResult {
        self.expect(&Told::Ran, same())?;
        for _ in 0..SPELLINGS {
            self.expect(&Told::Replayed, same())?;
        }
        for other in others {
            self.expect(&mismatch(), other)?;
        }
        self.expect(&Told::Replayed, same())
    }
}

/// Runs the test with generated values, which are the same in each run.
fn check<S: Strategy>(strategy: S, test: impl Fn(S::Value, &mut Dice) -> TestCaseResult) {
    let config = ProptestConfig {
        cases: CASES,
        max_global_rejects: 10 * CASES,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(4),
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config)
        .run(&(strategy, any::<u64>()), |(value, seed)| test(value, &mut Dice(seed)));
    assert!(result.is_ok(), "{}", result.unwrap_err());
}

fn post(key: &str, content_type: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/charges").header("content-type", content_type);
    request.header("idempotency-key", key).body(body.into()).unwrap()
}

#[test]
fn equal_values_always_and_unequal_values_never_share_a_fingerprint() {
    let bench = Bench::new(super::json(Selection::Whole));
    check((json(), json()), |(one, far), dice| {
        let key = bench.key();
        let mut others: Vec<Json> = (0..SPELLINGS).map(|_| one.twist(dice)).collect();
        others.extend((far != one).then_some(far));
        let others: Vec<_> = others
            .iter()
            .map(|other| {
                assert_ne!(*other, one, "the test itself is wrong");
                post(&key, "application/json", other.spell(dice))
            })
            .collect();
        bench.compare(|| post(&key, "application/json", one.spell(dice)), others)
    });
}

#[test]
fn whole_requests_with_json_are_told_apart_by_all_that_they_ask() {
    let bench = Bench::new(super::json(Selection::Whole));
    check(json_letter(), |letter, dice| {
        let key = bench.key();
        let others: Vec<_> =
            (0..2 * SPELLINGS).map(|_| letter.twist(dice).spell(&key, dice)).collect();
        bench.compare(|| letter.spell(&key, dice), others)
    });
}

#[test]
fn whole_requests_with_bytes_are_told_apart_by_all_that_they_ask() {
    let bench = Bench::new(FingerprintMode::Bytes);
    check(plain_letter(), |letter, dice| {
        let key = bench.key();
        let others: Vec<_> =
            (0..2 * SPELLINGS).map(|_| letter.twist(dice).spell(&key, dice)).collect();
        bench.compare(|| letter.spell(&key, dice), others)
    });
}

/// The places that a selection includes or excludes.
const PLACES: [&str; 4] = ["/trace", "/meta/sent~1at", "/lines/1", "/deep/0/~0"];

/// A body in which each part can be absent: the values at `PLACES`, and the values around them.
#[derive(Clone, Debug, PartialEq)]
struct Order {
    places: [Option<Json>; 4],
    around: [Option<Json>; 3],
}

impl Order {
    fn json(&self) -> Json {
        let object = |members: &[(&str, Option<&Json>)]| {
            let members = members.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
            Json::Object(members.map(|(name, value)| (name.to_owned(), value.clone())).collect())
        };
        let [trace, sent_at, line, tilde] = self.places.each_ref().map(Option::as_ref);
        let [amount, author, first] = self.around.each_ref().map(Option::as_ref);
        // An element of a list is absent only together with the whole list, because a list has no
        // gaps.
        let lines = line.map(|line| {
            let first = first.cloned().unwrap_or(Json::Null);
            Json::List(vec![first, line.clone(), Json::Bool(true)])
        });
        object(&[
            ("trace", trace),
            ("meta", Some(&object(&[("sent/at", sent_at), ("author", author)]))),
            ("lines", lines.as_ref()),
            ("deep", Some(&Json::List(vec![object(&[("~", tilde)])]))),
            ("amount", amount),
        ])
    }
}

fn order() -> impl Strategy<Value = Order> {
    let line = json().prop_map(Some);
    let places = (option::of(json()), option::of(json()), line, option::of(json()));
    let places = places.prop_map(|(trace, sent_at, line, tilde)| [trace, sent_at, line, tilde]);
    let around = (option::of(json()), option::of(json()), json().prop_map(Some));
    (places, around.prop_map(|(amount, author, first)| [amount, author, first]))
        .prop_map(|(places, around)| Order { places, around })
}

/// Changes one part, adds one that was absent, or removes one unless it is `kept`.
fn twist_part(parts: &mut [Option<Json>], kept: usize, dice: &mut Dice) {
    let at = dice.roll(parts.len());
    parts[at] = match parts[at].take() {
        None => Some(Json::Null),
        Some(_) if at != kept && dice.roll(3) == 0 => None,
        Some(part) => Some(part.twist(dice)),
    };
}

fn twisted(order: &Order, inside: bool, dice: &mut Dice) -> Order {
    let mut other = order.clone();
    match inside {
        true => twist_part(&mut other.places, 2, dice),
        false => twist_part(&mut other.around, 2, dice),
    }
    other
}

/// Checks that a change of parts that do not count is replayed, and that a change of other parts is
/// refused.
fn parts_count(selection: Selection, places_count: bool) {
    let bench = Bench::new(super::json(selection));
    check(order(), |order, dice| {
        let key = bench.key();
        let send = |order: &Order, dice: &mut Dice| {
            post(&key, "application/json", order.json().spell(dice))
        };
        let others: Vec<_> =
            (0..SPELLINGS).map(|_| send(&twisted(&order, places_count, dice), dice)).collect();
        let mut same = order.clone();
        bench.compare(
            || {
                same = twisted(&same, !places_count, dice);
                send(&same, dice)
            },
            others,
        )
    });
}

#[test]
fn what_is_excluded_does_not_count_and_everything_else_does() {
    parts_count(Selection::Exclude(pointers(&PLACES)), false);
}

#[test]
fn what_is_included_counts_and_nothing_else_does() {
    parts_count(Selection::Include(pointers(&PLACES)), true);
}

/// Returns a multipart form with these parts and this boundary.
fn form(boundary: &str, parts: &[(String, String)]) -> String {
    let mut body = String::new();
    for (name, value) in parts {
        let head = format!("content-disposition: form-data; name=\"{name}\"");
        body += &format!("--{boundary}\r\n{head}\r\n\r\n{value}\r\n");
    }
    body + &format!("--{boundary}--\r\n")
}

#[test]
fn forms_are_told_apart_by_their_parts_and_not_by_their_boundary() {
    // Boundaries that are prefixes of one another, and values that look like them.
    const BOUNDARIES: &[&str] =
        &["A", "AA", "--A", "B", "-", "a b;c=d", "----WebKitFormBoundary7MA4YWxk"];
    let value = "([ab]|A|B|--A|--AA|-|\r\n){0,6}";
    let parts = vec(("[ab]", value), 0..4);
    let bench = Bench::new(FingerprintMode::Bytes);
    let send = |key: &str, boundary: &str, body: String| {
        post(key, &format!("multipart/form-data; boundary=\"{boundary}\""), body)
    };
    check((parts, select(BOUNDARIES), select(BOUNDARIES)), |(parts, one, two), dice| {
        let text: String =
            parts.iter().flat_map(|(name, value)| [&name[..], "\r\n", value]).collect();
        // A client chooses a boundary that does not occur in the content.
        let is_good = |boundary: &str| !text.contains(&format!("--{boundary}")[..]);
        if !is_good(one) || !is_good(two) {
            return Err(TestCaseError::reject("the boundary stands in the content"));
        }
        let key = bench.key();
        let mut others = Vec::new();
        let mut changed: BTreeMap<usize, (String, String)> =
            parts.iter().cloned().enumerate().collect();
        match changed.first_entry() {
            Some(mut part) if dice.flip() => part.get_mut().1.push('a'),
            Some(part) => drop(part.remove()),
            None => drop(changed.insert(0, ("a".into(), String::new()))),
        }
        let changed: Vec<_> = changed.into_values().collect();
        others.push(send(&key, two, form(two, &changed)));
        // One part fewer, with its text in the part before it.
        let merged = form(two, &parts).replacen(&format!("--{two}"), "", 1);
        others.push(send(&key, two, merged));
        // The same bytes with another boundary in the header.
        others.extend((one != two).then(|| send(&key, two, form(one, &parts))));
        let mut boundary = [one, two].into_iter().cycle();
        bench.compare(
            || {
                let boundary = boundary.next().unwrap();
                send(&key, boundary, form(boundary, &parts))
            },
            others,
        )
    });
}
