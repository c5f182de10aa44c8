//! The time and the memory for the fingerprint of one body, byte by byte and as JSON.
//!
//! The first argument is the size of the body in MiB. The memory is what a process of its own takes
//! beyond the body.
#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;

use bytes::Bytes;
use onetake_core::{Clock, Fingerprint, SystemClock};
use onetake_http::json::{Limits, Selection, canonical};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of fingerprints that are timed.
const ROUNDS: u32 = 20;

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let size = numbers.next().unwrap_or(1) << 20;
    let rounds = if is_bench { ROUNDS } else { 1 };
    println!("a body of {} MiB, {rounds} rounds", size >> 20);
    for (name, body) in bodies(size) {
        let bytes = cost(rounds, || Fingerprint::of(&body));
        let json = cost(rounds, || {
            let canonical = canonical(body.clone(), &Selection::Whole, Limits::default()).unwrap();
            Fingerprint::of(&canonical)
        });
        println!("{name:>14}: bytes {bytes}; JSON {json}");
    }
}

/// Bodies of one size: an order with many lines, the same with sorted members, texts, and the body
/// that takes the most memory.
fn bodies(size: usize) -> Vec<(&'static str, Bytes)> {
    let list = |part: &dyn Fn(usize) -> String| {
        let mut text = String::from("[");
        for number in 0.. {
            text.push_str(&part(number));
            if text.len() >= size {
                break;
            }
            text.push(',');
        }
        Bytes::from(text + "]")
    };
    let order = |n: usize| {
        format!(
            r#"{{"sku":"item-{n}","quantity":{},"price":{}.50,"gift":false,"address":{{"zip":"10115","city":"Berlin"}}}}"#,
            n % 9 + 1,
            n % 1000
        )
    };
    let sorted = |n: usize| format!(r#"{{"amount":{n},"currency":"EUR","reference":"item-{n}"}}"#);
    let text = |n: usize| format!(r#""{} {n} {}""#, "words ".repeat(20), "\\u00e9\\n");
    vec![
        ("orders", list(&order)),
        ("sorted members", list(&sorted)),
        ("texts", list(&text)),
        ("digits", list(&|_| "0".to_owned())),
    ]
}

/// The time of a call, and the memory that it takes at its peak.
fn cost<T>(rounds: u32, mut work: impl FnMut() -> T) -> String {
    // The peak begins again at what the process has now.
    let _unsupported = std::fs::write("/proc/self/clear_refs", "5");
    let before = status("VmRSS:");
    black_box(work());
    let peak = status("VmHWM:").saturating_sub(before);
    let clock = SystemClock;
    let from = clock.monotonic();
    for _ in 0..rounds {
        black_box(work());
    }
    let each = (clock.monotonic() - from) / rounds;
    format!("{:.2} ms, {:.1} MiB", each.as_secs_f64() * 1e3, peak as f64 / f64::from(1 << 20))
}

/// A line of this process's status, in bytes.
fn status(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or_default() << 10
}
