//! Deliberate changes to a rule in SQL: each of them is found.

use onetake_conformance::differential::play;
use onetake_sim::servers::Postgres;

use super::{POSTGRES, subjects};

/// A function, a rule in it, and another one in its place.
const CHANGES: [(&str, &str, &str); 6] = [
    // A lease is over a microsecond late.
    ("onetake_over_1", "state_at + grace <= at", "state_at + grace < at"),
    // An owner does not get its grace anew after an outage.
    ("onetake_free_2", "AND grace <= in_touch", ""),
    // What is to be reconciled runs again.
    ("onetake_free_2", "on_unknown >= 2", "on_unknown >= 1"),
    // An outcome is kept for two hours.
    ("onetake_settle_1", "least(record.ttl, 3600000000)", "least(record.ttl, 7200000000)"),
    // A reconciliation that somebody postponed is due all the same.
    ("onetake_settle_1", "record.ask_at <= v_now", "true"),
    // A key that runs again forgets when it was first claimed.
    (
        "onetake_claim_3",
        "created_at = CASE WHEN record.expires_at <= v_now THEN v_now ELSE record.created_at END",
        "created_at = v_now",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_to_a_rule_of_postgres_is_found() {
    let server = Postgres::start().await;
    for (function, rule, change) in CHANGES {
        let subject = subjects::postgres(&server).await;
        let database = server.sql("postgres", "SELECT max(oid::bigint) FROM pg_database");
        let database = format!("SELECT datname FROM pg_database WHERE oid = {database}");
        let database = server.sql("postgres", &database);
        let definition = format!("SELECT pg_get_functiondef('public.{function}'::regproc)");
        let definition = server.sql(&database, &definition);
        assert!(definition.contains(rule), "{function} has another text by now: {definition}");
        server.sql(&database, &definition.replace(rule, change));
        let found = play(&subject, POSTGRES, 1, 10_000).await;
        let found = found.expect_err(&format!("nobody noticed {change:?} for {rule:?}"));
        println!("{function}: {rule:?} → {change:?} is found: {found}");
    }
}
