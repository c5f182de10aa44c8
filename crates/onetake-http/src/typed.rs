//! Typed results: outcomes that are recorded as values.
//!
//! Usually the layer records a response byte by byte. A [`Typed`] result is recorded as a value in
//! JSON. Its response is built from the value: the first time, and again on every replay. So a
//! recording stays valid if the form of responses changes, and operators can read it.
//!
//! A handler returns [`Stored`], and the type is registered with the layer
//! ([`LayerBuilder::typed`]). In these cases the response is recorded in place of the value:
//!
//! - The type is not registered. An error is logged.
//! - The value cannot be written to JSON and read again. An error is logged.
//! - The value is larger than the route's maximum for response bodies.
//! - The response was changed after it was built: by a status or headers that the handler added,
//!   or by a middleware inside the layer. The value does not hold such changes.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Response, StatusCode};
//! use onetake_http::typed::{Stored, Typed, json};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Receipt { charge: u64, cents: u64 }
//!
//! impl Typed for Receipt {
//!     const NAME: &str = "receipt";
//!
//!     fn respond(&self) -> Response<Bytes> {
//!         json(StatusCode::CREATED, self)
//!     }
//! }
//!
//! let response = Stored(Receipt { charge: 1, cents: 1999 }).response();
//! assert_eq!(response.status(), StatusCode::CREATED);
//! ```
//!
//! [`LayerBuilder::typed`]: crate::LayerBuilder::typed

use std::any::{TypeId, type_name};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use onetake_core::Recording;
use onetake_core::codec::{DecodeError, Reader, put_slice};

use crate::context::AttemptReport;
use crate::problem::{Code, Problem};
use crate::recording::{Recorded, TYPED, is_kept, strip_hop_by_hop};

/// A result that is recorded as a value in JSON.
pub trait Typed: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name of the type in recordings. It must not change while recordings with it exist. If
    /// newer code cannot read a value, its requests are answered 410, and the operation is not run
    /// again.
    const NAME: &'static str;

    /// Builds the response from the value. Headers that do not belong to the outcome, such as
    /// cookies and dates, are not replayed.
    fn respond(&self) -> Response<Bytes>;
}

