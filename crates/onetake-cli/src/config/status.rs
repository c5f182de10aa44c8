//! The entries of `record`, `release` and `unknown`.

use onetake_http::status::StatusPattern;

use super::error::Fault;

/// Reads an entry.
pub(super) fn parse(text: &str) -> Result<StatusPattern, Fault> {
    text.parse().map_err(|_| {
        Fault::new(
            "not a status that can be recorded",
            "write a status from 200 to 599, such as \"404\", or \"2xx\", \"3xx\", \"4xx\", \"5xx\"",
        )
    })
}
