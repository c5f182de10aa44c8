//! A gateway in front of a gRPC service.

use onetake_sim::blackbox::Target;
pub(crate) use onetake_sim::grpc::cases::PATH;
use onetake_sim::grpc::cases::{self, BrokenResponse, Calls};
use onetake_sim::grpc::client::{GrpcCall, GrpcClient};
use onetake_sim::grpc::service::GrpcService;

use super::InProcess;

/// A gateway in front of a gRPC service, and a client.
pub(crate) struct GrpcWorld {
    pub(crate) gateway: InProcess,
    pub(crate) service: GrpcService,
    pub(crate) client: GrpcClient,
}

/// The routes of the tests, beside those of the cases.
pub(crate) const ROUTES: &str = r#"
[[route]]
match = "grpc billing.v1.Payments/Required"
key = { required = true }

[[route]]
match = "grpc signup.v1.Users/*"
preset = "signup"

[[route]]
match = "grpc chosen.v1.Payments/*"
record = ["INTERNAL"]
release = ["NOT_FOUND"]
mark_unknown = ["OK"]

[[route]]
match = "grpc small.v1.Payments/*"
max_request_body = "1KiB"
max_response_body = "1KiB"

[[route]]
match = "grpc numbered.v1.Payments/*"
key = { from = "grpc", field_number = 5 }
tenant = "credential"

[[route]]
match = "grpc retry.v1.Payments/*"
on_unknown = "retry"

[[route]]
match = "grpc limited.v1.Payments/*"
tenant = "credential"
key = { required = true }
velocity = [{ by = ["tenant"], limit = "2/h" }]
"#;

impl GrpcWorld {
    /// Starts a gateway on a store, with more routes.
    pub(crate) async fn start(store: &str, routes: &str) -> Self {
        let service = GrpcService::start().await.unwrap();
        Self::in_front_of(service.clone(), &service.url(), store, routes).await
    }

    /// Starts a gateway for a service at a URL.
    pub(crate) async fn in_front_of(
        service: GrpcService,
        upstream: &str,
        store: &str,
        routes: &str,
    ) -> Self {
        let configuration = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n{}{ROUTES}{routes}",
            cases::ROUTES
        );
        let gateway = InProcess::start(configuration).await;
        let client = GrpcClient::connect(gateway.address()).await.unwrap();
        Self { gateway, service, client }
    }

    /// A call of a method of `billing.v1.Payments`.
    pub(crate) fn call(&self, method: &str) -> GrpcCall {
        self.client.call(&format!("{PATH}/{method}"))
    }
}

/// The cases that every store passes.
pub(crate) async fn cases(store: &str) {
    let world = GrpcWorld::start(store, "").await;
    let calls = Calls { client: world.client.clone(), service: world.service.clone() };
    cases::run(&calls, BrokenResponse::Error).await;
}
