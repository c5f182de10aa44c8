//! Calls without a key: all four kinds pass through untouched.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Frame;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::Client;
use onetake_sim::grpc::cases::until;
use onetake_sim::grpc::client::{CallBody, GrpcClient};
use onetake_sim::grpc::service::GrpcService;
use onetake_sim::grpc::{framed, messages};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::{GrpcWorld, PATH};
use crate::common::process::Process;
use crate::common::{InProcess, configuration};
use onetake_sim::blackbox::Target;

/// A body of messages that a test sends one by one. `None` breaks the call off.
fn channel() -> (mpsc::Sender<Option<Bytes>>, CallBody) {
    let (sender, receiver) = mpsc::channel::<Option<Bytes>>(1);
    let frames = stream::unfold(receiver, |mut receiver| async {
        let message = receiver.recv().await?;
        let frame = message.map(Frame::data).ok_or_else(|| io::Error::other("broken off"));
        Some((frame, receiver))
    });
    (sender, BodyExt::boxed(StreamBody::new(frames)))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_four_kinds_of_calls_pass() {
    let world = GrpcWorld::start("memory:", "").await;
    let unary = world.call("Charge").send().await.unwrap();
    assert_eq!((unary.code(), unary.messages()), (Some(0), vec![Bytes::from("1:10")]));
    let source = world.call("Source").with("x-count", "50").with("x-size", "3");
    assert_eq!(source.send().await.unwrap().messages().len(), 50);
    let sink = world.call("Sink").body([framed(b"a"), framed(b"b")].concat().into());
    assert_eq!(sink.send().await.unwrap().messages(), [Bytes::from("2")]);
    // A conversation: each message is answered before the next one is sent.
    let (sender, body) = channel();
    let path = format!("{PATH}/Echo");
    let starting = world.client.start(&path, &[("x-case", "talk")], body);
    sender.send(Some(framed(b"0"))).await.unwrap();
    let mut response = starting.await.unwrap();
    for nth in 1..100_u8 {
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), framed((nth - 1).to_string().as_bytes()));
        sender.send(Some(framed(nth.to_string().as_bytes()))).await.unwrap();
    }
    drop(sender);
    let rest = response.into_body().collect().await.unwrap();
    assert_eq!(rest.trailers().unwrap()["grpc-status"], "0");
}

/// The memory that a process has in use, in KiB.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The gateway is a process of its own, so that its memory is measured alone. It carries 100 MiB in
/// each direction.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_messages_pass_both_ways() {
    const COUNT: u32 = 100_000;
    const TOGETHER: usize = 16;
    const BYTES: usize = 1024;
    let service = GrpcService::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let gateway = Process::start(folder.path(), "", &service.url()).await;
    let process = gateway.child.id().unwrap();
    let client = GrpcClient::connect(gateway.address).await.unwrap();
    let (sender, body) = channel();
    let path = format!("{PATH}/Echo");
    let starting = client.start(&path, &[], body);
    let sending = tokio::spawn(async move {
        // Clients in a hurry put several messages into a frame.
        for first in (0..COUNT).step_by(TOGETHER) {
            let messages = (first..first + TOGETHER as u32).map(|nth| {
                let mut message = vec![7; BYTES];
                message[..4].copy_from_slice(&nth.to_be_bytes());
                framed(&message)
            });
            sender.send(Some(messages.collect::<Vec<_>>().concat().into())).await.unwrap();
        }
    });
    let mut response = starting.await.unwrap();
    let (mut rest, mut seen, mut status) = (Vec::new(), 0_u32, None);
    let (mut early, mut most) = (0, 0);
    while let Some(frame) = response.body_mut().frame().await {
        match frame.unwrap().into_data() {
            Ok(data) => rest.extend_from_slice(&data),
            Err(other) => status = other.into_trailers().unwrap().remove("grpc-status"),
        }
        let whole = rest.len() / (BYTES + 5) * (BYTES + 5);
        for message in messages(&Bytes::from(rest.drain(..whole).collect::<Vec<_>>())) {
            assert_eq!((message.len(), &message[..4]), (BYTES, &seen.to_be_bytes()[..]));
            seen += 1;
            if seen.is_multiple_of(1000) {
                most = resident(process).max(most);
            }
            if seen == COUNT / 20 {
                early = most;
            }
        }
    }
    sending.await.unwrap();
    assert_eq!((seen, status.unwrap().to_str().unwrap()), (COUNT, "0"));
    println!("memory: {early} KiB after 5,000 messages, {most} KiB at most");
    assert!(most - early < 16 << 10, "memory grew from {early} to {most} KiB");
}

