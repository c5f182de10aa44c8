//! A found outcome settles the key.

use futures_util::future::join_all;
use onetake_sim::servers::until;

use super::reconciliation_service::{Says, http};
use super::{PATIENT, World};

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_is_replayed_as_if_it_had_been_heard() {
    let headers = "request_headers = { Authorization = \"Bearer of-the-desk\", X-Shop = \"7\" }";
    let world = World::start(&format!("{PATIENT}, {headers}"), "").await;
    let body = b"{\"id\":\"ch_1\"}\0\xff\r\n";
    let head = "200 OK\r\nonetake-status: 201\r\nonetake-outcome: record\r\ncontent-type: application/x\r\n\
                link: <a>\r\nlink: <b>\r\nlocation: /charges/1\r\nset-cookie: a=b\r\ndate: now";
    world.desk.says(KEY, http(head, body));
    world.lose(KEY).await;
    let early = world.pay(KEY).await;
    if early.code() == "outcome_unknown" {
        assert_eq!((early.status(), early.header("retry-after")), (409, "5"));
    }
    let replay = world.settled(KEY).await;
    assert_eq!((replay.status(), &replay.body[..]), (201, &body[..]));
    assert!(replay.is_replay());
    assert_eq!(replay.header("location"), "/charges/1");
    assert_eq!(replay.headers.get_all("link").iter().collect::<Vec<_>>(), ["<a>", "<b>"]);
    for gone in ["onetake-status", "onetake-outcome", "set-cookie"] {
        assert!(!replay.headers.contains_key(gone), "{gone}");
    }
    let again = world.pay(KEY).await;
    let without_date = |mut headers: http::HeaderMap| {
        headers.remove("date");
        headers
    };
    assert_eq!(again.body, replay.body);
    assert_eq!(without_date(again.headers), without_date(replay.headers));
    assert_eq!(world.shop.runs(KEY), 1);

    let asked = world.desk.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].target, format!("/by/{KEY}"));
    let head = asked[0].head.to_ascii_lowercase();
    for line in [
        "authorization: bearer of-the-desk",
        "x-shop: 7",
        "accept-encoding: identity",
        "user-agent: onetake",
        &format!("host: {}", world.desk.address),
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }

    let audit = world.admin_json("/v1/audit").await;
    let entry = &audit["entries"][0];
    let told = |field: &str| entry[field].as_str().unwrap().to_owned();
    assert_eq!((told("action"), told("by")), ("resolve".to_owned(), "reconciler".to_owned()));
    assert!(told("before").starts_with("unknown: "), "{entry}");
    assert_eq!(told("ended"), "done");
    let metrics = world.admin("/metrics").await.text();
    assert!(metrics.contains("onetake_reconciled_total{found=\"completed\"}"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_executed_runs_again_once() {
    let world = World::start(&format!("{PATIENT}, not_executed = [\"404\"]"), "").await;
    let said = "key-of-which-it-is-said";
    world.desk.says(said, http("200 OK\r\nOnetake-Outcome: release", b"never heard of it"));
    for key in [said, "key-that-is-not-found"] {
        world.lose(key).await;
    }
    for key in [said, "key-that-is-not-found"] {
        until("it is released", async || {
            let key = world.admin_json("/v1/counts").await;
            key["released"].as_u64() == Some(2) || world.shop.runs(said) > 1
        })
        .await;
        let answers = join_all((0..10).map(|_| world.pay(key))).await;
        assert!(answers.iter().all(|answer| [201, 409].contains(&answer.status())));
        let last = world.settled(key).await;
        assert_eq!((last.status(), &*last.text()), (201, "run 2"));
        assert_eq!(world.shop.runs(key), 2, "the first one, and one more");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_404_settles_nothing_unless_the_route_says_so() {
    let world = World::start("timeout = \"5s\", give_up_after = \"4s\"", "").await;
    world.lose(KEY).await;
    until("it was asked", async || !world.desk.asked().is_empty()).await;
    let pending = world.pay(KEY).await;
    assert_eq!((pending.status(), &*pending.code()), (409, "outcome_unknown"));
    let key = world.admin_json("/v1/keys").await;
    let key = &key["keys"][0];
    assert_eq!(
        (key["on_unknown"].as_str(), key["state"].as_str()),
        (Some("reconcile"), Some("unknown"))
    );
    assert!(key["next_ask_at"].is_string(), "{key}");
    let last = world.settled(KEY).await;
    assert_eq!((last.status(), &*last.code()), (500, "previous_attempt_failed"));
    assert!(last.text().contains("answered 404"), "{}", last.text());
    assert_eq!(world.shop.runs(KEY), 1);
    let asked = world.desk.asked().len();
    assert!((2..=4).contains(&asked), "{asked}: until the limit, and then not any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_key_holds_it_is_one_segment() {
    let world = World::start(PATIENT, "").await;
    let keys = [
        "../../x?y#z%2f",
        "...",
        "a%2Fb/c\\d",
        "http://elsewhere/",
        "//elsewhere",
        "{derived_key}",
        "@elsewhere:1/;a=b&c=d+e",
    ];
    for key in keys {
        world.desk.says(key, http("200 OK", key.as_bytes()));
        world.lose(key).await;
    }
    for key in keys {
        let replay = world.settled(key).await;
        assert_eq!((replay.status(), &*replay.text()), (200, key));
        let asked = world.desk.asked_for(key);
        assert_eq!(asked.len(), 1, "{key}");
        let rest = asked[0].target.strip_prefix("/by/").unwrap();
        assert!(!rest.contains(['/', '?', '#', '\\']) && ![".", ".."].contains(&rest), "{rest}");
    }
    assert_eq!(world.desk.asked().len(), keys.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_without_a_body_is_one() {
    let world = World::start(PATIENT, "").await;
    let bytes = b"HTTP/1.1 204 No Content\r\nx-kept: yes\r\nconnection: close\r\n\r\n";
    world.desk.says(KEY, Says::Bytes(bytes.to_vec()));
    world.lose(KEY).await;
    let replay = world.settled(KEY).await;
    assert_eq!((replay.status(), replay.header("x-kept"), replay.body.len()), (204, "yes", 0));
}
