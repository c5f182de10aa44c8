//! Calls that cannot be read: a clear error, and nothing is claimed.

use std::io::Write as _;

use bytes::Bytes;
use onetake_sim::grpc::{framed, framed_as};

use super::GrpcWorld;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_one_message_is_refused() {
    let world = GrpcWorld::start("memory:", "").await;
    let key = "grpc-that-is-malformed";
    for (why, body) in [
        ("no message", Bytes::new()),
        ("half a prefix", Bytes::from_static(b"\0\0\0")),
        ("shorter than it says", Bytes::from_static(b"\0\0\0\0\x09ab")),
        ("four gigabytes", Bytes::from_static(b"\0\xff\xff\xff\xffab")),
        ("longer than it says", Bytes::from_static(b"\0\0\0\0\x01ab")),
        ("two messages", [framed(b"a"), framed(b"b")].concat().into()),
        ("a flag that is not defined", framed_as(2, b"10")),
        ("compressed, and nobody says how", framed_as(1, b"10")),
    ] {
        let reply = world.call("Charge").key(key).body(body).send().await.unwrap();
        assert_eq!(reply.code(), Some(3), "{why}: {reply:?}");
        assert!(reply.tells("request_body_invalid"), "{why}");
    }
    assert_eq!(world.service.runs(key), 0);
    // Nothing was claimed: the key runs with another message.
    let reply = world.call("Charge").key(key).send().await.unwrap();
    assert_eq!((reply.code(), world.service.runs(key)), (Some(0), 1));
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
