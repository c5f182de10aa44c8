//! A thousand payments through a gateway to a merchant that calls a card network, while gateway and
//! merchant are killed again and again. The network charges each payment once, and each client gets
//! one outcome.
//!
//! This is the guarantee of mode D: the network deduplicates by the derived key, and can be asked
//! by it.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod merchant;
mod network;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use merchant::Merchant;
use network::Network;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::{Client, ClientResponse};
use tokio::sync::watch;

use crate::common::process::Process;

const PAYMENTS: usize = 1_000;
/// The time over which they are spread.
const SPREAD: Duration = Duration::from_secs(8);
const SEED: u64 = 0x0ace_ca4d_0001;

/// Reproducible numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.roll(to - from))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_payment_is_charged_once_whoever_dies() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start().await;
    let merchant = Merchant::start(network.address).await;
    let gateway = start(folder.path(), &network, &merchant).await;
    let (address, addresses) = watch::channel(gateway.address);
    let payments = (0..PAYMENTS).map(|number| tokio::spawn(pay(number, addresses.clone())));
    let payments: Vec<_> = payments.collect();

    let killing = kill_gateways(gateway, &address, folder.path(), &network, &merchant);
    let (gateway, ()) = tokio::join!(killing, kill_merchants(&merchant));
    let mut told = Vec::new();
    for payment in payments {
        told.push(payment.await.unwrap());
    }

    assert!(network.found() > 0, "no outcome was ever lost: the kills came too late");
    let replays = futures_util::stream::iter(0..PAYMENTS).map(|number| {
        let client = gateway.client.clone();
        async move { (number, call(&client, number).await.unwrap()) }
    });
    let replays: Vec<(usize, ClientResponse)> = replays.buffer_unordered(20).collect().await;
    for (number, replay) in replays {
        assert!(replay.status() == 201 && replay.is_replay(), "{number}: {}", replay.text());
        let mut outcomes: BTreeSet<Bytes> = told.get(number).unwrap().clone();
        outcomes.insert(replay.body);
        assert_eq!(outcomes.len(), 1, "payment {number} was told {outcomes:?}");
        let charges = network.charges(number);
        assert_eq!(charges.len(), 1, "payment {number} was charged {charges:?}");
        let outcome = String::from_utf8(outcomes.pop_first().unwrap().to_vec()).unwrap();
        assert_eq!(charges, [outcome]);
    }
    assert_eq!(network.charges_in_all(), PAYMENTS);
}

async fn start(folder: &Path, network: &Network, merchant: &Merchant) -> Process {
    let routes = format!(
        r#"
[[route]]
match = "POST /pay"
tenant = "credential"
upstream_timeout = "1s"
lease = "500ms"
grace = "200ms"
on_unknown = "reconcile"
reconcile = {{ request = "GET http://{}/by-key/{{derived_key}}", not_executed = ["404"], timeout = "2s" }}
"#,
        network.address
    );
    let quiet = [("ONETAKE_LOG", "info")];
    Process::start_with(folder, &routes, &format!("http://{}", merchant.address), &quiet).await
}

async fn call(client: &Client, number: usize) -> Option<ClientResponse> {
    let call = client.post("/pay").key(&format!("payment-number-{number}"));
    call.body(number.to_string()).send().await.ok()
}

/// Pays until there is an outcome, and once more. Returns all outcomes that the client got.
async fn pay(number: usize, addresses: watch::Receiver<SocketAddr>) -> BTreeSet<Bytes> {
    let mut dice = Dice::new(SEED + number as u64);
    let mut told = BTreeSet::new();
    let spread = u64::try_from(SPREAD.as_millis()).unwrap();
    SystemClock.sleep(Duration::from_millis(dice.roll(spread))).await;
    let mut left = 2;
    let mut client = (SocketAddr::from(([0; 4], 0)), None);
    while left > 0 {
        let address = *addresses.borrow();
        if client.0 != address {
            client = (address, Some(Client::new(address)));
        }
        match call(client.1.as_ref().unwrap(), number).await {
            Some(answer) if answer.status() == 201 => {
                told.insert(answer.body);
                left -= 1;
            }
            Some(answer) => {
                assert_ne!(answer.code(), "previous_attempt_failed", "{}", answer.text());
                assert_ne!(answer.status(), 410, "{}", answer.text());
            }
            None => {}
        }
        SystemClock.sleep(dice.millis(50, 250)).await;
    }
    told
}

async fn kill_gateways(
    mut gateway: Process,
    address: &watch::Sender<SocketAddr>,
    folder: &Path,
    network: &Network,
    merchant: &Merchant,
) -> Arc<Process> {
    let mut dice = Dice::new(SEED);
    for _ in 0..5 {
        SystemClock.sleep(dice.millis(600, 1_600)).await;
        gateway.kill().await;
        gateway = start(folder, network, merchant).await;
        address.send_replace(gateway.address);
    }
    Arc::new(gateway)
}

async fn kill_merchants(merchant: &Merchant) {
    let mut dice = Dice::new(SEED + 1);
    for _ in 0..6 {
        SystemClock.sleep(dice.millis(400, 1_400)).await;
        merchant.kill();
        SystemClock.sleep(dice.millis(10, 150)).await;
        merchant.restart().await;
    }
}
