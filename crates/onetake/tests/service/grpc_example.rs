//! The tonic example, called by tonic's client.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use onetake::prelude::{EmbeddedStore, Engine};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

#[path = "../../examples/payments_grpc.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "its `main` is not called here")]
mod payments_grpc;

use payments_grpc::{ChargeRequest, Receipt};

async fn charge(
    channel: &Channel,
    key: Option<&str>,
    caller: &str,
    cents: u64,
) -> Result<Response<Receipt>, Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let mut request = Request::new(ChargeRequest { cents });
    let metadata = request.metadata_mut();
    metadata.insert("authorization", format!("Bearer {caller}").parse().unwrap());
    key.map(|key| metadata.insert("idempotency-key", key.parse().unwrap()));
    let codec = ProstCodec::<ChargeRequest, Receipt>::default();
    let path = "/billing.v1.Payments/Charge".parse().unwrap();
    grpc.unary(request, path, codec).await
}

#[tokio::test]
async fn the_tonic_server_that_charges_cards() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path().join("data")).unwrap();
    let router = payments_grpc::server(Engine::new(Arc::new(store))).unwrap();
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = listener.await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(router.serve_with_incoming(incoming));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.unwrap();

    let key = Some("6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90");
    let calls = (0..100).map(|_| charge(&channel, key, "alice", 1999));
    for called in join_all(calls).await {
        assert_eq!(*called.unwrap().get_ref(), Receipt { charge: 1, cents: 1999 });
    }
    let again = charge(&channel, key, "alice", 1999).await.unwrap();
    assert_eq!(again.metadata().get("idempotent-replayed").unwrap(), "true");
    let other = charge(&channel, key, "alice", 1).await.unwrap_err();
    assert_eq!(other.code(), Code::FailedPrecondition);
    assert!(!other.details().is_empty(), "google.rpc.Status");
    let unkeyed = charge(&channel, None, "alice", 1999).await.unwrap_err();
    assert_eq!(unkeyed.code(), Code::InvalidArgument);
    let bob = charge(&channel, key, "bob", 1999).await.unwrap();
    assert_eq!(bob.get_ref().charge, 2, "another tenant");
    let wrong = Some("6f1c8d6a-3a09-4b6e-9c8f-000000000002");
    for replayed in [false, true] {
        let refused = charge(&channel, wrong, "alice", 0).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(refused.message(), "nothing to charge");
        assert_eq!(refused.metadata().get("idempotent-replayed").is_some(), replayed);
    }
}
