//! The checks of `onetake doctor` on PostgreSQL.

use std::time::Duration;

use onetake_core::StoreError;

use super::PostgresStore;
use super::address::Tls;
use super::rows::get;
use super::schema;
use super::statement_error::{Effect, StatementError, missing};
use crate::diagnosis::{Diagnosis, Finding};

/// The number of round trips that are measured.
const ROUND_TRIPS: usize = 15;
/// The age of an open transaction, in seconds, above which it is reported.
const OPEN_MAX: i64 = 600;
/// The clock difference, in microseconds, above which it is reported.
const CLOCK_AWAY: i64 = 1_000_000;

const SETTINGS: &str = "SELECT current_setting('server_version'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), pg_is_in_recovery(),
    (SELECT count(*) FROM pg_stat_replication),
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    current_setting('default_transaction_isolation'),
    coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::bigint FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()), 0),
    coalesce((SELECT max(extract(epoch FROM clock_timestamp() - prepared))::bigint FROM pg_prepared_xacts
               WHERE database = current_database()), 0)";

pub(super) async fn diagnose(store: &PostgresStore) -> Result<Diagnosis, StoreError> {
    let mut trips = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = store.clock.monotonic();
        store.pool.query("SELECT 1", &[], Effect::Reads).await.map_err(StatementError::for_one)?;
        trips.push(store.clock.monotonic().saturating_sub(begun));
    }
    trips.sort();
    let round_trip = trips.get(trips.len() / 2).copied().unwrap_or_default();
    let rows =
        store.pool.query(SETTINGS, &[], Effect::Reads).await.map_err(StatementError::for_one)?;
    let here = store.clock.now();
    let Some(row) = rows.first() else {
        return Ok(Diagnosis::new("PostgreSQL", round_trip, None, Vec::new()));
    };
    let mut findings = Vec::new();
    let (fsync, pages): (String, String) = (get(row, 1)?, get(row, 2)?);
    for (name, value) in [("fsync", &fsync), ("full_page_writes", &pages)] {
        findings.push(if value == "off" {
            Finding::broken(
                format!(
                    "{name} is off: a crash of the machine loses or damages acknowledged writes"
                ),
                format!("ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"),
            )
        } else {
            Finding::fine(format!("{name} is on"))
        });
    }
    findings.push(commit(&get::<String>(row, 3)?));
    findings.extend(replicas(&get::<String>(row, 3)?, &get::<String>(row, 4)?, get(row, 6)?));
    if get(row, 5)? {
        findings.push(Finding::broken(
            "this server is a replica and accepts no writes",
            "name the primary in the URL, or several hosts with target_session_attrs=read-write",
        ));
    }
    findings.push(transport(&store.pool.address.tls, get(row, 7)?));
    let isolation: String = get(row, 9)?;
    if isolation != "read committed" {
        findings.push(Finding::weak(
            format!("default_transaction_isolation is {isolation}: many statements must be sent twice"),
            "use read committed for the role of onetake: ALTER ROLE … SET default_transaction_isolation = 'read committed'",
        ));
    }
    findings.extend(open_for_long(get::<i64>(row, 10)?.max(get(row, 11)?)));
    let ahead = ahead(get(row, 8)?, here.as_micros(), round_trip);
    if ahead.abs() > CLOCK_AWAY {
        findings.push(Finding::weak(
            "the clocks of this machine and of the server differ by more than a second; onetake uses the clock of the server",
            "synchronize both with NTP, so that logs can be compared",
        ));
    }
    findings.extend(tables(store).await);
    findings.extend(pooler(store).await);
    let server = format!("PostgreSQL {}", get::<String>(row, 0)?);
    Ok(Diagnosis::new(server, round_trip, Some(ahead), findings))
}

/// Reports a long-open transaction. Rows that it may still see cannot be cleaned up, and every
/// search has to skip them.
fn open_for_long(seconds: i64) -> Option<Finding> {
    (seconds > OPEN_MAX).then(|| {
        Finding::weak(
            format!(
                "a transaction has been open for {seconds} s: records that expired and messages \
                 that were delivered since then cannot be cleaned up, and slow down claims and \
                 relays"
            ),
            "find it in pg_stat_activity (xact_start) or pg_prepared_xacts, and end it; set \
             idle_in_transaction_session_timeout, and run long reports on a replica",
        )
    })
}

