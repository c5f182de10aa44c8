//! Tests that fences rise, whatever happens to the server's clock (S2).

use std::time::Duration;

use onetake_core::{
    Claim, Claimed, Fence, OnUnknown, RecordId, Recording, Settled, Settlement, Shift, Store,
    Terms, Transition,
};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};

use super::lost_or_repeated::{claim, stranger};
use super::{migrated, patient, store_on};

const HOUR: Duration = Duration::from_secs(3_600);

/// The claim of an attempt for the one key of this file.
fn attempt(number: u64, terms: Terms) -> Claim {
    Claim { id: claim(0).id, terms, ..claim(number) }
}

async fn granted(store: &PostgresStore, claim: &Claim) -> Fence {
    match store.claim(vec![claim.clone()]).await.remove(0).unwrap() {
        Claimed::Granted { fence } => fence,
        Claimed::Found { record, .. } => panic!("found {}", record.state.name()),
    }
}

/// Claims the key of an abandoned attempt. A node may take over once it has been in contact with the
/// server for a whole grace, and contact counts anew after any failed connection.
async fn taken_over(store: &PostgresStore, claim: &Claim) -> Fence {
    let mut fence = None;
    until("the takeover of an abandoned attempt", async || {
        if let Claimed::Granted { fence: granted } =
            store.claim(vec![claim.clone()]).await.remove(0).unwrap()
        {
            fence = Some(granted);
        }
        fence.is_some()
    })
    .await;
    fence.unwrap()
}

async fn settle(store: &PostgresStore, claim: &Claim, transition: Transition) {
    let item = Settlement { id: claim.id, attempt: claim.attempt, transition };
    let settled = store.settle(vec![item]).await.remove(0).unwrap();
    assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
}

/// The statement of a claim of the newest version, for a separate session.
pub(super) async fn claim_sql(
    client: &tokio_postgres::Client,
    id: RecordId,
    shift: i64,
    terms: Terms,
) -> String {
    let newest = "SELECT proname::text FROM pg_proc WHERE proname LIKE 'onetake\\_claim\\__'
                   ORDER BY proname DESC LIMIT 1";
    let name: String = client.query_one(newest, &[]).await.unwrap().get(0);
    let hex: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let (ttl, lease, grace) =
        (terms.ttl.as_micros(), terms.lease.as_micros(), terms.grace.as_micros());
    format!(
        "SELECT r_kind, r_number FROM {name}({shift}, '60s', 0, 0, 0::smallint, ARRAY['\\x{hex}'::bytea],
           ARRAY['\\x000102030405060708090a0b0c0d0e0f'::bytea], ARRAY['\\x00'::bytea], ARRAY[{ttl}::bigint],
           ARRAY[{lease}::bigint], ARRAY[{grace}::bigint], ARRAY[0::smallint], ARRAY[''::bytea])"
    )
}

