//! Plays scenarios, and compares what happened with what is expected.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Method;
use onetake_client::{
    BoxError, Budget, Clock as _, EndReason, Error, Limits, Onetake, Problem, SystemClock,
};
use serde_json::{Map, Value, json};

use crate::virtual_clock::{ListedRng, VirtualClock};
use crate::{Answered, LIBRARIES, Library, control};

/// Plays the scenarios of a file, or those that are named. Returns true if all are green.
pub(crate) async fn play_all(server: &str, file: &str, names: &[String]) -> Result<bool, BoxError> {
    let document: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let scenarios = document.get("scenarios").and_then(Value::as_array);
    let mut all_green = true;
    for library in LIBRARIES {
        for scenario in scenarios.ok_or("the file has no scenarios")? {
            let name = scenario.get("name").and_then(Value::as_str).ok_or("no name")?;
            let settings = Settings::new(&document, scenario);
            // The queue is for programs of users; this client has none.
            let is_through_queue = settings.get("through") == Some(&json!("queue"));
            if is_through_queue || !(names.is_empty() || names.iter().any(|one| one == name)) {
                continue;
            }
            let why = play(server, library, scenario, name, &settings).await;
            let why = why.unwrap_or_else(|error| vec![error.to_string()]);
            all_green &= why.is_empty();
            let ok = why.is_empty();
            println!(
                "{}",
                json!({"client": library.name(), "scenario": name, "ok": ok, "why": why})
            );
        }
    }
    Ok(all_green)
}

/// The settings of a scenario: those of `client`, and else those of `defaults`.
struct Settings(Map<String, Value>);

