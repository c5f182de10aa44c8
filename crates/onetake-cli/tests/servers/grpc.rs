//! gRPC through the gateway, on real servers.

use crate::common::{grpc_world::cases, migrated_postgres};

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    cases(&migrated_postgres().await).await;
}
