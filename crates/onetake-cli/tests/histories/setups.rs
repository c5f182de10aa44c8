//! Stores on real servers, and the faults that each of them can have.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::history::{Policy, Recorder};
use onetake_sim::servers::{Dynamo, Postgres, Redis};
use tempfile::TempDir;

use super::common::migrated;
use super::load::Dice;
use super::world::{Setup, during};

/// Makes the network to a server bad for a while.
pub(crate) async fn bad_weather(proxy: &FaultProxy, dice: &mut Dice, recorder: &Recorder) {
    let long = dice.millis(50, 1_800);
    let weather = match dice.roll(8) {
        0 => Weather::Cut,
        1 => Weather::CutBack,
        2 => Weather::CutThere,
        3 => Weather::Dead,
        4 => Weather::Slow(dice.millis(1, 60)),
        5 => Weather::Pieces(usize::try_from(1 + dice.roll(200)).unwrap()),
        6 => {
            let some = usize::try_from(1 + dice.roll(12)).unwrap();
            return during(recorder, "lost answers", async {
                proxy.lose_answers(some);
                SystemClock.sleep(long / 4).await;
                proxy.lose_answers(0);
            })
            .await;
        }
        _ => {
            let some = usize::try_from(1 + dice.roll(6)).unwrap();
            return during(recorder, "torn requests", async {
                proxy.tear_requests(some);
                SystemClock.sleep(long / 4).await;
                proxy.tear_requests(0);
            })
            .await;
        }
    };
    let name = match weather {
        Weather::Cut => "cut",
        Weather::CutBack => "answers cut",
        Weather::CutThere => "requests cut",
        Weather::Dead => "connections closed",
        Weather::Slow(_) => "slow",
        _ => "pieces",
    };
    during(recorder, name, async {
        proxy.set(weather);
        SystemClock.sleep(long).await;
        proxy.set(Weather::Fair);
    })
    .await;
}

/// The embedded store: one gateway, which is killed.
pub(crate) struct OnEmbedded(TempDir);

impl OnEmbedded {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }
}

impl Setup for OnEmbedded {
    const NAME: &'static str = "embedded";
    const GATEWAYS: usize = 1;

    fn section(&self) -> String {
        let folder = self.0.path().join("data");
        format!("[store]\nurl = \"embedded:{}\"\nJOURNAL\n", folder.display())
    }

    async fn disturb(&mut self, _: u64, dice: &mut Dice, _: &Recorder) {
        SystemClock.sleep(dice.millis(100, 300)).await;
    }
}

/// SQLite: two gateways share a file, and are killed.
pub(crate) struct OnSqlite(TempDir);

impl OnSqlite {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }
}

impl Setup for OnSqlite {
    const NAME: &'static str = "sqlite";

    fn section(&self) -> String {
        let file = self.0.path().join("onetake.db");
        format!("[store]\nurl = \"sqlite:{}\"\nJOURNAL\n", file.display())
    }

    async fn disturb(&mut self, _: u64, dice: &mut Dice, _: &Recorder) {
        SystemClock.sleep(dice.millis(100, 300)).await;
    }
}

/// One PostgreSQL behind a proxy.
pub(crate) struct OnPostgres {
    server: Postgres,
    pub(crate) proxy: FaultProxy,
}

impl OnPostgres {
    pub(crate) async fn start() -> Self {
        // Recovery syncs every file of the folder, unless it is configured to sync the filesystem
        // at once.
        let server = Postgres::start_with(&["recovery_init_sync_method = syncfs"]).await;
        let _made = migrated(server.database()).await;
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        Self { server, proxy }
    }

    fn url(&self) -> String {
        self.server.url_at(self.proxy.address(), "test_0")
    }

    /// Kills the server, and starts it again.
    async fn crash(&mut self, recorder: &Recorder) {
        during(recorder, "PostgreSQL killed", async {
            self.server.kill();
            self.server.restart().await;
        })
        .await;
    }
}

impl Setup for OnPostgres {
    const NAME: &'static str = "postgres";

    fn section(&self) -> String {
        format!("[store]\nurl = \"{}\"\nJOURNAL\n", self.url())
    }

    async fn disturb(&mut self, number: u64, dice: &mut Dice, recorder: &Recorder) {
        if number == 2 || dice.roll(4) == 0 {
            self.crash(recorder).await;
        } else {
            bad_weather(&self.proxy, dice, recorder).await;
        }
    }
}

/// Redis in front of PostgreSQL, each behind a proxy.
pub(crate) struct OnFilter {
    authority: OnPostgres,
    redis: Redis,
    proxy: FaultProxy,
}

impl OnFilter {
    pub(crate) async fn start() -> Self {
        let authority = OnPostgres::start().await;
        let redis = Redis::start().await;
        let proxy = FaultProxy::start(redis.address()).await.unwrap();
        Self { authority, redis, proxy }
    }
}

impl Setup for OnFilter {
    const NAME: &'static str = "filter";

    fn section(&self) -> String {
        let filter = format!("filter = \"redis://{}\"\n", self.proxy.address());
        self.authority.section() + &filter
    }

    /// PostgreSQL alone is the authority: losing the filter changes latency only (S11).
    fn final_section(&self) -> String {
        self.authority.section()
    }

    async fn disturb(&mut self, number: u64, dice: &mut Dice, recorder: &Recorder) {
        match dice.roll(6) {
            0 => self.authority.disturb(number, dice, recorder).await,
            1 => {
                during(recorder, "Redis killed", async {
                    self.redis.kill();
                    SystemClock.sleep(dice.millis(0, 500)).await;
                    self.redis.restart().await;
                })
                .await;
            }
            2 => {
                during(recorder, "Redis flushed", async { self.redis.cli(&["FLUSHALL"]) }).await;
            }
            _ => bad_weather(&self.proxy, dice, recorder).await,
        }
    }
}

/// DynamoDB behind a proxy.
pub(crate) struct OnDynamo {
    server: Dynamo,
    proxy: FaultProxy,
    table: String,
}

impl OnDynamo {
    pub(crate) async fn start() -> Self {
        let server = Dynamo::start().await;
        let url = migrated(server.table()).await;
        let table = url.split(['/', '?']).nth(3).unwrap().to_owned();
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        Self { server, proxy, table }
    }
}

impl Setup for OnDynamo {
    const NAME: &'static str = "dynamodb";
    // Reconciliation waits ten minutes there, because DynamoDB has no clock.
    const POLICIES: &'static [Policy] = &[Policy::Fail, Policy::Retry];

    fn section(&self) -> String {
        let url = self.server.url_at(self.proxy.address(), &self.table);
        format!("[store]\nurl = \"{url}\"\nJOURNAL\n")
    }

    async fn disturb(&mut self, _: u64, dice: &mut Dice, recorder: &Recorder) {
        bad_weather(&self.proxy, dice, recorder).await;
    }
}

/// PostgreSQL whose server and gateways are killed, in cycles.
pub(crate) struct KillCycles(pub(crate) OnPostgres);

impl Setup for KillCycles {
    const NAME: &'static str = "kill cycles on postgres";
    const POLICIES: &'static [Policy] = &[Policy::Fail, Policy::Retry];

    fn section(&self) -> String {
        self.0.section()
    }

    async fn disturb(&mut self, _: u64, dice: &mut Dice, recorder: &Recorder) {
        SystemClock.sleep(Duration::from_millis(dice.roll(300))).await;
        self.0.crash(recorder).await;
    }
}
