//! Connections of operators and probes, limited in number and in lifetime.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use onetake_core::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::gateway::descriptors::admin_connections_max;

/// Timeout for the head of a request, including the idle time before it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum lifetime of a connection, even if it is in use.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
/// How long connections may finish their requests at shutdown.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves connections until it is stopped.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    // More connections wait in the operating system's queue.
    let places = Arc::new(Semaphore::new(admin_connections_max()));
    loop {
        let place = Arc::clone(&places).acquire_owned();
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = async { (place.await, listener.accept().await) } => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, clock, stop) = (router.clone(), Arc::clone(&clock), stop.clone());
                tokio::spawn(async move {
                    connection(stream, router, clock, stop).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of the admin listener could not be accepted");
                clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = router.clone().oneshot(request.map(Body::new));
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEADER_TIMEOUT);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Clients that disconnect or send garbage are not errors of the gateway.
    tokio::select! {
        _ended = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = clock.sleep(CONNECTION_MAX) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ended = connection => {}
        () = clock.sleep(DRAIN_MAX) => {}
    }
}
