//! Keys from values that a request has anyway: headers, path and query parameters, and JSON.

use std::borrow::Cow;

use http::request::Parts;

use onetake_core::{Fingerprinter, Key};

use super::{query, single};
use crate::head;
use crate::json::Value;
use crate::payload::Payload;
use crate::policy::{KeySource, Policy, RequestValue};
use crate::problem::{Code, Problem, misconfigured};

/// The most digits of an integer in the body that is used as a key.
const DIGITS_MAX: usize = 255;

/// A value that was found in a request.
enum FoundValue<'a> {
    Text(String),
    Json(Value<'a>),
}

/// Reads the key if a part of it is in the body. Returns `None` if there is no key and none is
/// required, or if the key is in the head.
///
/// # Errors
/// A problem for the client, if the body is invalid JSON, or if the key is invalid or is missing
/// although it is required.
pub(crate) fn key_of_body(
    parts: &Parts,
    payload: &Payload,
    policy: &Policy,
) -> Result<Option<Key>, Problem> {
    if !policy.key.source.is_in_body() {
        return Ok(None);
    }
    // An empty body has no key. Any other body must be valid JSON. Otherwise the inner service
    // could read a key where this code finds none, and the operation would run without a key.
    let body = if payload.data().is_empty() { None } else { Some(payload.json()?) };
    key_of_values(parts, body, policy)
}

/// Reads the key from the values that its source names.
pub(super) fn key_of_values(
    parts: &Parts,
    body: Option<Value<'_>>,
    policy: &Policy,
) -> Result<Option<Key>, Problem> {
    let wanted = policy.key.source.values();
    let mut found = Vec::with_capacity(wanted.len());
    for value in wanted {
        match find(value, parts, body, policy)? {
            Some(one) => found.push(one),
            None if policy.key.required => return Err(missing(value)),
            None => return Ok(None),
        }
    }
    match (&policy.key.source, wanted.first(), found.first()) {
        (KeySource::Value(_), Some(value), Some(found)) => one(value, found).map(Some),
        _ => derived(wanted, &found).map(Some),
    }
}

fn find<'a>(
    value: &RequestValue,
    parts: &Parts,
    body: Option<Value<'a>>,
    policy: &Policy,
) -> Result<Option<FoundValue<'a>>, Problem> {
    let text = match value {
        RequestValue::Json(pointer) => {
            let found = body.and_then(|body| body.get(pointer));
            return Ok(found.filter(|found| !found.is_null()).map(FoundValue::Json));
        }
        RequestValue::Header(name) => {
            let key = single(&parts.headers, name, &policy.key)?;
            key.map(|key| key.as_str().to_owned())
        }
        RequestValue::Path(name) => Some(path_parameter(parts, name, policy)?),
        RequestValue::Query(name) => {
            let query = head::uri(parts).query().unwrap_or_default();
            query::parameter(query, name).map_err(|what| invalid(value, what))?
        }
    };
    Ok(text.map(FoundValue::Text))
}

fn path_parameter(parts: &Parts, name: &str, policy: &Policy) -> Result<String, Problem> {
    let Some(pattern) = &policy.path else {
        let route = &policy.label;
        tracing::error!(
            route,
            "a policy takes its key from the path, and has no pattern of one: use Routes"
        );
        return Err(misconfigured());
    };
    let value = pattern.parameter(name, head::uri(parts).path())?.ok_or_else(misconfigured)?;
    let not_text = |_| {
        let value = RequestValue::Path(name.to_owned());
        invalid(&value, "It must be UTF-8.")
    };
    String::from_utf8(value).map_err(not_text)
}

/// Returns the key that is one value.
fn one(value: &RequestValue, found: &FoundValue<'_>) -> Result<Key, Problem> {
    let (text, form) = match found {
        FoundValue::Text(text) => (Some(text.clone()), "It must have 1 to 255 bytes."),
        FoundValue::Json(json) => {
            let integer = || json.number().and_then(|number| number.integer(DIGITS_MAX));
            let text = json.text().map(str::to_owned).or_else(integer);
            (text, "It must be a string of 1 to 255 bytes, or an integer.")
        }
    };
    let key = text.and_then(|text| Key::new(text).ok());
    key.ok_or_else(|| invalid(value, form))
}

