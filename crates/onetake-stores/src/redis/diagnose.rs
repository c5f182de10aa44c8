//! The checks of `doctor` and of readiness.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_ok};
use onetake_core::{Clock, StoreError, StoreErrorKind};
use redis::{Pipeline, Value};

use super::command::Replicas;
use super::connection::Connection;
use super::errors;
use super::node::Node;
use crate::{Diagnosis, Finding};

/// The number of round trips that are measured.
const ROUND_TRIPS: usize = 10;
/// The settings that are checked.
const SETTINGS: [&str; 4] = ["appendonly", "appendfsync", "save", "maxmemory-policy"];

/// Checks that a server answers. In a cluster one node is enough, because its keys still work.
pub(super) async fn ping(connection: &Connection) -> Result<(), StoreError> {
    let within = connection.options().command_timeout;
    let primaries = connection.primaries();
    let pings = primaries.iter().map(|node| ask(node, &[&["PING"]], within).boxed());
    select_ok(pings).await.map(drop)
}

/// Checks every server that owns slots.
pub(super) async fn diagnose(
    connection: &Connection,
    replicas: Option<Replicas>,
) -> Result<Diagnosis, StoreError> {
    let options = connection.options();
    let primaries = connection.primaries();
    let looks = primaries.iter().map(|node| ServerInfo::at(node, options.command_timeout));
    let mut looked = Vec::new();
    for look in join_all(looks).await {
        looked.push(look?);
    }
    let Some(first) = looked.first() else {
        let what = "no node of the Redis Cluster serves a slot";
        return Err(StoreError::new(StoreErrorKind::Unavailable, what));
    };
    let server = match looked.len() {
        _ if !connection.is_cluster() => first.server.clone(),
        count => {
            let replicas: u32 = looked.iter().map(|look| look.replicas).sum();
            format!("{}: cluster of {count} primaries and {replicas} replicas", first.server)
        }
    };
    let Some(node) = primaries.first() else { return Err(first.unreadable()) };
    let (round_trip, ahead) = clocks(node, &*options.clock, options.command_timeout).await?;
    let findings = looked.iter().map(|look| look.findings(replicas)).collect::<Vec<_>>();
    let names: Vec<_> = looked.iter().map(|look| look.name.as_str()).collect();
    Ok(Diagnosis::new(server, round_trip, Some(ahead), together(&names, findings)))
}

/// Sends commands to one server. Returns its answer to each.
pub(crate) async fn ask(
    node: &Node,
    commands: &[&[&str]],
    within: Duration,
) -> Result<Vec<Value>, StoreError> {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        let mut packed = redis::Cmd::new();
        for word in *command {
            packed.arg(*word);
        }
        pipeline.add_command(packed);
    }
    node.send(pipeline, within).await
}

/// Returns the median round trip, and the lead of the server's clock in microseconds.
async fn clocks(
    node: &Node,
    clock: &dyn Clock,
    within: Duration,
) -> Result<(Duration, i64), StoreError> {
    let mut trips = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let (from, here) = (clock.monotonic(), clock.now());
        let answer = ask(node, &[&["TIME"]], within).await?;
        let trip = clock.monotonic().saturating_sub(from);
        let there = answer.into_iter().next().and_then(|time| {
            let (seconds, micros): (i64, i64) = redis::from_redis_value(time).ok()?;
            Some(seconds.saturating_mul(1_000_000).saturating_add(micros))
        });
        let there =
            there.ok_or_else(|| errors::lost(&node.name, "its reply to TIME is not valid"))?;
        // The server read its clock about half a round trip after this node read its own.
        let here = i64::try_from(here.plus(trip / 2).as_micros()).unwrap_or(i64::MAX);
        trips.push((trip, there.saturating_sub(here)));
    }
    trips.sort_unstable();
    Ok(trips.get(ROUND_TRIPS / 2).copied().unwrap_or_default())
}

/// The information that one server gives about itself.
struct ServerInfo {
    name: String,
    server: String,
    replicas: u32,
    /// `None` if CONFIG is not allowed.
    settings: Option<HashMap<String, String>>,
    /// `None` if the server is not part of a cluster.
    cluster_state: Option<String>,
}

impl ServerInfo {
    async fn at(node: &Node, within: Duration) -> Result<Self, StoreError> {
        let mut questions: Vec<&[&str]> =
            vec![&["INFO", "server"], &["INFO", "replication"], &["CLUSTER", "INFO"]];
        let settings = SETTINGS.map(|setting| ["CONFIG", "GET", setting]);
        questions.extend(settings.iter().map(<[&str; 3]>::as_slice));
        let mut answers = ask(node, &questions, within).await?.into_iter();
        let server = lines(answers.next());
        let replication = lines(answers.next());
        let cluster = lines(answers.next());
        let pairs = |value| redis::from_redis_value::<HashMap<String, String>>(value).ok();
        let settings = answers.map(pairs).collect::<Option<Vec<_>>>();
        Ok(Self {
            name: node.name.clone(),
            server: named(&server),
            replicas: replication
                .get("connected_slaves")
                .and_then(|count| count.parse().ok())
                .unwrap_or_default(),
            settings: settings.map(|each| each.into_iter().flatten().collect()),
            cluster_state: cluster.get("cluster_state").cloned(),
        })
    }

