//! A tower layer over any `http` client.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Response, Uri, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Either, Full};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::ReplayBody;
use crate::call::{Attempt, Call, Exchange};
use crate::error::{BoxError, Error};
use crate::keys::{Intent, InvalidKey, KEY_HEADER};
use crate::onetake::{CallDeadline, Onetake};

/// The body of a response: the left one is that of a call, which has been read completely. The
/// right one is that of a request that passed through.
pub type ResponseBody<B> = Either<Full<Bytes>, B>;

/// A layer that gives each POST, PUT, PATCH and DELETE a key, and retries it safely. Other requests
/// pass through unchanged.
///
/// Layers below it, such as one that signs requests, run for each attempt.
#[derive(Clone, Debug, Default)]
pub struct OnetakeLayer {
    onetake: Onetake,
}

impl OnetakeLayer {
    /// Makes a layer.
    #[must_use]
    pub fn new(onetake: Onetake) -> Self {
        Self { onetake }
    }
}

impl<S> Layer<S> for OnetakeLayer {
    type Service = OnetakeService<S>;

    fn layer(&self, inner: S) -> OnetakeService<S> {
        OnetakeService { inner, onetake: self.onetake.clone() }
    }
}

/// A client that retries safely: see [`OnetakeLayer`].
///
/// A dropped future ends its call: nothing is sent after that.
#[derive(Clone, Debug)]
pub struct OnetakeService<S> {
    inner: S,
    onetake: Onetake,
}

impl<S, B, R> Service<Request<B>> for OnetakeService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: ReplayBody + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    /// Always ready: each attempt waits until the inner client is ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { inner, onetake } = self.clone();
        Box::pin(async move {
            if !has_key(request.method()) {
                let answered = ready_call(inner, request).await;
                return answered.map_err(Error::Inner).map(|answer| answer.map(Either::Right));
            }
            let (parts, body) = request.into_parts();
            let intent = intent_of(&onetake, &parts.headers, Some(&parts.extensions))?;
            let time = parts.extensions.get::<CallDeadline>().map(|CallDeadline(time)| *time);
            if body.replay().is_none() {
                return Err(Error::BodyNotReplayable);
            }
            let exchange = TowerExchange { inner, parts, body };
            let response = Call::new(&onetake, exchange, intent, time)?.run().await?;
            Ok(response.map(|body| Either::Left(Full::new(body))))
        })
    }
}

/// Returns true if requests of a method get a key.
pub(crate) fn has_key(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

/// Returns the intent of a request, or a new one.
pub(crate) fn intent_of(
    onetake: &Onetake,
    headers: &HeaderMap,
    extensions: Option<&Extensions>,
) -> Result<Intent, InvalidKey> {
    if let Some(intent) = extensions.and_then(Extensions::get::<Intent>) {
        return Ok(intent.clone());
    }
    match headers.get(KEY_HEADER) {
        Some(key) => Intent::with_key(key.to_str().map_err(|_| InvalidKey::Characters)?),
        None => Ok(onetake.intent()),
    }
}

/// Headers of the operation that do not belong in a poll of its handle.
pub(crate) const NOT_IN_POLLS: [header::HeaderName; 3] =
    [KEY_HEADER, header::CONTENT_TYPE, header::CONTENT_LENGTH];

/// The requests of a call through a tower service.
struct TowerExchange<S, B> {
    inner: S,
    parts: Parts,
    body: B,
}

impl<S, B, R> Exchange for TowerExchange<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: ReplayBody + Send,
    R: Body<Data = Bytes> + Send,
    R::Error: Into<BoxError>,
{
    async fn send(&mut self, attempt: Attempt) -> Result<Response<Bytes>, BoxError> {
        let mut parts = self.parts.clone();
        replace_all(&mut parts.headers, attempt.headers);
        let body = match attempt.handle {
            None => self.body.replay().ok_or(Error::BodyNotReplayable)?,
            Some(handle) => {
                parts.method = Method::GET;
                parts.uri = resolve(&parts.uri, &handle)?;
                for name in NOT_IN_POLLS {
                    parts.headers.remove(name);
                }
                B::default()
            }
        };
        let answered = ready_call(self.inner.clone(), Request::from_parts(parts, body)).await?;
        // A connection that breaks in the body is a failed attempt, so the body is read here.
        let (parts, body) = answered.into_parts();
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        Ok(Response::from_parts(parts, body))
    }
}

/// Replaces headers. A name that stands several times keeps all its new values.
pub(crate) fn replace_all(headers: &mut HeaderMap, others: HeaderMap) {
    for name in others.keys() {
        headers.remove(name);
    }
    for name in others.keys() {
        for value in others.get_all(name) {
            headers.append(name, value.clone());
        }
    }
}

/// Waits until a service is ready, and calls it.
async fn ready_call<S, B>(mut inner: S, request: Request<B>) -> Result<S::Response, BoxError>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
{
    poll_fn(|cx| inner.poll_ready(cx)).await.map_err(Into::into)?;
    inner.call(request).await.map_err(Into::into)
}

/// Returns the URL of a handle. It must be on the server of the operation, because credentials go
/// there only.
fn resolve(operation: &Uri, handle: &str) -> Result<Uri, BoxError> {
    let location: Uri = handle.parse()?;
    let is_elsewhere = match location.authority() {
        Some(authority) => {
            operation.authority() != Some(authority) || operation.scheme() != location.scheme()
        }
        None => !handle.starts_with('/') || handle.starts_with("//"),
    };
    if is_elsewhere {
        return Err("the handle is on another server".into());
    }
    let mut parts = operation.clone().into_parts();
    parts.path_and_query = location.into_parts().path_and_query;
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_resolved_on_the_server_of_the_operation_only() {
        let operation: Uri = "https://api.example.com/charges?x=1".parse().unwrap();
        let resolved = |handle: &str| resolve(&operation, handle).map(|uri| uri.to_string()).ok();
        let right = Some("https://api.example.com/.onetake/operations/h".to_owned());
        assert_eq!(resolved("/.onetake/operations/h"), right);
        assert_eq!(resolved("https://api.example.com/.onetake/operations/h"), right);
        for elsewhere in [
            "https://evil.example.com/.onetake/operations/h",
            "http://api.example.com/.onetake/operations/h",
            "https://api.example.com:444/.onetake/operations/h",
            "//evil.example.com/.onetake/operations/h",
            "evil/.onetake/operations/h",
            "",
        ] {
            assert_eq!(resolved(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn new_headers_replace_old_ones_and_keep_all_their_values() {
        let mut headers = HeaderMap::new();
        headers.insert("a", "1".parse().unwrap());
        headers.insert("b", "2".parse().unwrap());
        let mut others = HeaderMap::new();
        others.append("a", "3".parse().unwrap());
        others.append("a", "4".parse().unwrap());
        replace_all(&mut headers, others);
        assert_eq!(headers.get_all("a").into_iter().collect::<Vec<_>>(), ["3", "4"]);
        assert_eq!(headers["b"], "2");
    }
}
