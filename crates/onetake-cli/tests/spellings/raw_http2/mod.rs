//! Raw HTTP/2 frames into the gateway, nginx and HAProxy, each in front of a server that speaks
//! HTTP/1.1 and records its requests (request smuggling by a downgrade).
//!
//! The gateway must pass on a request with the same method and body as its peers, or one of them
//! refuses it. A request that is hidden in a body or in a header must not arrive behind the gateway
//! at all.

mod frames;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::{join, join_all};
use onetake_core::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::raw::{AT_ONCE, Dice, LONG_WAIT, Length, PEERS, Protocol, Seen, Servers, WAIT};
use frames::{Conversation, conversation};

/// The number of conversations, unless `ONETAKE_RAW_HTTP2_SECONDS` names a time instead.
const CONVERSATIONS: u64 = 600;

/// The result of one request of a conversation, compared with the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// Both passed on the same request.
    None,
    /// Only the peer passed it on.
    GatewayStricter,
    /// Only the gateway passed it on.
    PeerStricter,
    /// Both passed on a request with this target, and the requests differ. Or the gateway passed on
    /// a hidden one.
    Disagreement,
}

/// Compares the requests that arrived behind the gateway and behind a peer, by their targets.
fn differences(gateway: &[Seen], peer: &[Seen]) -> Vec<Difference> {
    let targets: BTreeSet<&str> = gateway.iter().chain(peer).map(|seen| &*seen.target).collect();
    let compared = targets.into_iter().map(|target| {
        let of = |all: &'_ [Seen]| -> Vec<Seen> {
            all.iter().filter(|seen| seen.target == target).cloned().collect()
        };
        let (gateway, peer) = (of(gateway), of(peer));
        match (gateway.is_empty(), peer.is_empty()) {
            _ if target.contains("hidden") && !gateway.is_empty() => Difference::Disagreement,
            (true, _) => Difference::GatewayStricter,
            (false, true) => Difference::PeerStricter,
            (false, false) if gateway == peer => Difference::None,
            (false, false) => Difference::Disagreement,
        }
    });
    compared.collect()
}

impl Servers {
    /// Sends the same frames to all. Returns what arrived behind the gateway and behind each peer.
    async fn exchange_frames(
        &self,
        case: u64,
        conversation: &Conversation,
        wait: Duration,
    ) -> (Vec<Seen>, Vec<Vec<Seen>>) {
        let by_peers =
            self.peers.iter().map(|(server, _)| exchange(server.address(), conversation, wait));
        join(exchange(self.gateway_address(), conversation, wait), join_all(by_peers)).await;
        let peers = self.peers.iter().map(|(_, recorder)| recorder.take(case));
        (self.behind_gateway.take(case), peers.collect())
    }
}

/// Sends frames, and reads until every stream has ended, the connection ends, or time is over.
async fn exchange(server: SocketAddr, conversation: &Conversation, wait: Duration) {
    let exchanged = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(&conversation.bytes).await?;
        let mut open: BTreeSet<u32> = conversation.streams.iter().copied().collect();
        while !open.is_empty() {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = head;
            let length = u32::from_be_bytes([0, l0, l1, l2]);
            let id = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            stream.read_exact(&mut payload).await?;
            let is_message = matches!(kind, frames::DATA | frames::HEADERS);
            if kind == frames::RST_STREAM || is_message && flags & frames::END_STREAM != 0 {
                open.remove(&id);
            }
        }
        Ok::<(), std::io::Error>(())
    };
    tokio::select! {
        biased;
        _ended = exchanged => {}
        () = SystemClock.sleep(wait) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_and_its_peers_read_the_same_frames() {
    let length = Length::new(CONVERSATIONS, "ONETAKE_RAW_HTTP2_SECONDS");
    let servers = Servers::start(Protocol::Http2).await;
    let mut counts = [[0_u64; 4]; PEERS.len()];
    let mut findings = Vec::new();
    let (mut number, mut refused) = (0, 0);
    while length.is_short_of(number) {
        let batch = (number..number + AT_ONCE).map(|case| {
            let conversation = conversation(case, &mut Dice::new(case));
            let servers = &servers;
            async move {
                let (gateway, peers) = servers.exchange_frames(case, &conversation, WAIT).await;
                let is_odd = |peer: &Vec<Seen>| {
                    differences(&gateway, peer).contains(&Difference::Disagreement)
                };
                if !peers.iter().any(is_odd) {
                    return (gateway, peers, conversation);
                }
                let (gateway, peers) =
                    servers.exchange_frames(case, &conversation, LONG_WAIT).await;
                (gateway, peers, conversation)
            }
        });
        for (gateway, peers, conversation) in join_all(batch).await {
            refused += u64::from(gateway.is_empty());
            for ((name, counts), peer) in PEERS.iter().zip(&mut counts).zip(peers) {
                let all = differences(&gateway, &peer);
                for difference in &all {
                    counts[*difference as usize] += 1;
                }
                let text = conversation.bytes.escape_ascii();
                if std::env::var_os("ONETAKE_RAW_LIST").is_some() {
                    println!("{name:?} {all:?} {text}");
                }
                if all.contains(&Difference::Disagreement) {
                    findings.push(format!("{name:?} {text}\n{gateway:?}\n{peer:?}"));
                }
            }
        }
        number += AT_ONCE;
    }
    for (peer, [alike, by_peer, by_gateway, differently]) in PEERS.iter().zip(counts) {
        println!(
            "{number} conversations with {peer:?}: {alike} requests read alike, {by_peer} passed on by \
             {peer:?} alone, {by_gateway} by the gateway alone, {differently} read differently"
        );
        // If most requests were refused at once, they would test nothing.
        assert!(alike > number / 4 && by_peer > 0 && by_gateway > 0, "{counts:?}");
    }
    println!("of {refused} conversations, nothing arrived behind the gateway");
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n\n"));
}
