//! Tests of a settlement that was delayed in the network and arrives after its attempt has lost the
//! key.

use std::sync::Arc;
use std::time::Duration;

use onetake_core::{
    Cause, Claim, Claimed, Clock, Failure, ManualClock, OnUnknown, Recording, Settled, Settlement,
    Store, StoreErrorKind, SystemClock, Terms, Transition,
};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};

use super::lost_or_repeated::claim;
use super::{patient, store_on};

/// A short lease, after which the next claim takes over.
const TERMS: Terms = Terms {
    ttl: Duration::from_secs(86_400),
    lease: Duration::from_millis(300),
    grace: Duration::from_millis(10),
    on_unknown: OnUnknown::Retry,
};

fn late_words() -> Vec<Transition> {
    let failure = Failure { code: "late".into(), detail: "and wrong".into() };
    vec![
        Transition::Renew,
        Transition::Complete(Recording::new("late and wrong")),
        Transition::Fail(failure),
        Transition::Release,
        Transition::Unknown(Cause::TimedOut),
        Transition::ExpireLease,
        Transition::Forget,
    ]
}

/// Each transition of the first attempt arrives late: while the second attempt runs, and after it has
/// finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_lands_late_changes_nothing() {
    let server = Postgres::start_with(&["log_min_duration_statement = 0"]).await;
    let url = server.database();
    let database = url.rsplit_once('/').unwrap().1;
    let other = store_on(&url).await;
    let logged = || server.log().matches("FROM onetake_settle_").count();
    let sessions = || -> Vec<String> {
        let pids = "SELECT pid FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()";
        server.sql(database, pids).lines().map(ToOwned::to_owned).collect()
    };
    for (number, (transition, finishes)) in (0..).zip(
        late_words()
            .into_iter()
            .flat_map(|transition| [(transition.clone(), false), (transition, true)]),
    ) {
        let others = sessions();
        let proxy = FaultProxy::start(server.address()).await.unwrap();
        let through = server.url_at(proxy.address(), database);
        // The store waits for an answer until the test advances the clock.
        let clock = ManualClock::new(SystemClock.now());
        let options = PostgresOptions { clock: Arc::new(clock.clone()), ..patient() };
        let owner = PostgresStore::open(&through, options).await.unwrap();
        let first = Claim { terms: TERMS, ..claim(2 * number) };
        let second = Claim { attempt: claim(2 * number + 1).attempt, ..first.clone() };
        let claimed = owner.claim(vec![first.clone()]).await.remove(0).unwrap();
        assert!(matches!(claimed, Claimed::Granted { .. }), "{claimed:?}");
        proxy.set(Weather::Cut);
        let item =
            Settlement { id: first.id, attempt: first.attempt, transition: transition.clone() };
        let settling = async { owner.settle(vec![item]).await.remove(0).unwrap_err() };
        let waiting = async {
            until("it waits for the answer", async || clock.sleepers() > 0).await;
            // The timeout grows with the size of the statement.
            clock.advance(patient().command_timeout + Duration::from_secs(1));
        };
        let (stuck, ()) = tokio::join!(settling, waiting);
        assert_eq!(stuck.kind(), StoreErrorKind::Indeterminate, "{stuck}");
        drop(owner);

        until("another attempt takes over", async || {
            matches!(other.claim(vec![second.clone()]).await.remove(0), Ok(Claimed::Granted { .. }))
        })
        .await;
        if finishes {
            let paid = Transition::Complete(Recording::new("paid"));
            let item = Settlement { id: second.id, attempt: second.attempt, transition: paid };
            let settled = other.settle(vec![item]).await.remove(0).unwrap();
            assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
        }
        let row = "SELECT onetake_records::text FROM onetake_records ORDER BY id";
        let (before, settled) = (server.sql(database, row), logged());
        proxy.set(Weather::Fair);
        // The server's session executes the delayed statement, commits, and ends.
        until("the late settlement has landed", async || {
            logged() > settled && sessions().iter().all(|pid| others.contains(pid))
        })
        .await;
        assert_eq!(server.sql(database, row), before, "{transition:?} (S3, S4)");
    }
}
