//! CORS: the answers that let browsers send keys, and read what the gateway says.
//!
//! The gateway answers preflights, and writes the CORS headers of responses, for requests that it
//! is responsible for: keyed requests, its own endpoints, and everything that it answers with a
//! problem. All other requests and responses pass through untouched, with the CORS headers of the
//! upstream.
//!
//! On keyed requests the gateway replaces the upstream's `Access-Control-Allow-*` headers. A
//! recording has those for the origin of the first attempt, and a replay may go to another origin.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue, ORIGIN,
    VARY,
};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

use crate::config;

/// The response headers of the gateway that a page may read.
const EXPOSED: &str = "Idempotency-Reference, Idempotent-Replayed, X-Idempotency-Replayed, Retry-After, RateLimit, RateLimit-Policy, Location";

/// The headers that an upstream may have set for another origin.
const REPLACED: [HeaderName; 5] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// The origins whose pages may use the gateway.
#[derive(Debug)]
pub(super) struct Cors {
    origins: Vec<HeaderValue>,
    /// True if pages of every origin may use it.
    is_any: bool,
    credentials: bool,
    max_age: Duration,
}

/// The part of a request that its CORS headers depend on.
pub(super) struct CorsRequest {
    origin: Option<HeaderValue>,
    /// The method and the headers that a preflight asks for.
    preflight: Option<(Method, Option<HeaderValue>)>,
}

impl CorsRequest {
    pub(super) fn of(parts: &Parts) -> Self {
        let one = |name: HeaderName| {
            let mut values = parts.headers.get_all(name).iter();
            values.next().filter(|_| values.next().is_none()).cloned()
        };
        let origin = one(ORIGIN);
        let method = one(ACCESS_CONTROL_REQUEST_METHOD)
            .filter(|_| parts.method == Method::OPTIONS && origin.is_some())
            .and_then(|method| Method::from_bytes(method.as_bytes()).ok());
        let headers = one(ACCESS_CONTROL_REQUEST_HEADERS).filter(is_list_of_names);
        Self { origin, preflight: method.map(|method| (method, headers)) }
    }

    /// Returns the method that a preflight asks for.
    pub(super) fn preflight(&self) -> Option<&Method> {
        self.preflight.as_ref().map(|(method, _)| method)
    }
}

fn is_list_of_names(value: &HeaderValue) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte);
    value.as_bytes().iter().all(is_plain)
}

impl Cors {
    pub(super) fn new(options: &config::Cors) -> Self {
        let value = |origin: &String| HeaderValue::from_str(origin).ok();
        Self {
            origins: options.origins.iter().filter_map(value).collect(),
            is_any: options.origins.iter().any(|origin| origin == "*"),
            credentials: options.credentials,
            max_age: options.max_age,
        }
    }

    /// Answers a preflight. An origin that is not allowed gets no permission.
    pub(super) fn permit(&self, request: &CorsRequest) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        self.vary(headers);
        let Some((method, wanted)) = &request.preflight else { return response };
        if self.allow(request, headers) {
            if let Ok(method) = HeaderValue::from_str(method.as_str()) {
                headers.insert(ACCESS_CONTROL_ALLOW_METHODS, method);
            }
            if let Some(wanted) = wanted {
                headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
            }
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(self.max_age.as_secs()));
        }
        response
    }

    /// Writes the CORS headers of a response.
    pub(super) fn write(&self, request: &CorsRequest, headers: &mut HeaderMap) {
        for name in REPLACED {
            headers.remove(name);
        }
        self.vary(headers);
        if self.allow(request, headers) {
            // Names that the upstream exposes stay: they do not depend on the origin.
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }

    /// Writes the permission of the request's origin, if it has one.
    fn allow(&self, request: &CorsRequest, headers: &mut HeaderMap) -> bool {
        let Some(origin) = &request.origin else { return false };
        let allowed = match self.is_any {
            true => HeaderValue::from_static("*"),
            false if self.origins.contains(origin) => origin.clone(),
            false => return false,
        };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if self.credentials {
            let yes = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        true
    }

    /// Tells caches that the response depends on the origin.
    fn vary(&self, headers: &mut HeaderMap) {
        let names = headers.get_all(VARY).iter().filter_map(|value| value.to_str().ok());
        let mut names = names.flat_map(|value| value.split(',').map(str::trim));
        let is_there = names.any(|name| name == "*" || name.eq_ignore_ascii_case("origin"));
        if !self.is_any && !is_there {
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
    }
}
