//! Servers that nodes share, and how each goes away.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use onetake_core::{Clock, SystemClock};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Dynamo, Postgres, RedisCluster};

use super::common::migrated;

/// A server that nodes share, which can go away and come back.
pub(super) trait Shared {
    /// The store's URL, ready to be used.
    fn url(&self) -> String;
    /// What it is, for what is told.
    fn kind(&self) -> String {
        self.url().split(':').next().unwrap_or_default().to_owned()
    }
    /// What more belongs below `[store]`.
    fn lines(&self) -> &'static str {
        ""
    }
    /// How many ways it has to be away; they take turns.
    fn ways_to_be_away(&self) -> usize {
        1
    }
    /// From now on nothing is answered.
    fn go_away(&mut self);
    /// From now on everything is answered again; what was acknowledged is still there.
    fn come_back(&mut self);
    /// Ends it in the middle of whatever it does, and starts it again.
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

    // Silence, and closed connections.
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

    // Clients of a cluster go to where its nodes say they are, past any proxy: they are frozen, for
    // less time than after which they would suspect each other.
    fn go_away(&mut self) {
        self.signal("STOP");
    }

    fn come_back(&mut self) {
        self.signal("CONT");
    }

    // One primary, which is back before its replica is promoted.
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

    // It keeps its tables in memory: what a restart looks like from outside is all there is.
    fn restart(&mut self) -> LocalBoxFuture<'_, ()> {
        self.proxy.set(Weather::Dead);
        Box::pin(async {
            SystemClock.sleep(Duration::from_millis(300)).await;
            self.proxy.set(Weather::Fair);
        })
    }
}
