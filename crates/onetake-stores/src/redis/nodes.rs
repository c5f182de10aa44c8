//! The servers: one, or the nodes of a cluster and their slots.
//!
//! The cluster client is our own; the crate `redis` supplies the connection to one server and its
//! protocol. The cluster client of that crate sends a whole pipeline again after a redirection of one
//! command, and after a lost connection. A claim that is carried out twice can grant a key that
//! nobody runs, and a batch must not fail as a whole because of one of its slots (S21). So the slots
//! are kept here, and [`connection`](super::connection) decides for each command alone whether it is
//! sent again: only if it was certainly not executed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::FutureExt;
use futures_util::future::select_ok;
use onetake_core::{StoreError, StoreErrorKind};
use redis::{ConnectionAddr, Pipeline, Value};

use super::connection::ConnectionOptions;
use super::errors;
use super::node::Node;
use super::slots::{self, Slots};
use super::url::Address;

/// The servers.
#[derive(Debug)]
pub(super) struct Nodes {
    address: Address,
    options: ConnectionOptions,
    inner: RwLock<Inner>,
    /// The number of times that the slots were read from the cluster.
    refreshes: AtomicU64,
    /// Locked while the slots are read.
    refreshing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Inner {
    known: HashMap<String, Arc<Node>>,
    slots: Slots<Arc<Node>>,
}

impl Inner {
    fn keeps_keys(&self, node: &Arc<Node>) -> bool {
        self.slots.owners().any(|owner| Arc::ptr_eq(owner, node))
    }
}

impl Nodes {
    /// Creates the nodes that the address names. Nothing is connected yet.
    pub(super) fn new(address: Address, options: ConnectionOptions) -> Self {
        let seeds: Vec<_> =
            address.seeds.iter().map(|seed| Arc::new(Node::new(seed.clone(), &options))).collect();
        let slots = match seeds.first() {
            Some(server) if !address.cluster => Slots::all(Arc::clone(server)),
            _ => Slots::new([]),
        };
        let known = seeds.iter().map(|seed| (seed.name.clone(), Arc::clone(seed))).collect();
        Self {
            address,
            options,
            inner: RwLock::new(Inner { known, slots }),
            refreshes: AtomicU64::new(0),
            refreshing: Arc::default(),
        }
    }

    /// Connects to one of them, and reads the slots of a cluster.
    pub(super) async fn connect(&self) -> Result<(), StoreError> {
        let seen = self.refreshes();
        let nodes: Vec<_> = self.read().known.values().cloned().collect();
        select_ok(nodes.iter().map(|node| node.connect_now().boxed())).await?;
        if self.is_cluster() {
            self.refresh(seen).await?;
        }
        Ok(())
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.address.cluster
    }

    /// Returns the owner of a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.read().slots.owner(slot).cloned()
    }

    /// Returns the nodes that own slots.
    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        let mut owners: Vec<_> = self.read().slots.owners().cloned().collect();
        owners.sort_by(|one, other| one.name.cmp(&other.name));
        owners.dedup_by(|one, other| Arc::ptr_eq(one, other));
        owners
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        for node in self.read().known.values() {
            node.forget_any();
        }
    }

    /// Records the new owner of a slot from a node's redirection.
    pub(super) fn moved(&self, detail: &str, from: &Node) {
        if let Some((slot, host, port)) = slots::read_redirect(detail, from.host())
            && let Some(to) = self.at(host, port)
        {
            let mut inner = self.write();
            if !inner.keeps_keys(&to) {
                to.count_anew();
            }
            inner.slots.moved(slot, to);
        }
    }

    /// Returns the node to which a node redirects one command.
    pub(super) fn to_ask(&self, detail: &str, from: &Node) -> Option<Arc<Node>> {
        let (_, host, port) = slots::read_redirect(detail, from.host())?;
        self.at(host, port)
    }

    /// The number of times that the slots were read from the cluster.
    pub(super) fn refreshes(&self) -> u64 {
        self.refreshes.load(Ordering::Acquire)
    }

    /// Reads the slots from the cluster, unless that was done since `seen`.
    pub(super) async fn refresh(&self, seen: u64) -> Result<(), StoreError> {
        let _one_at_a_time = self.refreshing.lock().await;
        self.ask_all(seen).await
    }

    /// The same in the background, unless another task does it.
    pub(super) fn begin_refresh(self: &Arc<Self>, seen: u64) {
        let Ok(one_at_a_time) = Arc::clone(&self.refreshing).try_lock_owned() else { return };
        let nodes = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = nodes.ask_all(seen).await {
                tracing::debug!(%error, "no node of the Redis Cluster knows which node serves which slot");
            }
            drop(one_at_a_time);
        });
    }

    async fn ask_all(&self, seen: u64) -> Result<(), StoreError> {
        if self.refreshes() != seen {
            return Ok(());
        }
        let nodes: Vec<_> = self.read().known.values().cloned().collect();
        let asking = nodes.iter().map(|node| self.ask_for_slots(node).boxed());
        let (ranges, _slower) = select_ok(asking).await?;
        let owned = |(first, last, host, port)| Some((first, last, self.at(host, port)?));
        let slots = Slots::new(ranges.into_iter().filter_map(owned).collect::<Vec<_>>());
        let mut inner = self.write();
        // A replica that took over could not be reached by its predecessor's owners during the
        // failover.
        for new in slots.owners().filter(|node| !inner.keeps_keys(node)) {
            new.count_anew();
        }
        // Nodes that left are forgotten, except those in the URL.
        let seeds: Vec<_> = self.address.seeds.iter().map(|seed| seed.addr().to_string()).collect();
        inner.known.retain(|name, node| {
            seeds.contains(name) || slots.owners().any(|owner| Arc::ptr_eq(owner, node))
        });
        inner.slots = slots;
        self.refreshes.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    async fn ask_for_slots(&self, node: &Node) -> Result<Vec<slots::Range>, StoreError> {
        let mut ask = Pipeline::with_capacity(1);
        ask.cmd("CLUSTER").arg("SLOTS");
        let values = node.send(ask, self.options.command_timeout).await?;
        let error = |kind, what: &str| Err(StoreError::new(kind, format!("{} {what}", node.name)));
        match values.first() {
            Some(Value::ServerError(said)) if said.to_string().contains("disabled") => {
                let what = "is not a node of a cluster: use a redis:// URL";
                error(StoreErrorKind::Invalid, what)
            }
            Some(Value::ServerError(said)) => Err(errors::refused(&node.name, said)),
            Some(value) => match slots::read(value, node.host()) {
                Some(ranges) if !ranges.is_empty() => Ok(ranges),
                _ => error(
                    StoreErrorKind::Unavailable,
                    "does not know a node that serves a slot yet",
                ),
            },
            None => Err(errors::lost(&node.name, "no answer")),
        }
    }

    /// Returns the node at an address: a known one, or a new one.
    fn at(&self, host: String, port: u16) -> Option<Arc<Node>> {
        let like = self.address.seeds.first()?;
        let address = match like.addr() {
            ConnectionAddr::TcpTls { tls_params, .. } => {
                let tls_params = tls_params.clone();
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let mut inner = self.write();
        let known = inner.known.entry(address.to_string());
        let make = || Arc::new(Node::new(like.clone().set_addr(address), &self.options));
        Some(Arc::clone(known.or_insert_with(make)))
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}
