//! The example `transfers`, run as users run it, on a real PostgreSQL.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::net::SocketAddr;

use onetake::stores::{PostgresOptions, PostgresStore};
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::Postgres;

#[path = "../../examples/transfers.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "its `main` is not called here")]
mod transfers_example;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

async fn post(client: &Client, key: &str, body: &'static str) -> ClientResponse {
    let call = client.post("/transfers").key(key).header("content-type", "application/json");
    call.body(body).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bank_that_moves_money_once() {
    let server = Postgres::shared().await;
    let url = server.database();
    let database = url.rsplit_once('/').unwrap().1;
    PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap();
    let app = transfers_example::app(&url).await.unwrap();
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await;
    let listener = listener.unwrap();
    let client = Client::new(listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });

    let asked = r#"{"from": "alice", "to": "bob", "cents": 400}"#;
    let first = post(&client, KEY, asked).await;
    assert_eq!((first.status(), &*first.text()), (201, r#"{"transfer":1,"cents":400}"#));
    let again = post(&client, KEY, asked).await;
    assert!(again.is_replay() && again.body == first.body);
    // One of these concurrent transfers is made. The other two are refused for lack of money.
    let keys: Vec<String> = (0..3).map(|number| format!("{KEY}-{number}")).collect();
    let calls = keys.iter().map(|key| post(&client, key, asked));
    let mut statuses: Vec<u16> =
        futures_util::future::join_all(calls).await.iter().map(ClientResponse::status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 422, 422]);
    for key in &keys {
        assert!(post(&client, key, asked).await.is_replay());
    }
    let nobody = r#"{"from": "alice", "to": "carol", "cents": 1}"#;
    let nobody = post(&client, "6f1c8d6a-3a09-4b6e-9c8f-000000000002", nobody).await;
    assert_eq!(nobody.status(), 404);
    // A transfer that fails in the middle is rolled back, and a retry runs again.
    server.sql(database, "ALTER TABLE transfers ADD CONSTRAINT broken CHECK (cents <> 7)");
    let (key, asked) =
        ("6f1c8d6a-3a09-4b6e-9c8f-000000000003", r#"{"from": "alice", "to": "bob", "cents": 7}"#);
    assert_eq!(post(&client, key, asked).await.status(), 500);
    server.sql(database, "ALTER TABLE transfers DROP CONSTRAINT broken");
    let made = post(&client, key, asked).await;
    assert_eq!((made.status(), made.is_replay()), (201, false));

    let told =
        |sql: &str| server.sql(database, sql).split_whitespace().collect::<Vec<_>>().join(" ");
    let sums = "SELECT string_agg(name || cents, ' ' ORDER BY name) FROM accounts";
    assert!(told(sums).contains("alice193 bob807"), "{}", told(sums));
    let messages =
        "SELECT string_agg(topic || ' ' || ordering, ',' ORDER BY place) FROM onetake_outbox";
    let one = "transfers.made alice";
    assert!(told(messages).contains(&format!("{one},{one},{one}")), "{}", told(messages));
}
