use super::*;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MessageOptions,
    MethodDescriptorProto, ServiceDescriptorProto,
};

const CHARGE: &str = "/billing.v1.Payments/Charge";

fn field(
    name: &str,
    number: i32,
    kind: Type,
    of: Option<&str>,
    label: Label,
) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(kind.into()),
        type_name: of.map(str::to_owned),
        ..FieldDescriptorProto::default()
    }
}

/// `message ChargeRequest { int64 amount = 1; string note = 2; map<string, string> labels = 3;
/// Meta meta = 4; string request_id = 5; bool dry = 6; } message Meta { string trace = 1;
/// string request_id = 2; }`
fn set() -> DescriptorSet {
    let (one, many) = (Label::Optional, Label::Repeated);
    let entry = DescriptorProto {
        name: Some("LabelsEntry".to_owned()),
        field: vec![
            field("key", 1, Type::String, None, one),
            field("value", 2, Type::String, None, one),
        ],
        options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..DescriptorProto::default()
    };
    let request = DescriptorProto {
        name: Some("ChargeRequest".to_owned()),
        field: vec![
            field("amount", 1, Type::Int64, None, one),
            field("note", 2, Type::String, None, one),
            field("labels", 3, Type::Message, Some(".billing.v1.ChargeRequest.LabelsEntry"), many),
            field("meta", 4, Type::Message, Some(".billing.v1.Meta"), one),
            field("request_id", 5, Type::String, None, one),
            field("dry", 6, Type::Bool, None, one),
        ],
        nested_type: vec![entry],
        ..DescriptorProto::default()
    };
    let meta = DescriptorProto {
        name: Some("Meta".to_owned()),
        field: vec![
            field("trace", 1, Type::String, None, one),
            field("request_id", 2, Type::String, None, one),
        ],
        ..DescriptorProto::default()
    };
    let method = MethodDescriptorProto {
        name: Some("Charge".to_owned()),
        input_type: Some(".billing.v1.ChargeRequest".to_owned()),
        output_type: Some(".billing.v1.Meta".to_owned()),
        ..MethodDescriptorProto::default()
    };
    let service = ServiceDescriptorProto {
        name: Some("Payments".to_owned()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("billing.proto".to_owned()),
        package: Some("billing.v1".to_owned()),
        message_type: vec![request, meta],
        service: vec![service],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    let bytes = FileDescriptorSet { file: vec![file] }.encode_to_vec();
    DescriptorSet::decode(&bytes).unwrap()
}

fn canonical(exclude: &[&str], message: &[u8]) -> Vec<u8> {
    let exclude: Vec<String> = exclude.iter().map(|name| (*name).to_owned()).collect();
    set().canonical(CHARGE, &exclude, message).unwrap()
}

#[test]
fn a_field_is_found_by_its_name() {
    let found = |field: &str, message: &[u8]| set().field(CHARGE, field, message);
    let text = |text: &str| Ok(Some(text.to_owned()));
    let message = b"\x08\x96\x01\x22\x05\x12\x03xyz\x2a\x03abc";
    assert_eq!(found("request_id", message), text("abc"));
    assert_eq!(found("meta.request_id", message), text("xyz"));
    assert_eq!(found("amount", message), text("150"));
    assert_eq!(found("amount", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), text("-1"));
    for (field, message) in [("request_id", &b"\x08\x01"[..]), ("meta.request_id", b"\x22\0")] {
        assert_eq!(found(field, message), Ok(None), "{field}");
    }
    assert_eq!(found("other", message), Err(MessageError::UnknownField("other".into())));
    assert_eq!(found("meta", message), Err(MessageError::NotAKey("meta".into())));
    assert_eq!(found("request_id", b"\x2a\x09abc"), Err(MessageError::Malformed));
    assert_eq!(found("request_id", b"\x2a\x01\xff"), Err(MessageError::Malformed), "not UTF-8");
    let other = set().field("/billing.v1.Payments/Refund", "request_id", b"");
    assert_eq!(other, Err(MessageError::UnknownMethod));
}

#[test]
fn messages_that_mean_the_same_are_the_same() {
    let one = canonical(&[], b"\x08\x01\x1a\x06\x0a\x01a\x12\x01b\x1a\x06\x0a\x01c\x12\x01d");
    for (why, same) in [
        (
            "the order of map entries",
            &b"\x08\x01\x1a\x06\x0a\x01c\x12\x01d\x1a\x06\x0a\x01a\x12\x01b"[..],
        ),
        ("the order of fields", b"\x1a\x06\x0a\x01a\x12\x01b\x1a\x06\x0a\x01c\x12\x01d\x08\x01"),
        (
            "an unknown field",
            b"\xa0\x06\x07\x08\x01\x1a\x06\x0a\x01a\x12\x01b\x1a\x06\x0a\x01c\x12\x01d",
        ),
        ("a default", b"\x08\x01\x30\0\x1a\x06\x0a\x01a\x12\x01b\x1a\x06\x0a\x01c\x12\x01d"),
        (
            "an earlier value",
            b"\x08\x07\x08\x01\x1a\x06\x0a\x01a\x12\x01b\x1a\x06\x0a\x01c\x12\x01d",
        ),
    ] {
        assert_eq!(canonical(&[], same), one, "{why}");
    }
    for other in
        [&b"\x08\x02\x1a\x06\x0a\x01a\x12\x01b\x1a\x06\x0a\x01c\x12\x01d"[..], b"\x08\x01", b""]
    {
        assert_ne!(canonical(&[], other), one);
    }
    // The text of one field does not run into the next.
    assert_ne!(canonical(&[], b"\x12\x02ab\x2a\x01c"), canonical(&[], b"\x12\x01a\x2a\x02bc"));
}

#[test]
fn excluded_fields_do_not_count() {
    let exclude = ["note", "meta.trace"];
    let one = canonical(&exclude, b"\x08\x01\x12\x01a\x22\x06\x0a\x01t\x12\x01r");
    assert_eq!(canonical(&exclude, b"\x08\x01\x12\x01b\x22\x06\x0a\x01u\x12\x01r"), one);
    assert_ne!(canonical(&exclude, b"\x08\x01\x12\x01a\x22\x06\x0a\x01t\x12\x01s"), one);
    assert_ne!(canonical(&exclude, b"\x08\x02\x12\x01a\x22\x06\x0a\x01t\x12\x01r"), one);
}

#[test]
fn a_schema_is_checked_before_it_is_used() {
    let set = set();
    assert_eq!(set.check(CHARGE, Some("meta.request_id"), true), Ok(()));
    assert_eq!(set.check(CHARGE, Some("meta"), false), Ok(()));
    assert_eq!(set.check(CHARGE, None, false), Ok(()));
    for wrong in ["meta", "labels", "dry"] {
        let error = MessageError::NotAKey(wrong.to_owned());
        assert_eq!(set.check(CHARGE, Some(wrong), true), Err(error));
    }
    for unknown in ["id", "meta.id", "amount.id", "labels.key"] {
        let error = MessageError::UnknownField(unknown.to_owned());
        assert_eq!(set.check(CHARGE, Some(unknown), false), Err(error));
    }
    assert_eq!(set.check("/billing.v1.Payments", None, false), Err(MessageError::UnknownMethod));
    assert!(DescriptorSet::decode(b"not a descriptor set").is_err());
}
