//! The result of a case as a table.

use super::{Fact, Ratio, Row, Section};

/// Prints a section.
pub(super) fn print(section: &Section) {
    let connections = match section.connections {
        0 => String::new(),
        connections => format!(", {connections} connections"),
    };
    let rate =
        section.rate.map_or_else(String::new, |rate| format!(", {rate:.0} requests/s asked"));
    println!("\n{}{connections}{rate}", section.case);
    if !section.rounds.is_empty() {
        println!(
            "  {:<12} {:>9} {:>8} {:>8} {:>8} {:>7} {:>8} {:>6}   ratios to the first (lowest to highest)",
            "", "requests", "p50 ms", "p99 ms", "CPU µs", "calls", "bytes", "MiB"
        );
    }
    section.rows().iter().for_each(print_row);
    section.facts.iter().for_each(print_fact);
}

fn print_row(row: &Row) {
    let of = &row.medians;
    let calls = of.system_calls.map_or_else(|| "-".to_owned(), |calls| format!("{calls:.2}"));
    let show =
        |ratio: Ratio| format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high);
    println!(
        "  {:<12} {:>7.0}/s {:>8.3} {:>8.3} {:>8.1} {calls:>7} {:>8.0} {:>6.0}   \
         requests {}, p50 {}, p99 {}, CPU {}",
        row.program,
        of.throughput,
        of.p50_ms,
        of.p99_ms,
        of.cpu_micros,
        of.written_bytes,
        of.peak_mib,
        show(row.throughput),
        show(row.p50),
        show(row.p99),
        show(row.cpu),
    );
}

fn print_fact(fact: &Fact) {
    println!("  {:<12} {:>12.2} {}", fact.program, fact.value, fact.what);
}
