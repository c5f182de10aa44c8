//! Sending of commands: to one server or to the nodes of a cluster, in one pipeline for each.
//!
//! The client library supports clusters too. But it sends a whole pipeline again after a
//! redirection of one of its commands, and after a lost connection. Here a command is sent again
//! only if it was certainly not executed, and each command succeeds or fails alone (S21).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::store::transfer_time;
use onetake_core::{Clock, Rng, Shift, StoreError, StoreErrorKind};
use redis::{Pipeline, ServerErrorKind, Value};

use super::command::{RedisCommand, Replicas};
use super::errors;
use super::node::Node;
use super::nodes::Nodes;
use super::slots;
use super::url::Address;

/// The number of times that a command is tried, while it was certainly not executed.
const ROUNDS_MAX: u32 = 4;
/// The first pause before a command is sent again to a changing cluster; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// The options of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOptions {
    /// The owner of the connection in messages: "the Redis store".
    pub(crate) store: &'static str,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    /// If true, callers wait only for answers, and hardly longer than `command_timeout`.
    /// Connecting, and reading the slots of a cluster, happen in the background. A command that
    /// cannot be sent now fails with `Unavailable`.
    pub(crate) in_background: bool,
    /// The scripts that are loaded when a server reports an unknown script.
    pub(crate) scripts: Vec<String>,
    /// If set, each answer includes the server's time, shifted by the time that passed only in a
    /// test. A caller that takes over from an owner needs it.
    pub(crate) asks_time: Option<Shift>,
}

/// One server, or a cluster.
#[derive(Debug)]
pub(crate) struct Connection {
    options: ConnectionOptions,
    nodes: Arc<Nodes>,
}

/// A command that waits for its answer.
struct Pending {
    index: usize,
    /// The node to which the cluster redirected this command once (`ASK`).
    ask: Option<Arc<Node>>,
    /// The node to which it could not be sent.
    not_at: Option<Arc<Node>>,
    /// True if the server did not know the script.
    load: bool,
}

/// The commands for one node.
type Group = (Arc<Node>, Vec<Pending>);

/// The steps before commands are sent again.
#[derive(Clone, Copy, Default)]
struct Before {
    refresh: bool,
    pause: bool,
}

