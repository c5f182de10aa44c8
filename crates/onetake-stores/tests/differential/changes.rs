//! Deliberate changes to a rule in SQL or Lua. The differential test must find each of them.

use std::os::unix::fs::PermissionsExt;

use onetake_conformance::differential::play;
use onetake_sim::servers::Postgres;

use super::{POSTGRES, subjects};

/// A function of PostgreSQL, a rule in it, and its replacement.
const CHANGES: [(&str, &str, &str); 6] = [
    // A lease ends a microsecond late.
    ("onetake_over_1", "state_at + grace <= at", "state_at + grace < at"),
    // An owner does not get its whole grace again after an outage.
    ("onetake_free_2", "AND grace <= in_touch", ""),
    // A record that is to be reconciled runs again.
    ("onetake_free_2", "on_unknown >= 2", "on_unknown >= 1"),
    // An outcome is kept for two hours.
    ("onetake_settle_1", "least(record.ttl, 3600000000)", "least(record.ttl, 7200000000)"),
    // A postponed reconciliation is due all the same.
    ("onetake_settle_1", "record.ask_at <= v_now", "true"),
    // A key that runs again loses the time of its first claim.
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

/// A rule of the Redis scripts, and a replacement of the same length.
const SCRIPT_CHANGES: [(&str, &str); 5] = [
    // A lease ends a microsecond late.
    ("plus(record.at, record.grace) <= now", "plus(record.at, record.grace) <  now"),
    // An owner does not get its whole grace again after an outage.
    (
        "tonumber(record.grace) <= tonumber(back_for)",
        "tonumber(record.grace) <= 9007199254740991.0",
    ),
    // A record lives for a microsecond longer.
    ("return ends == nil or ends > now", "return ends == nil or ends >=now"),
    // An attempt that ended is granted again.
    (
        "if record.state == RUNNING then\n      renew",
        "if record.state ~= RUNNING then\n      renew",
    ),
    // An unknown record runs again, whatever its terms are.
    ("    free = again\n", "    free = true \n"),
];

/// The scripts are constants of this program. A copy of the program contains the change.
#[test]
fn every_change_to_a_rule_of_redis_is_found() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (number, (rule, change)) in SCRIPT_CHANGES.into_iter().enumerate() {
        assert_eq!(rule.len(), change.len());
        let mut changed = program.clone();
        let places: Vec<usize> = memchr::memmem::find_iter(&program, rule).collect();
        assert!(places.len() > 1, "beside the table above nothing says {rule:?} by now");
        for place in places {
            changed[place..place + rule.len()].copy_from_slice(change.as_bytes());
        }
        let copy = folder.path().join(number.to_string());
        std::fs::write(&copy, changed).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o700)).unwrap();
        let played = std::process::Command::new(&copy)
            .args(["--exact", "redis", "--nocapture"])
            .env("ONETAKE_STEPS", "10000")
            .env_remove("ONETAKE_SEED")
            .output()
            .unwrap();
        std::fs::remove_file(&copy).unwrap();
        let told = String::from_utf8_lossy(&[played.stdout, played.stderr].concat()).into_owned();
        assert!(told.contains("the steps before:"), "nobody noticed {change:?}: {told}");
    }
}
