//! The source and the format of keys.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;

use onetake_core::key::KEY_LENGTH_MIN_DEFAULT;

use crate::grpc::MessageField;
use crate::json::Pointer;
use crate::text::{TextError, TextOr};

/// The longest name of a path or query parameter, in bytes.
const NAME_LENGTH_MAX: usize = 255;

/// The source and the format of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyPolicy {
    /// The source of the key.
    pub source: KeySource,
    /// True if a request without a key is refused. Otherwise it passes through untouched.
    pub required: bool,
    /// The required format of a key from a header.
    pub format: KeyFormat,
    /// The minimum length of a key from a header, in characters. See
    /// [`length_min`](Self::length_min) for the default.
    pub min_length: Option<usize>,
}

impl KeyPolicy {
    /// Returns the minimum length of a key from a header, in characters.
    ///
    /// The default is 16 for `Idempotency-Key`, whose value a client makes up for this purpose, and
    /// 1 for another header, whose value has a form of its own.
    #[must_use]
    pub fn length_min(&self) -> usize {
        let default = match self.source {
            KeySource::Value(_) => 1,
            _ => KEY_LENGTH_MIN_DEFAULT,
        };
        self.min_length.unwrap_or(default)
    }
}

/// The source of a key.
///
/// **Warning:** two common mistakes run one operation where two were meant. One is a key that is
/// made once per session instead of once per user action. The other is a number that people reuse,
/// such as a purchase order number for two deliveries that are paid separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The header `Idempotency-Key`, or its alias.
    #[default]
    Header,
    /// A value that the request has anyway, such as the number of an event.
    Value(RequestValue),
    /// A digest of these values, which together identify the operation.
    Derive(Vec<RequestValue>),
    /// The header, limited to keys that this service issued for the same tenant, method and path.
    Issued,
    /// A field of the message of a gRPC call.
    Grpc(MessageField),
}

impl KeySource {
    /// The key is the value of this header, such as `"X-GitHub-Delivery"`.
    ///
    /// # Errors
    /// If the text is not a header name. [`Policy::key_from`](crate::Policy::key_from) takes the
    /// result as it is.
    pub fn header(name: impl TextOr<HeaderName>) -> Result<Self, TextError> {
        name.read().map(RequestValue::Header).map(Self::Value)
    }

    /// The key is the value of this parameter in the path of the route, such as `"id"` of
    /// `PUT /orders/{id}`.
    #[must_use]
    pub fn path(name: impl Into<String>) -> Self {
        Self::Value(RequestValue::Path(name.into()))
    }

    /// The key is the value of this parameter in the query.
    #[must_use]
    pub fn query(name: impl Into<String>) -> Self {
        Self::Value(RequestValue::Query(name.into()))
    }

    /// The key is a string or an integer in the JSON body, by its JSON Pointer, such as `"/id"`.
    ///
    /// # Errors
    /// If the text is not a JSON Pointer. [`Policy::key_from`](crate::Policy::key_from) takes the
    /// result as it is.
    pub fn json(pointer: impl TextOr<Pointer>) -> Result<Self, TextError> {
        pointer.read().map(RequestValue::Json).map(Self::Value)
    }

    /// The key is a digest of these values: `"header:X-Shop"`, `"path:id"`, `"query:page"`,
    /// `"json:/order_id"`, or a JSON Pointer alone.
    ///
    /// # Errors
    /// If a text names no value of a request. [`Policy::key_from`](crate::Policy::key_from) takes
    /// the result as it is.
    pub fn derive<V: TextOr<RequestValue>>(
        values: impl IntoIterator<Item = V>,
    ) -> Result<Self, TextError> {
        let values: Result<Vec<_>, _> = values.into_iter().map(TextOr::read).collect();
        values.map(Self::Derive)
    }

    /// Returns the values of the request that the key is made of. There are none for
    /// `Idempotency-Key` and for issued keys.
    #[must_use]
    pub fn values(&self) -> &[RequestValue] {
        match self {
            Self::Header | Self::Issued | Self::Grpc(_) => &[],
            Self::Value(value) => std::slice::from_ref(value),
            Self::Derive(values) => values,
        }
    }

    /// Returns true if the key is made of a value in the body.
    #[must_use]
    pub fn is_in_body(&self) -> bool {
        matches!(self, Self::Grpc(_))
            || self.values().iter().any(|value| matches!(value, RequestValue::Json(_)))
    }

    /// Returns true if the key is the value of one header.
    #[must_use]
    pub fn is_header(&self) -> bool {
        matches!(self, Self::Header | Self::Value(RequestValue::Header(_)))
    }
}

/// A value in a request.
///
/// As text, it is `"header:X-Shop"`, `"path:id"`, `"query:page"` or `"json:/order_id"`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestValue {
    /// The value of this header.
    Header(HeaderName),
    /// The value of this parameter in the path of the route.
    Path(String),
    /// The value of this parameter in the query.
    Query(String),
    /// The value at this place in the JSON body.
    Json(Pointer),
}

impl RequestValue {
    /// Returns true if the text can be the name of a path or query parameter.
    #[must_use]
    pub fn is_name(text: &str) -> bool {
        (1..=NAME_LENGTH_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    }

    /// Returns a description for clients, such as "the header x-shop".
    pub(crate) fn described(&self) -> String {
        match self {
            Self::Header(name) => format!("the header {name}"),
            Self::Path(name) => format!("the path parameter {name}"),
            Self::Query(name) => format!("the query parameter {name}"),
            Self::Json(pointer) => format!("the value at {} in the body", pointer.as_str()),
        }
    }
}

impl fmt::Display for RequestValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Path(name) => write!(f, "path:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Json(pointer) => write!(f, "json:{}", pointer.as_str()),
        }
    }
}

impl FromStr for RequestValue {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let fix = "write for example \"header:X-Shop\", \"path:id\", \"query:page\" or \"json:/order_id\"";
        let error = |what: &str| TextError::new(text, what, fix);
        let (kind, name) =
            text.split_once(':').ok_or_else(|| error("not a value of the request"))?;
        let named = |name: &str| match Self::is_name(name) {
            true => Ok(name.to_owned()),
            false => Err(error("not the name of a parameter")),
        };
        match kind {
            "header" => name.parse().map(Self::Header).map_err(|_| error("not a header name")),
            "path" => named(name).map(Self::Path),
            "query" => named(name).map(Self::Query),
            "json" if name.is_empty() => Err(error("the empty pointer names the whole body")),
            "json" => {
                Pointer::parse(name).map(Self::Json).map_err(|fault| error(&fault.to_string()))
            }
            _ => Err(error("not a value of the request")),
        }
    }
}

/// The required format of a key from a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFormat {
    /// Visible ASCII.
    #[default]
    Any,
    /// A UUID, in its usual form of 36 characters.
    Uuid,
}
