//! `onetake probe` against the sample API, alone and behind the gateway.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::process::Stdio;

use onetake_sim::blackbox::Target;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::common::InProcess;
use crate::common::probe::Probed;

/// `onetake demo api` as a process.
struct SampleApi {
    _child: Child,
    url: String,
}

impl SampleApi {
    async fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.args(["demo", "api", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next_line().await.unwrap().unwrap();
        let url = first.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
        let url = url.trim_end_matches(':').to_owned();
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { _child: child, url }
    }

    /// The arguments that every check needs, for an API at `url`.
    async fn probed_at(&self, url: &str) -> Probed {
        Probed::run(&[
            &format!("{url}/charges"),
            "--credential",
            "Authorization: Bearer alice-secret",
            "--other-credential",
            "Authorization: Bearer bob-secret",
            "--count",
            &format!("{}/charges", self.url),
            "--count-pointer",
            "/charges",
            "--id-pointer",
            "/charge",
            "--other-url",
            &format!("{url}/charges?other=1"),
            "--error-body",
            "{\"decline\":{fresh}}",
        ])
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_passes_every_check() {
    let api = SampleApi::start().await;
    let gateway = InProcess::start(format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nmatch = \"POST /charges\"\nkey = {{ required = true }}\n",
        api.url
    ))
    .await;
    let probed = api.probed_at(&format!("http://{}", gateway.address())).await;
    let expected = (0, &21.into(), &0.into(), &0.into());
    let report = &probed.report;
    let found = (probed.code, &report["passed"], &report["failed"], &report["not_shown"]);
    assert_eq!(found, expected, "{report:#}{}", probed.errors);
    assert!(!report.to_string().contains("-secret"), "{report:#}");
    assert!(report["requests"].as_u64().unwrap() < 200, "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_ignores_keys_fails_what_it_must() {
    let api = SampleApi::start().await;
    let probed = api.probed_at(&api.url).await;
    assert_eq!(probed.code, 1, "{}", probed.errors);
    assert_eq!(probed.with("pass"), ["first-request", "new-key"], "{:#}", probed.report);
    let vacuous = ["retry-of-error", "other-url", "other-credential", "draft-string"];
    assert_eq!(probed.with("not_shown"), vacuous, "{:#}", probed.report);
    let at_once = probed.report["checks"].as_array().unwrap().iter();
    let at_once = at_once.clone().find(|check| check["name"] == "at-once").unwrap();
    let evidence = at_once["evidence"].as_str().unwrap();
    assert!(evidence.contains("the counter rose by 20"), "{evidence}");
}

/// Without a counter, an API whose responses are all alike shows neither success nor failure.
#[tokio::test(flavor = "multi_thread")]
async fn responses_that_are_all_alike_show_no_runs() {
    let api = SampleApi::start().await;
    let url = format!("{}/charges", api.url);
    let probed = Probed::once(&[&url, "--id-pointer", "/of", "--skip", "in-flight"]).await;
    for check in ["new-key", "retry-runs-nothing", "joined-same", "at-once", "in-flight"] {
        let not_shown = probed.with("not_shown");
        assert!(not_shown.contains(&check.to_owned()), "{check}: {:#}", probed.report);
    }
    assert_eq!(probed.code, 1, "other checks fail: {:#}", probed.report);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_and_reports() {
    let remote = Probed::once(&["http://192.0.2.1/charges"]).await;
    assert_eq!(remote.code, 2);
    assert!(remote.errors.contains("--i-own-this"), "{}", remote.errors);
    // Port 1 has no listener.
    for arguments in [
        &["http://127.0.0.1:1/charges"][..],
        &["http://127.0.0.1:1/charges", "--count", "http://127.0.0.1:1/charges"],
    ] {
        let unreachable = Probed::once(arguments).await;
        assert_eq!(unreachable.code, 3, "{}", unreachable.errors);
        assert!(unreachable.errors.contains("no connection"), "{}", unreachable.errors);
    }
    let api = SampleApi::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("probe.xml");
    let url = format!("{}/charges", api.url);
    let probed = Probed::once(&[&url, "--junit", file.to_str().unwrap()]).await;
    let junit = std::fs::read_to_string(&file).unwrap();
    let failures = format!("tests=\"21\" failures=\"{}\"", probed.report["failed"]);
    assert!(probed.code == 1 && junit.contains(&failures), "{junit}");
    assert_eq!(junit.matches("<testcase ").count(), 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_never_answers_does_not_hold_the_probe_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/charges", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
    command.args(["probe", &url, "--timeout", "1", "--limit", "5"]).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no response within 1 s"), "{said}");
    assert!(said.contains("0 passed, 1 failed, 20 not shown"), "{said}");
}
