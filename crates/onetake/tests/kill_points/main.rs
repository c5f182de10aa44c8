//! Kills the server before and after every durable step of claim, run and settle, while the client
//! retries.
//!
//! The steps are not listed by hand. An undisturbed run counts them. Then there is one run for each
//! step: the process kills itself there (SIGKILL), is started again, and gets the client's retries.
//!
//! The server is this program itself, so the program is apart from others: it starts in a moment.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

mod frozen_servers;
mod steps;
mod transactions;
mod victim;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onetake::engine::OnUnknown;
use onetake::stores::PostgresStore;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::servers::Postgres;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use steps::Steps;
use victim::Orders;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

/// The number of times that a condition is checked, a few milliseconds apart, before the test
/// fails.
const LOOKS: usize = 12_000;

#[expect(clippy::disallowed_methods, reason = "processes live in real time")]
async fn breathe() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Sends the request once. Returns `None` if the server died in the middle.
async fn pay(client: &Client) -> Option<ClientResponse> {
    client.post("/pay").key(KEY).body("10 EUR").send().await.ok()
}

/// A running server, which ends with its test.
struct Server {
    child: Child,
    client: Client,
}

impl Server {
    async fn start(orders: &Orders) -> Self {
        let _first = std::fs::remove_file(&orders.port);
        let nowhere = Client::new(([127, 0, 0, 1], 0).into());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim::victim", "--nocapture"])
            .envs(orders.variables())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self { child, client: nowhere };
        for _ in 0..LOOKS {
            if let Ok(port) = std::fs::read_to_string(&orders.port) {
                let port: u16 = port.parse().unwrap();
                server.client = Client::new(([127, 0, 0, 1], port).into());
                return server;
            }
            breathe().await;
        }
        panic!("the server does not start");
    }

    /// Sends the request once. Returns `None` if the server died in the middle.
    async fn pay(&self) -> Option<ClientResponse> {
        pay(&self.client).await
    }

    /// Retries until the answer is final: neither 409 nor 503.
    async fn pay_until_answered(&self) -> ClientResponse {
        for _ in 0..LOOKS {
            match self.pay().await {
                Some(answer) if !matches!(answer.status(), 409 | 503) => return answer,
                _ => breathe().await,
            }
        }
        panic!("there is never an answer");
    }

    /// Waits until the server has killed itself.
    async fn died(mut self) {
        for _ in 0..LOOKS {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
                return;
            }
            breathe().await;
        }
        panic!("it was not killed");
    }
}

impl Server {
    /// Sends a signal: freezes the server, like a virtual machine during a migration, or lets it
    /// continue.
    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// A test case: a fresh store, and a place for effects.
struct Case<'a> {
    orders: Orders,
    server: Option<&'a Postgres>,
    _folder: TempDir,
}

impl<'a> Case<'a> {
    async fn new(place: &Place<'a>, on_unknown: OnUnknown, dies_at: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let store = match place {
            Place::Embedded => format!("embedded:{}", at("data").display()),
            Place::Sqlite => format!("sqlite:{}", at("data.db").display()),
            Place::Postgres(server) => {
                let url = server.database();
                PostgresStore::migrate(&url, victim::patient()).await.unwrap();
                url
            }
        };
        let (steps, effects, port) = (at("steps"), at("effects"), at("port"));
        let orders = Orders { store, on_unknown, steps, dies_at, effects, port, gate: None };
        let server = match place {
            Place::Postgres(server) => Some(*server),
            Place::Embedded | Place::Sqlite => None,
        };
        let case = Self { orders, server, _folder: folder };
        if case.is_transactional() {
            transactions::prepare(&case.orders.store).await;
        }
        case
    }

    /// The orders of a second server on the same store and the same effects.
    fn second(&self) -> Orders {
        let beside = |path: &Path| path.with_extension("second");
        let (steps, port) = (beside(&self.orders.steps), beside(&self.orders.port));
        Orders { steps, port, gate: None, ..self.orders.clone() }
    }

    fn is_transactional(&self) -> bool {
        self.orders.on_unknown == OnUnknown::Rollback
    }

    fn effects(&self) -> usize {
        if !self.is_transactional() {
            return count(&self.orders.effects);
        }
        let (payments, messages) = transactions::count(&self.orders.store, self.server);
        assert_eq!(payments, messages, "a message exists if and only if its effect does (S14)");
        payments
    }
}

