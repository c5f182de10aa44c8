//! Requests that pass through, headers that are added, and requests that are refused at once.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::World;
use crate::client::Client;

pub(super) async fn without_a_key_everything_passes(world: &World) {
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let case = format!("without-a-key-{method}");
        for _ in 0..2 {
            let call = world.client.post("/any/charge").method(method).header("x-case", &case);
            let answer = call.header("accept-encoding", "gzip").send().await.unwrap();
            assert!(
                answer.status() == 201 && !answer.headers.contains_key("idempotency-reference")
            );
        }
        assert_eq!(world.upstream.runs(&case), 2, "{method}");
    }
    let key = "get-is-never-keyed-1";
    for _ in 0..2 {
        world.client.post("/any/charge").method("GET").key(key).send().await.unwrap();
    }
    assert_eq!(world.upstream.runs(key), 2, "GET is never keyed");
    let large = vec![b'x'; 3_000_000];
    let echoed = world.client.post("/any/200").body(large.clone()).send().await.unwrap();
    assert!(echoed.body == large, "caps are for keyed requests alone");
}

pub(super) async fn a_websocket_passes(world: &World) {
    let mut stream = TcpStream::connect(world.target.address()).await.unwrap();
    let request = b"GET /any/ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for message in ["hello", "again"] {
        stream.write_all(message.as_bytes()).await.unwrap();
        let mut echoed = vec![0; message.len()];
        stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(echoed, message.as_bytes());
    }
}

pub(super) async fn no_other_upgrade_passes(world: &World) {
    for protocol in ["h2c", "echo", "TLS/1.2"] {
        let request = format!(
            "GET /any/head HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\nSec-WebSocket-Key: x\r\n\r\n"
        );
        let answer = raw_to_the_end(world, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{protocol}: {answer}");
        let seen = answer.to_lowercase();
        assert!(!seen.contains("\"upgrade\"") && !seen.contains("http2-settings"), "{answer}");
    }
}

pub(super) async fn http2_is_the_same(world: &World) {
    let key = "http2-is-the-same-01";
    let http2 = Client::http2(world.target.address());
    let first = http2.post("/any/charge").key(key).send().await.unwrap();
    let again = http2.post("/any/charge").key(key).send().await.unwrap();
    let over_http1 = world.client.post("/any/charge").key(key).send().await.unwrap();
    assert!(first.status() == 201 && again.is_replay() && over_http1.is_replay());
    assert_eq!((&first.body, &first.body), (&again.body, &over_http1.body));
    let other = http2.post("/any/charge").key(key).body("99").send().await.unwrap();
    assert_eq!(other.status(), 422);
    assert_eq!(world.upstream.runs(key), 1);
}

pub(super) async fn forwarding_headers_are_honest(world: &World) {
    // Loopback is a trusted proxy: its forwarding header is kept, and the gateway's is added.
    let call = world.client.post("/any/head").header("x-forwarded-for", "203.0.113.7");
    let call = call.header("idempotency-fence", "9").header("x-custom", "kept");
    let seen =
        call.header("connection", "x-drop").header("x-drop", "1").send().await.unwrap().text();
    assert!(seen.contains("203.0.113.7, 127.0.0.1"), "{seen}");
    assert!(seen.contains("for=127.0.0.1;host="), "{seen}");
    assert!(seen.contains("x-forwarded-proto") && seen.contains("x-forwarded-host"), "{seen}");
    assert!(seen.contains("x-custom"), "{seen}");
    assert!(!seen.contains("idempotency-fence"), "a client cannot forge a fence: {seen}");
    assert!(!seen.contains("x-drop"), "hop-by-hop: {seen}");
    let key = "forwarding-headers-1";
    let keyed = world.client.post("/any/head").key(key).header("idempotency-fence", "9");
    let seen = keyed.header("accept-encoding", "gzip").send().await.unwrap().text();
    assert!(seen.contains("idempotency-fence") && !seen.contains("\"idempotency-fence\": \"9\""));
    assert!(seen.contains(key), "the key is passed on as received: {seen}");
    assert!(seen.contains("identity") && !seen.contains("gzip"), "{seen}");
}

pub(super) async fn what_could_smuggle_is_refused(world: &World) {
    let before = world.upstream.runs_in_all();
    for (what, head) in [
        ("two hosts", "Host: a\r\nHost: b\r\n"),
        ("no host", ""),
        ("a strange host", "Host: a@b\r\n"),
        ("gzip, chunked", "Host: a\r\nTransfer-Encoding: gzip, chunked\r\n"),
        (
            "chunked twice",
            "Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ),
        ("identity", "Host: a\r\nTransfer-Encoding: identity\r\n"),
        ("two lengths", "Host: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n"),
        ("a strange length", "Host: a\r\nContent-Length: +1\r\n"),
        ("a space before the colon", "Host: a\r\nX-Bad : 1\r\n"),
        ("a named host", "Host: a\r\nConnection: host\r\n"),
        ("a named credential", "Host: a\r\nConnection: close, Authorization\r\n"),
        ("a named key", "Host: a\r\nConnection: idempotency-key\r\n"),
        ("a named forward", "Host: a\r\nConnection: x-forwarded-for\r\n"),
        ("a named tenant", "Host: a\r\nConnection: x-account\r\n"),
        ("a folded line", "Host: a\r\nX-Bad: 1\r\n 2\r\n"),
    ] {
        let request = format!("POST /any/charge HTTP/1.1\r\n{head}\r\n0\r\n\r\n");
        let status = raw(world, request.as_bytes()).await;
        assert!(status.starts_with("HTTP/1.1 400"), "{what}: {status}");
    }
    let absolute = "GET http://other/any/charge HTTP/1.1\r\nHost: a\r\n\r\n";
    assert!(raw(world, absolute.as_bytes()).await.starts_with("HTTP/1.1 400"));
    let connect = "CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n";
    assert!(raw(world, connect.as_bytes()).await.starts_with("HTTP/1.1 400"));

    // A server that counts the length would read another request behind this one.
    let both = "POST /any/charge HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nPOST /any/charge HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let answer = raw_to_the_end(world, both.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "a length beside chunked encoding: {answer}");
    let responses = answer.matches("HTTP/1.1 ").count();
    assert_eq!(responses, 1, "one response, and then the connection is closed: {answer}");
    assert_eq!(world.upstream.runs_in_all(), before, "nothing reached the upstream");
}

pub(super) async fn problems_are_explained_where_they_link_to(world: &World) {
    let problem = world.client.post("/any/charge").header("idempotency-key", "short").send().await;
    let problem = problem.unwrap();
    let link = problem.header("link").to_owned();
    let path = link.trim_start_matches('<').split(['#', '>']).next().unwrap();
    let page = world.client.post(path).method("GET").send().await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(page.text().contains(&format!("## {}", problem.code())));
}

/// Sends bytes and reads the head of the answer.
async fn raw(world: &World, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(world.target.address()).await.unwrap();
    stream.write_all(request).await.unwrap();
    read_head(&mut stream).await
}

/// Sends bytes and reads until the other side closes.
async fn raw_to_the_end(world: &World, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(world.target.address()).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // A reset after the answer counts as an end.
    let _ended = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}
