//! The example `service`, run as users run it, on a real PostgreSQL.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use onetake::Served;
use onetake::stores::{PostgresOptions, PostgresStore};
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::Postgres;
use tokio::sync::oneshot;

#[path = "../../examples/service.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "its `main` is not called here")]
mod service_example;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

async fn post(client: &Client, path: &str, key: &str, body: &'static str) -> ClientResponse {
    let call = client.post(path).key(key).header("content-type", "application/json");
    call.body(body).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_as_it_goes_to_production() {
    let server = Postgres::shared().await;
    let url = server.database();
    let database = url.rsplit_once('/').unwrap().1;
    PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (app, engine) = service_example::service(&url, folder.path()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let patience = Duration::from_secs(30);
    let serving = tokio::spawn(onetake::serve(listener, app, engine, stopped, patience));

    let book = r#"{"item": "book", "quantity": 1}"#;
    let first = post(&client, "/orders", KEY, book).await;
    assert_eq!((first.status(), &*first.text()), (201, r#"{"order":1}"#));
    let again = post(&client, "/orders", KEY, book).await;
    assert!(again.is_replay() && again.body == first.body);
    let many = r#"{"item": "book", "quantity": 101}"#;
    let refused = post(&client, "/orders", "6f1c8d6a-3a09-4b6e-9c8f-000000000002", many).await;
    assert_eq!(refused.status(), 422);
    // The database refuses the order. It is rolled back, and a retry runs again.
    let none = r#"{"item": "book", "quantity": 0}"#;
    for _ in 0..2 {
        let broken = post(&client, "/orders", "6f1c8d6a-3a09-4b6e-9c8f-000000000003", none).await;
        assert_eq!((broken.status(), broken.is_replay()), (500, false));
    }
    let key = "6f1c8d6a-3a09-4b6e-9c8f-000000000004";
    let charged = post(&client, "/charges", key, "10").await;
    assert_eq!((charged.status(), &*charged.text()), (200, "charged 10\n"));
    assert!(post(&client, "/charges", key, "10").await.is_replay());
    let count = |table: &str| server.sql(database, &format!("SELECT count(*) FROM {table}"));
    assert!(count("orders").contains('1') && count("onetake_outbox").contains('1'));

    stop.send(()).unwrap();
    assert_eq!(serving.await.unwrap().unwrap(), Served::Drained);
}
