//! The schema: complete, and never stricter than `check`.

use std::collections::{BTreeMap, BTreeSet};

use jsonschema::Validator;
use serde_json::{Value, json};

use super::fields::{Wrong, right, wrong};
use super::mutations::{Dice, mutate};
use super::*;
use crate::config::form::Shape;
use crate::config::policy::PolicyOptions;
use crate::config::table::TableInfo;

/// Values that only `check` refuses: bounds of durations and sizes, rules between two fields, and
/// everything outside the file.
const CHECK_ONLY: &[&str] = &[
    "interval = \"25h\"",
    "ttl = \"401d\"",
    "lease = \"99ms\"",
    "grace = \"2h\"",
    "wait_timeout = \"6m\"",
    "velocity = [{ by = [\"tenant\"], limit = \"5/min\" }]",
    "upstream_keep_alive = \"99ms\"",
    "upstream_keep_alive = \"6m\"",
    "upstream_ping_interval = \"0s\"",
    "fingerprint = { mode = \"protobuf\" }",
    "fingerprint = { mode = \"protobuf\" }\ndescriptor_set = \"/nowhere/at/all.pb\"",
    "key = { from = \"grpc\", field = \"id\" }\ntenant = \"public\"",
    "record = [\"INTERNAL\"]\nrelease = [\"INTERNAL\"]",
    "key = { required = false }\nvelocity = [{ by = [], limit = \"5/s\" }]",
    "request_timeout = \"0s\"",
    "request_timeout = \"61m\"",
    "upstream_timeout = \"0s\"",
    "keep_alive = \"0s\"",
    "shutdown_delay = \"11m\"",
    "shutdown_limit = \"2h\"",
    "timeout = \"9ms\"",
    "connect_timeout = \"2m\"",
    "claim_timeout = \"0s\"",
    "settle_timeout = \"2m\"",
    "duplicate_payload = { action = \"log\", window = \"0s\" }",
    "duplicate_payload = { action = \"log\", window = \"25h\" }",
    "cors = { origins = [\"https://a:443\"] }",
    "cors = { origins = [\"*\"], credentials = true }",
    "cors = { origins = [\"https://a\"], max_age = \"25h\" }",
    "header_timeout = \"11m\"",
    "send_timeout = \"2h\"",
    "queue_timeout = \"0s\"",
    "max_header_bytes = \"8191B\"",
    "max_body_memory = \"1023KiB\"",
    "max_body_memory = \"1535KiB\"",
    "max_response_memory = \"1023KiB\"",
    "max_response_memory = \"2047KiB\"",
    "max_store_memory = \"7MiB\"",
    "max_request_body = \"65MiB\"",
    "max_message = \"65MiB\"",
    "listen = \"127.0.0.1:8080\"",
    "listen = \"0.0.0.0:9091\"",
    "token = { file = \"/nowhere/at/all\" }",
    "token = { env = \"ONETAKE_NOBODY_SETS_THIS\" }",
    "filter = \"redis://a\"",
    "url = \"redis://b\"\nfilter = \"redis://a\"",
    "preset = \"payment\"",
    "preset = \"shopify\"",
    "preset = \"stripe-webhook\"\ntenant = \"public\"\nkey = { min_length = 20 }",
    "upstream = \"https://a..b\"",
    "key = { from = \"json\", pointer = \"/id\" }",
    "key = { from = \"derive\", parts = [\"json:/a\"] }",
    "key = { from = \"header\", name = \"svix-id\" }",
    "key = { from = \"query\", name = \"order\" }",
    "key = { from = \"header\", name = \"X-Request-Id\" }\ntenant = \"public\"",
    "key = { from = \"header\", name = \"Idempotency-Key\" }\ntenant = \"public\"",
    "key = { from = \"path\", name = \"id\" }\ntenant = \"public\"",
    "match = \"PUT /orders/{order}\"\nkey = { from = \"path\", name = \"id\" }\ntenant = \"public\"",
    "key = { from = \"derive\", parts = [\"path:id\"] }\ntenant = \"public\"",
    "record = [\"404\"]\nmark_unknown = [\"5xx\", \"404\"]",
    // In any letter case, which a pattern cannot express.
    "fingerprint = { mode = \"bytes\", headers = [\"Date\"] }",
    "url = { env = \"ONETAKE_NOBODY_SETS_THIS\" }",
    "sink = \"nats://a/b\"",
    "subject_prefix = \"a..b\"",
    "secrets = [{ env = \"ONETAKE_NOBODY_SETS_THIS\" }]",
    "hold = \"2h\"",
    "poll = \"0s\"",
    "timeout = \"301s\"",
    "backoff_max = \"25h\"",
    "kept = \"401d\"",
    "issued_keys = [{ id = \"a\", secret = { env = \"ONETAKE_NOBODY_SETS_THIS\" } }]",
    "issued_keys = [{ id = \"a\", secret = { file = \"/nowhere/at/all\" } }]",
    "tenant = { jwt = { verification_key = { env = \"ONETAKE_NOBODY_SETS_THIS\" } } }",
    "tenant = { jwt = { verification_key = { file = \"/nowhere/at/all\" } } }",
    "tenant = { jwt = { verification_key = { env = \"TEST_SECRET\" }, leeway = \"11m\" } }",
    "tenant = { jwt = { verification_key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\", algorithms = [\"RS256\"] } }",
    "tenant = { forward_auth = \"https://a..b/auth\" }",
    "tenant = { forward_auth = { url = \"http://a\", timeout = \"31s\" } }",
    "tenant = { forward_auth = { url = \"http://a\", cache = \"61s\" } }",
    "on_unknown = \"reconcile\"",
    "reconcile = \"GET http://a/{derived_key}\"",
    // Options that must fit together.
    "on_unknown = \"reconcile\"\nttl = \"129s\"\nreconcile = \"GET http://a/{derived_key}\"",
    "on_unknown = \"reconcile\"\nttl = \"1h\"\nupstream_timeout = \"30m\"\nreconcile = \"GET http://a/{derived_key}\"",
    "on_unknown = \"retry\"\nreconcile = \"GET http://a/{derived_key}\"",
    "on_unknown = \"reconcile\"\nreconcile = \"GET https://a..b/{derived_key}\"",
    "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}/{id}\"",
    "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{derived_key}}\"",
    "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{key}\"",
    "on_unknown = \"reconcile\"\nreconcile = \"GET http://a/{tenant}/{key}\"",
    "on_unknown = \"reconcile\"\ntenant = \"client-ip\"\nreconcile = \"GET http://a/{key}\"",
    "on_unknown = \"reconcile\"\ntenant = { jwt = { verification_key = { env = \"TEST_SECRET\" } } }\nreconcile = \"GET http://a/{tenant}/{key}\"",
    "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{key}\", timeout = \"61s\" }",
    "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{key}\", give_up_after = \"31d\" }",
    "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { Host = \"b\" } }",
    "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { connection = \"b\" } }",
    "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { X-A = \"a\", x-a = \"b\" } }",
    "on_unknown = \"reconcile\"\nreconcile = { request = \"GET http://a/{derived_key}\", request_headers = { X-A = { env = \"ONETAKE_NOBODY_SETS_THIS\" } } }",
];

