//! Policy × state × request: the promised answer for every combination.
//!
//! The program `layer` runs it on the stores that need no server, and `postgres` on PostgreSQL.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests may panic")]

mod cases;
mod expected;
mod world;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use onetake_core::{Clock, Store, SystemClock};
use onetake_http::{Dialect, OPERATIONS};

use cases::{Case, left_out, product};
use expected::{Expected, Location, expected, waits};
use world::{Answered, World};

/// The number of concurrent cases. Stores write concurrent items in one batch.
const AT_ONCE: usize = 128;
/// The time after which a case counts as stuck. The manual clock stands still, so a wrong wait
/// would never end.
const STUCK: Duration = Duration::from_secs(20);
/// The number of combinations. A change of it changes the tested promise.
const COMBINATIONS: usize = 21_600;
const LEFT_OUT: usize = 9_936;

/// Compares the answer with the promise, and returns the differences.
fn differences(case: &Case, expected: &Expected, answered: &Answered) -> Vec<String> {
    let has = |name: &str| answered.headers.contains_key(name);
    let text = |name: &str| answered.headers.get(name).map_or("", |value| value.to_str().unwrap());
    let problem = match case.choice.dialect {
        Dialect::Problem => &answered.body,
        Dialect::Stripe => &answered.body["error"],
        other => panic!("{other:?}"),
    };
    let location = match text("location") {
        "" => Location::Nowhere,
        to if to.starts_with(OPERATIONS) => Location::Handle,
        _ => Location::Made,
    };
    let marks = ["x-idempotency-replayed", "idempotent-replayed", "x-cache-lookup"].map(has);
    let link = expected
        .code
        .map_or(String::new(), |code| format!("</.onetake/problems#{code}>; rel=\"describedby\""));
    let is_refused = expected.code.is_some();
    let content_type = match case.choice.dialect {
        Dialect::Problem => "application/problem+json",
        Dialect::Stripe => "application/json",
        other => panic!("{other:?}"),
    };
    let should_retry = match case.choice.dialect {
        Dialect::Stripe if is_refused && expected.retry_after => "true",
        Dialect::Stripe if is_refused => "false",
        _ => "",
    };
    let instance = problem["instance"].as_str().unwrap_or_default();
    let expected_instance = match (is_refused, text("idempotency-reference")) {
        (false, _) => String::new(),
        (true, "") => "urn:onetake:request:".to_owned(),
        (true, reference) => format!("urn:onetake:reference:{reference}"),
    };
    let recorded = (expected.code == Some("response_not_replayable")).then_some(201);
    let checks = [
        ("status", answered.status == expected.status),
        ("code", problem["code"].as_str() == expected.code),
        ("runs", answered.runs == expected.runs),
        ("retry-after", has("retry-after") == expected.retry_after),
        ("replay marks", marks == [expected.replayed; 3]),
        ("idempotency-reference", !expected.reference || text("idempotency-reference").len() == 14),
        ("location", location == expected.location),
        ("link", text("link") == link),
        ("content-type", !is_refused || text("content-type") == content_type),
        ("stripe-should-retry", text("stripe-should-retry") == should_retry),
        ("recorded_status", problem["recorded_status"].as_u64() == recorded),
        ("instance", instance.starts_with(&expected_instance) && instance.is_empty() != is_refused),
        ("retryable", problem["retryable"].is_boolean() == is_refused),
        ("ratelimit", has("ratelimit") == (expected.status == 429)),
    ];
    let wrong = checks.iter().filter(|(_, is_right)| !is_right);
    wrong.map(|(what, _)| (*what).to_owned()).collect()
}

async fn compare(world: &World, case: &Case, number: usize, name: &str) -> Option<String> {
    let expected = expected(case);
    let answered = world.ask(case, number, name).await;
    let wrong = differences(case, &expected, &answered);
    let Answered { status, headers, body, runs } = answered;
    (!wrong.is_empty()).then(|| {
        format!("{wrong:?} of {case:?}\n  expected {expected:?}\n  was {status}, {runs} runs, {headers:?}, {body}\n")
    })
}

/// Checks every combination, each with its own keys.
pub(crate) async fn holds_on(store: Arc<dyn Store>) {
    let world = &World::new(store);
    let cases = product();
    let all = cases.len();
    let cases: Vec<_> =
        cases.into_iter().enumerate().filter(|(_, case)| left_out(case).is_none()).collect();
    assert_eq!((all, all - cases.len()), (COMBINATIONS, LEFT_OUT));
    let (waiting, prompt): (Vec<_>, Vec<_>) = cases.into_iter().partition(|(_, case)| waits(case));
    // First the cases without a wait, while the clock stands still.
    let prompt = stream::iter(prompt).map(|(number, case)| async move {
        let name = world.prepare(&case, number).await;
        tokio::select! {
            wrong = compare(world, &case, number, &name) => wrong,
            () = SystemClock.sleep(STUCK) => panic!("{case:?} waits, and should not"),
        }
    });
    let mut wrong: Vec<_> =
        prompt.buffer_unordered(AT_ONCE).filter_map(async |w| w).collect().await;
    // Then all cases that wait, together, while the clock moves.
    let prepared = stream::iter(waiting)
        .map(|(number, case)| async move { (number, case, world.prepare(&case, number).await) });
    let prepared: Vec<_> = prepared.buffer_unordered(AT_ONCE).collect().await;
    let answers = prepared.iter().map(|(number, case, name)| compare(world, case, *number, name));
    let time_passes = async {
        loop {
            SystemClock.sleep(Duration::from_millis(1)).await;
            world.clock.advance(Duration::from_millis(100));
        }
    };
    tokio::select! {
        answers = join_all(answers) => wrong.extend(answers.into_iter().flatten()),
        () = time_passes => {}
    }
    let some: String = wrong.iter().take(10).cloned().collect();
    assert!(wrong.is_empty(), "{} of {all} combinations are wrong, such as:\n{some}", wrong.len());
}
