//! The lifecycle of a service: serve, drain, shut down.

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use onetake_core::{Engine, StoreError};
use onetake_http::{Code, Problem};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The time to send the answers of callers that still wait after the patience is over.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// The way in which a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Served {
    /// Every request was answered and every operation was settled.
    Drained,
    /// The patience ended first. Callers that still waited got a 503. Other nodes, or the next
    /// start, deal with the operations that were still running: see
    /// [`Policy::on_unknown`](onetake_http::Policy::on_unknown).
    CutOff,
}

/// The reason why a server ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The store cannot be trusted any more. This process must end; the next start reads the store
    /// again.
    #[error("the store failed, and its state is uncertain: restart the process")]
    Store(#[source] StoreError),
    /// The store could not be closed.
    #[error("the store could not be closed")]
    Close(#[source] StoreError),
}

/// Serves an axum app until `stop` resolves, then drains it and shuts the engine down.
///
/// 1. When `stop` resolves, no connection is accepted any more. Running requests and operations may
///    take `patience` to end.
/// 2. When `patience` is over, callers that still wait get a 503 with `Retry-After`.
/// 3. The engine writes outcomes that the store did not accept to its journal, if it has one
///    ([`Engine::builder`]), and closes the store.
///
/// If the store must not be used any more ([`Engine::fatal`]), the server ends at once. Callers get
/// a 503, and outcomes go to the journal. Handlers find the client's address in
/// `ConnectInfo<SocketAddr>`.
///
/// A program with another server does the same itself: race the server against [`Engine::fatal`],
/// stop it, and call [`Engine::shutdown`], or [`Engine::abort`] after a fatal error.
///
/// ```no_run
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{sync::Arc, time::Duration};
/// use axum::{Router, routing::post};
/// use onetake::prelude::*;
///
/// let engine = Engine::new(Arc::new(MemoryStore::new()));
/// let app = Router::new()
///     .route("/charges", post(|| async { "charged" }))
///     .layer(OnetakeLayer::new(engine.clone(), Policy::new().key_required())?);
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// let (stop, patience) = (onetake::stop_signal(), Duration::from_secs(30));
/// let served = onetake::serve(listener, app, engine, stop, patience).await?;
/// println!("{served:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns an error if the store failed for good or could not be closed.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    engine: Engine,
    stop: impl Future<Output = ()>,
    patience: Duration,
) -> Result<Served, ServeError> {
    let (stopping, over) = (CancellationToken::new(), CancellationToken::new());
    let app = app.layer(from_fn({
        let over = over.clone();
        move |request: Request, next: Next| answer_until(over.clone(), request, next)
    }));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let serving =
        axum::serve(listener, app).with_graceful_shutdown(stopping.clone().cancelled_owned());
    let mut serving = pin!(serving.into_future());
    let clock = engine.clock();

    let stopped = async {
        // The server ends only after `stopping` is cancelled.
        tokio::select! {
            biased;
            _ended = &mut serving => {}
            () = stop => {}
        }
        stopping.cancel();
        let began = clock.monotonic();
        let is_quiet = tokio::select! {
            biased;
            _ended = &mut serving => true,
            () = clock.sleep(patience) => false,
        };
        (is_quiet, patience.saturating_sub(clock.monotonic().saturating_sub(began)))
    };
    let stopped = tokio::select! {
        biased;
        error = engine.fatal() => Err(error),
        stopped = stopped => Ok(stopped),
    };
    stopping.cancel();
    over.cancel();
    let (is_quiet, left) = match stopped {
        Ok(stopped) => stopped,
        Err(error) => {
            engine.abort().await;
            flush(clock.sleep(FLUSH_PATIENCE), serving).await;
            return Err(ServeError::Store(error));
        }
    };
    if !is_quiet {
        flush(clock.sleep(FLUSH_PATIENCE), serving).await;
    }
    let is_drained = engine.shutdown(left).await.map_err(ServeError::Close)?;
    Ok(if is_quiet && is_drained { Served::Drained } else { Served::CutOff })
}

/// Resolves when the process gets SIGTERM (on Unix) or Ctrl-C. Kubernetes and systemd stop a process
/// with SIGTERM.
pub async fn stop_signal() {
    tokio::select! {
        () = terminated() => {}
        () = interrupted() => {}
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => drop(terminate.recv().await),
        Err(_no_handler) => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until the last answers are sent, or until the patience is over.
async fn flush(patience: impl Future<Output = ()>, serving: impl Future) {
    tokio::select! {
        biased;
        _ended = serving => {}
        () = patience => {}
    }
}

/// Answers the request, or answers 503 if this node shuts down first.
async fn answer_until(over: CancellationToken, request: Request, next: Next) -> Response {
    tokio::select! {
        biased;
        response = next.run(request) => response,
        () = over.cancelled() => Problem::new(
            Code::OutcomePending,
            "This node is shutting down while the operation is still running. Retry with the same key.",
        )
        .retry_after(1)
        .into_response(None)
        .map(Body::from),
    }
}
