//! Where the key comes from.

use http::HeaderMap;
use http::header::HeaderName;

use onetake_core::Key;

use crate::policy::KeyPolicy;
use crate::problem::{Code, Problem};

/// The header that names an operation.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Its alias, also used as gRPC metadata.
pub const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// Reads the key. `None`: there is none, and none is required.
///
/// # Errors
/// A problem for the client: the key is missing where it is required, malformed, or sent twice.
pub fn key(headers: &HeaderMap, policy: &KeyPolicy) -> Result<Option<Key>, Problem> {
    let one = |name| single(headers, name, policy);
    match (one(&IDEMPOTENCY_KEY)?, one(&X_IDEMPOTENCY_KEY)?) {
        (Some(key), Some(alias)) if key != alias => Err(Problem::new(
            Code::IdempotencyKeyInvalid,
            "Idempotency-Key and X-Idempotency-Key name different keys; send one of them, or the same key in both.",
        )),
        (Some(key), _) | (None, Some(key)) => Ok(Some(key)),
        (None, None) if policy.required => Err(Problem::new(
            Code::IdempotencyKeyMissing,
            "This request needs an Idempotency-Key header: one key per operation (a UUID, made when the user acts), and the same key on each retry.",
        )),
        (None, None) => Ok(None),
    }
}

fn single(
    headers: &HeaderMap,
    name: &HeaderName,
    policy: &KeyPolicy,
) -> Result<Option<Key>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Problem::new(
            Code::IdempotencyKeyInvalid,
            format!("The header {name} was sent twice; send exactly one."),
        ));
    }
    let key = Key::from_header(value.as_bytes(), policy.length_min);
    key.map(Some).map_err(|error| {
        Problem::new(
            Code::IdempotencyKeyInvalid,
            format!("The header {name} is no valid key: {error}."),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

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
    fn everything_else_is_a_problem() {
        let invalid = Err(Code::IdempotencyKeyInvalid);
        assert_eq!(read(&[], false), Ok(None));
        assert_eq!(read(&[], true), Err(Code::IdempotencyKeyMissing));
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, "")], false), invalid);
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, "short")], false), invalid);
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY), (&IDEMPOTENCY_KEY, KEY)], false), invalid);
        let other = "another-key-1234567890";
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, KEY), (&X_IDEMPOTENCY_KEY, other)], false), invalid);
        assert_eq!(read(&[(&IDEMPOTENCY_KEY, &format!("{KEY}, {KEY}"))], false), invalid);
    }
}
