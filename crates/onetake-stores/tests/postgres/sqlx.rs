//! Tests of transactions of sqlx.

use onetake_core::Store;
use onetake_core::{Attempt, Completion, FinishError, Message, NotDone, Outcome, Recording};
use onetake_sim::servers::Postgres;
use onetake_stores::postgres::sqlx::finish;
use onetake_stores::{PostgresOptions, PostgresStore};
use sqlx::{Connection, PgConnection, PgPool};

use super::transactions::{Bank, operation};

async fn transfer(url: String, attempt: Attempt, commits: bool) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(&url).await?;
    let mut transaction = connection.begin().await?;
    let fence = i64::try_from(attempt.fence.get()).unwrap();
    let insert = sqlx::query("INSERT INTO transfers VALUES ('sqlx', $1)").bind(fence);
    insert.execute(&mut *transaction).await?;
    let completion = Completion::new(Recording::new("sqlx paid"))
        .with_message(Message::new("paid", "a", "1").with_header("content-type", "text/plain"))
        .with_message(Message::new("paid", "b", "2"));
    finish(&mut transaction, &attempt, &completion).await.unwrap();
    if commits {
        return transaction.commit().await;
    }
    transaction.rollback().await?;
    Err(sqlx::Error::RowNotFound)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_sqlx() {
    let server = Postgres::shared().await;
    let bank = Bank::open(server).await;
    for commits in [false, true] {
        let url = bank.url.clone();
        let work = move |attempt| transfer(url, attempt, commits);
        let outcome = bank.engine.transact(operation("sqlx"), work).await;
        if commits {
            let recording = Recording::new("sqlx paid");
            assert_eq!(outcome.unwrap().recording(), Some(&recording));
        } else {
            assert!(matches!(outcome, Err(NotDone::Work(_))), "{outcome:?}");
        }
        let (transfers, messages) =
            (bank.count("transfers").await, bank.count("onetake_outbox").await);
        assert_eq!((transfers, messages), if commits { (1, 2) } else { (0, 0) });
    }
    let outcome = bank.engine.transact(operation("sqlx"), |_| async { Ok::<_, ()>(()) }).await;
    let Outcome::Answered(onetake_core::Answer::Replay(record)) = outcome.unwrap() else {
        panic!()
    };
    let late = Attempt { id: record.id, attempt: record.attempt, fence: record.fence };
    let mut connection = PgConnection::connect(&bank.url).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query("INSERT INTO transfers VALUES ('late', 1)")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let finished = finish(&mut transaction, &late, &Completion::default()).await;
    assert!(matches!(finished, Err(FinishError::Stale)), "{finished:?}");
    let _rolled_back = transaction.commit().await;
    assert_eq!(bank.count("transfers").await, 1);
}

/// The migration files by the migrator of sqlx, and a store on the pool that ran it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_a_pool_of_sqlx() {
    let server = Postgres::shared().await;
    let pool = PgPool::connect(&server.database()).await.unwrap();
    let refused = PostgresStore::with_pool(&pool, PostgresOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("onetake migrate"), "{refused}");
    for migration in onetake_stores::postgres::migrations() {
        sqlx::raw_sql(sqlx::AssertSqlSafe(migration.sql)).execute(&pool).await.unwrap();
    }
    let store = PostgresStore::with_pool(&pool, PostgresOptions::default()).await.unwrap();
    store.ready().await.unwrap();
    assert!(!format!("{store:?}").contains("password"));
}
