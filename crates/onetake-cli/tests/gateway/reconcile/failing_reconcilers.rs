//! Reconcilers that are no help: each leaves a clear state, and none delays the others.

use super::reconciliation_service::{Desk, Says, http};
use super::{PATIENT, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_answers_settle_nothing_until_the_limit() {
    // Long enough for services that respond. Those that never do are asked once.
    let world = World::start("timeout = \"2s\", give_up_after = \"1s\"", "").await;
    let elsewhere = Desk::start().await;
    let redirect = |to: &str| http(&format!("307 Away\r\nlocation: {to}"), b"");
    let (other, here) = (elsewhere.address, world.desk.address);
    let answers = [
        ("hangs", Says::Nothing, "no response within"),
        ("drips", Says::Drips, "no response within"),
        ("closes", Says::Bytes(Vec::new()), "closed the connection, or"),
        ("garbage", Says::Bytes(b"\0\x01 what?\r\n\r\n".to_vec()), "closed the connection, or"),
        (
            "breaks-off",
            Says::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nfour".to_vec()),
            "end of its response",
        ),
        ("redirects", redirect(&format!("http://{other}/by/redirects")), "not followed"),
        ("loops", redirect(&format!("http://{here}/by/loops")), "not followed"),
        ("refuses", http("401 Go Away", b""), "answered 401"),
        ("fails", http("500 Oh No", b""), "answered 500"),
        ("odd-status", http("200 OK\r\nonetake-status: 42", b""), "Onetake-Status"),
        ("odd-word", http("200 OK\r\nonetake-outcome: perhaps", b""), "Onetake-Outcome"),
        ("unknown", http("200 OK\r\nonetake-outcome: unknown", b""), "does not know"),
    ];
    for (key, says, _) in &answers {
        world.desk.says(key, says.clone());
        world.lose(key).await;
    }
    world.desk.says("good", http("200 OK", b"fine"));
    world.lose("good").await;
    let good = world.settled("good").await;
    assert_eq!((good.status(), &*good.text()), (200, "fine"));
    for (key, _, why) in &answers {
        let last = world.settled(key).await;
        assert_eq!((last.status(), &*last.code()), (500, "previous_attempt_failed"), "{key}");
        assert!(last.text().contains(why), "{key}: {}", last.text());
        assert_eq!(world.shop.runs(key), 1, "{key}");
        let asked = world.desk.asked_for(key).len();
        assert!((1..=4).contains(&asked), "{key} was asked for {asked} times");
    }
    assert_eq!(elsewhere.asked().len(), 0, "who is asked is the operator's choice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_is_too_large_is_one_without_its_body() {
    let world = World::start(PATIENT, "max_response_body = \"64KiB\"").await;
    let body = vec![b'x'; 10 << 20];
    world.desk.says("large", http("201 Created\r\nlocation: /charges/1", &body));
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let chunks = b"8000\r\n".iter().chain([b'x'; 0x8000].iter()).chain(b"\r\n");
    let chunks: Vec<u8> = chunks.copied().collect();
    world.desk.says("chunked", Says::Bytes([head, chunks.repeat(320)].concat()));
    for key in ["large", "chunked"] {
        world.lose(key).await;
    }
    for (key, status) in [("large", 201), ("chunked", 200)] {
        let last = world.settled(key).await;
        assert_eq!((last.status(), &*last.code()), (410, "response_not_replayable"), "{key}");
        assert!(last.text().contains(&format!("\"recorded_status\":{status}")), "{}", last.text());
        assert_eq!(world.desk.asked_for(key).len(), 1, "it is known, and not asked for again");
    }
}