    fn unreadable(&self) -> StoreError {
        errors::lost(&self.name, "its reply to INFO is not valid")
    }

    fn findings(&self, asked: Option<Replicas>) -> Vec<Finding> {
        let mut findings = vec![self.replication(asked)];
        match &self.settings {
            Some(settings) => {
                let get = |name: &str| settings.get(name).map_or("", String::as_str);
                let (appends, fsync) = (get("appendonly"), get("appendfsync"));
                findings.push(persistence(appends, fsync, get("save")));
                findings.push(eviction(get("maxmemory-policy")));
            }
            None => findings.push(Finding::weak(
                "the command CONFIG is not allowed, so persistence and eviction cannot be checked",
                "check in the provider's console that it has appendonly yes, appendfsync always \
                 and maxmemory-policy noeviction",
            )),
        }
        if let Some(state) = &self.cluster_state {
            findings.push(if state == "ok" {
                Finding::fine("the cluster serves all slots")
            } else {
                let what = format!(
                    "the state of the cluster is {state}: keys of some slots are unavailable"
                );
                Finding::weak(what, "find the cause with redis-cli --cluster check")
            });
        }
        findings
    }

    fn replication(&self, asked: Option<Replicas>) -> Finding {
        match (self.replicas, asked) {
            (0, None) => Finding::fine("there is no replica, so no failover can lose writes"),
            (have, Some(asked)) if have < asked.count => Finding::weak(
                format!(
                    "{have} replicas are connected, and wait_replicas requires {}: no write can be \
                     acknowledged",
                    asked.count
                ),
                "connect more replicas, or lower wait_replicas",
            ),
            (_, Some(_)) => Finding::weak(
                "replicas are asynchronous: WAIT makes it less likely that a failover loses \
                 acknowledged writes, but does not exclude it",
                "use PostgreSQL with this Redis as its filter for operations that must not be lost",
            ),
            (have, None) => Finding::broken(
                format!("{have} asynchronous replicas: a failover loses acknowledged writes"),
                "add ?wait_replicas=1 to the URL, or use PostgreSQL with this Redis as its filter \
                 for operations that must not be lost",
            ),
        }
    }
}

fn persistence(appends: &str, fsync: &str, save: &str) -> Finding {
    let fix = "set appendonly yes and appendfsync always";
    match (appends, fsync) {
        ("yes", "always") => Finding::fine("every write is on disk before it is acknowledged"),
        ("yes", fsync) => Finding::broken(
            format!(
                "appendfsync {fsync}: the last second of acknowledged writes, or more, can be lost"
            ),
            "set appendfsync always",
        ),
        _ if save.is_empty() => Finding::broken(
            "no persistence (appendonly no, no save): a restart loses all keys",
            fix,
        ),
        _ => Finding::broken(
            format!(
                "snapshots only (save {save}): a crash loses all writes since the last snapshot"
            ),
            fix,
        ),
    }
}

fn eviction(policy: &str) -> Finding {
    match policy {
        "noeviction" => Finding::fine("no records are evicted when memory is full"),
        policy => Finding::broken(
            format!(
                "maxmemory-policy {policy}: records are evicted when memory is full, and their \
                     keys run again"
            ),
            "set maxmemory-policy noeviction, and give onetake a Redis of its own",
        ),
    }
}

/// Returns the server's product name and version from the answer to `INFO server`.
pub(crate) fn named(server: &HashMap<String, String>) -> String {
    let said = |name: &str| server.get(name).map_or("?", String::as_str);
    match server.get("valkey_version") {
        Some(version) => format!("Valkey {version} ({})", said("server_mode")),
        None => format!("Redis {} ({})", said("redis_version"), said("redis_mode")),
    }
}

/// Parses lines of `name:value`.
pub(crate) fn lines(value: Option<Value>) -> HashMap<String, String> {
    let text: String =
        value.and_then(|text| redis::from_redis_value(text).ok()).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.trim_end().split_once(':')?;
        Some((name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(pair).collect()
}

/// Merges the findings of all servers. If they differ, a finding names its servers.
pub(crate) fn together(names: &[&str], findings: Vec<Vec<Finding>>) -> Vec<Finding> {
    let mut all: Vec<(Finding, Vec<&str>)> = Vec::new();
    for (name, findings) in names.iter().zip(findings) {
        for finding in findings {
            match all.iter_mut().find(|(known, _)| *known == finding) {
                Some((_, whose)) => whose.push(name),
                None => all.push((finding, vec![name])),
            }
        }
    }
    let told = |(mut finding, whose): (Finding, Vec<&str>)| {
        if whose.len() < names.len() {
            finding.what = format!("{} (at {})", finding.what, whose.join(", "));
        }
        finding
    };
    all.into_iter().map(told).collect()
}
