//! Schemathesis: generates requests from the description and checks the responses against it.

use onetake_sim::servers::schemathesis;
use serde_json::json;

use crate::common::admin_api::{TOKEN, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_nothing() {
    let world = World::start().await;
    let mut references = Vec::new();
    for number in 0..40 {
        let path = if number % 4 == 0 { "/v1/charge" } else { "/v1/500" };
        let sent = world.send(path, &format!("for-schemathesis-{number:03}"), "ada").await;
        assert!(sent.headers.contains_key("idempotency-reference"));
        references.push(sent.header("idempotency-reference").to_owned());
    }
    // Half of the requests are for existing keys.
    let names = json!(references[..20]).to_string();
    let config = world.folder.path().join("schemathesis.toml");
    std::fs::write(&config, format!("[parameters]\n\"path.name\" = {names}\n")).unwrap();
    let mut command = tokio::process::Command::from(schemathesis());
    command.arg("--config-file").arg(&config).arg("run");
    command.arg(format!("http://{}/openapi.json", world.gateway.admin));
    command.args(["-H", &format!("Authorization: Bearer {TOKEN}")]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "25"]);
    // A fixed seed and no database: the same requests every time, below the guard's rate limit.
    command.args(["--seed", "1", "--generation-database", "none", "--rate-limit", "40/s"]);
    // A cursor is valid only if the API issued it, so a made-up one may be refused.
    command.args(["--exclude-checks", "positive_data_acceptance", "--no-color"]);
    command.args(["--suppress-health-check", "too_slow"]);
    command.current_dir(world.folder.path()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Tested: 9"), "every operation was tested: {said}");
}