impl Settings {
    fn new(document: &Value, scenario: &Value) -> Self {
        let members = |of: Option<&Value>| of.and_then(Value::as_object).cloned();
        let mut all = members(document.get("defaults")).unwrap_or_default();
        all.extend(members(scenario.get("client")).unwrap_or_default());
        Self(all)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    fn number(&self, name: &str) -> Result<u64, BoxError> {
        let number = self.get(name).and_then(Value::as_u64);
        number.ok_or_else(|| format!("`{name}` is no number").into())
    }

    fn client(&self, clock: &VirtualClock) -> Result<Onetake, BoxError> {
        let millis = |name| self.number(name).map(Duration::from_millis);
        let budget = self.get("budget").ok_or("no budget")?;
        let token = |name| budget.get(name).and_then(Value::as_f64);
        let reserve = token("reserve").ok_or("no reserve")?;
        let numbers = self.get("random").and_then(Value::as_array).into_iter().flatten();
        Ok(Onetake::builder()
            .limits(Limits {
                deadline: millis("deadline_ms")?,
                attempt_timeout: millis("attempt_timeout_ms")?,
                attempts_max: u32::try_from(self.number("attempts_max")?)?,
                backoff_base: millis("backoff_base_ms")?,
                backoff_max: millis("backoff_max_ms")?,
            })
            .budget(
                Budget::new(reserve, token("ratio").ok_or("no ratio")?)
                    .with_initial(token("initial").unwrap_or(reserve)),
            )
            .refusals_are_errors()
            .clock(clock.clone())
            .rng(ListedRng {
                numbers: numbers.filter_map(Value::as_f64).collect(),
                drawn: AtomicUsize::new(0),
            })
            .build())
    }

    fn wall_clock(&self) -> Result<SystemTime, BoxError> {
        match self.text("wall_clock") {
            None => Ok(SystemClock.now()),
            // The one date of the file.
            Some("2026-01-01T00:00:00Z") => Ok(UNIX_EPOCH + Duration::from_secs(1_767_225_600)),
            Some(other) => Err(format!("unknown date {other}").into()),
        }
    }
}

/// Plays one scenario. Returns what is not as expected.
async fn play(
    server: &str,
    library: Library,
    scenario: &Value,
    name: &str,
    settings: &Settings,
) -> Result<Vec<String>, BoxError> {
    let started = control(Method::POST, &format!("{server}/-/runs/{name}")).await?;
    let path = started.get("path").and_then(Value::as_str).ok_or("no path")?;
    let run = started.get("run").and_then(Value::as_u64).ok_or("no run")?;
    let clock = VirtualClock::new(settings.wall_clock()?);
    let onetake = settings.client(&clock)?;
    let url = format!("{server}{path}/charges");
    let mut results = Vec::new();
    for _ in 0..settings.number("calls")? {
        let body = r#"{"amount":10}"#.to_owned();
        results.push(seen(library.post(&onetake, &url, body, settings.text("key")).await));
    }
    let report = control(Method::GET, &format!("{server}/-/runs/{run}")).await?;
    let requests = report.get("requests").and_then(Value::as_array).ok_or("no requests")?;
    let expect = scenario.get("expect").and_then(Value::as_object).ok_or("no expectation")?;
    let column = |name: &str| -> Vec<Value> {
        requests.iter().map(|request| request.get(name).cloned().unwrap_or_default()).collect()
    };
    let mut why = Vec::new();
    for (what, expected) in expect {
        let actual = match what.as_str() {
            "requests" => json!(requests.len()),
            "keys" => json!(named(column("key"))),
            "methods" => json!(column("method")),
            "timeouts_ms" => json!(column("timeout_ms")),
            "delays_ms" => json!(clock.delays_ms()),
            "results" => listed_only(&results, expected),
            other => return Err(format!("unknown expectation {other}").into()),
        };
        if !is_same(expected, &actual) {
            why.push(format!("{what}: expected {expected}, got {actual}"));
        }
    }
    Ok(why)
}

/// The result of a call, as the caller sees it.
fn seen(ended: Result<Answered, Error>) -> Value {
    let failure = match &ended {
        Ok(Answered { status, report }) => {
            let report = report.as_ref();
            return json!({
                "kind": "ok", "status": status, "replayed": report.map(|report| report.is_replayed),
                "reference": report.and_then(|report| report.reference.as_deref()),
                "attempts": report.map(|report| report.attempts),
            });
        }
        Err(error) => match error.failure() {
            Some(failure) => failure,
            None => return json!({ "kind": error.to_string() }),
        },
    };
    json!({
        "kind": failure.kind.name(), "attempts": failure.attempts, "replayed": failure.is_replayed,
        "status": failure.response.as_ref().map(|response| response.status().as_u16()),
        "code": failure.problem.as_ref().map(Problem::code), "reference": failure.reference,
        "reason": failure.reason.as_ref().map(EndReason::to_string),
    })
}

/// Keeps the members of each result that are expected.
fn listed_only(results: &[Value], expected: &Value) -> Value {
    let expected = expected.as_array().into_iter().flatten().map(Some);
    let expected = expected.chain(std::iter::repeat(None));
    let only = results.iter().zip(expected).map(|(result, expected)| {
        let members = expected.and_then(Value::as_object).into_iter().flatten();
        members
            .map(|(name, _)| (name.clone(), result.get(name).cloned().unwrap_or_default()))
            .collect::<Map<_, _>>()
    });
    only.collect::<Vec<_>>().into()
}

/// Replaces each key that the client made by a letter.
fn named(keys: Vec<Value>) -> Vec<Value> {
    let mut letters: BTreeMap<String, char> = BTreeMap::new();
    let mut next = 'a'..;
    let letter = |key: Value| match key.as_str() {
        Some(text) if text.len() == 36 => {
            let letter =
                letters.entry(text.to_owned()).or_insert_with(|| next.next().unwrap_or('?'));
            json!(letter)
        }
        _ => key,
    };
    keys.into_iter().map(letter).collect()
}

/// Compares values. Whole numbers are the same with and without a fraction.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, a)| right.get(name).is_some_and(|b| is_same(a, b)))
        }
        _ => left == right,
    }
}
