//! A gateway with an admin token, an API behind it, and `onetake keys`.

use std::process::Output;

use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::upstream::Upstream;
use serde_json::Value;
use tempfile::TempDir;

use super::process::Process;

pub(crate) const TOKEN: &str = "the-token-of-these-tests";
const ROUTES: &str = "[[route]]\nmatch = \"POST /v1/{*rest}\"\nnamespace = \"money\"\n\
                      tenant = \"credential\"\n";

/// A gateway with a token, and an API behind it.
pub(crate) struct World {
    pub(crate) gateway: Process,
    pub(crate) upstream: Upstream,
    pub(crate) folder: TempDir,
}

impl World {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let upstream = Upstream::start().await.unwrap();
        let variables = [("ONETAKE__ADMIN__TOKEN", TOKEN)];
        let gateway = Process::start_with(folder.path(), ROUTES, &upstream.url(), &variables).await;
        Self { gateway, upstream, folder }
    }

    /// A client's request; `bearer` is its credential.
    pub(crate) async fn send(&self, path: &str, key: &str, bearer: &str) -> ClientResponse {
        let call = self.gateway.client.post(path).key(key);
        call.without("authorization")
            .header("authorization", &format!("Bearer {bearer}"))
            .send()
            .await
            .unwrap()
    }

    /// The admin API's response to an operator.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> ClientResponse {
        let call = Client::new(self.gateway.admin).post(path).method(method);
        let call =
            call.without("authorization").header("authorization", &format!("Bearer {TOKEN}"));
        let call = match body {
            Some(body) => {
                let call = call.without("content-type").header("content-type", "application/json");
                call.body(body.to_string())
            }
            None => call.body(""),
        };
        call.send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, None).await;
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Runs `onetake keys`.
    pub(crate) async fn keys(&self, arguments: &[&str]) -> Output {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_onetake"));
        command.arg("keys").args(arguments).env("ONETAKE_ADMIN_TOKEN", TOKEN).env("USER", "ada");
        command.arg("--admin").arg(format!("http://{}", self.gateway.admin));
        command.kill_on_drop(true).output().await.unwrap()
    }

    pub(crate) async fn keys_json(&self, arguments: &[&str]) -> Value {
        let output = self.keys(&[arguments, &["--json"]].concat()).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}
