//! gRPC: calls that are recognised by their content type, and answered in gRPC's own terms.
//!
//! | subject | file |
//! | --- | --- |
//! | codes, and what becomes of an attempt by its code | `code.rs` |
//! | the one message of a keyed call | `message.rs` |
//! | keys in a field of the message, and fingerprints of messages | `field.rs`, `schema.rs` |
//! | the status of a response | `outcome.rs` |
//! | problems as gRPC errors | `error.rs` |

mod code;
#[cfg(feature = "protobuf")]
mod descriptor;
mod error;
mod field;
pub(crate) mod message;
mod outcome;
mod schema;

use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName};

pub use code::GrpcCode;
#[cfg(feature = "protobuf")]
pub use descriptor::{DescriptorError, DescriptorSet};
pub use error::error_of;
pub use field::MessageField;
pub use schema::{MessageError, MessageSchema, ProtobufFingerprint, Schema};

/// The header or trailer with the code of a call.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// The header or trailer with the text of an error.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The header or trailer with the `google.rpc.Status` of an error.
pub const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// The form of a call over HTTP, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// `application/grpc`: the status is in the trailers.
    Grpc,
    /// `application/grpc-web`: the status is in the last frame of the body.
    Web,
    /// `application/grpc-web-text`: the same in base64.
    WebText,
}

impl CallForm {
    /// Returns the form of a request or response, or `None` if it is not a call of gRPC.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(CONTENT_TYPE)?.as_bytes();
        let (start, rest) = text.split_at_checked(b"application/grpc".len())?;
        if !start.eq_ignore_ascii_case(b"application/grpc") {
            return None;
        }
        let name = rest.split(|byte| matches!(byte, b'+' | b';' | b' ')).next()?;
        match name.to_ascii_lowercase().as_slice() {
            b"" => Some(Self::Grpc),
            b"-web" => Some(Self::Web),
            b"-web-text" => Some(Self::WebText),
            _ => None,
        }
    }
}

/// Returns true if a request is a gRPC call, which is answered in gRPC's terms. A call of gRPC-Web
/// is not: its clients read HTTP statuses.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    CallForm::of(headers) == Some(CallForm::Grpc)
}

/// Returns the time that `grpc-timeout` leaves for a call, or `None` if the header is missing or
/// invalid.
#[must_use]
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    crate::deadline::grpc_timeout(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_type_says_what_a_call_is() {
        for (text, form) in [
            ("application/grpc", Some(CallForm::Grpc)),
            ("application/grpc+proto", Some(CallForm::Grpc)),
            ("Application/GRPC; charset=utf-8", Some(CallForm::Grpc)),
            ("application/grpc-web", Some(CallForm::Web)),
            ("application/grpc-web+proto", Some(CallForm::Web)),
            ("application/grpc-web-text+proto", Some(CallForm::WebText)),
            ("application/grpc-other", None),
            ("application/grpcx", None),
            ("application/json", None),
            ("application/proto", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, text.parse().unwrap());
            assert_eq!(CallForm::of(&headers), form, "{text}");
        }
        assert_eq!(CallForm::of(&HeaderMap::new()), None);
    }
}
