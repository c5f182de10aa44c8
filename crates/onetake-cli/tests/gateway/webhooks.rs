//! Deliveries of webhook senders, with the routes of `examples/webhooks.toml`.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use crate::common::InProcess;
use onetake_sim::blackbox::Target;
use onetake_sim::client::{Client, ClientResponse};
use onetake_sim::upstream::Upstream;

const EXAMPLE: &str = include_str!("../../../../examples/webhooks.toml");

/// The example, on free ports, in memory, and with the upstream's behaviour behind each path.
fn configuration(upstream: &Upstream) -> String {
    EXAMPLE
        .replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace("http://127.0.0.1:3000", &upstream.url())
        .replace("sqlite:./onetake.sqlite", "memory:")
        .replace("[defaults]", "[admin]\nlisten = \"127.0.0.1:0\"\n[defaults]")
        .replace("/webhooks/shipping/{shop}\"", "/webhooks/shipping/{shop}/charge\"")
        .replace("/github\"\npreset", "/github/charge\"\npreset")
        .replace("/shopify\"\npreset", "/shopify/charge\"\npreset")
        .replace("/stripe\"\npreset", "/stripe/charge\"\npreset")
        .replace("/svix\"\npreset", "/svix/charge\"\npreset")
        .replace("/relay\"\npreset", "/relay/charge\"\npreset")
}

struct Delivery {
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
}

impl Delivery {
    async fn send(&self, client: &Client) -> ClientResponse {
        let call = client.post(self.path).without("authorization");
        let call = call.header("content-type", "application/json").body(self.body);
        let call = self.headers.iter().fold(call, |call, (name, value)| call.header(name, value));
        call.send().await.unwrap()
    }
}

/// Deliveries of a sender: the first one, a repetition of it, and that of another event.
const SENDERS: [[Delivery; 3]; 6] = [
    [
        Delivery {
            path: "/webhooks/github/charge",
            headers: &[
                ("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
                ("x-github-event", "push"),
                ("x-hub-signature-256", "sha256=1"),
            ],
            body: "{\"ref\":\"refs/heads/main\"}",
        },
        Delivery {
            path: "/webhooks/github/charge",
            headers: &[("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")],
            body: "{\"ref\":\"refs/heads/main\"}",
        },
        Delivery {
            path: "/webhooks/github/charge",
            headers: &[("x-github-delivery", "0b989ba4-242f-11e5-81e1-c7b6966d2516")],
            body: "{\"ref\":\"refs/heads/main\"}",
        },
    ],
    [
        Delivery {
            path: "/webhooks/shopify/charge",
            headers: &[
                ("x-shopify-webhook-id", "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043"),
                ("x-shopify-triggered-at", "2026-01-01T00:00:00Z"),
            ],
            body: "{\"id\":1}",
        },
        Delivery {
            path: "/webhooks/shopify/charge",
            headers: &[("x-shopify-webhook-id", "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043")],
            body: "{\"id\":1}",
        },
        Delivery {
            path: "/webhooks/shopify/charge",
            headers: &[("x-shopify-webhook-id", "c54557e4-bdd9-4b37-8a5f-bf7d70bcd043")],
            body: "{\"id\":1}",
        },
    ],
    [
        Delivery {
            path: "/webhooks/stripe/charge",
            headers: &[("stripe-signature", "t=1,v1=a")],
            body: "{\"id\":\"evt_1\",\"type\":\"charge.succeeded\",\"pending_webhooks\":2}",
        },
        Delivery {
            path: "/webhooks/stripe/charge",
            headers: &[("stripe-signature", "t=2,v1=b")],
            body: "{\"id\":\"evt_1\",\"type\":\"charge.succeeded\",\"pending_webhooks\":1}",
        },
        Delivery {
            path: "/webhooks/stripe/charge",
            headers: &[("stripe-signature", "t=2,v1=b")],
            body: "{\"id\":\"evt_2\",\"type\":\"charge.succeeded\",\"pending_webhooks\":1}",
        },
    ],
    [
        Delivery {
            path: "/webhooks/svix/charge",
            headers: &[("svix-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"), ("svix-timestamp", "1")],
            body: "{}",
        },
        Delivery {
            path: "/webhooks/svix/charge",
            headers: &[("svix-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"), ("svix-timestamp", "2")],
            body: "{}",
        },
        Delivery {
            path: "/webhooks/svix/charge",
            headers: &[("svix-id", "msg_other"), ("svix-timestamp", "2")],
            body: "{}",
        },
    ],
    [
        Delivery {
            path: "/webhooks/relay/charge",
            headers: &[("webhook-id", "1"), ("webhook-timestamp", "1")],
            body: "{}",
        },
        Delivery {
            path: "/webhooks/relay/charge",
            headers: &[("webhook-id", "1"), ("webhook-timestamp", "2")],
            body: "{}",
        },
        Delivery { path: "/webhooks/relay/charge", headers: &[("webhook-id", "2")], body: "{}" },
    ],
    [
        Delivery {
            path: "/webhooks/shipping/a/charge",
            headers: &[],
            body: "{\"order\":{\"id\":1,\"status\":\"sent\"},\"sent_at\":1}",
        },
        Delivery {
            path: "/webhooks/shipping/a/charge",
            headers: &[],
            body: "{\"order\":{\"id\":1,\"status\":\"sent\"},\"sent_at\":2}",
        },
        Delivery {
            path: "/webhooks/shipping/b/charge",
            headers: &[],
            body: "{\"order\":{\"id\":1,\"status\":\"sent\"},\"sent_at\":2}",
        },
    ],
];

#[tokio::test(flavor = "multi_thread")]
async fn every_sender_of_the_example_is_heard_once() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream)).await;
    let client = Client::new(gateway.address());
    for [first, again, other] in &SENDERS {
        let before = upstream.runs_in_all();
        let ran = first.send(&client).await;
        assert_eq!((ran.status(), ran.is_replay()), (201, false), "{}", ran.text());
        let replay = again.send(&client).await;
        assert!(replay.is_replay(), "{}: {}", first.path, replay.text());
        assert!(!other.send(&client).await.is_replay(), "{}", other.path);
        assert_eq!(upstream.runs_in_all(), before + 2, "{}", first.path);
    }
}

/// A client must not be able to take the key away from a request on its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_without_its_number_is_refused() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream)).await;
    let client = Client::new(gateway.address());
    let bare = Delivery { path: "/webhooks/svix/charge", headers: &[], body: "{}" };
    assert_eq!(bare.send(&client).await.code(), "idempotency_key_missing");
    let hidden = Delivery { headers: &[("svix-id", "m1"), ("connection", "svix-id")], ..bare };
    assert_eq!(hidden.send(&client).await.code(), "request_refused");
    assert_eq!(upstream.runs_in_all(), 0);
}
