//! axum-idempotent in front of a handler, with its store in memory.
//!
//! The middleware keeps responses in sessions, and only for requests that have the cookie of one. So
//! each connection is a client with a session of its own.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request};
use axum::http::header::{CONTENT_TYPE, COOKIE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, SessionLayer};
use tokio::net::TcpListener;
use tower_cookies::CookieManagerLayer;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

static RUNS: AtomicU64 = AtomicU64::new(0);

/// The time for which responses are kept, in seconds.
const KEPT: i64 = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).ok_or("the argument is a port")?.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(port))
}

async fn serve(port: u16) -> Result<(), Box<dyn Error>> {
    let options =
        IdempotentOptions::new(KEPT).use_idempotency_key_header(Some("Idempotency-Key"), true);
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build()));
    let app = Router::new()
        .route("/v1/charges", post(charge))
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(sessions.with_cookie_options(CookieOptions::build().name("session")))
        .layer(CookieManagerLayer::new())
        .layer(from_fn(session_of_connection))
        .route("/runs", get(async || RUNS.load(Ordering::Relaxed).to_string()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let listener = listener.tap_io(|stream| {
        let _best_effort = stream.set_nodelay(true);
    });
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn charge(_payment: Bytes) -> Response {
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let body = format!("{{\"id\":\"ch_{run:016}\",\"amount\":100,\"currency\":\"eur\"}}");
    (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Adds the cookie of the connection's session. The id of a session is 16 bytes in base64, here the
/// port of the client.
async fn session_of_connection(
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let cookie = format!("session={:A>21}A", client.port());
    match HeaderValue::try_from(cookie) {
        Ok(cookie) => {
            request.headers_mut().insert(COOKIE, cookie);
            next.run(request).await
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
