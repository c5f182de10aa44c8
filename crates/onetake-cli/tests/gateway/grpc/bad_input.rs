//! Calls that cannot be read: a clear error, and nothing is claimed.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::grpc::{framed, framed_as};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::GrpcWorld;

pub(super) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_messages_are_compared_by_their_content() {
    let world = GrpcWorld::start("memory:", "").await;
    let key = "grpc-with-a-compressed-message";
    let call = |body: Bytes, encoding: &str| {
        world.call("Charge").key(key).body(body).with("grpc-encoding", encoding).send()
    };
    let packed = framed_as(1, &gzip(b"10"));
    let first = call(packed.clone(), "gzip").await.unwrap();
    assert_eq!(first.code(), Some(0));
    let plain = call(framed(b"10"), "gzip").await.unwrap();
    assert!(plain.is_replay(), "{plain:?}");
    let other = call(framed_as(1, &gzip(b"20")), "gzip").await.unwrap();
    assert!(other.tells("payload_mismatch"), "{other:?}");
    let broken = call(framed_as(1, b"not gzip"), "gzip").await.unwrap();
    assert_eq!((broken.code(), broken.tells("request_body_invalid")), (Some(3), true));
    assert_eq!(world.service.runs(key), 1);
    // A compression that the gateway does not know is compared as it is.
    let key = "grpc-with-another-compression";
    let call = |content: &[u8]| {
        let call = world.call("Charge").key(key).body(framed_as(1, content));
        call.with("grpc-encoding", "zstd").send()
    };
    assert_eq!(call(b"10").await.unwrap().code(), Some(0));
    assert!(call(b"10").await.unwrap().is_replay());
    assert!(call(b"20").await.unwrap().tells("payload_mismatch"));
    // A bomb is not unpacked.
    let key = "grpc-with-a-bomb-inside";
    let bomb = framed_as(1, &gzip(&vec![0; 8 << 20]));
    let call = world.call("Charge").key(key).body(bomb).with("grpc-encoding", "gzip");
    let reply = call.send().await.unwrap();
    assert_eq!((reply.code(), reply.tells("request_body_too_large")), (Some(8), true));
    assert_eq!(world.service.runs(key), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_a_readable_key_is_refused() {
    let world = GrpcWorld::start("memory:", "").await;
    let call = |body: Bytes, encoding: &str| {
        let call = world.client.call("/numbered.v1.Payments/Charge").body(body);
        call.with("grpc-encoding", encoding).send()
    };
    for (why, message) in [
        ("it breaks off", &b"\x2a\x09abc"[..]),
        ("an unknown wire type", b"\x2f\x01"),
        ("a varint without an end", b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        let reply = call(framed(message), "identity").await.unwrap();
        assert_eq!(reply.code(), Some(3), "{why}: {reply:?}");
        assert!(reply.tells("request_body_invalid"), "{why}");
    }
    let reply = call(framed(b"\x2a\x01\xff"), "identity").await.unwrap();
    assert_eq!((reply.code(), reply.tells("idempotency_key_invalid")), (Some(3), true));
    let packed = framed_as(1, &gzip(b"\x2a\x03abc"));
    assert_eq!(call(packed, "gzip").await.unwrap().code(), Some(0));
    let unknown = call(framed_as(1, b"abc"), "snappy").await.unwrap();
    assert_eq!((unknown.code(), unknown.tells("request_encoding_unsupported")), (Some(12), true));
    assert_eq!(world.service.runs_in_all(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_metadata_is_refused() {
    let world = GrpcWorld::start("memory:", "").await;
    let large = "x".repeat(100 << 10);
    let call = world.call("Charge").key("grpc-with-large-metadata").with("x-large", &large);
    let reply = call.send().await;
    // The edge refuses it, with RESOURCE_EXHAUSTED.
    let reply = reply.unwrap();
    assert_eq!((reply.code(), reply.tells("request_head_too_large")), (Some(8), true), "{reply:?}");
    assert_eq!(world.service.runs_in_all(), 0);
}

/// Frames of HTTP/2 that no client may send, in the middle of a keyed call: the connection ends, and
/// nothing runs.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames_end_the_connection_and_run_nothing() {
    let world = GrpcWorld::start("memory:", "").await;
    let key = "grpc-and-broken-frames";
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    for (why, bad) in [
        ("DATA on stream 0", frame(0, 0, 0, b"ab")),
        ("DATA on a stream that was never opened", frame(0, 0, 7, b"ab")),
        ("a frame that is longer than allowed", vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]),
        ("padding that is longer than its frame", frame(0, 8, 1, b"\xffab")),
        ("headers that cannot be decoded", frame(1, 4, 3, b"\xff\xff\xff\xff\xff")),
        ("SETTINGS of five bytes", frame(4, 0, 0, b"abcde")),
        ("CONTINUATION without HEADERS", frame(9, 4, 1, b"")),
        ("a window of more than 2 GiB", frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("RST_STREAM of a stream that was never opened", frame(3, 0, 9, &[0; 4])),
    ] {
        let mut stream = TcpStream::connect(world.gateway.address()).await.unwrap();
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frame(4, 0, 0, b""));
        // Literal headers without an index: a call whose message is still to come.
        let mut head = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/billing.v1.Payments/Charge"),
            (":authority", "a"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("authorization", "Bearer alice"),
            ("idempotency-key", key),
            ("x-case", key),
        ] {
            head.push(0);
            for text in [name, value] {
                head.push(text.len() as u8);
                head.extend_from_slice(text.as_bytes());
            }
        }
        sent.extend(frame(1, 4, 1, &head));
        sent.extend(frame(0, 0, 1, &framed(b"10")[..3]));
        sent.extend(bad);
        stream.write_all(&sent).await.unwrap();
        let mut answer = Vec::new();
        // It is closed by the gateway: with GOAWAY, or at once.
        let is_closed = tokio::select! {
            _closed = stream.read_to_end(&mut answer) => true,
            () = SystemClock.sleep(Duration::from_secs(60)) => false,
        };
        assert!(is_closed, "{why}: the connection stays open");
    }
    assert_eq!(world.service.runs(key), 0);
    let reply = world.call("Charge").key(key).send().await.unwrap();
    assert_eq!((reply.code(), world.service.runs(key)), (Some(0), 1), "nothing was claimed");
}
