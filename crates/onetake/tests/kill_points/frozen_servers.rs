//! Servers that are frozen in the middle of an operation, past lease and grace, and then continue.

use std::fs::File;

use onetake::engine::OnUnknown;
use onetake_sim::client::ClientResponse;
use onetake_sim::servers::Postgres;
use rustix::process::Signal;

use super::steps::Steps;
use super::{Case, LOOKS, Place, Server, breathe};

/// A client whose server is frozen in the middle of the operation.
struct Frozen<'a> {
    case: Case<'a>,
    server: Server,
    client: tokio::task::JoinHandle<Option<ClientResponse>>,
}

impl<'a> Frozen<'a> {
    async fn new(place: &Place<'a>, on_unknown: OnUnknown) -> Self {
        let mut case = Case::new(place, on_unknown, 0).await;
        case.orders.gate = Some(case.orders.port.with_extension("gate"));
        let server = Server::start(&case.orders).await;
        let client = server.client.clone();
        let client = tokio::spawn(async move { super::pay(&client).await });
        until(|| Steps::read(&case.orders.steps).iter().any(|step| step == "in the middle")).await;
        server.signal(Signal::STOP);
        Self { case, server, client }
    }

    /// Lets the server continue. Returns its client's final answer.
    async fn thaw(self) -> (Case<'a>, Server, ClientResponse) {
        File::create(self.case.orders.gate.as_ref().unwrap()).unwrap();
        self.server.signal(Signal::CONT);
        let told = self.client.await.unwrap().unwrap();
        (self.case, self.server, told)
    }
}

async fn until(mut so: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if so() {
            return;
        }
        breathe().await;
    }
    panic!("it is never so");
}

/// Another attempt takes over. Every client gets the outcome that this attempt recorded.
async fn another_takes_over(frozen: Frozen<'_>, effects: usize) {
    let second = Server::start(&frozen.case.second()).await;
    let taken_over = second.pay_until_answered().await;
    assert_eq!(taken_over.status(), 200);
    let (case, first, told) = frozen.thaw().await;
    assert_eq!((told.status(), &told.body), (200, &taken_over.body), "the recorded outcome");
    assert_eq!(case.effects(), effects);
    for server in [&first, &second] {
        let again = server.pay_until_answered().await;
        assert_eq!((again.status(), &again.body), (200, &taken_over.body));
    }
}

/// No other attempt takes over. The outcome of the late attempt is recorded.
async fn nobody_takes_over(frozen: Frozen<'_>) {
    let second = Server::start(&frozen.case.second()).await;
    // The frozen attempt is abandoned, and its operation does not run again.
    let refused = second.pay_until_answered().await;
    assert_eq!((refused.status(), &*refused.code()), (500, "previous_attempt_failed"));
    let (case, _first, told) = frozen.thaw().await;
    assert_eq!(told.status(), 200);
    let again = second.pay_until_answered().await;
    assert_eq!((again.status(), &again.body), (200, &told.body));
    assert_eq!(case.effects(), 1);
}

async fn late(place: Place<'_>) {
    // All servers are frozen first, so that their leases end at the same time.
    let retried = Frozen::new(&place, OnUnknown::Retry).await;
    let rolled_back = Frozen::new(&place, OnUnknown::Rollback).await;
    let failed = Frozen::new(&place, OnUnknown::Fail).await;
    another_takes_over(retried, 2).await;
    another_takes_over(rolled_back, 1).await;
    nobody_takes_over(failed).await;
}

#[tokio::test]
async fn late_on_sqlite() {
    late(Place::Sqlite).await;
}

#[tokio::test]
async fn late_on_postgres() {
    let server = Postgres::shared().await;
    late(Place::Postgres(server)).await;
}
