//! The code of the README is that of `before_reqwest.rs`, `after_reqwest.rs` and `after_tower.rs`,
//! and runs here.

use onetake_client::Onetake;

use crate::server::{Server, reply};

/// A server that loses its first response.
async fn loses_the_first() -> Server {
    Server::start(|number, _| if number == 1 { None } else { reply(201, "", "{}") }).await
}

#[test]
fn the_readme_has_the_code_that_runs() {
    let readme = include_str!("../../README.md");
    for code in [
        include_str!("before_reqwest.rs"),
        include_str!("after_reqwest.rs"),
        include_str!("after_tower.rs"),
    ] {
        assert!(readme.contains(&format!("```rust\n{code}```\n")), "not in README.md:\n{code}");
    }
}

#[tokio::test]
async fn before_a_lost_response_is_an_error() {
    let server = loses_the_first().await;
    let charged = crate::before_reqwest::charge(&reqwest::Client::new(), &server.url()).await;
    assert!(charged.is_err());
    assert_eq!(server.headers("idempotency-key"), [None]);
}

#[tokio::test]
async fn after_a_lost_response_is_sent_again_with_the_same_key() {
    let (client, onetake) = (reqwest::Client::new(), Onetake::new());
    for is_reqwest in [true, false] {
        let server = loses_the_first().await;
        let charged = if is_reqwest {
            crate::after_reqwest::charge(&client, &onetake, &server.url()).await
        } else {
            crate::after_tower::charge(&onetake, &server.url()).await
        };
        assert_eq!(charged.unwrap(), 201);
        let keys = server.headers("idempotency-key");
        assert_eq!(keys.len(), 2);
        assert!(keys[0].is_some() && keys[0] == keys[1]);
    }
}
