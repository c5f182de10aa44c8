//! The counter of effects that the owner of the API names.

use bytes::Bytes;
use http::{Request, Uri};
use serde_json::Value;

use super::client::{NoResponse, ProbeClient};
use super::session::Session;

/// The error of a counter without a number.
#[derive(Debug, thiserror::Error)]
pub(super) enum CounterError {
    /// The counter did not answer.
    #[error("the counter of --count: {0}")]
    NoResponse(#[from] NoResponse),
    /// The answer is not a number.
    #[error("the counter of --count answered {status} without a number at \"{pointer}\"")]
    NotANumber {
        /// The status.
        status: u16,
        /// The JSON pointer.
        pointer: String,
    },
}

/// Reads the number of operations that have run.
pub(super) async fn read(
    client: &ProbeClient,
    session: &Session<'_>,
    url: &Uri,
) -> Result<u64, CounterError> {
    let settings = session.settings;
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = url.clone();
    *request.headers_mut() = settings.headers.clone();
    if let Some((name, value)) = &settings.credential {
        request.headers_mut().insert(name, value.clone());
    }
    let answer = client.send(request).await?;
    let pointer = &settings.count_pointer;
    let number = answer.status.is_success().then(|| number(&answer.body, pointer)).flatten();
    number.ok_or_else(|| CounterError::NotANumber {
        status: answer.status.as_u16(),
        pointer: pointer.clone(),
    })
}

/// The number at a JSON pointer. The empty pointer means the whole text. An array counts its
/// elements.
fn number(body: &[u8], pointer: &str) -> Option<u64> {
    let value: Value = serde_json::from_slice(body).ok()?;
    match value.pointer(pointer)? {
        Value::Array(elements) => u64::try_from(elements.len()).ok(),
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_found_in_text_and_json() {
        assert_eq!(number(b"12\n", ""), Some(12));
        assert_eq!(number(b"{\"a\":{\"n\":3}}", "/a/n"), Some(3));
        assert_eq!(number(b"{\"a\":[1,2]}", "/a"), Some(2));
        assert_eq!(number(b"\"7\"", ""), Some(7));
        for (body, pointer) in [("{}", ""), ("-1", ""), ("1.5", ""), ("twelve", ""), ("{}", "/n")] {
            assert_eq!(number(body.as_bytes(), pointer), None, "{body}");
        }
    }
}
