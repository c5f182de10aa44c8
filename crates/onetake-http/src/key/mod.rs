//! Reading of keys: from `Idempotency-Key`, and from values that a request has anyway.

mod query;
mod values;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;

use onetake_core::Key;
use onetake_core::key::KeyError;

use crate::policy::{KeyFormat, KeyPolicy, KeySource, Policy, RequestValue};
use crate::problem::{Code, Problem};

pub(crate) use values::key_of_body;

/// The header with the key of an operation.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// An alias of the header `Idempotency-Key`, also used as gRPC metadata.
pub const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// Reads the key from the head of a request. Returns `None` if there is no key and none is
/// required, or if the key is in the body.
///
/// # Errors
/// A problem for the client, if the key is invalid, or is missing although it is required.
pub(crate) fn key_of_head(parts: &Parts, policy: &Policy) -> Result<Option<Key>, Problem> {
    match &policy.key.source {
        KeySource::Header | KeySource::Issued => key(&parts.headers, &policy.key),
        source if source.is_in_body() => Ok(None),
        _ => values::key_of_values(parts, None, policy),
    }
}

/// Reads the key from `Idempotency-Key`. Returns `None` if there is no key and none is required.
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

/// Returns true if a request has a header with a key.
pub(crate) fn has_header(headers: &HeaderMap) -> bool {
    headers.contains_key(IDEMPOTENCY_KEY) || headers.contains_key(X_IDEMPOTENCY_KEY)
}

/// Replaces a header that names the same key several times by one that names it once, so that the
/// inner service sees the same key whether a proxy repeated it or not.
pub(crate) fn write_once(headers: &mut HeaderMap, source: &KeySource) {
    for name in headers_of(source) {
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

/// Returns the value of the key's header, as the client sent it. Returns `None` if the key is not
/// the value of a header.
pub(crate) fn as_written<'a>(headers: &'a HeaderMap, source: &KeySource) -> Option<&'a [u8]> {
    if matches!(source, KeySource::Derive(_)) {
        return None;
    }
    let named = headers_of(source).find_map(|name| headers.get(name));
    named.map(HeaderValue::as_bytes)
}

/// Returns the headers that a key is read from.
fn headers_of(source: &KeySource) -> impl Iterator<Item = HeaderName> {
    let is_usual = matches!(source, KeySource::Header | KeySource::Issued);
    let usual = is_usual.then_some([IDEMPOTENCY_KEY, X_IDEMPOTENCY_KEY]);
    let named = source.values().iter().filter_map(|value| match value {
        RequestValue::Header(name) => Some(name.clone()),
        _ => None,
    });
    usual.into_iter().flatten().chain(named)
}

fn single(
    headers: &HeaderMap,
    name: &HeaderName,
    policy: &KeyPolicy,
) -> Result<Option<Key>, Problem> {
    // The route's rules for the form of keys apply to clients' own keys, not to issued keys.
    let (format, min_length) = match policy.source {
        KeySource::Issued | KeySource::Derive(_) => (KeyFormat::Any, 1),
        _ => (policy.format, policy.length_min()),
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
            write_once(&mut headers, &KeySource::Header);
            assert_eq!(headers[IDEMPOTENCY_KEY], KEY, "{joined}");
        }
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY), (&IDEMPOTENCY_KEY, KEY)], true), expected);
        let mut headers = HeaderMap::new();
        headers.append(X_IDEMPOTENCY_KEY, HeaderValue::from_static(KEY));
        headers.append(X_IDEMPOTENCY_KEY, HeaderValue::from_static(KEY));
        write_once(&mut headers, &KeySource::Header);
        assert_eq!(headers.get_all(X_IDEMPOTENCY_KEY).iter().collect::<Vec<_>>(), [KEY]);
        let quoted = HeaderValue::from_static("\"a-quoted-key,with-a-comma\"");
        headers.insert(IDEMPOTENCY_KEY, quoted.clone());
        write_once(&mut headers, &KeySource::Header);
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
