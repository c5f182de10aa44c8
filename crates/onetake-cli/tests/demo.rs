//! `onetake demo`, as a library call and as a command.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use onetake_cli::demo::{self, Options, Screen};
use onetake_core::{Clock, SystemClock};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn onetake_charges_each_tap_once_where_the_api_alone_does_not() {
    let options = Options::new(2, 60, 11).unwrap();
    let clock = Arc::new(SystemClock);
    let report = demo::run(options, clock, Screen::Silent, CancellationToken::new()).await.unwrap();

    let (without, with) = (report.without.verdict, report.with.verdict);
    assert!(without.doubled > 0, "{without:?}");
    assert!(without.overcharged_cents > 0, "{without:?}");
    assert!(with.is_right(), "{with:?}");
    assert_eq!(with.unanswered, 0, "{with:?}");
    assert_eq!(with.charges, with.taps, "{with:?}");
    assert_eq!(with.overcharged_cents, 0, "{with:?}");
    assert_eq!(with.taps, without.taps);
    assert!(with.taps > 0);
    assert_eq!(report.failures(), Vec::<String>::new());
    assert_eq!(report.saved_cents(), without.overcharged_cents);
    // The side with onetake had the same faults; onetake made them harmless.
    let traffic = report.with.traffic;
    assert!(traffic.unheard > 0, "{traffic:?}");
    assert!(traffic.replayed > 0, "{traffic:?}");
    assert!(traffic.requests > with.taps, "{traffic:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_stopped_early() {
    let options = Options::new(600, 50, 3).unwrap();
    let clock = Arc::new(SystemClock);
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let later = clock.sleep(Duration::from_millis(500));
    tokio::spawn(async move {
        later.await;
        stopping.cancel();
    });
    let report = demo::run(options, clock, Screen::Silent, stop).await.unwrap();
    assert!(report.interrupted);
    assert!(report.elapsed < Duration::from_secs(60), "{report:?}");
    assert!(report.with.verdict.taps < report.planned);
    assert!(report.with.verdict.is_right(), "{report:?}");
    assert_eq!(report.failures(), Vec::<String>::new());
}

/// Runs the binary with its own folder for temporary files.
fn demo(arguments: &[&str], temporary: &std::path::Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onetake"))
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", temporary)
        .output()
        .unwrap()
}

#[test]
fn in_a_pipe_it_writes_plain_lines_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(&["--seconds", "2", "--rate", "50", "--seed", "5"], temporary.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('\r'), "{text}");
    let is_second = |line: &str| {
        line.trim_start().split_once(" s ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    };
    assert!(text.lines().any(is_second), "{text}");
    assert!(text.contains("without onetake      with onetake"), "{text}");
    assert!(text.contains("onetake saved $"), "{text}");
    assert!(output.stderr.is_empty());
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0);
}

#[test]
fn wrong_numbers_are_usage_errors_that_name_the_range() {
    let temporary = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (["--seconds", "0"], "--seconds 0 is out of range: choose a number from 1 to 600"),
        (["--seconds", "601"], "--seconds 601 is out of range: choose a number from 1 to 600"),
        (["--rate", "0"], "--rate 0 is out of range: choose a number from 1 to 1000"),
        (["--rate", "fast"], "invalid value 'fast' for '--rate <TAPS>'"),
    ] {
        let output = demo(&arguments, temporary.path());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(message), "{text}");
    }
}
