//! Kill cycles: an embedded store under load is killed again and again, with one folder for all
//! cycles.
//!
//! Each cycle is a process. It opens the folder, checks the answers that earlier processes got, and
//! takes requests until it is killed at a random moment: now and then before it has opened the
//! folder.
//!
//! `ONETAKE_POWER_CYCLES` sets the number of cycles, `ONETAKE_POWER_SEED` the seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{Claimed, Clock, Settled, Store, SystemClock};
use onetake_stores::EmbeddedStore;

use crate::check::is_allowed;
use crate::expected::{KeyState, Known};
use crate::figures::{is_long, scratch};
use crate::random::Random;
use crate::script::{Ending, Run, Subject};
use crate::subject::LEAST_MEMORY;

/// Keys of one cycle.
const KEYS: u32 = 2_000;
/// Requests at a time.
const LANES: u32 = 8;

type Keys = BTreeMap<u32, KeyState>;

/// The ending of a key's attempt; `None` if it is left running.
fn ending(key: u32) -> Option<Ending> {
    match key % 10 {
        0 => None,
        1 => Some(Ending::Fail),
        2 => Some(Ending::Release),
        3 => Some(Ending::Unknown),
        4 => Some(Ending::Complete(4_000)),
        _ => Some(Ending::Complete(300)),
    }
}

/// The attempt of a key. None of these keys is short-lived.
fn run_of(key: u32) -> Run {
    Run { key: key * 5, attempt: 1 }
}

/// The word for a state in a file of expectations.
fn word(known: Option<Known>) -> &'static str {
    match known {
        None => "-",
        Some(Known::Absent) => "absent",
        Some(Known::Running(_)) => "running",
        Some(Known::Settled(..)) => "settled",
    }
}

fn from_word(key: u32, word: &str) -> Option<Known> {
    match word {
        "absent" => Some(Known::Absent),
        "running" => Some(Known::Running(run_of(key))),
        "settled" => ending(key).map(|ending| Known::Settled(run_of(key), ending)),
        _ => None,
    }
}

/// The process of one cycle. It is not a test: without its variable it does nothing.
#[test]
fn cycle_process() {
    let variable = |name: &str| std::env::var(format!("ONETAKE_POWER_{name}"));
    let Ok(cycle) = variable("CYCLE") else { return };
    let cycle: u32 = cycle.parse().unwrap();
    let root = PathBuf::from(variable("ROOT").unwrap());
    let checks = fs::read_to_string(variable("CHECKS").unwrap()).unwrap();
    // Output of the test harness ends here, so that reports begin on their own line.
    say("");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store =
            match EmbeddedStore::open_as(root.join("data"), LEAST_MEMORY, Arc::new(SystemClock)) {
                Ok(store) => store,
                Err(error) => return say(&format!("wrong: it does not open: {error}")),
            };
        verify(&store, &checks).await;
        say("ready");
        let lanes = (0..LANES).map(|lane| load(&store, cycle, lane));
        join_all(lanes).await;
        say("over");
        store.close().await.unwrap();
    });
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

async fn verify(store: &EmbeddedStore, checks: &str) {
    for line in checks.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let key: u32 = words[0].parse().unwrap();
        let sure = from_word(key, words[1]).unwrap();
        let state = KeyState { sure, maybe: from_word(key, words[2]), fence: 0 };
        let found = store.load(vec![run_of(key).id()]).await.remove(0);
        match found {
            Ok(found) if is_allowed(found.as_deref(), &state, Subject::Embedded) => {}
            found => say(&format!("wrong: {state:?}, found {:?}", found.map(|it| it.is_some()))),
        }
    }
}

async fn load(store: &EmbeddedStore, cycle: u32, lane: u32) {
    for key in (lane..KEYS).step_by(LANES as usize).map(|number| cycle * KEYS + number) {
        let run = run_of(key);
        say(&format!("ask {key} running"));
        match store.claim(vec![run.claim()]).await.remove(0).unwrap() {
            Claimed::Granted { .. } => say(&format!("ok {key} running")),
            Claimed::Found { .. } => say(&format!("wrong: {key} was never claimed")),
        }
        let Some(ending) = ending(key) else { continue };
        say(&format!("ask {key} settled"));
        match store.settle(vec![run.settlement(ending)]).await.remove(0).unwrap() {
            Settled::Done { .. } => say(&format!("ok {key} settled")),
            Settled::Stale { .. } => say(&format!("wrong: {key} was settled")),
        }
    }
}