fn ahead(server: i64, here: u64, round_trip: Duration) -> i64 {
    let half = i64::try_from(round_trip.as_micros() / 2).unwrap_or_default();
    server.saturating_add(half).saturating_sub(i64::try_from(here).unwrap_or(i64::MAX))
}

fn commit(value: &str) -> Finding {
    match value {
        "off" => Finding::broken(
            "synchronous_commit is off: a crash loses the last acknowledged writes",
            "ALTER ROLE … SET synchronous_commit = on",
        ),
        "local" | "remote_write" => Finding::weak(
            format!("synchronous_commit is {value}: a failover may lose acknowledged writes"),
            "ALTER ROLE … SET synchronous_commit = on",
        ),
        value => Finding::fine(format!("synchronous_commit is {value}")),
    }
}

fn replicas(commit: &str, synchronous: &str, count: i64) -> Option<Finding> {
    if count == 0 {
        return None;
    }
    Some(if commit == "local" && !synchronous.is_empty() {
        Finding::broken(
            "synchronous replicas are configured, but synchronous_commit is local: a failover \
             loses acknowledged writes, and the operation of a lost claim runs twice",
            "ALTER ROLE … SET synchronous_commit = on",
        )
    } else if synchronous.is_empty() {
        Finding::broken(
            format!(
                "{count} replicas are asynchronous: a failover loses acknowledged writes, and the \
                 operation of a lost claim runs twice"
            ),
            "set synchronous_standby_names, or fail over by hand, and only to a replica that has all writes",
        )
    } else {
        Finding::fine(format!("replicas are synchronous ({synchronous})"))
    })
}

fn transport(tls: &Tls, encrypted: bool) -> Finding {
    match (tls, encrypted) {
        (Tls::VerifyFull(_), true) => Finding::fine(
            "the connection is encrypted, and the certificate of the server is verified",
        ),
        (_, true) => Finding::weak(
            "the connection is encrypted, but the certificate of the server is not verified",
            "add sslmode=verify-full (and sslrootcert=FILE) to the URL",
        ),
        _ => Finding::weak(
            "the connection is not encrypted",
            "add sslmode=verify-full (and sslrootcert=FILE) to the URL, unless you trust the network",
        ),
    }
}

/// Returns the state of the schema as a finding, so that the other checks are still reported.
async fn tables(store: &PostgresStore) -> Option<Finding> {
    let mut link = store.pool.link().await.ok()?;
    let client = link.client()?;
    match schema::check(client, true).await {
        Ok(()) => Some(Finding::fine(format!("the tables have version {}", schema::VERSION))),
        Err(error) => {
            let fix = if error.to_string() == missing("the table onetake_schema is missing") {
                "onetake migrate --store URL"
            } else {
                ""
            };
            Some(Finding::broken(error.to_string(), fix))
        }
    }
}

/// Detects a pooler that gives one server connection to several clients: then a session setting of
/// one connection of this node is visible on another one.
async fn pooler(store: &PostgresStore) -> Option<Finding> {
    let (mut one, two) = (store.pool.link().await.ok()?, store.pool.link().await.ok()?);
    let client = one.client()?;
    if client.batch_execute("BEGIN; COMMIT").await.is_err() {
        return Some(Finding::weak(
            "a connection pooler is in statement mode: `onetake migrate` needs transactions",
            "set pool_mode = transaction, or run `onetake migrate` without the pooler",
        ));
    }
    client.batch_execute("SET onetake.seen = 'yes'").await.ok()?;
    let seen = "SELECT current_setting('onetake.seen', true)";
    let seen = two.query(seen, &[], Effect::Reads).await.ok()?;
    let seen: Option<String> = seen.first().and_then(|row| row.try_get(0).ok());
    client.batch_execute("RESET onetake.seen").await.ok()?;
    (seen.as_deref() == Some("yes")).then(|| {
        Finding::fine("a connection pooler in transaction mode is used, which is supported")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_is_open_for_long_is_named() {
        assert!(open_for_long(OPEN_MAX).is_none());
        let finding = format!("{:?}", open_for_long(7_200).expect("two hours are long"));
        assert!(finding.contains("open for 7200 s") && finding.contains("pg_stat_activity"));
    }
}
