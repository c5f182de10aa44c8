//! The whole result as JSON.

use serde_json::{Value, json};

use super::{Machine, Ratio, Row, Section};

/// Returns the result, with the machine.
pub(super) fn text(sections: &[Section]) -> String {
    let Machine { processor, cores, kernel } = Machine::this();
    let cases: Vec<Value> = sections.iter().map(section).collect();
    let machine = json!({"processor": processor, "cores": cores, "kernel": kernel});
    let result = json!({"machine": machine, "cases": cases});
    format!("{result:#}\n")
}

fn section(section: &Section) -> Value {
    let programs: Vec<Value> = section.rows().iter().map(row).collect();
    let facts = section.facts.iter();
    let facts: Vec<Value> = facts
        .map(|fact| json!({"program": fact.program, "what": fact.what, "value": rounded(fact.value)}))
        .collect();
    json!({
        "case": section.case,
        "connections": section.connections,
        "rate": section.rate,
        "programs": programs,
        "facts": facts,
    })
}

fn row(row: &Row) -> Value {
    let of = &row.medians;
    let ratio = |of: Ratio| json!([of.median, of.low, of.high].map(rounded));
    json!({
        "program": row.program,
        "requests_per_second": rounded(of.throughput),
        "p50_ms": rounded(of.p50_ms),
        "p99_ms": rounded(of.p99_ms),
        "cpu_micros_per_request": rounded(of.cpu_micros),
        "system_calls_per_request": of.system_calls.map(rounded),
        "written_bytes_per_request": rounded(of.written_bytes),
        "peak_mib": rounded(of.peak_mib),
        "ratio_to_first": {
            "requests": ratio(row.throughput),
            "p50": ratio(row.p50),
            "p99": ratio(row.p99),
            "cpu": ratio(row.cpu),
        },
    })
}

/// Rounds to three digits behind the point: more would only be noise in the repository.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
