//! gRPC clients of others, with their own retry policies, behind a proxy that forwards requests and
//! loses every other response.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::path::Path;

use common::InProcess;
use onetake_sim::blackbox::Target;
use onetake_sim::grpc::lossy_proxy::LossyProxy;
use onetake_sim::grpc::service::GrpcService;
use onetake_sim::servers::GrpcRuntime;
use serde_json::{Value, json};
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request};

/// Number of calls of each client.
const CALLS: usize = 200;

/// A client, and the language of its script.
#[derive(Clone, Copy)]
enum GrpcLibrary {
    Script(GrpcRuntime),
    Tonic,
}

/// Makes calls one after the other. Returns the client's result of each.
async fn call(client: GrpcLibrary, server: SocketAddr, count: usize) -> Vec<Value> {
    let runtime = match client {
        GrpcLibrary::Script(runtime) => runtime,
        GrpcLibrary::Tonic => return call_by_tonic(server, count).await,
    };
    let script = match runtime {
        GrpcRuntime::Python => "calls.py",
        GrpcRuntime::Node => "calls.cjs",
    };
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grpc_clients"));
    let mut command = runtime.command(&folder.join(script));
    command.arg(server.to_string()).arg(count.to_string());
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the script ended with {}: {errors}", output.status);
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A codec of messages that are bytes.
#[derive(Clone, Default)]
struct Plain;

impl tonic::codec::Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Plain {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(
        &mut self,
        item: Vec<u8>,
        out: &mut tonic::codec::EncodeBuf<'_>,
    ) -> Result<(), tonic::Status> {
        bytes::BufMut::put_slice(out, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Plain {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(
        &mut self,
        from: &mut tonic::codec::DecodeBuf<'_>,
    ) -> Result<Option<Vec<u8>>, tonic::Status> {
        use bytes::Buf;
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

/// The codes of tonic for a connection that broke.
const RETRIED: [Code; 3] = [Code::Unavailable, Code::Unknown, Code::Cancelled];

/// tonic has no retry policy of its own: the code around it calls again if the connection broke.
async fn call_by_tonic(server: SocketAddr, count: usize) -> Vec<Value> {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let channel = endpoint.connect_lazy();
    let mut told = Vec::new();
    for nth in 0..count {
        let key = format!("tonic-call-number-{nth:06}");
        let mut result = Value::Null;
        for _ in 0..5 {
            let mut grpc = Grpc::new(channel.clone());
            if grpc.ready().await.is_err() {
                continue;
            }
            let mut request = Request::new(nth.to_string().into_bytes());
            for (name, value) in
                [("idempotency-key", &*key), ("x-case", &key), ("authorization", "Bearer alice")]
            {
                request.metadata_mut().insert(name, value.parse().unwrap());
            }
            let path = "/billing.v1.Payments/Charge".parse().unwrap();
            result = match grpc.unary(request, path, Plain).await {
                Ok(reply) => {
                    let cost = reply.metadata().get("x-cost").map(|cost| cost.to_str().unwrap());
                    let cost = cost.map(str::to_owned);
                    let reply = String::from_utf8(reply.into_inner()).unwrap();
                    json!({ "case": key, "reply": reply, "cost": cost })
                }
                Err(status) if RETRIED.contains(&status.code()) => {
                    continue;
                }
                Err(status) => json!({ "case": key, "error": status.to_string() }),
            };
            break;
        }
        told.push(result);
    }
    told
}

async fn gateway(service: &GrpcService, folder: &Path) -> InProcess {
    InProcess::start(format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[[route]]\nmatch = \"grpc billing.v1.Payments/Charge\"\nkey = {{ required = true }}\nin_flight = \"wait\"\n",
        service.url(),
        folder.join("data").display()
    ))
    .await
}

async fn each_call_runs_once(client: GrpcLibrary) {
    let service = GrpcService::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(&service, folder.path()).await;
    let proxy = LossyProxy::start(gateway.address()).await.unwrap();
    let told = call(client, proxy.address(), CALLS).await;
    assert_eq!(told.len(), CALLS);
    for (nth, told) in told.iter().enumerate() {
        // The service answers with the number of the run and the message.
        assert_eq!(told["reply"], format!("1:{nth}"), "{told}");
        assert_eq!(told["cost"], "7", "{told}");
        assert_eq!(service.runs(told["case"].as_str().unwrap()), 1, "{told}");
    }
    assert_eq!(service.runs_in_all(), CALLS);
    assert!(proxy.lost() >= CALLS, "{} responses were lost", proxy.lost());
}

/// Shows that the test above can fail.
async fn without_the_gateway_calls_run_twice(client: GrpcLibrary) {
    const CALLS: usize = 20;
    let service = GrpcService::start().await.unwrap();
    let proxy = LossyProxy::start(service.address()).await.unwrap();
    let told = call(client, proxy.address(), CALLS).await;
    assert_eq!(service.runs_in_all(), 2 * CALLS, "{told:?}");
    assert_eq!(told[0]["reply"], "2:0", "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_runs_each_call_once() {
    each_call_runs_once(GrpcLibrary::Script(GrpcRuntime::Python)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_without_the_gateway() {
    without_the_gateway_calls_run_twice(GrpcLibrary::Script(GrpcRuntime::Python)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_runs_each_call_once() {
    each_call_runs_once(GrpcLibrary::Script(GrpcRuntime::Node)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_the_gateway() {
    without_the_gateway_calls_run_twice(GrpcLibrary::Script(GrpcRuntime::Node)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_runs_each_call_once() {
    each_call_runs_once(GrpcLibrary::Tonic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tonic_without_the_gateway() {
    without_the_gateway_calls_run_twice(GrpcLibrary::Tonic).await;
}