/// The clock goes back by an hour between two attempts of one key, for each way in which one
/// follows the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_although_the_clock_went_back() {
    let server = Postgres::shared().await;
    let plain = Terms { grace: Duration::from_millis(10), ..Terms::default() };
    let retried = Terms { on_unknown: OnUnknown::Retry, ..plain };
    for way in ["released", "unknown", "taken over", "expired", "swept", "forgotten and swept"] {
        let url = migrated(server).await;
        drop(store_on(&url).await);
        let shift = Shift::default();
        let options = PostgresOptions { shift: shift.clone(), ..patient() };
        let store = PostgresStore::open(&url, options).await.unwrap();
        let terms = if way == "taken over" || way == "unknown" { retried } else { plain };
        let first = attempt(1, terms);
        // The clock is ahead first: a time in the future must not be mistaken for another state.
        shift.advance(2 * HOUR);
        let before = granted(&store, &first).await;
        let complete = Transition::Complete(Recording::new("paid"));
        match way {
            "released" => settle(&store, &first, Transition::Release).await,
            "unknown" => {
                let cause = onetake_core::Cause::TimedOut;
                settle(&store, &first, Transition::Unknown(cause)).await;
            }
            "expired" => {
                settle(&store, &first, complete).await;
                shift.advance(terms.ttl);
            }
            "swept" => {
                settle(&store, &first, complete).await;
                shift.advance(terms.ttl);
                assert_eq!(store.sweep(10).await.unwrap().removed, 1);
                shift.set_back(terms.ttl);
            }
            "forgotten and swept" => {
                settle(&store, &first, complete).await;
                settle(&store, &first, Transition::Forget).await;
                assert_eq!(store.sweep(10).await.unwrap().removed, 1);
            }
            _ => shift.advance(terms.lease + terms.grace),
        }
        // An answer contains the server's time. The node may take over only while it knows that
        // time.
        let heard = store.load(vec![first.id]).await.remove(0);
        heard.unwrap();
        // A record that has expired, or whose lease has ended, must still be so after the clock
        // went back.
        let back = if way == "expired" || way == "taken over" { Duration::ZERO } else { 2 * HOUR };
        shift.set_back(back);
        let (mut last, mut number) = (before, 2);
        if !back.is_zero() {
            last = granted(&store, &attempt(number, terms)).await;
            assert!(last > before, "{way}: {last} after {before}");
        } else {
            // The clock goes back after the second attempt, below the fence of the first.
            let second = attempt(number, terms);
            last = last.max(match way {
                "taken over" => taken_over(&store, &second).await,
                _ => granted(&store, &second).await,
            });
            assert!(last > before, "{way}: {last} after {before}");
            settle(&store, &attempt(number, terms), Transition::Release).await;
            shift.set_back(terms.ttl + 2 * HOUR);
            number += 1;
            let next = granted(&store, &attempt(number, terms)).await;
            assert!(next > last, "{way}: {next} after {last}");
            last = next;
        }
        settle(&store, &attempt(number, terms), Transition::Release).await;
        let next = granted(&store, &attempt(number + 1, terms)).await;
        assert!(next > last, "{way}: {next} after {last}");
    }
}

/// A sweep deletes the expired record of a key during a claim of it, and the clock has gone back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_swept_during_a_claim_gets_a_higher_fence() {
    let server = Postgres::shared().await;
    let url = migrated(server).await;
    let database = url.rsplit_once('/').unwrap().1;
    let store = store_on(&url).await;
    let first = attempt(1, Terms::default());
    let before = granted(&store, &first).await;
    settle(&store, &first, Transition::Complete(Recording::new("paid"))).await;
    settle(&store, &first, Transition::Forget).await;

    let (sweeper, claimer) = (stranger(&url).await, stranger(&url).await);
    // The lock delays the claim's insert until the sweep commits.
    sweeper
        .batch_execute(
            "BEGIN; LOCK TABLE onetake_records IN SHARE ROW EXCLUSIVE MODE;
             SELECT * FROM onetake_sweep_1(1000000, '10s', 0, 10, 0)",
        )
        .await
        .unwrap();
    let back = -i64::try_from(HOUR.as_micros()).unwrap();
    let sql = claim_sql(&claimer, first.id, back, Terms::default()).await;
    let claiming = tokio::spawn(async move { claimer.query(&sql, &[]).await.unwrap() });
    until("the claim waits for the sweep", async || {
        let waits = "SELECT count(*) FROM pg_locks
                      WHERE relation = 'onetake_records'::regclass AND NOT granted
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        server.sql(database, waits) == "1"
    })
    .await;
    sweeper.batch_execute("COMMIT").await.unwrap();
    let rows = claiming.await.unwrap();
    let (kind, number): (i16, i64) = (rows[0].get(0), rows[0].get(1));
    let fence = Fence::new(number.try_into().unwrap());
    assert_eq!(kind, 2, "it is granted");
    assert!(fence > before, "{fence} after {before}");
    let kept = server.sql(database, "SELECT fence FROM onetake_records");
    assert_eq!(kept, number.to_string(), "what is told is what is kept");
}
