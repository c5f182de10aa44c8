//! `onetake demo`, as a library call and as a command.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
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

/// README's first steps: the sample API behind a gateway, and a retry that does not run.
#[test]
fn the_sample_api_makes_one_charge_behind_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let onetake = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.args(arguments).current_dir(folder.path()).env("ONETAKE_LOG", "info");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ended(command.spawn().unwrap())
    };
    let mut api = onetake(&["demo", "api", "--listen", "127.0.0.1:0"]);
    let mut lines = BufReader::new(api.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let upstream = first.split_once(" on ").unwrap().1.split_once(": POST").unwrap().0;
    let mut gateway = onetake(&[
        "serve",
        "--upstream",
        upstream,
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    let mut logs = BufReader::new(gateway.0.stderr.take().unwrap()).lines();
    let ready = logs.find(|line| line.as_ref().unwrap().contains("onetake is ready"));
    let ready = ready.unwrap().unwrap();
    let listen = ready.split_once("listen=").unwrap().1.split(' ').next().unwrap();
    let send = |body: &str| {
        let mut stream = TcpStream::connect(listen).unwrap();
        let head = "POST /charges HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
            content-type: text/plain\r\nidempotency-key: 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90\r\n";
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let (first, retry, other) = (send("amount=10"), send("amount=10"), send("amount=99"));
    assert!(first.starts_with("HTTP/1.1 201") && !first.contains("idempotent-replayed"), "{first}");
    assert!(retry.starts_with("HTTP/1.1 201") && retry.contains("idempotent-replayed"), "{retry}");
    assert!(retry.ends_with(r#"{"charge":1,"of":"amount=10"}"#), "{retry}");
    assert!(other.starts_with("HTTP/1.1 422"), "{other}");
    assert_eq!(lines.next().unwrap().unwrap(), "charge 1: amount=10");
    drop(api);
    assert_eq!(lines.count(), 0, "one charge was made");
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}
