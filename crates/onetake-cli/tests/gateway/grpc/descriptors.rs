//! Keys and fingerprints by a descriptor set.

use std::path::Path;

use bytes::Bytes;
use onetake_cli::config::{self, Overrides};
use onetake_sim::grpc::{framed, framed_as};
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto, ServiceDescriptorProto,
};

use super::GrpcWorld;
use super::bad_input::gzip;

fn field(name: &str, number: i32, kind: Type, of: Option<&str>) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        type_name: of.map(str::to_owned),
        ..FieldDescriptorProto::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field, ..DescriptorProto::default() }
}

/// Writes the descriptor set of `service Payments { rpc Charge(ChargeRequest) returns (Header); }`,
/// with `message ChargeRequest { int64 amount = 1; string note = 2; Header header = 3; }` and
/// `message Header { string request_id = 1; string trace = 2; }`.
fn write(folder: &Path) {
    let method = MethodDescriptorProto {
        name: Some("Charge".to_owned()),
        input_type: Some(".named.v1.ChargeRequest".to_owned()),
        output_type: Some(".named.v1.Header".to_owned()),
        ..MethodDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("named.proto".to_owned()),
        package: Some("named.v1".to_owned()),
        message_type: vec![
            message(
                "ChargeRequest",
                vec![
                    field("amount", 1, Type::Int64, None),
                    field("note", 2, Type::String, None),
                    field("header", 3, Type::Message, Some(".named.v1.Header")),
                ],
            ),
            message(
                "Header",
                vec![
                    field("request_id", 1, Type::String, None),
                    field("trace", 2, Type::String, None),
                ],
            ),
        ],
        service: vec![ServiceDescriptorProto {
            name: Some("Payments".to_owned()),
            method: vec![method],
            ..ServiceDescriptorProto::default()
        }],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    let set = FileDescriptorSet { file: vec![file] };
    std::fs::write(folder.join("named.pb"), set.encode_to_vec()).unwrap();
}

fn route(folder: &Path, pattern: &str, key: &str, exclude: &str) -> String {
    let set = folder.join("named.pb");
    format!(
        "[[route]]\nmatch = \"{pattern}\"\nkey = {{ from = \"grpc\", field = \"{key}\" }}\ntenant = \"credential\"\nfingerprint = {{ mode = \"protobuf\", exclude = [\"{exclude}\"] }}\ndescriptor_set = \"{}\"\n",
        set.display()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_field_is_the_key_and_fields_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let routes =
        route(folder.path(), "grpc named.v1.Payments/*", "header.request_id", "/header/trace");
    let world = GrpcWorld::start("memory:", &routes).await;
    let send = |method: &str, body: Bytes| {
        let call = world.client.call(&format!("/named.v1.Payments/{method}"));
        call.with("x-case", "named").body(body).send()
    };
    let first = b"\x08\x07\x1a\x06\x0a\x01k\x12\x01t";
    assert_eq!(send("Charge", framed(first)).await.unwrap().code(), Some(0));
    // Another order, another trace, and a field that the schema does not have.
    let same = b"\x1a\x06\x12\x01u\x0a\x01k\xa0\x06\x01\x08\x07";
    assert!(send("Charge", framed(same)).await.unwrap().is_replay());
    let other = send("Charge", framed(b"\x08\x08\x1a\x03\x0a\x01k")).await.unwrap();
    assert_eq!((other.code(), other.tells("payload_mismatch")), (Some(9), true), "{other:?}");
    assert_eq!(world.service.runs("named"), 1);
    for (why, method, body, problem, code) in [
        ("no key", "Charge", framed(b"\x08\x07"), "idempotency_key_missing", 3),
        ("not protobuf", "Charge", framed(b"\x1a\x09abc"), "request_body_invalid", 3),
        ("an unknown method", "Refund", framed(first), "request_body_invalid", 3),
        ("not readable", "Charge", framed_as(1, b"x"), "request_body_invalid", 3),
    ] {
        let reply = send(method, body).await.unwrap();
        assert_eq!(reply.code(), Some(code), "{why}: {reply:?}");
        assert!(reply.tells(problem), "{why}: {reply:?}");
    }
    assert_eq!(world.service.runs("named"), 1, "nothing else ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_message_is_read_by_the_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let routes =
        route(folder.path(), "grpc named.v1.Payments/*", "header.request_id", "/header/trace");
    let world = GrpcWorld::start("memory:", &routes).await;
    let send = |body: Bytes, encoding: &str| {
        let call = world.client.call("/named.v1.Payments/Charge").with("x-case", "packed");
        call.with("grpc-encoding", encoding).body(body).send()
    };
    let message = b"\x08\x07\x1a\x06\x0a\x01k\x12\x01t";
    let first = send(framed_as(1, &gzip(message)), "gzip").await.unwrap();
    assert_eq!((first.code(), first.is_replay()), (Some(0), false), "{first:?}");
    // The same fields, not compressed; and in another order, compressed.
    assert!(send(framed(message), "identity").await.unwrap().is_replay());
    let same = b"\x1a\x06\x12\x01u\x0a\x01k\x08\x07";
    assert!(send(framed_as(1, &gzip(same)), "gzip").await.unwrap().is_replay());
    for (why, body, encoding, problem, code) in [
        ("another amount", gzip(b"\x08\x08\x1a\x03\x0a\x01k"), "gzip", "payload_mismatch", 9),
        ("not gzip", b"not gzip".to_vec(), "gzip", "request_body_invalid", 3),
        ("half of it", gzip(message)[..12].to_vec(), "gzip", "request_body_invalid", 3),
        ("not protobuf", gzip(b"\x1a\x09abc"), "gzip", "request_body_invalid", 3),
        ("a bomb", gzip(&vec![0; 8 << 20]), "gzip", "request_body_too_large", 8),
        ("an unknown compression", b"abc".to_vec(), "zstd", "request_encoding_unsupported", 12),
    ] {
        let reply = send(framed_as(1, &body), encoding).await.unwrap();
        assert_eq!(reply.code(), Some(code), "{why}: {reply:?}");
        assert!(reply.tells(problem), "{why}: {reply:?}");
    }
    assert_eq!(world.service.runs("packed"), 1);
}

#[test]
fn a_field_that_the_descriptor_set_does_not_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    std::fs::write(folder.path().join("broken.pb"), b"broken").unwrap();
    let check = |routes: &str| {
        let text = format!("[gateway]\nupstream = \"h2c://a\"\n{routes}");
        let loaded = config::load(Some(&text), "t", std::iter::empty(), Overrides::default());
        loaded.map(drop).map_err(|error| error.to_string())
    };
    let charge = "grpc named.v1.Payments/Charge";
    let route = |pattern, key, exclude| route(folder.path(), pattern, key, exclude);
    assert_eq!(check(&route(charge, "header.request_id", "/note")), Ok(()));
    for (wrong, hint) in [
        (route(charge, "header.id", "/note"), "does not have the field header.id"),
        (route(charge, "header", "/note"), "neither a string nor an integer"),
        (route(charge, "note", "/notes"), "does not have the field notes"),
        (route("grpc named.v1.Payments/Refund", "note", "/note"), "does not have the method"),
        (route(charge, "note", "/note").replace("named.pb", "broken.pb"), "not a descriptor set"),
    ] {
        let error = check(&wrong).unwrap_err();
        assert!(error.contains(hint), "{error}");
    }
}