/// The reports of one process before it was killed.
struct Killed {
    was_ready: bool,
    acknowledged: usize,
    wrong: Vec<String>,
}

/// Runs one cycle and kills it: after a random number of answers, or a moment after its start.
fn cycle(number: u32, root: &Path, checks: &Path, keys: &mut Keys, random: &mut Random) -> Killed {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["cycles::cycle_process", "--exact", "--nocapture", "--test-threads=1"])
        .env("ONETAKE_POWER_CYCLE", number.to_string())
        .env("ONETAKE_POWER_ROOT", root)
        .env("ONETAKE_POWER_CHECKS", checks)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut killed = Killed { was_ready: false, acknowledged: 0, wrong: Vec::new() };
    let is_early = random.below(10) == 0;
    if is_early {
        std::thread::sleep(Duration::from_micros(random.below(60_000) as u64));
        process.kill().unwrap();
    }
    let mut left = random.below(400);
    for line in said.by_ref().map_while(Result::ok) {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match words[..] {
            ["ready"] => killed.was_ready = true,
            [asked @ ("ask" | "ok"), key, what] => {
                let key: u32 = key.parse().unwrap();
                let absent = KeyState { sure: Known::Absent, maybe: None, fence: 0 };
                let state = keys.entry(key).or_insert(absent);
                state.maybe = from_word(key, what);
                if asked == "ok" {
                    state.sure = state.maybe.take().unwrap();
                    killed.acknowledged += 1;
                }
            }
            ["wrong:", ..] => killed.wrong.push(line),
            _ => continue,
        }
        // All reports from before the kill are read.
        left = left.saturating_sub(1);
        if killed.was_ready && left == 0 && !is_early {
            process.kill().unwrap();
            left = usize::MAX;
        }
    }
    process.wait().unwrap();
    killed
}

fn write_checks<'a>(checks: &Path, keys: impl Iterator<Item = (&'a u32, &'a KeyState)>) -> usize {
    let (mut text, mut count) = (String::new(), 0);
    for (key, state) in keys {
        writeln!(text, "{key} {} {}", word(Some(state.sure)), word(state.maybe)).unwrap();
        count += 1;
    }
    fs::write(checks, text).unwrap();
    count
}

#[test]
fn embedded_survives_kill_cycles() {
    let variable = |name: &str| std::env::var(format!("ONETAKE_POWER_{name}"));
    let number = |name: &str| variable(name).ok().map(|text| text.parse::<u32>().unwrap());
    let cycles = number("CYCLES").unwrap_or(if is_long() { 2_000 } else { 12 });
    let seed = u64::from(number("SEED").unwrap_or(13));
    let started = SystemClock.monotonic();
    let folder = scratch();
    let checks = folder.path().join("checks");
    let (mut keys, mut random) = (Keys::new(), Random::new(seed));
    let (mut acknowledged, mut checked, mut unopened) = (0, 0, 0);
    let mut newest = 0;
    for number in 0..cycles {
        // The keys of the last process that was ready, and some of the older ones.
        let older = keys.keys().copied().filter(|_| random.below(50) == 0).collect::<Vec<_>>();
        let is_due = |key: &u32| *key >= newest || older.binary_search(key).is_ok();
        let count = write_checks(&checks, keys.iter().filter(|(key, _)| is_due(key)));
        let killed = cycle(number, folder.path(), &checks, &mut keys, &mut random);
        let first = killed.wrong.first();
        assert!(first.is_none(), "cycle {number}, {} wrong: {first:?}", killed.wrong.len());
        acknowledged += killed.acknowledged;
        if killed.was_ready {
            checked += count;
            newest = number * KEYS;
        } else {
            unopened += 1;
        }
    }
    // Finally all keys are checked.
    let count = write_checks(&checks, keys.iter());
    let last = cycle(cycles, folder.path(), &checks, &mut keys, &mut Random::new(1));
    println!(
        "kill cycles, Embedded: {cycles} cycles ({unopened} killed before they were ready), {acknowledged} answers, \
         {checked} keys checked after a kill, {count} at the end, {} violations, {:.1} s",
        last.wrong.len(),
        (SystemClock.monotonic() - started).as_secs_f64()
    );
    assert!(last.wrong.is_empty(), "{:#?}", last.wrong);
    assert!(last.was_ready || cycles < 20, "the last process was killed before it had checked");
    assert!(acknowledged > 0 && checked > 0);
}
