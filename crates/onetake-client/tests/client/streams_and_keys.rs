//! Requests that are refused before anything is sent.

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use onetake_client::reqwest::SendWith as _;
use onetake_client::{Error, KEY_HEADER, Onetake, OnetakeLayer};
use tower::{Layer as _, ServiceExt as _};

use crate::server::{LIBRARIES, Server};

#[tokio::test]
async fn a_stream_of_reqwest_is_refused_before_anything_is_sent() {
    let server = Server::with_statuses(&[201]).await;
    let stream = reqwest::Body::wrap(Full::new(Bytes::from_static(b"x")).boxed());
    let request = reqwest::Client::new().post(server.url()).body(stream);
    let error = request.send_with(&Onetake::new()).await.unwrap_err();
    assert!(matches!(error, Error::BodyNotReplayable), "{error}");
    assert!(error.to_string().contains("Nothing was sent"), "{error}");
    assert_eq!(server.received().len(), 0);
}

#[tokio::test]
async fn a_boxed_body_is_refused_before_anything_is_sent_unless_it_is_empty() {
    let server = Server::with_statuses(&[201]).await;
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let service = OnetakeLayer::new(Onetake::new()).layer(client);
    let body = Full::new(Bytes::from_static(b"x")).boxed_unsync();
    let request = Request::post(server.url()).body(body).unwrap();
    let error = service.clone().oneshot(request).await.unwrap_err();
    assert!(matches!(error, Error::BodyNotReplayable), "{error}");
    assert_eq!(server.received().len(), 0);
    let empty = Request::delete(server.url()).body(Default::default()).unwrap();
    assert_eq!(service.oneshot(empty).await.unwrap().status(), 201);
}

#[tokio::test]
async fn a_key_that_the_server_would_refuse_is_refused_before_anything_is_sent() {
    for library in LIBRARIES {
        let server = Server::with_statuses(&[201]).await;
        for key in ["short", "0123456789 abcdef", "0123456789abcdeü", "\"0123456789abcdef\""] {
            let key = HeaderValue::from_bytes(key.as_bytes()).unwrap();
            let request = Request::post(server.url()).header(KEY_HEADER, key).body("").unwrap();
            let error = library.send(&Onetake::new(), request).await.unwrap_err();
            assert!(matches!(error, Error::InvalidKey(_)), "{error}");
        }
        assert_eq!(server.received().len(), 0, "{library:?}");
    }
}
