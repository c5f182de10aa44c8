//! Log secrecy: logs, metrics, traces and problems of the binary hold no key, no credential and no
//! body, for any kind of request, while the servers fail.

use std::process::Command;

use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, Redis};

use crate::common::log_secrecy::Scene;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_servers_that_go_away_with_logs_for_people() {
    let server = Postgres::shared().await;
    let database = server.database();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let name = database.rsplit('/').next().unwrap();
    let url = server.url_at(proxy.address(), name);
    let password = url.split([':', '@']).nth(2).unwrap().to_owned();
    let migrate =
        Command::new(env!("CARGO_BIN_EXE_onetake")).args(["migrate", "--store", &url]).output();
    assert!(migrate.unwrap().status.success());
    let mut redis = Redis::start().await;
    let (store, filter) = ("ONETAKE__STORE__URL", "ONETAKE__STORE__FILTER");
    let mut scene = Scene::start("text", &[(store, &url), (filter, &redis.url())]).await;
    let upstream = scene.upstream.clone();
    scene.sender.everything(&upstream).await;
    proxy.set(Weather::Dead);
    redis.kill();
    let closed = scene.sender.call("/any/charge", 90);
    scene.sender.send(closed, 503, "idempotency_store_unavailable").await;
    let open = scene.sender.call("/open/charge", 91);
    scene.sender.send(open, 201, "").await;
    proxy.set(Weather::Fair);
    scene.said_nothing_of(&[&password]).await;
}