fn count(file: &Path) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().count()
}

enum Place<'a> {
    Embedded,
    Sqlite,
    Postgres(&'a Postgres),
}

/// Returns the steps of an operation that is not killed.
async fn undisturbed(place: &Place<'_>, on_unknown: OnUnknown) -> Vec<String> {
    let case = Case::new(place, on_unknown, 0).await;
    let server = Server::start(&case.orders).await;
    assert_eq!(server.pay().await.unwrap().status(), 200);
    assert_eq!(case.effects(), 1);
    Steps::read(&case.orders.steps)
}

/// Kills the server at each step. `effects` is the allowed number of effects at the end.
async fn matrix(place: Place<'_>, on_unknown: OnUnknown, effects: std::ops::RangeInclusive<usize>) {
    let steps = undisturbed(&place, on_unknown).await;
    assert!(steps.len() >= 7, "too few steps to be true: {steps:?}");
    // All servers are killed first, so that the leases of the first ones end meanwhile.
    let mut killed = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let mut case = Case::new(&place, on_unknown, number + 1).await;
        let server = Server::start(&case.orders).await;
        let first = server.pay().await;
        assert!(first.is_none(), "{step}: answered, although it was killed");
        server.died().await;
        assert_eq!(Steps::read(&case.orders.steps), steps[..=number], "killed elsewhere");
        case.orders.dies_at = 0;
        killed.push((step, case));
    }
    for (step, case) in killed {
        let server = Server::start(&case.orders).await;
        let answer = server.pay_until_answered().await;
        let found = case.effects();
        assert!(effects.contains(&found), "{step}: {found} effects");
        match answer.status() {
            200 => assert!(found >= 1, "{step}: an outcome without an effect"),
            500 if on_unknown == OnUnknown::Fail => {
                assert_eq!(answer.code(), "previous_attempt_failed", "{step}");
            }
            status => panic!("{step}: {status} {}", answer.text()),
        }
        // An acknowledged outcome stays the same, also after one more kill and start.
        drop(server);
        let server = Server::start(&case.orders).await;
        let again = server.pay_until_answered().await;
        assert_eq!((again.status(), &again.body), (answer.status(), &answer.body), "{step}");
        assert_eq!(case.effects(), found, "{step}: a replay had an effect (S17)");
    }
}

#[tokio::test]
async fn plain_on_embedded() {
    tokio::join!(
        matrix(Place::Embedded, OnUnknown::Fail, 0..=1),
        matrix(Place::Embedded, OnUnknown::Retry, 1..=2),
    );
}

#[tokio::test]
async fn plain_on_sqlite() {
    tokio::join!(
        matrix(Place::Sqlite, OnUnknown::Fail, 0..=1),
        matrix(Place::Sqlite, OnUnknown::Retry, 1..=2),
    );
}

#[tokio::test]
async fn plain_on_postgres() {
    let server = Postgres::shared().await;
    tokio::join!(
        matrix(Place::Postgres(server), OnUnknown::Fail, 0..=1),
        matrix(Place::Postgres(server), OnUnknown::Retry, 1..=2),
    );
}

#[tokio::test]
async fn in_transactions_on_sqlite() {
    matrix(Place::Sqlite, OnUnknown::Rollback, 1..=1).await;
}

#[tokio::test]
async fn in_transactions_on_postgres() {
    let server = Postgres::shared().await;
    matrix(Place::Postgres(server), OnUnknown::Rollback, 1..=1).await;
}
