//! Reading of keys, from headers and from bodies.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use onetake_core::key::KeyError;
use onetake_core::{Fingerprinter, Key};

use crate::json::{Pointer, Value};
use crate::payload::Payload;
use crate::policy::{KeyFormat, KeyPolicy, KeySource};
use crate::problem::{Code, Problem};

/// The most digits of an integer in the body that is used as a key.
const DIGITS_MAX: usize = 255;

/// The header with the key of an operation.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// An alias of the header `Idempotency-Key`, also used as gRPC metadata.
pub const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// Reads the key from a header. Returns `None` if there is no key and none is required.
///
/// # Errors
/// A problem for the client, if the key is malformed, is missing although it is required, or if the
/// request names two keys that differ.
pub fn key(headers: &HeaderMap, policy: &KeyPolicy) -> Result<Option<Key>, Problem> {
    let one = |name| single(headers, name, policy);
    match (one(&IDEMPOTENCY_KEY)?, one(&X_IDEMPOTENCY_KEY)?) {
        (Some(key), Some(alias)) if key != alias => Err(Problem::new(
            Code::IdempotencyKeyInvalid,
            "Idempotency-Key and X-Idempotency-Key have different keys. Send one of them, or the same key in both.",
        )),
        (Some(key), _) | (None, Some(key)) => Ok(Some(key)),
        (None, None) if policy.required => Err(Problem::new(
            Code::IdempotencyKeyMissing,
            "This request requires an Idempotency-Key header. Send one key per operation (a UUID, created when the user acts), and the same key on each retry.",
        )),
        (None, None) => Ok(None),
    }
}

/// Replaces a header that names the same key several times by one that names it once, so that the
/// inner service sees the same key whether a proxy repeated it or not.
pub(crate) fn write_once(headers: &mut HeaderMap) {
    for name in [IDEMPOTENCY_KEY, X_IDEMPOTENCY_KEY] {
        let mut values = headers.get_all(&name).iter();
        let Some(first) = values.next() else { continue };
        if values.next().is_none() && !first.as_bytes().contains(&b',') {
            continue;
        }
        let once = Key::first_in_header(first.as_bytes()).ok();
        if let Some(Ok(once)) = once.map(HeaderValue::from_bytes) {
            headers.insert(name, once);
        }
    }
}

/// Returns the value of the key's header, as the client sent it.
pub(crate) fn as_written(headers: &HeaderMap) -> Option<&[u8]> {
    let named = headers.get(IDEMPOTENCY_KEY).or_else(|| headers.get(X_IDEMPOTENCY_KEY));
    named.map(http::HeaderValue::as_bytes)
}

fn single(
    headers: &HeaderMap,
    name: &HeaderName,
    policy: &KeyPolicy,
) -> Result<Option<Key>, Problem> {
    // The route's rules for the form of keys apply to clients' own keys, not to issued keys.
    let (format, min_length) = match policy.source {
        KeySource::Issued => (KeyFormat::Any, 1),
        _ => (policy.format, policy.min_length),
    };
    let invalid = |error: KeyError| {
        Problem::new(
            Code::IdempotencyKeyInvalid,
            format!("The header {name} is not a valid key: {error}."),
        )
    };
    let mut found: Option<Key> = None;
    for value in headers.get_all(name) {
        let key = Key::from_header(value.as_bytes(), min_length).map_err(invalid)?;
        // Lines of one header mean the same as their values joined by commas.
        if found.as_ref().is_some_and(|first| *first != key) {
            return Err(invalid(KeyError::Several));
        }
        found = Some(key);
    }
    let Some(key) = found else {
        return Ok(None);
    };
    match format {
        KeyFormat::Any => Ok(Some(key)),
        KeyFormat::Uuid => uuid(&key).map(Some).ok_or_else(|| {
            Problem::new(
                Code::IdempotencyKeyInvalid,
                format!("The header {name} is not a UUID. This route requires a UUID, such as 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90."),
            )
        }),
    }
}

/// Returns the key in lower case if it is a UUID, and `None` otherwise. Letter case has no meaning
/// in a UUID.
fn uuid(key: &Key) -> Option<Key> {
    let text = key.as_str();
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let hex = groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()));
    (hex && lengths == [8, 4, 4, 4, 12]).then(|| Key::new(text.to_ascii_lowercase()).ok())?
}

