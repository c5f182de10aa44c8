//! Servers that nodes share, and their outages.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use onetake_core::{Clock, SystemClock};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Dynamo, Postgres, RedisCluster};

use crate::common::migrated;

/// A server that nodes share, which can become unreachable and come back.
pub(super) trait Shared {
    /// The URL of the store, ready for use.
    fn url(&self) -> String;
    /// The kind of server, for messages.
    fn kind(&self) -> String {
        self.url().split(':').next().unwrap_or_default().to_owned()
    }
    /// More lines for the section `[store]`.
    fn lines(&self) -> &'static str {
        ""
    }
    /// The number of different outages; they take turns.
    fn ways_to_be_away(&self) -> usize {
        1
    }
    /// Makes the server unreachable.
    fn go_away(&mut self);
    /// Makes the server reachable again, with everything that was acknowledged.
    fn come_back(&mut self);
    /// Kills the server during its work, and starts it again.
    fn restart(&mut self) -> LocalBoxFuture<'_, ()>;
}

pub(super) struct OnPostgres {
    server: Postgres,
    proxy: FaultProxy,
    outages: usize,
}

impl OnPostgres {
    pub(super) async fn start() -> Self {
        let server = Postgres::start().await;
        let _made = migrated(server.database()).await;
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        Self { server, proxy, outages: 0 }
    }
}

impl Shared for OnPostgres {
    fn url(&self) -> String {
        self.server.url_at(self.proxy.address(), "test_0")
    }

    fn ways_to_be_away(&self) -> usize {
        2
    }

    // Alternates between silence and closed connections.
    fn go_away(&mut self) {
        self.outages += 1;
        self.proxy.set(if self.outages % 2 == 1 { Weather::Cut } else { Weather::Dead });
    }

    fn come_back(&mut self) {
        self.proxy.set(Weather::Fair);
    }

    fn restart(&mut self) -> LocalBoxFuture<'_, ()> {
        self.server.kill();
        Box::pin(self.server.restart())
    }
}

pub(super) struct OnRedisCluster {
    cluster: RedisCluster,
}

impl OnRedisCluster {
    pub(super) async fn start() -> Self {
        let cluster = RedisCluster::start().await;
        // Longer than any outage here, and than a restart may take.
        for node in cluster.nodes() {
            let patient = ["CONFIG", "SET", "cluster-node-timeout", "60000"];
            assert_eq!(node.cli(&patient).trim(), "OK");
        }
        Self { cluster }
    }

    fn signal(&self, signal: &str) {
        for node in self.cluster.nodes() {
            node.child().unwrap().signal(signal);
        }
    }
}

impl Shared for OnRedisCluster {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn lines(&self) -> &'static str {
        "allow_lossy = true"
    }

    // Clients of a cluster connect to the addresses that its nodes announce, past any proxy. So the
    // nodes are frozen, for less time than after which they suspect each other.
    fn go_away(&mut self) {
        self.signal("STOP");
    }

    fn come_back(&mut self) {
        self.signal("CONT");
    }

    // Restarts one primary, which is back before its replica is promoted.
    fn restart(&mut self) -> LocalBoxFuture<'_, ()> {
        let node = self.cluster.nodes_mut().first_mut().unwrap();
        node.kill();
        Box::pin(node.restart())
    }
}

pub(super) struct OnDynamo {
    server: Dynamo,
    proxy: FaultProxy,
    table: String,
}

impl OnDynamo {
    pub(super) async fn start() -> Self {
        let server = Dynamo::start().await;
        let url = migrated(server.table()).await;
        let table = url.split(['/', '?']).nth(3).unwrap().to_owned();
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        Self { server, proxy, table }
    }
}

impl Shared for OnDynamo {
    fn url(&self) -> String {
        self.server.url_at(self.proxy.address(), &self.table)
    }

    fn go_away(&mut self) {
        self.proxy.set(Weather::Cut);
    }

    fn come_back(&mut self) {
        self.proxy.set(Weather::Fair);
    }

    // It keeps its tables in memory, so a restart is only simulated.
    fn restart(&mut self) -> LocalBoxFuture<'_, ()> {
        self.proxy.set(Weather::Dead);
        Box::pin(async {
            SystemClock.sleep(Duration::from_millis(300)).await;
            self.proxy.set(Weather::Fair);
        })
    }
}
