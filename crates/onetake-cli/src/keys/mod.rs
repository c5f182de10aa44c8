//! `onetake keys`: find, explain and change keys through the admin API of a running gateway.

mod client;
mod show;
mod time;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use onetake_core::Reference;

use crate::cli::{Failed, say};
use crate::config;
pub(crate) use client::is_loopback;
use client::{AdminClient, RequestError};

/// The states of a key.
const STATES: [&str; 5] = ["running", "completed", "failed", "released", "unknown"];
/// Maximum number of keys on a page of the API.
const PAGE_MAX: usize = 500;

/// Inspect and change keys through the admin API of a running gateway.
#[derive(Debug, Args)]
pub(crate) struct Keys {
    #[command(subcommand)]
    command: Command,
    /// The URL of the admin API (default: the configured address, else http://127.0.0.1:9091).
    #[arg(long, value_name = "URL", global = true)]
    admin: Option<String>,
    /// The configuration file that names the admin listener and its token. Without a token there,
    /// the variable ONETAKE_ADMIN_TOKEN is used.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Print JSON, for scripts.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show a key and its history, by its reference or by what the client sent.
    Get(Get),
    /// List keys, in no particular order.
    List {
        #[command(flatten)]
        which: KeySelector,
        /// Maximum number of keys.
        #[arg(long, default_value_t = 50, value_parser = at_least_one)]
        limit: usize,
        /// Continue after an earlier list: the cursor that it printed.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Count keys by state. This reads all keys.
    Count {
        #[command(flatten)]
        which: KeySelector,
    },
    /// Declare that an unknown attempt had no effect: the next retry runs.
    Release(ChangeArgs),
    /// Declare that an unknown attempt failed: retries get this failure.
    Fail {
        #[command(flatten)]
        change: ChangeArgs,
        /// The error code for machines (default: failed_by_operator).
        #[arg(long)]
        code: Option<String>,
        /// The error text that retries get.
        #[arg(long)]
        detail: Option<String>,
    },
    /// Record the outcome of an unknown attempt: retries get this response.
    Resolve(ResolveArgs),
    /// Delete the record of a key that is not running: the next request with the key runs.
    Forget {
        #[command(flatten)]
        change: ChangeArgs,
        /// The state that `onetake keys get` shows. If it has changed since, nothing is done.
        #[arg(long, value_parser = STATES)]
        state: String,
    },
    /// List operator actions from the audit log, newest first.
    Audit {
        /// Only actions on this key: its reference, or its id if the key no longer exists.
        key: Option<String>,
        /// Maximum number of entries.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
}

#[derive(Debug, Args)]
struct Get {
    /// The reference of the key, such as 9B5H-6U57-LCAG, or its id.
    #[arg(required_unless_present = "key", conflicts_with = "key")]
    name: Option<String>,
    /// The key as the client sent it.
    #[arg(long, requires = "tenant")]
    key: Option<String>,
    /// The tenant that owns the key: public, bearer:TOKEN, basic:USER, x-api-key:KEY, header:VALUE,
    /// client-ip:ADDRESS, jwt:CLAIM, "jwt:ISSUER CLAIM", forward-auth:NAME or consumer:NAME.
    #[arg(long, requires = "key")]
    tenant: Option<String>,
    /// The namespace of the key's route, if it has one.
    #[arg(long, requires = "key")]
    namespace: Option<String>,
    /// Show the headers and the body of the outcome too.
    #[arg(long)]
    body: bool,
}

#[derive(Debug, Args)]
struct KeySelector {
    /// Only keys in this state.
    #[arg(long, ignore_case = true, value_parser = STATES)]
    state: Option<String>,
    /// Only keys of this tenant: its digest, as `get` shows it, or its name as for `get`.
    #[arg(long)]
    tenant: Option<String>,
    /// Only keys of this route, as the configuration names it, such as "POST /v1/charges".
    #[arg(long)]
    route: Option<String>,
    /// Only keys that were first claimed at least this long ago, such as 90s, 15m, 6h or 2d.
    #[arg(long, value_name = "AGE", value_parser = time::seconds)]
    older_than: Option<u64>,
    /// Only keys that were first claimed at most this long ago.
    #[arg(long, value_name = "AGE", value_parser = time::seconds)]
    newer_than: Option<u64>,
}

#[derive(Debug, Args)]
struct ChangeArgs {
    /// The reference of the key, or its id.
    name: String,
    /// The attempt that `onetake keys get` shows. If there is a later attempt, nothing is done.
    #[arg(long)]
    attempt: String,
    /// The reason, for the audit log.
    #[arg(long)]
    reason: String,
    /// Your name, for the audit log (default: $USER).
    #[arg(long)]
    by: Option<String>,
}

#[derive(Debug, Args)]
struct ResolveArgs {
    #[command(flatten)]
    change: ChangeArgs,
    /// The HTTP status of the outcome.
    #[arg(long)]
    status: u16,
    /// A header of the outcome, such as "Content-Type: application/json". May be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The body of the outcome.
    #[arg(long, conflicts_with = "body_file")]
    body: Option<String>,
    /// The file that holds the body of the outcome.
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write a number of 1 or more".to_owned())
}

fn header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once(':').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("write a name, a colon and a value")?;
    Ok((name.to_owned(), value.trim().to_owned()))
}

impl From<RequestError> for Failed {
    fn from(refusal: RequestError) -> Self {
        let code = match refusal.status {
            None => 3,
            Some(404 | 409) => 4,
            Some(400 | 413 | 415) => 2,
            Some(_) => 1,
        };
        Self(show::lines(&refusal.what), code)
    }
}

impl Keys {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<ExitCode, Failed> {
        let client = self.client()?;
        let json = self.json;
        let print = |value: &Value, text: fn(&Value) -> String| match json {
            true => say(&format!("{value:#}\n")),
            false => say(&text(value)),
        };
        match self.command {
            Command::Get(get) => print(&get.ask(&client).await?, show::life),
            Command::List { which, limit, cursor } => {
                print(&list(&client, &which, limit, cursor).await?, show::list);
            }
            Command::Count { which } => print(&count(&client, &which).await?, show::counts),
            Command::Release(change) => {
                print(&change.send(&client, "release", Map::new()).await?, show::changed);
            }
            Command::Fail { change, code, detail } => {
                let mut more = Map::new();
                more.extend(code.map(|code| ("code".to_owned(), code.into())));
                more.extend(detail.map(|detail| ("detail".to_owned(), detail.into())));
                print(&change.send(&client, "fail", more).await?, show::changed);
            }
            Command::Resolve(resolve) => print(&resolve.send(&client).await?, show::changed),
            Command::Forget { change, state } => {
                let seen = Map::from_iter([("state".to_owned(), state.into())]);
                print(&change.send(&client, "forget", seen).await?, show::forgotten);
            }
            Command::Audit { key, limit } => {
                print(&audit(&client, key, limit).await?, show::audit);
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn client(&self) -> Result<AdminClient, Failed> {
        let (text, name) = crate::cli::read(self.config.as_deref())?;
        let input = crate::cli::input(text.as_deref(), &name, config::Overrides::default());
        let mut admin = input.admin().map_err(|error| Failed(error.to_string(), 2))?;
        if admin.token.is_none()
            && let Ok(token) = std::env::var("ONETAKE_ADMIN_TOKEN")
        {
            admin.token = config::Token::new(token.trim());
        }
        AdminClient::new(self.admin.as_deref(), admin).map_err(|what| Failed(what, 2))
    }
}

impl Get {
    async fn ask(self, client: &AdminClient) -> Result<Value, Failed> {
        Ok(match (self.key, self.name) {
            (Some(key), _) => {
                let mut asked = json!({ "key": key, "tenant": self.tenant, "body": self.body });
                if let (Some(namespace), Some(asked)) = (self.namespace, asked.as_object_mut()) {
                    asked.insert("namespace".to_owned(), namespace.into());
                }
                client.post(client::LOOKUP, &asked).await?
            }
            (None, name) => {
                let name = name.unwrap_or_default();
                if !is_reference_or_id(&name) {
                    let what = format!(
                        "`{name}` is neither a reference (twelve characters of 2-9 and A-Z without I \
                         and O, such as 9B5H-6U57-LCAG) nor an id of 32 hexadecimal digits. To find a key as the client sent it, write \
                         `onetake keys get --key KEY --tenant TENANT`"
                    );
                    return Err(Failed(what, 2));
                }
                let path = key_path(&name, "");
                client.get(&path, &[("body", self.body.to_string())]).await?
            }
        })
    }
}

fn is_reference_or_id(name: &str) -> bool {
    let is_id = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id || name.parse::<Reference>().is_ok()
}

/// The path of a key. The name is escaped, so it stays within its segment.
fn key_path(name: &str, action: &str) -> String {
    format!("/v1/keys/{}{action}", client::segment(name))
}

impl KeySelector {
    fn params(&self) -> Vec<(&'static str, String)> {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let all = [
            ("state", self.state.as_deref().map(str::to_lowercase)),
            ("tenant", self.tenant.clone()),
            ("route", self.route.clone()),
            ("min_age_seconds", number(self.older_than)),
            ("max_age_seconds", number(self.newer_than)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Reads pages until there are `limit` keys, or no more.
async fn list(
    client: &AdminClient,
    which: &KeySelector,
    limit: usize,
    mut cursor: Option<String>,
) -> Result<Value, Failed> {
    let (mut keys, mut looked_at, mut unreadable) = (Vec::new(), 0, 0);
    loop {
        let left = limit.saturating_sub(keys.len()).clamp(1, PAGE_MAX);
        let mut params = which.params();
        params.push(("limit", left.to_string()));
        params.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut page = client.get("/v1/keys", &params).await?;
        if let Some(Value::Array(found)) = page.get_mut("keys").map(Value::take) {
            keys.extend(found);
        }
        looked_at += number(&page, "looked_at");
        unreadable += number(&page, "unreadable");
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        client.progress(looked_at);
        if cursor.is_none() || keys.len() >= limit {
            break;
        }
    }
    client.progress_over();
    Ok(json!({ "keys": keys, "looked_at": looked_at, "unreadable": unreadable, "cursor": cursor }))
}

async fn count(client: &AdminClient, which: &KeySelector) -> Result<Value, Failed> {
    let mut sums = Map::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut params = which.params();
        params.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page = client.get("/v1/counts", &params).await?;
        for (name, value) in page.as_object().into_iter().flatten() {
            if let Some(more) = value.as_u64() {
                let sum = sums.get(name).and_then(Value::as_u64).unwrap_or_default();
                sums.insert(name.clone(), (sum + more).into());
            }
        }
        client.progress(sums.get("looked_at").and_then(Value::as_u64).unwrap_or_default());
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            client.progress_over();
            return Ok(Value::Object(sums));
        }
    }
}

async fn audit(client: &AdminClient, key: Option<String>, limit: usize) -> Result<Value, Failed> {
    let mut entries = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let left = limit.saturating_sub(entries.len()).clamp(1, PAGE_MAX);
        let mut params = vec![("limit", left.to_string())];
        params.extend(key.clone().map(|key| ("key", key)));
        params.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut page = client.get("/v1/audit", &params).await?;
        if let Some(Value::Array(found)) = page.get_mut("entries").map(Value::take) {
            entries.extend(found);
        }
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || entries.len() >= limit {
            return Ok(json!({ "entries": entries }));
        }
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

impl ChangeArgs {
    async fn send(
        self,
        client: &AdminClient,
        action: &str,
        mut more: Map<String, Value>,
    ) -> Result<Value, Failed> {
        let by = self.by.or_else(|| std::env::var("USER").ok()).filter(|by| !by.is_empty());
        more.insert("attempt".to_owned(), self.attempt.into());
        more.insert("reason".to_owned(), self.reason.into());
        more.extend(by.map(|by| ("by".to_owned(), by.into())));
        let path = key_path(&self.name, &format!("/{action}"));
        Ok(client.post(&path, &Value::Object(more)).await?)
    }
}

impl ResolveArgs {
    async fn send(self, client: &AdminClient) -> Result<Value, Failed> {
        use base64::Engine as _;
        let headers: Vec<Value> = self
            .headers
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        let mut outcome = json!({ "status": self.status, "headers": headers });
        let body = match (self.body, self.body_file) {
            (Some(text), _) => Some(("body", text)),
            (None, Some(file)) => {
                let read = std::fs::read(&file);
                let bytes = read.map_err(|error| {
                    Failed(format!("cannot read {}: {error}", file.display()), 2)
                })?;
                let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
                Some(("body_base64", encoded))
            }
            (None, None) => None,
        };
        if let (Some((name, body)), Some(outcome)) = (body, outcome.as_object_mut()) {
            outcome.insert(name.to_owned(), body.into());
        }
        let more = Map::from_iter([("outcome".to_owned(), outcome)]);
        self.change.send(client, "resolve", more).await
    }
}

#[cfg(test)]
mod tests {
    use super::is_reference_or_id;

    #[test]
    fn a_key_is_not_mistaken_for_a_reference() {
        for name in ["9B5H-6U57-LCAG", "9b5h6u57lcag", "45c1d953866d587e495c546b316b7767"] {
            assert!(is_reference_or_id(name), "{name}");
        }
        for name in ["", "order-17", "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90", "9B5H-6U57"] {
            assert!(!is_reference_or_id(name), "{name}");
        }
    }
}
