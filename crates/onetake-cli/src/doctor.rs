//! The report of `onetake doctor`, as text or as JSON.

use std::fmt::Write;
use std::time::Duration;

use onetake_stores::{Diagnosis, Finding, Weight};
use serde_json::{Value, json};

use crate::stores::Examined;

/// The clock difference above which the report warns.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// The format of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object for machines.
    Json,
}

/// The most severe weight of all findings.
#[must_use]
pub fn worst(all: &[Examined]) -> Weight {
    all.iter().map(|examined| examined.diagnosis.worst()).max().unwrap_or(Weight::Fine)
}

/// The whole report.
#[must_use]
pub fn report(all: &[Examined], format: Format) -> String {
    match format {
        Format::Text => {
            let parts: Vec<String> = all.iter().map(text).collect();
            format!("{}\n{}\n", parts.join("\n"), conclusion(worst(all)))
        }
        Format::Json => {
            let parts: Vec<Value> = all.iter().map(object).collect();
            format!("{}\n", json!({ "worst": word(worst(all)), "stores": parts }))
        }
    }
}

/// The report for a store that cannot be reached.
#[must_use]
pub fn unreachable(why: &str, format: Format) -> Option<String> {
    match format {
        // The caller prints the error to standard error.
        Format::Text => None,
        Format::Json => Some(format!("{}\n", json!({ "error": why }))),
    }
}

fn text(examined: &Examined) -> String {
    let Examined { role, url, diagnosis } = examined;
    let mut out = format!("{role:<11}{url}\nserver     {}\n", diagnosis.server);
    // Writing to a string cannot fail.
    let _infallible = writeln!(out, "round trip {}", millis(diagnosis.round_trip));
    if let Some(ahead) = diagnosis.clock_ahead_micros {
        let by = millis(Duration::from_micros(ahead.unsigned_abs()));
        let word = if ahead < 0 { "behind" } else { "ahead of" };
        let _infallible = writeln!(out, "clock      {by} {word} this machine's");
    }
    out.push('\n');
    for Finding { weight, what, fix, .. } in &findings(diagnosis) {
        let _infallible = writeln!(out, "{:<11}{what}", word(*weight));
        if !fix.is_empty() {
            let _infallible = writeln!(out, "{:<11}→ {fix}", "");
        }
    }
    out
}

fn object(examined: &Examined) -> Value {
    let Examined { role, url, diagnosis } = examined;
    let findings = findings(diagnosis);
    let findings = findings.iter().map(|Finding { weight, what, fix, .. }| {
        json!({ "weight": word(*weight), "what": what, "fix": fix })
    });
    json!({
        "role": role,
        "url": url,
        "server": diagnosis.server,
        "round_trip_micros": u64::try_from(diagnosis.round_trip.as_micros()).unwrap_or(u64::MAX),
        "clock_ahead_micros": diagnosis.clock_ahead_micros,
        "findings": findings.collect::<Vec<_>>(),
    })
}

/// The store's own findings, and a warning if the clocks differ. The difference breaks nothing,
/// because only the store's clock decides. But log times of the two machines cannot be compared.
fn findings(diagnosis: &Diagnosis) -> Vec<Finding> {
    let mut findings = diagnosis.findings.clone();
    let apart =
        diagnosis.clock_ahead_micros.map(|ahead| Duration::from_micros(ahead.unsigned_abs()));
    if apart.is_some_and(|apart| apart > CLOCKS_APART) {
        let what = "the clocks of the store and of this machine differ; onetake uses the clock of the store";
        findings.push(Finding::weak(what, "synchronize both with NTP"));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
    }
    findings
}

fn word(weight: Weight) -> &'static str {
    match weight {
        Weight::Fine => "fine",
        Weight::Weak => "weak",
        Weight::Broken => "broken",
    }
}

fn conclusion(worst: Weight) -> &'static str {
    match worst {
        Weight::Fine => "No problems were found.",
        Weight::Weak => "No setting is broken. Some are weak: see above.",
        Weight::Broken => "Operations could be lost or repeated: see the broken settings above.",
    }
}

fn millis(duration: Duration) -> String {
    format!("{:.3} ms", duration.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined() -> Vec<Examined> {
        let findings = vec![
            Finding::fine("fsync is on"),
            Finding::broken("synchronous_commit is off", "set it to on"),
        ];
        let round_trip = Duration::from_micros(420);
        let diagnosis = Diagnosis::new("PostgreSQL 15.4", round_trip, Some(-6_000_000), findings);
        vec![Examined { role: "store", url: "postgres://me:***@db/x".to_owned(), diagnosis }]
    }

    #[test]
    fn people_read_the_gravest_first_with_what_to_do() {
        assert_eq!(
            report(&examined(), Format::Text),
            "store      postgres://me:***@db/x\nserver     PostgreSQL 15.4\nround trip 0.420 \
             ms\nclock      6000.000 ms behind this machine's\n\nbroken     synchronous_commit is \
             off\n           → set it to on\nweak       the clocks of the store and of this \
             machine differ; onetake uses the clock of the store\n           → synchronize both with \
             NTP\nfine       fsync is on\n\nOperations could be lost or repeated: see the broken \
             settings above.\n"
        );
    }

    #[test]
    fn machines_get_one_object() {
        let said: Value = serde_json::from_str(&report(&examined(), Format::Json)).unwrap();
        assert_eq!(said["worst"], "broken");
        let store = &said["stores"][0];
        assert_eq!(store["role"], "store");
        assert_eq!(store["round_trip_micros"], 420);
        assert_eq!(store["clock_ahead_micros"], -6_000_000);
        assert_eq!(store["findings"][0]["fix"], "set it to on");
        assert_eq!(store["findings"].as_array().unwrap().len(), 3);
        let said = unreachable("it is away", Format::Json).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["error"], "it is away");
    }
}
