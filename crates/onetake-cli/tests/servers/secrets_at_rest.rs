//! Secrets at rest: what a thief finds on the disks of PostgreSQL and of the Redis in front of it.

use onetake_sim::servers::{Postgres, Redis, until};

use crate::common::migrated;
use crate::common::stolen_disk::{ENCRYPTED, KEY, OPEN, found, pay_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_postgres_and_the_redis_in_front_of_it() {
    for (secrets, expected) in [("", &OPEN[..]), (ENCRYPTED, &[])] {
        let (postgres, redis) = (Postgres::start().await, Redis::start().await);
        let url = migrated(postgres.database()).await;
        let store = format!("url = \"{url}\"\nfilter = \"{}\"", redis.url());
        // A record that is settled too late for the filter is not written to it.
        let mut payments = 0;
        until("the filter knows one", async || {
            pay_with(&format!("{KEY}-{payments}"), &store, secrets).await;
            payments += 1;
            redis.cli(&["DBSIZE"]).trim() != "0"
        })
        .await;
        // Tables, write-ahead logs, and the logs of the servers.
        assert_eq!(found(postgres.folder()), expected);
        assert_eq!(found(redis.folder()), expected);
    }
}