/// Reads the key from the body, if the policy says so. Returns `None` if there is no key and none
/// is required, or if the key comes from a header.
///
/// # Errors
/// A problem for the client, if the body is invalid JSON, or if the key is invalid or is missing
/// although it is required.
pub(crate) fn key_of_body(payload: &Payload, policy: &KeyPolicy) -> Result<Option<Key>, Problem> {
    let pointers = match &policy.source {
        KeySource::Header | KeySource::Issued | KeySource::Grpc(_) => return Ok(None),
        KeySource::Json(pointer) => std::slice::from_ref(pointer),
        KeySource::Derive(pointers) => pointers,
    };
    // An empty body has no key. Any other body must be valid JSON. Otherwise the inner service
    // could read a key where this code finds none, and the operation would run without a key.
    let body = if payload.data().is_empty() { None } else { Some(payload.json()?) };
    let mut named = Vec::with_capacity(pointers.len());
    for pointer in pointers {
        match body.and_then(|body| body.get(pointer)) {
            Some(value) if *value != Value::Null => named.push(value),
            _ if policy.required => return Err(missing(pointer)),
            _ => return Ok(None),
        }
    }
    match (&policy.source, named.first()) {
        (KeySource::Json(pointer), Some(value)) => one(value, pointer).map(Some),
        _ => derived(pointers, &named).map(Some),
    }
}

fn one(value: &Value, pointer: &Pointer) -> Result<Key, Problem> {
    let text = match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => number.integer(DIGITS_MAX),
        _ => None,
    };
    let key = text.and_then(|text| Key::new(text).ok());
    key.ok_or_else(|| {
        Problem::new(
            Code::IdempotencyKeyInvalid,
            format!(
                "The value at {} in the body is the key of this request. It must be a string of 1 to 255 bytes, or an integer.",
                pointer.as_str()
            ),
        )
    })
}

/// Returns a key made of a digest of the values. The parts of the digest cannot run into each
/// other.
fn derived(pointers: &[Pointer], values: &[&Value]) -> Result<Key, Problem> {
    let mut digest = Fingerprinter::new().part(b"derived key");
    for (pointer, value) in pointers.iter().zip(values) {
        if matches!(value, Value::Array(_) | Value::Object(_)) {
            return Err(Problem::new(
                Code::IdempotencyKeyInvalid,
                format!(
                    "The value at {} in the body is part of the key of this request. It must be a string, a number or a boolean.",
                    pointer.as_str()
                ),
            ));
        }
        let mut canonical = Vec::new();
        value.canonical(&mut canonical);
        digest = digest.part(pointer.as_str().as_bytes()).part(&canonical);
    }
    let digest = digest.finish();
    let hex: String = digest.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    Key::new(hex).map_err(|error| Problem::new(Code::IdempotencyKeyInvalid, error.to_string()))
}