/// Environment variables of the files in `examples`.
const VARIABLES: &[(&str, &str)] = &[
    ("DATABASE_URL", "postgres://me:secret@db/payments"),
    ("REDIS_URL", "redis://cache"),
    ("ONETAKE_FINGERPRINT_SECRET", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
    ("ONETAKE_ENCRYPTION_KEY", "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="),
    ("ONETAKE_ISSUED_KEYS_SECRET", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="),
    ("ID_PUBLIC_KEY", include_str!("ed25519.pem")),
];

fn validator() -> Validator {
    let schema = schema();
    jsonschema::draft202012::meta::validate(&schema).unwrap_or_else(|error| panic!("{error}"));
    jsonschema::draft202012::new(&schema).unwrap_or_else(|error| panic!("{error}"))
}

/// A file as JSON; `None` if it has an integer that JSON cannot hold.
fn to_json(text: &str) -> Option<Value> {
    toml::from_str(text).ok()
}

fn assert_valid(validator: &Validator, text: &str) {
    let json = to_json(text).expect(text);
    let faults =
        validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path()));
    assert_eq!(faults.collect::<Vec<_>>(), Vec::<String>::new(), "{text}");
}

/// Every table of the declarations, with its JSON Pointer in the schema.
fn tables() -> Vec<(String, TableInfo)> {
    fn inner(shape: &Shape, at: &str, found: &mut Vec<(String, TableInfo)>) {
        match shape {
            Shape::Table(info) => of(info(), at, found),
            Shape::List(of, ..) => inner(of, &format!("{at}/items"), found),
            Shape::Headers(of, _) => inner(of, &format!("{at}/additionalProperties"), found),
            Shape::Secret(of) => inner(of, at, found),
            Shape::OneOf(shapes) => {
                for (index, shape) in shapes.iter().enumerate() {
                    inner(shape, &format!("{at}/oneOf/{index}"), found);
                }
            }
            _ => {}
        }
    }
    fn of(info: TableInfo, at: &str, found: &mut Vec<(String, TableInfo)>) {
        for option in &info.options {
            inner(&option.shape, &format!("{at}/properties/{}", option.name), found);
        }
        found.push((at.to_owned(), info));
    }
    let mut found = Vec::new();
    of(File::info(), "", &mut found);
    for option in PolicyOptions::info().options {
        inner(&option.shape, &format!("/$defs/{}", option.name), &mut found);
    }
    found
}

