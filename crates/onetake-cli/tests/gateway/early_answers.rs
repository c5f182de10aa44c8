//! Responses that are sent while the client still uploads.

use onetake_sim::blackbox::Target;
use onetake_sim::upstream::Upstream;
use tokio::io::AsyncWriteExt;

use crate::common::raw_http::RawClient;
use crate::common::{InProcess, configuration};

/// More than all buffers between client and gateway hold.
const BODY_BYTES: usize = 16 << 20;

/// A client that sends its whole body before it reads gets the refusal of a body that is too large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_late_gets_its_413() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let body = vec![b'x'; BODY_BYTES];
    for number in 0..50 {
        let mut client = RawClient::connect(gateway.address()).await;
        let head = format!(
            "POST /any/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
             Idempotency-Key: a-body-too-large-{number}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
        );
        client.write(&head).await;
        let sent = client.0.write_all(&body).await;
        assert!(sent.is_ok(), "{number}: {sent:?}");
        let answer = client.response().await.unwrap();
        assert_eq!(answer.status(), 413, "{number}: {answer:?}");
        assert!(answer.text().contains("request_body_too_large"), "{}", answer.text());
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(client.rest().await, b"", "{number}: an orderly end");
    }
    assert_eq!(upstream.runs_in_all(), 0);
}

/// A client that never ends its upload does not hold its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_upload_is_cut_off() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let mut client = RawClient::connect(gateway.address()).await;
    let head = "POST /any/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
                Idempotency-Key: an-endless-upload-01\r\nContent-Length: 1000000000000\r\n\r\n";
    client.write(head).await;
    assert_eq!(client.response().await.unwrap().status(), 413);
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0_usize;
    while client.0.write_all(&piece).await.is_ok() {
        sent += 1;
        assert!(sent < 1_000, "a gigabyte was read");
    }
    assert!(sent > 16, "only {sent} MiB were read");
}