impl Connection {
    /// Creates a connection. Nothing is connected yet.
    pub(crate) fn new(address: Address, options: ConnectionOptions) -> Self {
        if address.tls {
            // Another provider that the process has already installed is kept.
            let _already = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        Self { nodes: Arc::new(Nodes::new(address, options.clone())), options }
    }

    /// Connects now.
    ///
    /// # Errors
    /// If no server answers, or the servers refuse the connection.
    pub(crate) async fn connect(&self) -> Result<(), StoreError> {
        self.nodes.connect().await
    }

    /// Sends commands, all at once. Returns one answer for each of them, in their order. Commands
    /// for one slot are executed in that order, unless the cluster changes in the middle.
    ///
    /// An answer is `Unavailable` if the command was certainly not executed, `Indeterminate` if it
    /// may have been, and `Invalid` if it can never be.
    pub(crate) async fn run(
        &self,
        commands: &[RedisCommand],
        replicas: Option<Replicas>,
    ) -> Vec<Result<Value, StoreError>> {
        let mut answers: Vec<_> = commands.iter().map(nobody).map(Err).collect();
        let mut pending: Vec<Pending> = (0..commands.len())
            .map(|index| Pending { index, ask: None, not_at: None, load: false })
            .collect();
        let began = self.options.clock.monotonic();
        for round in 1..=ROUNDS_MAX {
            let refreshes = self.nodes.refreshes();
            let mut before = Before::default();
            let (groups, mut again) = self.group(commands, pending, &mut before);
            let sending = groups.into_iter().map(|(node, group)| async move {
                let values = self.send(&node, commands, &group, replicas).await;
                (node, group, values)
            });
            for (node, group, values) in join_all(sending).await {
                for (item, value) in group.into_iter().zip(values) {
                    let index = item.index;
                    let (answer, next) = self.judge(&node, item, value, &mut before);
                    if let Some(place) = answers.get_mut(index) {
                        *place = answer;
                    }
                    again.extend(next);
                }
            }
            if again.is_empty() || round == ROUNDS_MAX {
                break;
            }
            let refresh = before.refresh && self.is_cluster();
            if self.options.in_background {
                if refresh {
                    self.nodes.begin_refresh(refreshes);
                }
                let took = self.options.clock.monotonic().saturating_sub(began);
                // Only redirected commands are sent again, because they need no refresh and no
                // pause.
                if before.refresh || before.pause || took >= self.options.command_timeout {
                    break;
                }
            } else if refresh {
                // If no node answers, the known slots are used.
                let _not_now = self.nodes.refresh(refreshes).await;
            }
            if before.pause {
                self.options.clock.sleep(self.jittered(PAUSE_MIN * 2_u32.pow(round - 1))).await;
            }
            again.sort_by_key(|item| item.index);
            pending = again;
        }
        answers
    }

    /// Returns how long there has been contact with the server of `key`.
    pub(crate) fn back_for(&self, key: &[u8]) -> Duration {
        self.nodes.owner(slots::slot(key)).map_or(Duration::ZERO, |node| node.back_for())
    }

    /// Returns the servers that own slots.
    pub(crate) fn primaries(&self) -> Vec<Arc<Node>> {
        self.nodes.primaries()
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.nodes.is_cluster()
    }

    pub(crate) fn options(&self) -> &ConnectionOptions {
        &self.options
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.nodes.close();
    }

    /// Groups commands by node. Commands without a known owner are returned separately.
    fn group(
        &self,
        commands: &[RedisCommand],
        pending: Vec<Pending>,
        before: &mut Before,
    ) -> (Vec<Group>, Vec<Pending>) {
        let mut groups: HashMap<*const Node, Group> = HashMap::new();
        let mut left = Vec::new();
        for item in pending {
            let owner = || self.nodes.owner(commands.get(item.index)?.slot);
            match item.ask.clone().or_else(owner) {
                // No other node took over. The answer that the command could not be sent remains.
                Some(node) if item.not_at.as_ref().is_some_and(|at| Arc::ptr_eq(at, &node)) => {}
                Some(node) => {
                    let group = groups.entry(Arc::as_ptr(&node));
                    group.or_insert_with(|| (node, Vec::new())).1.push(item);
                }
                None => {
                    *before = Before { refresh: true, pause: true };
                    left.push(item);
                }
            }
        }
        (groups.into_values().collect(), left)
    }

    /// Sends a group's commands to its node. Returns one value or error for each.
    async fn send(
        &self,
        node: &Arc<Node>,
        commands: &[RedisCommand],
        group: &[Pending],
        replicas: Option<Replicas>,
    ) -> Vec<Result<Value, StoreError>> {
        let contact = node.contact(self.options.command_timeout);
        let mut pipeline = Pipeline::with_capacity(group.len() + 1);
        if group.iter().any(|item| item.load) {
            for script in &self.options.scripts {
                pipeline.cmd("SCRIPT").arg("LOAD").arg(script);
            }
        }
        // The position of each command's answer in the pipeline.
        let mut places = Vec::with_capacity(group.len());
        for item in group {
            if item.ask.is_some() {
                pipeline.cmd("ASKING");
            }
            places.push(pipeline.len());
            if let Some(command) = commands.get(item.index) {
                pipeline.add_command(command.packed(contact));
            }
        }
        let mut within = self.options.command_timeout;
        if !self.options.in_background {
            let sent = group.iter().filter_map(|item| commands.get(item.index));
            let bytes = sent.map(RedisCommand::bytes).sum();
            within = within.saturating_add(transfer_time(bytes));
        }
        if let Some(replicas) = replicas {
            // WAIT covers everything that the server had written when it executed the commands
            // before it: what they read as well as what they wrote.
            pipeline.cmd("WAIT").arg(replicas.count).arg(replicas.millis());
            within = within.saturating_add(replicas.within);
        }
        let answer = if self.options.in_background {
            node.send_if_connected(pipeline, within).await
        } else {
            node.send(pipeline, within).await
        };
        match answer {
            Ok(mut values) => {
                let enough = replicas.map_or(Ok(()), |asked| asked.are_enough(values.last()));
                let value = |at| match values.get_mut(at).map(std::mem::take) {
                    Some(Value::ServerError(error)) => Ok(Value::ServerError(error)),
                    Some(value) => enough.clone().map(|()| value),
                    None => Err(errors::lost(&node.name, "fewer replies than commands")),
                };
                places.into_iter().map(value).collect()
            }
            Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Interprets an answer. Returns also the command, if it has to be sent again.
    fn judge(
        &self,
        node: &Arc<Node>,
        item: Pending,
        answer: Result<Value, StoreError>,
        before: &mut Before,
    ) -> (Result<Value, StoreError>, Option<Pending>) {
        let error = match answer {
            Ok(Value::ServerError(error)) => error,
            // Another node of the cluster may have taken over.
            Err(error) if error.kind() == StoreErrorKind::Unavailable && self.is_cluster() => {
                before.refresh = true;
                let next = Pending { ask: None, not_at: Some(Arc::clone(node)), ..item };
                return (Err(error), Some(next));
            }
            answered => return (answered, None),
        };
        let told = errors::refused(&node.name, &error);
        let detail = error.details().unwrap_or_default();
        let next = Pending { ask: None, not_at: None, ..item };
        match error.kind() {
            Some(ServerErrorKind::NoScript) => (Err(told), Some(Pending { load: true, ..next })),
            Some(ServerErrorKind::Moved | ServerErrorKind::Ask) if !self.is_cluster() => {
                let what = "is a node of a cluster: use a redis-cluster:// URL";
                let what = format!("Redis at {} {what}", node.name);
                (Err(StoreError::new(StoreErrorKind::Invalid, what)), None)
            }
            // A redirection is newer than the information of other nodes, so no other node is
            // asked.
            Some(ServerErrorKind::Moved) => {
                self.nodes.moved(detail, node);
                (Err(told), Some(next))
            }
            Some(ServerErrorKind::Ask) => {
                let ask = self.nodes.to_ask(detail, node);
                (Err(told), Some(Pending { ask, ..next }))
            }
            _ if errors::is_outage(&error) || error.code() == "TRYAGAIN" => {
                *before = Before { refresh: true, pause: true };
                (Err(told), Some(next))
            }
            _ => (Err(told), None),
        }
    }

    /// Returns a random duration between half of the pause and the whole of it.
    fn jittered(&self, pause: Duration) -> Duration {
        let mut random = [0; 1];
        self.options.rng.fill(&mut random);
        let [random] = random;
        pause.mul_f64(0.5 + f64::from(random) / 512.0)
    }
}

fn nobody(command: &RedisCommand) -> StoreError {
    let what =
        format!("no node of the Redis Cluster serves slot {}; check CLUSTER INFO", command.slot);
    StoreError::new(StoreErrorKind::Unavailable, what)
}
