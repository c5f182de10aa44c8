//! The deadline of a client, while PostgreSQL hangs.

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, until};
use onetake_sim::upstream::Upstream;

use crate::common::migrated_postgres;
use crate::common::process::Process;

/// Timeouts of the store that are far longer than the deadline, and a route that runs without a
/// record while the store is unreachable.
const OPTIONS: &str = "connect_timeout = \"60s\"\ntimeout = \"60s\"\n\
    claim_timeout = \"60s\"\nsettle_timeout = \"60s\"\n\
    [[route]]\nmatch = \"POST /open/charge\"\non_store_down = \"fail-open\"\n";
/// The deadline of the client, in milliseconds.
const DEADLINE: &str = "200";
/// The longest time until the answer. A machine may stall for a while.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_the_wait_for_a_postgres_that_hangs() {
    let (server, url) = (Postgres::shared().await, migrated_postgres().await);
    let (_, database) = url.rsplit_once('/').unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = server.url_at(proxy.address(), database);
    let upstream = Upstream::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let variables = [("ONETAKE__STORE__URL", &*url)];
    let gateway = Process::start_with(folder.path(), OPTIONS, &upstream.url(), &variables).await;
    let call = |path: &str, key: &str| gateway.client.post(path).key(key);
    let before = call("/any/charge", "before-the-store-hangs").send().await.unwrap();
    assert_eq!(before.status(), 201, "{}", before.text());
    let routes =
        [("/any/charge", "a-deadline-fail-closed"), ("/open/charge", "a-deadline-fail-open")];

    // No byte arrives, and there is no error.
    proxy.set(Weather::Cut);
    for (path, key) in routes {
        let since = SystemClock.monotonic();
        let late = call(path, key).header("x-request-timeout-ms", DEADLINE).send().await.unwrap();
        let took = SystemClock.monotonic() - since;
        assert_eq!((late.status(), &*late.code()), (504, "deadline_exceeded"), "{path}");
        assert!(took < ANSWERED_WITHIN, "{path}: {took:?}");
    }

    // The claims arrive now. No client waits for them, so they are released and run nothing.
    proxy.set(Weather::Fair);
    for (path, key) in routes {
        until("the retry runs", async || {
            let retry = call(path, key).send().await.unwrap();
            assert!([201, 409].contains(&retry.status()), "{path}: {}", retry.text());
            retry.status() == 201
        })
        .await;
        assert_eq!(upstream.runs(key), 1, "the retry alone ran: {path}");
    }
}
