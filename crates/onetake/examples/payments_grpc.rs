//! A tonic server that charges cards. The layer is around the whole server, and a call runs once for
//! its `idempotency-key`.
//!
//! `cargo run -p onetake --example payments_grpc`, then, any number of times,
//! `grpcurl -plaintext -proto payments.proto -H 'authorization: Bearer alice' -H 'idempotency-key:
//! 3f0a6a52-51a4-4c0e-8a53-7d0f3a3f9c01' -d '{"cents": 1999}' localhost:50051
//! billing.v1.Payments/Charge`.
//!
//! The service is written by hand, so that the example needs no `protoc`. Generated services work
//! the same.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use onetake::prelude::*;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;
use tower::layer::util::{Identity, Stack};

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// `message ChargeRequest { uint64 cents = 1; }`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ChargeRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) cents: u64,
}

/// `message Receipt { uint64 charge = 1; uint64 cents = 2; }`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Receipt {
    #[prost(uint64, tag = "1")]
    pub(crate) charge: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) cents: u64,
}

/// `service Payments { rpc Charge(ChargeRequest) returns (Receipt); }`
#[derive(Clone, Default)]
struct Payments {
    charges: Arc<AtomicU64>,
}

impl UnaryService<ChargeRequest> for Payments {
    type Response = Receipt;
    type Future = BoxFuture<Response<Receipt>, Status>;

    fn call(&mut self, request: Request<ChargeRequest>) -> Self::Future {
        let charges = Arc::clone(&self.charges);
        Box::pin(async move {
            let cents = request.get_ref().cents;
            if cents == 0 {
                // Recorded: the same call can never succeed.
                return Err(Status::invalid_argument("nothing to charge"));
            }
            let charge = charges.fetch_add(1, Ordering::Relaxed) + 1;
            // A number that rises with every attempt, for a service that refuses late attempts.
            let fence = request.metadata().get("idempotency-fence");
            println!("charge {charge} under fence {fence:?}");
            Ok(Response::new(Receipt { charge, cents }))
        })
    }
}

impl NamedService for Payments {
    const NAME: &'static str = "billing.v1.Payments";
}

impl Service<http::Request<Body>> for Payments {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let payments = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/billing.v1.Payments/Charge" => {
                    let codec = ProstCodec::<Receipt, ChargeRequest>::default();
                    Grpc::new(codec).unary(payments, request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

pub(crate) fn server(engine: Engine) -> Result<Router<Stack<OnetakeLayer, Identity>>, PolicyError> {
    // A call that arrives while the first one runs waits for its outcome.
    let payments = Policy::preset(Preset::Payment)
        .tenant("credential")
        .in_flight(InFlight::Wait(Duration::from_secs(5)));
    let routes = Routes::new().route("grpc billing.v1.Payments/Charge", payments);
    let layer = OnetakeLayer::builder(engine).routes(routes).build()?;
    Ok(Server::builder().layer(layer).add_service(Payments::default()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(Arc::new(EmbeddedStore::open("./onetake-data/payments-grpc")?));
    server(engine)?.serve(([127, 0, 0, 1], 50051).into()).await?;
    Ok(())
}
