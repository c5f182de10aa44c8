//! The messages of `envoy.service.ext_proc.v3`, as far as the processor uses them.
//!
//! Names and field numbers are Envoy's. Fields that are not used are left out: prost skips them.
//! They are written by hand because the generated types of all of Envoy's API take minutes to
//! compile.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// A message of Envoy: one part of a request or a response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingRequest {
    #[prost(oneof = "Part", tags = "2, 3, 4, 5, 6, 7")]
    pub(crate) part: Option<Part>,
    #[prost(map = "string, message", tag = "9")]
    pub(crate) attributes: HashMap<String, Struct>,
    #[prost(bool, tag = "10")]
    pub(crate) observability_mode: bool,
    #[prost(message, optional, tag = "11")]
    pub(crate) protocol_config: Option<ProtocolConfiguration>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Part {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// The filter's own modes, before any override.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProtocolConfiguration {
    #[prost(enumeration = "BodySendMode", tag = "1")]
    pub(crate) request_body_mode: i32,
    #[prost(enumeration = "BodySendMode", tag = "2")]
    pub(crate) response_body_mode: i32,
    #[prost(bool, tag = "3")]
    pub(crate) send_body_without_waiting_for_header_response: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(crate) headers: Option<HeaderLines>,
    #[prost(bool, tag = "3")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpTrailers {
    #[prost(message, optional, tag = "1")]
    pub(crate) trailers: Option<HeaderLines>,
}

/// `envoy.config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderLines {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<HeaderLine>,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderLine {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) raw_value: Bytes,
}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Struct {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(oneof = "Kind", tags = "2, 3")]
    pub(crate) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
}

/// The reply to a message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingResponse {
    /// `None` if the message only changes the modes of the filter.
    #[prost(oneof = "Reply", tags = "1, 2, 3, 4, 5, 6, 7, 11")]
    pub(crate) reply: Option<Reply>,
    #[prost(message, optional, tag = "9")]
    pub(crate) mode_override: Option<ProcessingMode>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Reply {
    #[prost(message, tag = "1")]
    RequestHeaders(Continue),
    #[prost(message, tag = "2")]
    ResponseHeaders(Continue),
    #[prost(message, tag = "3")]
    RequestBody(Continue),
    #[prost(message, tag = "4")]
    ResponseBody(Continue),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
    #[prost(message, tag = "11")]
    StreamedImmediate(StreamedImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`, which have the same form.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Continue {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<CommonResponse>,
}

/// Without a status it means that the part goes on.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub(crate) header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub(crate) body_mutation: Option<BodyMutation>,
}

/// Only the form of bodies in full duplex is used.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BodyMutation {
    #[prost(message, optional, tag = "3")]
    pub(crate) streamed_response: Option<BodyChunk>,
}

/// `StreamedBodyResponse`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BodyChunk {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrailersResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header_mutation: Option<HeaderMutation>,
}

/// A part of an answer to the client in place of the upstream: its head, a piece of its body, or
/// its trailers.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamedImmediateResponse {
    #[prost(oneof = "AnswerPart", tags = "1, 2, 3")]
    pub(crate) part: Option<AnswerPart>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AnswerPart {
    #[prost(message, tag = "1")]
    Head(HttpHeaders),
    #[prost(message, tag = "2")]
    Body(BodyChunk),
    #[prost(message, tag = "3")]
    Trailers(HeaderLines),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(crate) set_headers: Vec<HeaderLineOption>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) remove_headers: Vec<String>,
}

/// `envoy.config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderLineOption {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderLine>,
    /// True to add a line, else the line replaces all lines of its name. The filter reads this
    /// field alone, although `append_action` has replaced it elsewhere.
    #[prost(message, optional, tag = "2")]
    pub(crate) append: Option<BoolValue>,
    #[prost(bool, tag = "4")]
    pub(crate) keep_empty_value: bool,
}

/// `google.protobuf.BoolValue`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(crate) value: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
    #[prost(string, tag = "5")]
    pub(crate) details: String,
}

/// `envoy.type.v3.HttpStatus`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

/// `envoy.extensions.filters.http.ext_proc.v3.ProcessingMode`. Header modes that are not set stay
/// as the filter has them.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingMode {
    #[prost(enumeration = "HeaderSendMode", tag = "2")]
    pub(crate) response_header_mode: i32,
    #[prost(enumeration = "BodySendMode", tag = "3")]
    pub(crate) request_body_mode: i32,
    #[prost(enumeration = "BodySendMode", tag = "4")]
    pub(crate) response_body_mode: i32,
    #[prost(enumeration = "HeaderSendMode", tag = "5")]
    pub(crate) request_trailer_mode: i32,
    #[prost(enumeration = "HeaderSendMode", tag = "6")]
    pub(crate) response_trailer_mode: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum HeaderSendMode {
    Default = 0,
    Send = 1,
    Skip = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum BodySendMode {
    None = 0,
    Streamed = 1,
    Buffered = 2,
    BufferedPartial = 3,
    FullDuplexStreamed = 4,
    Grpc = 5,
}

impl ProcessingMode {
    /// Envoy sends nothing more of the request and of its response.
    pub(crate) fn nothing() -> Self {
        let (none, skip) = (BodySendMode::None.into(), HeaderSendMode::Skip.into());
        Self {
            response_header_mode: skip,
            request_body_mode: none,
            response_body_mode: none,
            request_trailer_mode: skip,
            response_trailer_mode: skip,
        }
    }

    /// Envoy sends bodies and trailers as they arrive, keeps nothing of them, and forwards what it
    /// gets back.
    pub(crate) fn full_duplex() -> Self {
        let (duplex, send) = (BodySendMode::FullDuplexStreamed.into(), HeaderSendMode::Send.into());
        Self {
            response_header_mode: send,
            request_body_mode: duplex,
            response_body_mode: duplex,
            request_trailer_mode: send,
            response_trailer_mode: send,
        }
    }

    /// As [`full_duplex`](Self::full_duplex) for the request. Envoy sends nothing of its response.
    pub(crate) fn full_duplex_request() -> Self {
        let duplex = Self::full_duplex();
        Self {
            request_body_mode: duplex.request_body_mode,
            request_trailer_mode: duplex.request_trailer_mode,
            ..Self::nothing()
        }
    }
}
