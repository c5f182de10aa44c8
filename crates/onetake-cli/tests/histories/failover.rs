//! Stores that fail over: PostgreSQL with a standby, and Redis Cluster.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::history::{Event, Recorder};
use onetake_sim::servers::{Postgres, RedisCluster, until};

use super::common::migrated;
use super::load::Dice;
use super::setups::bad_weather;
use super::world::{Setup, during};

/// A PostgreSQL and its standby. Clients and replication each go through a proxy.
pub(crate) struct OnStandby {
    primary: Postgres,
    standby: Option<Postgres>,
    clients: FaultProxy,
    replication: FaultProxy,
    /// False for the control: commits do not wait for the standby.
    synchronous: bool,
}

impl OnStandby {
    pub(crate) async fn start(synchronous: bool) -> Self {
        let primary = Postgres::start().await;
        let _made = migrated(primary.database()).await;
        let clients = FaultProxy::start(primary.address()).await.unwrap();
        let replication = FaultProxy::start(primary.address()).await.unwrap();
        let mut setup = Self { primary, standby: None, clients, replication, synchronous };
        setup.attach().await;
        setup
    }

    /// Makes a standby, and waits until it follows.
    async fn attach(&mut self) {
        let standby = self.primary.standby(self.replication.address()).await;
        if self.synchronous {
            self.primary.wait_for_standby().await;
        } else {
            let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
            until("the standby follows", async || self.primary.sql("postgres", streaming) == "1")
                .await;
        }
        self.standby = Some(standby);
    }

    /// Kills the primary, promotes the standby, and points clients to it.
    async fn fail_over(&mut self, recorder: &Recorder) {
        let standby = self.standby.take().unwrap();
        during(recorder, "failover", async {
            if !self.synchronous {
                // The control: the standby falls behind before the primary is lost.
                self.replication.set(Weather::Cut);
                SystemClock.sleep(Duration::from_millis(700)).await;
            }
            self.primary.kill();
            standby.promote();
            self.replication.set(Weather::Fair);
            self.clients.point_to(standby.address());
            self.replication.point_to(standby.address());
            self.primary = standby;
        })
        .await;
        self.attach().await;
    }
}

impl Setup for OnStandby {
    const NAME: &'static str = "postgres with a standby";

    fn section(&self) -> String {
        let url = self.primary.url_at(self.clients.address(), "test_0");
        format!("[store]\nurl = \"{url}\"\nJOURNAL\n")
    }

    async fn disturb(&mut self, number: u64, dice: &mut Dice, recorder: &Recorder) {
        match dice.roll(6) {
            _ if number == 2 || !self.synchronous => self.fail_over(recorder).await,
            0 | 1 => self.fail_over(recorder).await,
            2 => {
                during(recorder, "replication cut", async {
                    self.replication.set(Weather::Cut);
                    SystemClock.sleep(dice.millis(100, 1_500)).await;
                    self.replication.set(Weather::Fair);
                })
                .await;
            }
            _ => bad_weather(&self.clients, dice, recorder).await,
        }
    }
}

/// A Redis Cluster: three primaries, a replica each.
pub(crate) struct OnCluster {
    cluster: RedisCluster,
    /// True if every write and read waits for the replica (`wait_replicas=1`).
    waits: bool,
}

impl OnCluster {
    pub(crate) async fn start(waits: bool) -> Self {
        let cluster = RedisCluster::start().await;
        for node in cluster.nodes() {
            node.cli(&["CONFIG", "SET", "cluster-node-timeout", "1000"]);
        }
        let setup = Self { cluster, waits };
        setup.is_whole().await;
        setup
    }

    fn is_primary(&self, node: usize) -> bool {
        self.cluster.nodes().get(node).unwrap().cli(&["ROLE"]).starts_with("master")
    }

    /// Waits until every primary has its replica, up to date.
    async fn is_whole(&self) {
        until("the cluster serves all slots", async || {
            let nodes = self.cluster.nodes();
            let ok = nodes
                .iter()
                .all(|node| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
            let followed = nodes.iter().filter(|node| {
                let info = node.cli(&["INFO", "replication"]);
                info.contains("role:master") && info.contains("state=online")
            });
            ok && followed.count() == 3
        })
        .await;
    }

    /// Kills a primary, waits for its replica to take over, and starts it again.
    async fn fail_over(&mut self, primary: usize, recorder: &Recorder) {
        let name = self.cluster.nodes().get(primary).unwrap().cli(&["CLUSTER", "MYID"]);
        during(recorder, "failover", async {
            self.cluster.nodes_mut().get_mut(primary).unwrap().kill();
            if !self.waits {
                // Writes that no replica had are lost. Replicas are at most this far behind here.
                recorder.record(Event::MayHaveLost { lag: Duration::from_secs(1) });
            }
            let other = self.cluster.nodes().get((primary + 1) % 6).unwrap();
            until("a replica takes over", async || {
                let nodes = other.cli(&["CLUSTER", "NODES"]);
                let failed = |line: &str| line.starts_with(&name) && line.contains("fail");
                let slots = |line: &str| line.contains("master") && line.contains("connected ");
                let serving = nodes.lines().filter(|line| {
                    !line.starts_with(&name) && slots(line) && line.matches('-').count() > 1
                });
                nodes.lines().any(failed) && serving.count() == 3
            })
            .await;
            self.cluster.nodes_mut().get_mut(primary).unwrap().restart().await;
        })
        .await;
        self.is_whole().await;
    }

    /// Suspends a primary, sometimes for longer than its replica waits.
    async fn suspend(&mut self, primary: usize, dice: &mut Dice, recorder: &Recorder) {
        let long = dice.millis(100, 3_500);
        during(recorder, "primary suspended", async {
            let node = self.cluster.nodes().get(primary).unwrap();
            node.child().unwrap().signal("STOP");
            SystemClock.sleep(long).await;
            node.child().unwrap().signal("CONT");
            if !self.waits {
                recorder.record(Event::MayHaveLost { lag: long + Duration::from_secs(1) });
            }
        })
        .await;
        self.is_whole().await;
    }
}

impl Setup for OnCluster {
    const NAME: &'static str = "redis cluster";

    fn section(&self) -> String {
        let wait = if self.waits { "?wait_replicas=1&wait_timeout=200ms" } else { "" };
        let url = self.cluster.url();
        format!("[store]\nurl = \"{url}{wait}\"\nallow_lossy = true\nJOURNAL\n")
    }

    async fn disturb(&mut self, number: u64, dice: &mut Dice, recorder: &Recorder) {
        let primaries: Vec<usize> = (0..6).filter(|node| self.is_primary(*node)).collect();
        let place = usize::try_from(dice.roll(primaries.len() as u64)).unwrap();
        let primary = *primaries.get(place).unwrap();
        if number == 1 || dice.roll(3) > 0 {
            self.fail_over(primary, recorder).await;
        } else {
            self.suspend(primary, dice, recorder).await;
        }
    }
}