/// The client does not read the responses of a conversation. The service stops to read, and the
/// client cannot send any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_stops_the_writer_of_a_conversation() {
    let world = GrpcWorld::start("memory:", "").await;
    let (sender, body) = channel();
    let path = format!("{PATH}/Echo");
    let message = framed(&vec![7; 16 << 10]);
    let starting = world.client.start(&path, &[], body);
    let (sent, length) = (Arc::new(AtomicUsize::new(0)), message.len());
    let count = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        while count.load(Ordering::Acquire) < 10_000 {
            sender.send(Some(message.clone())).await.unwrap();
            count.fetch_add(1, Ordering::AcqRel);
        }
    });
    let mut response = starting.await.unwrap();
    let mut before = 0;
    while before < sent.load(Ordering::Acquire) {
        before = sent.load(Ordering::Acquire);
        SystemClock.sleep(Duration::from_millis(500)).await;
    }
    let bytes = before * length;
    assert!(before < 10_000 && bytes < 32 << 20, "{bytes} bytes are on their way");
    // Once the client reads, everything arrives.
    let mut read = 0;
    while let Some(frame) = response.body_mut().frame().await {
        read += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    sending.await.unwrap();
    assert_eq!(read, 10_000 * length);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_stops_the_writer() {
    const COUNT: usize = 10_000;
    let world = GrpcWorld::start("memory:", "").await;
    let metadata = [("x-count", "10000"), ("x-size", "16384")];
    let body = Empty::new().map_err(|never| match never {}).boxed();
    let mut response =
        world.client.start(&format!("{PATH}/Source"), &metadata, body).await.unwrap();
    // Nothing is read. The service stops when the windows between are full.
    until("the writer starts", || world.service.produced() > 0).await;
    let mut before = 0;
    while before < world.service.produced() {
        before = world.service.produced();
        SystemClock.sleep(Duration::from_millis(500)).await;
    }
    let bytes = before * 16_384;
    assert!(before < COUNT && bytes < 32 << 20, "{bytes} bytes are on their way");
    let other = world.call("Charge").send().await.unwrap();
    assert_eq!(other.code(), Some(0), "another call passes on the same connection");
    let mut read = 0;
    while let Some(frame) = response.body_mut().frame().await {
        read += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    assert_eq!(read, COUNT * (16_384 + 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_its_call() {
    let world = GrpcWorld::start("memory:", "").await;
    // Before the response has begun.
    let hanging = world.client.clone();
    let task = tokio::spawn(async move { hanging.call(&format!("{PATH}/Hang")).send().await });
    until("it runs", || world.service.runs_in_all() == 1).await;
    task.abort();
    until("the call is cancelled", || world.service.cancelled() == 1).await;
    // In the middle of a conversation. The request is still open.
    let (sender, body) = channel();
    let path = format!("{PATH}/Echo");
    let starting = world.client.start(&path, &[], body);
    sender.send(Some(framed(b"hello"))).await.unwrap();
    let mut response = starting.await.unwrap();
    assert!(response.body_mut().frame().await.unwrap().is_ok());
    sender.send(None).await.unwrap();
    until("the conversation is cancelled", || world.service.cancelled() == 2).await;
    // A keyed call is not cancelled: it runs to its end.
    let key = "grpc-whose-client-leaves";
    let leaving = world.call("Hold").key(key);
    let task = tokio::spawn(leaving.send());
    until("it runs", || world.service.runs(key) == 1).await;
    task.abort();
    SystemClock.sleep(Duration::from_millis(50)).await;
    world.service.open(key);
    let again = world.call("Hold").key(key).send().await.unwrap();
    assert_eq!((again.code(), world.service.runs(key)), (Some(0), 1));
}

/// Any client can name the content type of gRPC. Only a call over HTTP/2, to an upstream of HTTP/2,
/// may be a stream without an end.
#[tokio::test(flavor = "multi_thread")]
async fn the_content_type_alone_does_not_turn_the_timeout_off() {
    // It accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http1 = format!("http://{}", silent.local_addr().unwrap());
    let service = GrpcService::start().await.unwrap();
    let short = "[defaults]\nupstream_timeout = \"1s\"\n";
    for (upstream, is_http2) in [(http1, false), (service.url(), true)] {
        let gateway = InProcess::start(configuration(&upstream, "", short)).await;
        let start = |client: Client| {
            let call = client.post(&format!("{PATH}/Hold")).header("x-case", "held");
            let call = call.header("content-type", "application/grpc").header("te", "trailers");
            tokio::spawn(call.body("\0\0\0\0\0").send())
        };
        let over_http1 = start(Client::new(gateway.address()));
        let over_http2 = start(Client::http2(gateway.address()));
        // The answer is 504 in the form of gRPC.
        let late = over_http1.await.unwrap().unwrap();
        assert_eq!((late.status(), late.header("grpc-status")), (200, "4"), "{upstream}");
        if is_http2 {
            SystemClock.sleep(Duration::from_secs(2)).await;
            assert!(!over_http2.is_finished(), "{upstream}");
        } else {
            let late = over_http2.await.unwrap().unwrap();
            assert_eq!((late.status(), late.header("grpc-status")), (200, "4"), "{upstream}");
        }
    }
}
