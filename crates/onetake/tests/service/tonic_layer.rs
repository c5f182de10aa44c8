//! The layer inside a tonic server: the cases of gRPC calls, and a server that is killed.
//!
//! The server that is killed is this program itself. Another program includes this file for
//! another store, and opens it with its `open_store`.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::convert::Infallible;
use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use onetake::clock::{Clock, SystemClock};
use onetake::engine::Housekeeping;
use onetake::prelude::*;
use onetake_sim::grpc::cases::{self, BrokenResponse, Calls, PATH, until};
use onetake_sim::grpc::client::{GrpcClient, GrpcReply};
use onetake_sim::grpc::service::GrpcService;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::Service;

/// A short lease, so that the attempt of a killed server is abandoned soon.
const LEASE: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_millis(500);
/// The variables of a server that will be killed: its store, and the file for its port and runs.
const STORE: &str = "ONETAKE_TONIC_STORE";
const FOLDER: &str = "ONETAKE_TONIC_FOLDER";

/// The service behind the layer.
#[derive(Clone)]
struct Payments {
    service: GrpcService,
    /// A file with a line for each run.
    runs: Option<PathBuf>,
}

impl NamedService for Payments {
    const NAME: &'static str = "billing.v1.Payments";
}

impl Service<http::Request<Body>> for Payments {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { service, runs } = self.clone();
        Box::pin(async move {
            if let Some(file) = runs {
                let mut file =
                    std::fs::File::options().append(true).create(true).open(file).unwrap();
                file.write_all(b"run\n").unwrap();
            }
            Ok(service.answer(request).await.map(Body::new))
        })
    }
}

/// Serves the service behind the layer, on a free port.
async fn serve(store: Arc<dyn Store>, payments: Payments) -> SocketAddr {
    let housekeeping =
        Housekeeping { reap_interval: Duration::from_millis(50), ..Housekeeping::default() };
    let engine = Engine::builder(store).housekeeping(housekeeping).build();
    let policy = || Policy::new().tenant("credential").lease(LEASE).grace(GRACE);
    let waiting = policy().in_flight(InFlight::Wait(Duration::from_secs(60)));
    let routes = Routes::new()
        .route("grpc billing.v1.Payments/Hold", waiting)
        .route("grpc billing.v1.Payments/*", policy());
    let layer = OnetakeLayer::builder(engine).routes(routes).build().unwrap();
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = listener.await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Server::builder().layer(layer).add_service(payments);
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// Runs the cases on a store.
pub(crate) async fn cases_on(store: Arc<dyn Store>) {
    let service = GrpcService::without_listener();
    let address = serve(store, Payments { service: service.clone(), runs: None }).await;
    let client = GrpcClient::connect(address).await.unwrap();
    cases::run(&Calls { client, service }, BrokenResponse::Error).await;
}

/// A server that will be killed. It serves until then. In other processes it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let (Ok(store), Ok(folder)) = (std::env::var(STORE), std::env::var(FOLDER)) else { return };
    let folder = PathBuf::from(folder);
    let payments =
        Payments { service: GrpcService::without_listener(), runs: Some(folder.join("runs")) };
    let address = serve(super::open_store(&store).await, payments).await;
    std::fs::write(folder.join("unfinished"), address.to_string()).unwrap();
    std::fs::rename(folder.join("unfinished"), folder.join("address")).unwrap();
    std::future::pending::<()>().await;
}

/// A server as a process of its own. It is killed when it is dropped.
struct Victim {
    child: Child,
    client: GrpcClient,
}

impl Victim {
    async fn start(store: &str, folder: &Path) -> Self {
        let file = folder.join("address");
        let _first = std::fs::remove_file(&file);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tonic_layer::victim", "--nocapture"])
            .env(STORE, store)
            .env(FOLDER, folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until("the server starts", || file.exists()).await;
        let address = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        Self { child, client: GrpcClient::connect(address).await.unwrap() }
    }

    async fn hold(&self, key: &str) -> std::io::Result<GrpcReply> {
        // A caller that does not wait sees that the attempt is still counted as running.
        let call = self.client.call(&format!("{PATH}/Hold")).key(key);
        call.with("x-request-timeout-ms", "1000").send().await
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ended = (self.child.kill(), self.child.wait());
    }
}

/// A call that was running when its server was killed has an unknown outcome: it does not run
/// again.
pub(crate) async fn a_killed_server_on(store: &str) {
    let folder = tempfile::tempdir().unwrap();
    let runs = || std::fs::read_to_string(folder.path().join("runs")).unwrap_or_default();
    let key = "grpc-and-a-killed-server";
    let server = Victim::start(store, folder.path()).await;
    let client = server.client.clone();
    let call = client.call(&format!("{PATH}/Hold")).key(key);
    let (lost, ()) = tokio::join!(call.send(), async {
        until("it runs", || !runs().is_empty()).await;
        drop(server);
    });
    assert!(lost.is_err() || lost.is_ok_and(|reply| reply.is_broken));
    let server = Victim::start(store, folder.path()).await;
    let end = SystemClock.monotonic() + Duration::from_secs(60);
    loop {
        let again = server.hold(key).await.unwrap();
        if again.code() == Some(13) {
            assert!(again.tells("previous_attempt_failed"), "{again:?}");
            break;
        }
        assert_ne!(again.code(), Some(0), "{again:?}");
        assert!(SystemClock.monotonic() < end, "{again:?}");
        SystemClock.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(runs(), "run\n");
}