/// Returns a response whose body is a value in JSON. It is an empty 500 if the value cannot be
/// written.
#[must_use]
pub fn json(status: StatusCode, value: &impl Serialize) -> Response<Bytes> {
    let Ok(body) = serde_json::to_vec(value) else {
        tracing::error!("a result cannot be serialized as JSON");
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return response;
    };
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The return value of a handler whose result is recorded as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<T>(pub T);

impl<T: Typed> Stored<T> {
    /// Builds the response, and attaches the value to it for the layer.
    ///
    /// The response is built from the value after it was written to JSON and read again. So the
    /// first client gets the same response as every replay.
    #[must_use]
    pub fn response(self) -> Response<Bytes> {
        let written = serde_json::to_vec(&self.0);
        let read = written.and_then(|json| Ok((serde_json::from_slice::<T>(&json)?, json)));
        match read {
            Ok((value, json)) => {
                let mut response = value.respond();
                let name = T::NAME;
                let (of, type_name) = (TypeId::of::<T>(), type_name::<T>());
                let value = Value { name, type_name, of, json: json.into() };
                AttemptReport { value: Some(value), ..AttemptReport::default() }
                    .attach(&mut response);
                response
            }
            Err(error) => {
                tracing::error!(
                    result = T::NAME,
                    error = unquoted(&error),
                    "a result cannot be recorded as a value; its response is recorded instead"
                );
                self.0.respond()
            }
        }
    }
}

#[cfg(feature = "axum")]
impl<T: Typed> axum::response::IntoResponse for Stored<T> {
    fn into_response(self) -> axum::response::Response {
        self.response().map(axum::body::Body::from)
    }
}

/// The value from which a response was built.
#[derive(Clone)]
pub(crate) struct Value {
    name: &'static str,
    type_name: &'static str,
    of: TypeId,
    json: Bytes,
}

/// The recording of a value, and the response body that is built from it.
pub(crate) struct Kept {
    recording: Recording,
    body: Bytes,
}

impl Kept {
    /// Returns the recording if the body of the response is the one that the value leads to. `read`
    /// is the whole body if `is_whole`, otherwise only its beginning.
    pub(crate) fn told_by(self, read: &Bytes, is_whole: bool) -> Option<Recording> {
        let is_same = if is_whole { self.body == read } else { self.body.starts_with(read) };
        is_same.then_some(self.recording)
    }
}

/// The types that are registered with a layer, by their names.
#[derive(Default)]
pub(crate) struct Types(RwLock<BTreeMap<&'static str, Type>>);

#[derive(Clone, Copy)]
struct Type {
    of: TypeId,
    rebuild: fn(&[u8]) -> Result<Response<Bytes>, serde_json::Error>,
}

impl Types {
    /// Registers a type. Returns false if another type has its name already. The first type of a
    /// name stays, so that a value is never read as another type.
    pub(crate) fn add<T: Typed>(&self) -> bool {
        let of = TypeId::of::<T>();
        let rebuild = |json: &[u8]| Ok(serde_json::from_slice::<T>(json)?.respond());
        let mut types = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let known = types.entry(T::NAME).or_insert(Type { of, rebuild });
        known.of == of
    }

    fn get(&self, name: &str) -> Option<Type> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    /// Returns the recording of a response's value. Returns `None` if the type is not registered,
    /// the value is too large, or status and headers of the response differ from those that the
    /// value leads to.
    pub(crate) fn value_of<B>(
        &self,
        value: Option<Value>,
        response: &Response<B>,
        bytes_max: usize,
    ) -> Option<Kept> {
        let Value { name, type_name, of, json } = value?;
        let Some(known) = self.get(name).filter(|known| known.of == of) else {
            // The operation ran. Its response is the outcome, and is recorded like any other.
            tracing::error!(
                name,
                "a handler returned Stored<{type_name}>, but the layer does not know this type: the response is recorded instead of the value. Call .typed::<{type_name}>() on the builder of the layer"
            );
            return None;
        };
        if json.len() > bytes_max {
            return None;
        }
        let rebuilt = (known.rebuild)(&json).ok()?;
        if rebuilt.status() != response.status()
            || lasting(rebuilt.headers().clone()) != lasting(response.headers().clone())
        {
            tracing::debug!(
                name,
                "the response of a result was changed on its way; it is recorded as a response, not as a value"
            );
            return None;
        }
        let mut head = BytesMut::with_capacity(32);
        head.put_u8(TYPED);
        head.put_u16(response.status().as_u16());
        put_slice(&mut head, name.as_bytes());
        let recording = Recording { head: head.freeze(), body: Some(json) };
        Some(Kept { recording, body: rebuilt.into_body() })
    }

    /// Rebuilds the response of a recorded value, or returns the problem why that is not possible.
    /// Returns `None` if the recording is not that of a value.
    pub(crate) fn recorded(&self, recording: &Recording) -> Option<Result<Recorded, Problem>> {
        if recording.head.first() != Some(&TYPED) {
            return None;
        }
        let rebuilt = match head(recording) {
            Ok((status, name)) => self.rebuild(recording, status, &name),
            Err(_) => Err(not_rebuilt("the recording cannot be read")),
        };
        Some(rebuilt)
    }

    fn rebuild(
        &self,
        recording: &Recording,
        status: StatusCode,
        name: &str,
    ) -> Result<Recorded, Problem> {
        let json = recording.body.clone().unwrap_or_default();
        let refused = |why: &str| Err(not_rebuilt(why).recorded(status, None));
        let Some(known) = self.get(name) else {
            tracing::error!(
                name,
                "the layer does not know the type of a recorded result: call .typed::<T>() with this type on its builder"
            );
            return refused("this version of the service does not know the type of the result");
        };
        match (known.rebuild)(&json) {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                let (status, headers) = (parts.status, lasting(parts.headers));
                Ok(Recorded { status, headers, body: Some(body), trailers: HeaderMap::new() })
            }
            Err(error) => {
                let error = unquoted(&error);
                tracing::error!(
                    name,
                    error,
                    "a recorded result cannot be read by this version of the service"
                );
                refused("this version of the service cannot read the result")
            }
        }
    }
}

/// Returns the headers that belong to the outcome, without `Content-Length`, which follows from the
/// body.
fn lasting(mut headers: HeaderMap) -> HeaderMap {
    strip_hop_by_hop(&mut headers);
    let is_dropped = |name: &&HeaderName| !is_kept(name) || *name == CONTENT_LENGTH;
    let dropped: Vec<_> = headers.keys().filter(is_dropped).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
    headers
}

fn head(recording: &Recording) -> Result<(StatusCode, String), DecodeError> {
    let mut from = Reader(recording.head.clone());
    from.u8("version of the recording")?;
    let status =
        StatusCode::from_u16(from.u16("status")?).map_err(|_| DecodeError::new("status"))?;
    let name = String::from_utf8(from.slice("name")?.to_vec());
    let name = name.map_err(|_| DecodeError::new("name"))?;
    from.end()?;
    Ok((status, name))
}

/// Returns the kind and the position of an error. The error's own text may quote the value.
fn unquoted(error: &serde_json::Error) -> String {
    let (kind, line, column) = (error.classify(), error.line(), error.column());
    format!("{kind:?} error at line {line} column {column}")
}

fn not_rebuilt(why: &str) -> Problem {
    let detail = format!(
        "The operation ran and its outcome is recorded, but its response cannot be built: {why}. The operation is not run again."
    );
    Problem::new(Code::ResponseNotReplayable, detail)
}
