//! The health service of gRPC (`grpc.health.v1.Health`), for probes that speak gRPC.
//!
//! It answers for the gateway itself, by the same check as `/readyz`. The health service of an
//! upstream is behind the gateway's own listener, at the same path.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Response};
use axum::response::IntoResponse;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use onetake_core::Clock;
use onetake_http::grpc::{GRPC_STATUS, GrpcCode};

use super::Status;

/// The pause between two checks for a client that watches.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// The most bytes of a request.
const REQUEST_BYTES_MAX: usize = 1 << 10;

/// The state of the gateway: `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serving {
    Yes = 1,
    No = 2,
}

impl Status {
    async fn serving(&self) -> Serving {
        let is_ready = !self.draining.is_cancelled() && self.readiness.check().await.is_ok();
        if is_ready { Serving::Yes } else { Serving::No }
    }
}

/// `Check`: answers once.
pub(super) async fn check(State(status): State<Status>, body: Body) -> Response<Body> {
    if !is_about_all(body).await {
        return ended(GrpcCode::NotFound);
    }
    let message = message(status.serving().await);
    reply(stream::iter([Ok(Frame::data(message)), Ok(Frame::trailers(trailers(GrpcCode::Ok)))]))
}

/// `Watch`: answers now and after each change, until the client leaves.
pub(super) async fn watch(State(status): State<Status>, body: Body) -> Response<Body> {
    if !is_about_all(body).await {
        return ended(GrpcCode::NotFound);
    }
    reply(stream::unfold((status, None), |(status, before)| async move {
        loop {
            let now = status.serving().await;
            if before != Some(now) {
                return Some((Ok(Frame::data(message(now))), (status, Some(now))));
            }
            onetake_core::SystemClock.sleep(WATCH_EVERY).await;
        }
    }))
}

/// Returns true if a request is about the whole server. Services behind the gateway are not known
/// here.
async fn is_about_all(body: Body) -> bool {
    let read = axum::body::to_bytes(body, REQUEST_BYTES_MAX).await;
    // An empty message, or one with an empty name.
    read.is_ok_and(|body| matches!(&*body, [] | [0, 0, 0, 0, 0] | [0, 0, 0, 0, 2, 0x0a, 0]))
}

fn message(serving: Serving) -> Bytes {
    Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 0x08, serving as u8])
}

fn trailers(code: GrpcCode) -> HeaderMap {
    HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from(u16::from(code.number())))])
}

const CONTENT_TYPE: [(&str, &str); 1] = [("content-type", "application/grpc")];

fn ended(code: GrpcCode) -> Response<Body> {
    (CONTENT_TYPE, trailers(code)).into_response()
}

fn reply<S>(frames: S) -> Response<Body>
where
    S: stream::Stream<Item = Result<Frame<Bytes>, io::Error>> + Send + 'static,
{
    (CONTENT_TYPE, Body::new(StreamBody::new(frames))).into_response()
}