/// Returns a key made of a digest of the values. The parts of the digest cannot run into each
/// other.
///
/// The name of a JSON value in the digest is its pointer alone, which starts with a slash. The
/// names of other values do not.
fn derived(wanted: &[RequestValue], found: &[FoundValue<'_>]) -> Result<Key, Problem> {
    let mut digest = Fingerprinter::new().part(b"derived key");
    for (value, found) in wanted.iter().zip(found) {
        let name = match value {
            RequestValue::Json(pointer) => Cow::Borrowed(pointer.as_str()),
            other => Cow::Owned(other.to_string()),
        };
        let mut canonical = Vec::new();
        match found {
            FoundValue::Json(json) if json.is_array() || json.is_object() => {
                return Err(invalid(value, "It must be a string, a number or a boolean."));
            }
            FoundValue::Json(json) => json.canonical(&mut canonical),
            FoundValue::Text(text) => canonical.extend_from_slice(text.as_bytes()),
        }
        digest = digest.part(name.as_bytes()).part(&canonical);
    }
    let digest = digest.finish();
    let hex: String = digest.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    Key::new(hex).map_err(|error| Problem::new(Code::IdempotencyKeyInvalid, error.to_string()))
}

fn invalid(value: &RequestValue, form: &str) -> Problem {
    let detail = format!("The key of this request comes from {}. {form}", value.described());
    Problem::new(Code::IdempotencyKeyInvalid, detail)
}

fn missing(value: &RequestValue) -> Problem {
    let detail = format!(
        "The key of this request comes from {}, which is missing. Send it, and the same value on each retry.",
        value.described()
    );
    Problem::new(Code::IdempotencyKeyMissing, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Pointer;
    use crate::policy::{KeyFormat, KeyPolicy};
    use crate::routes::RoutePattern;
    use http::Request;

    fn read(
        policy: &Policy,
        request: http::request::Builder,
        text: &str,
    ) -> Result<Option<String>, Code> {
        let parts = request.body(()).unwrap().into_parts().0;
        let payload = Payload::new(&parts.headers, text.to_owned().into(), 1000);
        let key = match policy.key.source.is_in_body() {
            true => key_of_body(&parts, &payload, policy),
            false => super::super::key_of_head(&parts, policy),
        };
        Ok(key.map_err(|problem| problem.code())?.map(|key| key.as_str().to_owned()))
    }

    fn policy(source: KeySource, required: bool) -> Policy {
        let mut policy = Policy::new().tenant("public").key_from(source);
        policy.key.required = required;
        policy.path = Some(RoutePattern::parse("PUT /orders/{id}/{*rest}").unwrap().path);
        policy
    }

    fn body(source: KeySource, required: bool, text: &str) -> Result<Option<String>, Code> {
        read(&policy(source, required), Request::post("/"), text)
    }

    fn json(text: &str) -> KeySource {
        KeySource::Value(RequestValue::Json(Pointer::parse(text).unwrap()))
    }

    #[test]
    fn a_key_from_the_body() {
        let read = |text| body(json("/t/ref"), true, text);
        assert_eq!(read("{\"t\":{\"ref\":\"A-7\"}}"), Ok(Some("A-7".into())));
        assert_eq!(read("{\"t\":{\"ref\":7}}"), Ok(Some("7".into())));
        assert_eq!(read("{\"t\":{\"ref\":7.0}}"), Ok(Some("7".into())));
        for nothing in ["{}", "{\"t\":{\"ref\":null}}", ""] {
            assert_eq!(read(nothing), Err(Code::IdempotencyKeyMissing), "{nothing}");
            assert_eq!(body(json("/t/ref"), false, nothing), Ok(None));
        }
        let long = format!("{{\"t\":{{\"ref\":\"{}\"}}}}", "x".repeat(256));
        for bad in
            ["{\"t\":{\"ref\":7.5}}", "{\"t\":{\"ref\":{}}}", "{\"t\":{\"ref\":\"\"}}", &long]
        {
            assert_eq!(read(bad), Err(Code::IdempotencyKeyInvalid), "{bad}");
        }
        // An ambiguous body is refused even if no key is required, because the service could read
        // it differently.
        assert_eq!(body(json("/a"), false, "{\"a\":1,\"a\":2}"), Err(Code::RequestBodyInvalid));
    }

    #[test]
    fn a_key_derived_from_parts() {
        let parts = || KeySource::derive(["/m", "/o"]).unwrap();
        let derive = |text| body(parts(), true, text);
        let one = derive("{\"m\":\"a\",\"o\":\"bc\"}").unwrap().unwrap();
        assert_eq!(one.len(), 64);
        assert_eq!(derive("{\"o\":\"bc\", \"m\":\"a\", \"x\":1}").unwrap().unwrap(), one);
        for other in
            ["{\"m\":\"ab\",\"o\":\"c\"}", "{\"m\":\"bc\",\"o\":\"a\"}", "{\"m\":\"a\",\"o\":true}"]
        {
            assert_ne!(derive(other).unwrap().unwrap(), one, "{other}");
        }
        assert_eq!(
            derive("{\"m\":1,\"o\":2}").unwrap(),
            derive("{\"m\":1.0,\"o\":20e-1}").unwrap()
        );
        assert_eq!(derive("{\"m\":\"a\"}"), Err(Code::IdempotencyKeyMissing));
        assert_eq!(derive("{\"m\":\"a\",\"o\":[1]}"), Err(Code::IdempotencyKeyInvalid));
        assert_eq!(body(parts(), false, "{\"m\":\"a\"}"), Ok(None));
    }

    #[test]
    fn a_key_from_a_named_header() {
        let delivery = policy(KeySource::header("X-GitHub-Delivery").unwrap(), true);
        let sent = |values: &[&str]| {
            let request = values.iter().fold(Request::post("/"), |request, value| {
                request.header("x-github-delivery", *value)
            });
            read(&delivery, request.header("idempotency-key", "of-something-else-1"), "")
        };
        assert_eq!(sent(&["72d3162e"]), Ok(Some("72d3162e".into())));
        assert_eq!(sent(&["72d3162e", "72d3162e"]), Ok(Some("72d3162e".into())));
        assert_eq!(sent(&["72d3162e, 72d3162e"]), Ok(Some("72d3162e".into())));
        assert_eq!(sent(&["72d3162e", "other"]), Err(Code::IdempotencyKeyInvalid));
        assert_eq!(sent(&["72d3162e, other"]), Err(Code::IdempotencyKeyInvalid));
        assert_eq!(sent(&[""]), Err(Code::IdempotencyKeyInvalid));
        assert_eq!(sent(&[]), Err(Code::IdempotencyKeyMissing));
        let optional = policy(KeySource::header("X-GitHub-Delivery").unwrap(), false);
        assert_eq!(read(&optional, Request::post("/"), ""), Ok(None));
        let mut uuid = delivery.clone().key_format(KeyFormat::Uuid);
        let request = || Request::post("/").header("x-github-delivery", "short-id");
        assert_eq!(read(&uuid, request(), ""), Err(Code::IdempotencyKeyInvalid));
        uuid.key = KeyPolicy { format: KeyFormat::Any, min_length: Some(9), ..uuid.key };
        assert_eq!(read(&uuid, request(), ""), Err(Code::IdempotencyKeyInvalid));
    }

    #[test]
    fn a_key_from_the_path() {
        let id = policy(KeySource::path("id"), true);
        let rest = policy(KeySource::path("rest"), true);
        let of = |policy: &Policy, path: &str| read(policy, Request::put(path), "");
        for same in ["/orders/7/a/b", "/orders/%37/a/b", "//orders//7/a/b/", "/orders/7/a/b?x=8"] {
            assert_eq!(of(&id, same), Ok(Some("7".into())), "{same}");
        }
        assert_eq!(of(&rest, "/orders/7/a/b"), Ok(Some("a/b".into())));
        assert_eq!(of(&id, "/orders/%C3%A4/a"), Ok(Some("ä".into())));
        assert_eq!(of(&id, "/orders/%FF/a"), Err(Code::IdempotencyKeyInvalid));
        assert_eq!(
            of(&id, &format!("/orders/{}/a", "7".repeat(256))),
            Err(Code::IdempotencyKeyInvalid)
        );
        // A server that ignores parameters behind a semicolon reads the same order.
        assert_eq!(of(&id, "/orders/7;a=b/c"), Err(Code::RequestRefused));
        // A server that keeps empty segments reads another rest.
        assert_eq!(of(&rest, "/orders/7/a//b"), Err(Code::RequestRefused));
        let mut without = id;
        without.path = None;
        assert_eq!(of(&without, "/orders/7/a"), Err(Code::Misconfigured));
    }

    #[test]
    fn a_key_from_the_query() {
        let of = |query: &str| {
            let policy = policy(KeySource::query("order id"), true);
            read(&policy, Request::post(format!("/?{query}")), "")
        };
        assert_eq!(of("order+id=7&x=8"), Ok(Some("7".into())));
        assert_eq!(of("x=8&order%20id=7%2b"), Ok(Some("7+".into())));
        assert_eq!(of("x=8"), Err(Code::IdempotencyKeyMissing));
        assert_eq!(of(""), Err(Code::IdempotencyKeyMissing));
        assert_eq!(of("order+id="), Err(Code::IdempotencyKeyInvalid));
        assert_eq!(of("order+id=7&order+id=7"), Err(Code::IdempotencyKeyInvalid));
    }

    #[test]
    fn a_key_derived_from_values_of_all_kinds() {
        let parts = ["header:X-Shop", "path:id", "query:page", "json:/o"];
        let all = policy(KeySource::derive(parts).unwrap(), true);
        let derive = |shop: &str, path: &str, text: &str| {
            read(&all, Request::put(path).header("x-shop", shop), text)
        };
        let first = derive("a", "/orders/7/x?page=1", "{\"o\":1}").unwrap().unwrap();
        assert_eq!(first.len(), 64);
        assert_eq!(derive("a", "/orders/7/y?page=1&q=2", "{\"o\":1.0}"), Ok(Some(first.clone())));
        for (shop, path, text) in [
            ("b", "/orders/7/x?page=1", "{\"o\":1}"),
            ("a", "/orders/8/x?page=1", "{\"o\":1}"),
            ("a", "/orders/7/x?page=2", "{\"o\":1}"),
            ("a", "/orders/7/x?page=1", "{\"o\":2}"),
        ] {
            let other = derive(shop, path, text).unwrap().unwrap();
            assert_ne!(other, first, "{shop} {path} {text}");
        }
        assert_eq!(derive("a", "/orders/7/x", "{\"o\":1}"), Err(Code::IdempotencyKeyMissing));
        // Without a value in the body, the body may be anything.
        let head = policy(KeySource::derive(["header:X-Shop", "path:id"]).unwrap(), true);
        let request = || Request::put("/orders/7/x").header("x-shop", "a");
        assert!(read(&head, request(), "{").unwrap().is_some());
    }

    /// Records in stores are found by these keys, so they must never change.
    #[test]
    fn derived_keys_stay_the_same() {
        let json = KeySource::derive(["/m", "/o"]).unwrap();
        let expected = "63a215a364f298fd60dd7156d6e839140a050514abbd98d784a0d3edc02ef6e1";
        assert_eq!(body(json, true, "{\"m\":\"a\",\"o\":7}"), Ok(Some(expected.into())));
    }
}
