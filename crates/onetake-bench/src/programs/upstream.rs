//! The upstream: a small payment API that counts its runs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use onetake_core::{Clock, SystemClock};

use super::{Body, whole};
use crate::load::grpc_message;

/// The largest response.
const PADDING_BYTES_MAX: usize = 1 << 20;

/// Answers `GET /runs` with the number of runs, and counts everything else as a run. `?bytes=N`
/// asks for a larger response, and `?millis=N` for a slow one.
pub(super) async fn answer(runs: &AtomicU64, request: Request<Incoming>) -> Response<Body> {
    if request.uri().path() == "/runs" {
        return Response::new(whole(runs.load(Ordering::Relaxed).to_string()));
    }
    let parameter = |name: &str| {
        let query = request.uri().query()?;
        query.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok()
    };
    let (bytes, millis) = (parameter("bytes"), parameter("millis"));
    let is_grpc = request.version() == Version::HTTP_2;
    let _read = request.into_body().collect().await;
    let run = runs.fetch_add(1, Ordering::Relaxed);
    if let Some(millis) = millis {
        SystemClock.sleep(Duration::from_millis(millis)).await;
    }
    let mut body = format!("{{\"id\":\"ch_{run:016}\",\"amount\":100,\"currency\":\"eur\"}}");
    if let Some(bytes) = bytes.and_then(|bytes| usize::try_from(bytes).ok()) {
        body.push_str(padding(bytes.saturating_sub(body.len())));
    }
    if is_grpc { grpc(body.as_bytes()) } else { json(body) }
}

/// Returns text that hardly gets smaller by compression, up to a megabyte of it.
fn padding(bytes: usize) -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let letter = |_| {
            // xorshift: the same letters in every run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b'0' + (state >> 58) as u8)
        };
        (0..PADDING_BYTES_MAX).map(letter).collect()
    });
    text.get(..bytes).unwrap_or(text)
}

fn json(body: String) -> Response<Body> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = StatusCode::CREATED;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn grpc(message: &[u8]) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = whole(grpc_message(message)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body.boxed());
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    response
}