fn missing(pointer: &Pointer) -> Problem {
    Problem::new(
        Code::IdempotencyKeyMissing,
        format!(
            "The key of this request is the value at {} in its body, and that value is missing. Send it, and the same value on each retry.",
            pointer.as_str()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

    fn read(pairs: &[(&HeaderName, &str)], required: bool) -> Result<Option<Key>, Code> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let policy = KeyPolicy { required, ..KeyPolicy::default() };
        key(&headers, &policy).map_err(|problem| problem.code())
    }

    #[test]
    fn one_key_by_either_name() {
        let expected = Ok(Some(Key::new(KEY).unwrap()));
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY)], true), expected);
        assert_eq!(read(&[(&X_IDEMPOTENCY_KEY, KEY)], true), expected);
        let quoted = format!("\"{KEY}\"");
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY), (&X_IDEMPOTENCY_KEY, &quoted)], true), expected);
    }

    fn body(source: KeySource, required: bool, text: &str) -> Result<Option<String>, Code> {
        let payload = Payload::new(&HeaderMap::new(), text.to_owned().into(), 1000);
        let policy = KeyPolicy { source, required, ..KeyPolicy::default() };
        let key = key_of_body(&payload, &policy).map_err(|problem| problem.code())?;
        Ok(key.map(|key| key.as_str().to_owned()))
    }

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).unwrap()
    }

    #[test]
    fn a_key_from_the_body() {
        let json = |text| body(KeySource::Json(pointer("/t/ref")), true, text);
        assert_eq!(json("{\"t\":{\"ref\":\"A-7\"}}"), Ok(Some("A-7".into())));
        assert_eq!(json("{\"t\":{\"ref\":7}}"), Ok(Some("7".into())));
        assert_eq!(json("{\"t\":{\"ref\":7.0}}"), Ok(Some("7".into())));
        for nothing in ["{}", "{\"t\":{\"ref\":null}}", ""] {
            assert_eq!(json(nothing), Err(Code::IdempotencyKeyMissing), "{nothing}");
            assert_eq!(body(KeySource::Json(pointer("/t/ref")), false, nothing), Ok(None));
        }
        let long = format!("{{\"t\":{{\"ref\":\"{}\"}}}}", "x".repeat(256));
        for bad in
            ["{\"t\":{\"ref\":7.5}}", "{\"t\":{\"ref\":{}}}", "{\"t\":{\"ref\":\"\"}}", &long]
        {
            assert_eq!(json(bad), Err(Code::IdempotencyKeyInvalid), "{bad}");
        }
        // An ambiguous body is refused even if no key is required, because the service could read
        // it differently.
        assert_eq!(
            body(KeySource::Json(pointer("/a")), false, "{\"a\":1,\"a\":2}"),
            Err(Code::RequestBodyInvalid)
        );
    }

    #[test]
    fn a_key_derived_from_parts() {
        let parts = || KeySource::Derive(vec![pointer("/m"), pointer("/o")]);
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
    fn a_uuid_where_one_is_asked_for() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(text).unwrap());
            let policy = KeyPolicy { format: KeyFormat::Uuid, ..KeyPolicy::default() };
            key(&headers, &policy).map_err(|problem| problem.code())
        };
        let expected = Ok(Some(Key::new(KEY).unwrap()));
        assert_eq!(read(KEY), expected);
        assert_eq!(read(&KEY.to_uppercase()), expected);
        assert_eq!(read(&format!("\"{KEY}\"")), expected);
        for bad in [
            "6f1c8d6a3a094b6e9c8f2d1f5e7b8a90",
            "order-1234567890123456789012345678901234",
            "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a9g",
        ] {
            assert_eq!(read(bad), Err(Code::IdempotencyKeyInvalid), "{bad}");
        }
    }

    #[test]
    fn a_key_that_is_repeated_is_one_key() {
        let expected = Ok(Some(Key::new(KEY).unwrap()));
        for joined in [format!("{KEY},{KEY}"), format!("{KEY}, \"{KEY}\"")] {
            assert_eq!(read(&[(&IDEMPOTENCY_KEY, &joined)], true), expected, "{joined}");
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(&joined).unwrap());
            write_once(&mut headers);
            assert_eq!(headers[IDEMPOTENCY_KEY], KEY, "{joined}");
        }
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY), (&IDEMPOTENCY_KEY, KEY)], true), expected);
        let mut headers = HeaderMap::new();
        headers.append(X_IDEMPOTENCY_KEY, HeaderValue::from_static(KEY));
        headers.append(X_IDEMPOTENCY_KEY, HeaderValue::from_static(KEY));
        write_once(&mut headers);
        assert_eq!(headers.get_all(X_IDEMPOTENCY_KEY).iter().collect::<Vec<_>>(), [KEY]);
        let quoted = HeaderValue::from_static("\"a-quoted-key,with-a-comma\"");
        headers.insert(IDEMPOTENCY_KEY, quoted.clone());
        write_once(&mut headers);
        assert_eq!(headers[IDEMPOTENCY_KEY], quoted);
    }

    #[test]
    fn everything_else_is_a_problem() {
        let invalid = Err(Code::IdempotencyKeyInvalid);
        assert_eq!(read(&[], false), Ok(None));
        assert_eq!(read(&[], true), Err(Code::IdempotencyKeyMissing));
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, "")], false), invalid);
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, "short")], false), invalid);
        let other = "another-key-1234567890";
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY), (&IDEMPOTENCY_KEY, other)], false), invalid);
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY), (&X_IDEMPOTENCY_KEY, other)], false), invalid);
        for joined in [format!("{KEY},{other}"), format!("{KEY}, {other}"), format!("{KEY},")] {
            assert_eq!(read(&[(&IDEMPOTENCY_KEY, &joined)], false), invalid, "{joined}");
        }
    }
}
