//! Calls with reqwest (feature `reqwest`).
//!
//! `.send()` becomes [`.send_with(&onetake)`](SendWith::send_with). The client, its requests and its
//! responses stay those of reqwest. A client type of its own, or `reqwest-middleware`, would change
//! the type in every signature that passes a client on. A middleware's error is also one opaque
//! type, and the errors of this crate would have to be searched in it.

use ::reqwest::{Body, Client, Method, Request, RequestBuilder, Response, ResponseBuilderExt, Url};
use bytes::Bytes;
use http_body_util::BodyExt as _;

use crate::call::{Attempt, Call, Exchange};
use crate::error::{BoxError, Error};
use crate::onetake::Onetake;
use crate::tower::{NOT_IN_POLLS, has_key, intent_of, replace_all};

mod sealed {
    pub trait Sealed {}
    impl Sealed for ::reqwest::RequestBuilder {}
}

/// Sends a request of reqwest with a key per intent and safe retries.
pub trait SendWith: sealed::Sealed {
    /// Sends the request. POST, PUT, PATCH and DELETE get a key and are retried; others are sent
    /// once, unchanged.
    ///
    /// The body of the response has been read completely, and a
    /// [`CallReport`](crate::CallReport) is in its extensions. `RequestBuilder::timeout` is the
    /// deadline of the whole call. The timeouts of the client hold for each attempt. A dropped
    /// future ends the call.
    ///
    /// # Errors
    /// See [`Error`]. The status of a response is no error, as with `send`.
    fn send_with(self, onetake: &Onetake) -> impl Future<Output = Result<Response, Error>> + Send;
}

impl SendWith for RequestBuilder {
    async fn send_with(self, onetake: &Onetake) -> Result<Response, Error> {
        let (client, request) = self.build_split();
        let mut request = request.map_err(|error| Error::Inner(error.into()))?;
        if !has_key(request.method()) {
            return client.execute(request).await.map_err(|error| Error::Inner(error.into()));
        }
        let intent = intent_of(onetake, request.headers(), None)?;
        let time = request.timeout_mut().take();
        if request.try_clone().is_none() {
            return Err(Error::BodyNotReplayable);
        }
        let exchange = ReqwestExchange { client, request };
        Call::new(onetake, exchange, intent, time)?.run().await.map(Response::from)
    }
}

/// The requests of a call through reqwest.
struct ReqwestExchange {
    client: Client,
    request: Request,
}

impl Exchange for ReqwestExchange {
    async fn send(&mut self, attempt: Attempt) -> Result<http::Response<Bytes>, BoxError> {
        let mut request = self.request.try_clone().ok_or(Error::BodyNotReplayable)?;
        replace_all(request.headers_mut(), attempt.headers);
        if let Some(handle) = attempt.handle {
            *request.url_mut() = resolve(request.url(), &handle)?;
            *request.method_mut() = Method::GET;
            *request.body_mut() = None;
            for name in NOT_IN_POLLS {
                request.headers_mut().remove(name);
            }
        }
        let response = self.client.execute(request).await?;
        // `Response::url` is the URL after redirects. It is kept in an extension on the way.
        let url = http::Response::builder().url(response.url().clone()).body(())?;
        let (mut parts, body) = http::Response::<Body>::from(response).into_parts();
        parts.extensions.extend(url.into_parts().0.extensions);
        // A connection that breaks in the body is a failed attempt, so the body is read here.
        let body = body.collect().await?.to_bytes();
        Ok(http::Response::from_parts(parts, body))
    }
}

/// Returns the URL of a handle. It must be on the server of the operation, because credentials go
/// there only.
fn resolve(operation: &Url, handle: &str) -> Result<Url, BoxError> {
    let location = operation.join(handle)?;
    if location.origin() == operation.origin() {
        Ok(location)
    } else {
        Err("the handle is on another server".into())
    }
}