#[test]
fn the_schema_has_every_field_and_no_other() {
    let schema = schema();
    let mut found = BTreeSet::new();
    find_tables(&schema, "", &mut found);
    let tables = tables();
    assert!(tables.len() > 25, "{}", tables.len());
    assert_eq!(found, tables.iter().map(|(pointer, _)| pointer.clone()).collect());
    for (pointer, info) in &tables {
        let table = schema.pointer(pointer).unwrap();
        assert_eq!(table["additionalProperties"], json!(false), "{pointer}");
        let properties = table["properties"].as_object().unwrap();
        let names = properties.keys().map(String::as_str).collect::<BTreeSet<_>>();
        assert_eq!(names, info.names().collect(), "{pointer}");
        for (name, property) in properties {
            let reference = property["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
            let property = reference.map_or(property, |path| schema.pointer(path).unwrap());
            for keyword in ["title", "description"] {
                assert!(property[keyword].is_string(), "{pointer} {name} {keyword}");
            }
        }
    }
}

/// Finds the JSON Pointers of all tables in the schema.
fn find_tables(schema: &Value, pointer: &str, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if members.get("type") == Some(&json!("object")) {
                found.insert(pointer.to_owned());
            }
            for (name, member) in members {
                find_tables(member, &format!("{pointer}/{name}"), found);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                find_tables(element, &format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_has_a_right_line_and_a_wrong_one() {
    let mut written = BTreeSet::new();
    for text in right() {
        collect_paths(&to_json(&text).unwrap(), "", &mut written);
    }
    let plain = |Wrong { field, .. }: Wrong| {
        let parts = field.split(['[', ']']).enumerate();
        parts.filter(|(index, _)| index % 2 == 0).map(|(_, part)| part).collect::<String>()
    };
    let refused = wrong().into_iter().map(plain).collect::<BTreeSet<_>>();
    // A table of the same kind may be tested in another place.
    let mut kinds: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for (pointer, info) in tables() {
        for name in info.names() {
            let path = pointer.replace("/$defs", "/route").replace("/properties", "");
            let path = path.replace("/items", "").replace("/additionalProperties", "");
            let path = path.split("/oneOf/").enumerate().map(|(index, part)| {
                if index == 0 { part } else { part.trim_start_matches(char::is_numeric) }
            });
            let path = format!("{}/{name}", path.collect::<String>());
            let path = path.trim_start_matches('/').replace('/', ".");
            kinds.entry((info.label, name)).or_default().push(path);
        }
    }
    for paths in kinds.values() {
        assert!(paths.iter().any(|path| written.contains(path)), "no right line: {paths:?}");
        assert!(paths.iter().any(|path| refused.contains(path)), "no wrong line: {paths:?}");
    }
}

fn collect_paths(value: &Value, path: &str, paths: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect_paths(member, &path, paths);
                paths.insert(path);
            }
        }
        Value::Array(elements) => {
            elements.iter().for_each(|element| collect_paths(element, path, paths));
        }
        _ => {}
    }
}

#[test]
fn right_lines_are_valid_and_wrong_ones_are_not() {
    let validator = validator();
    for text in right() {
        assert_valid(&validator, &text);
    }
    let mut let_through = BTreeSet::new();
    for Wrong { line, text, .. } in wrong() {
        if to_json(&text).is_some_and(|json| validator.is_valid(&json)) {
            let_through.insert(line);
        }
    }
    assert_eq!(let_through, CHECK_ONLY.iter().copied().collect());
}

#[test]
fn whatever_is_accepted_is_valid() {
    let validator = validator();
    let page = include_str!("../../../../../docs/CONFIGURATION.md");
    assert_valid(&validator, page.split("```").nth(3).unwrap().strip_prefix("toml").unwrap());
    assert_valid(&validator, EXAMPLE);
    let mut dice = Dice(0x6a09_e667_f3bc_c908);
    let mut accepted = 0;
    for _ in 0..3000 {
        let text = mutate(EXAMPLE, &mut dice);
        if read(&text).is_ok() {
            assert_valid(&validator, &text);
            accepted += 1;
        }
    }
    assert!(accepted > 30, "{accepted}");
}

#[test]
fn the_examples_are_accepted_and_valid() {
    let validator = validator();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // The others are files of proxies.
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let is_envoys = purposes(&text).ext_proc;
        let forwarder = if is_envoys { Forwarder::Envoy } else { Forwarder::Gateway };
        let input = input(Some(&text), &name, env(VARIABLES), Overrides::default());
        let config = input.config(forwarder);
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.warnings(), Vec::<String>::new(), "{name}");
        assert_valid(&validator, &text);
        names.push(name);
    }
    names.sort();
    let all = ["ext-proc.toml", "gateway.toml", "payments.toml", "tenants.toml", "webhooks.toml"];
    assert_eq!(names, all);
}

#[test]
fn what_the_schema_calls_a_default_is_one() {
    let schema = schema();
    let defaults_of = |pointer: &str| {
        let properties = schema.pointer(pointer).unwrap().as_object().unwrap().iter();
        let found = properties
            .filter_map(|(name, property)| Some((name.clone(), property.get("default")?.clone())));
        Value::Object(found.collect())
    };
    let mut file = json!({ "defaults": defaults_of("/$defs") });
    file["defaults"]["key"] = defaults_of("/$defs/key/properties");
    for section in ["gateway", "admin", "store", "sweep", "limits", "relay", "secrets"] {
        file[section] = defaults_of(&format!("/properties/{section}/properties"));
    }
    assert!(file["defaults"]["ttl"].is_string() && file["sweep"]["batch"].is_u64(), "{file}");
    let written = toml::to_string(&file).unwrap();
    let load = |text: &str| {
        let upstream = Some("http://127.0.0.1:3000".to_owned());
        let overrides = Overrides { upstream, ..Overrides::default() };
        load(Some(text), "f", no_env(), overrides).unwrap_or_else(|error| panic!("{text}\n{error}"))
    };
    assert_eq!(load(&written), load(""));
}
