//! Tests of connections that the upstream has closed, before the runtime has heard of it.
//!
//! The runtime asks the operating system for events only from time to time: on a busy core, between
//! some dozens of other tasks. These tests do not `await` anything after the end of the upstream.

use std::io::Write as _;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::config::UpstreamTls;

/// How often a test looks for the end of a connection. On one machine it is there at once.
const LOOKS_MAX: usize = 100_000;
const HI: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n";

/// True if no idle connection is usable any more, without a turn of the runtime.
fn end_is_noticed(idle: &Idle) -> bool {
    (0..LOOKS_MAX).any(|_| {
        std::thread::yield_now();
        !idle.has_usable()
    })
}

#[tokio::test]
async fn an_end_that_the_runtime_has_not_heard_of_is_noticed() {
    for last in [b"".as_slice(), TIMED_OUT] {
        let mut pair = Pair::new().await;
        let response = pair.get(HI).await.unwrap();
        assert_eq!(text(response).await.unwrap(), "hi");
        assert!(pair.idle.has_usable());
        let mut upstream = pair.upstream.into_std().unwrap();
        upstream.write_all(last).unwrap();
        drop(upstream);
        assert!(end_is_noticed(&pair.idle), "{last:?}");
        assert!(pair.idle.take(0, true).is_none());
    }
}

/// The end of TLS is a message of TLS and the end of the connection. Some servers leave out the
/// message.
#[tokio::test]
async fn an_end_over_tls_that_the_runtime_has_not_heard_of_is_noticed() {
    for has_message in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (acceptor, connector) = tls();
        let port = listener.local_addr().unwrap().port();
        let uri = format!("https://localhost:{port}").parse().unwrap();
        let opened = tokio::join!(connector.open(&uri, Protocols::Http1), async {
            acceptor.accept(listener.accept().await.unwrap().0).await.unwrap()
        });
        let (Ok(stream), mut upstream) = opened else { panic!("no connection") };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let connection = Box::new(Http1Connection::new(stream, &*clock));
        let idle = Arc::new(Idle::new(8, KEEP_ALIVE, clock));
        upstream.write_all(HI).await.unwrap();
        let request = Request::get("/").body(Full::<Bytes>::default()).unwrap();
        let exchange = Exchange::new(connection, request).unwrap();
        let response = exchange.send(&idle, 0, None, &mut Evidence::default()).await.unwrap();
        assert_eq!(text(response).await.unwrap(), "hi");
        assert!(idle.has_usable());
        let (upstream, mut tls) = upstream.into_inner();
        let mut upstream = upstream.into_std().unwrap();
        if has_message {
            tls.send_close_notify();
            while tls.wants_write() {
                tls.write_tls(&mut upstream).unwrap();
            }
        }
        drop(upstream);
        assert!(end_is_noticed(&idle), "{has_message}");
        assert!(idle.take(0, true).is_none());
    }
}

/// A server and a client that trusts it.
fn tls() -> (TlsAcceptor, Connector) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let tls = UpstreamTls { roots: Some(roots), ..UpstreamTls::default() };
    let connector = Connector::new(Some(tls), Arc::new(SystemClock)).unwrap();
    (TlsAcceptor::from(Arc::new(config)), connector)
}

/// The upstream resets the connection between the look at it and the first write.
#[tokio::test]
async fn a_request_whose_first_write_fails_was_not_sent() {
    let Pair { connection, upstream, idle } = Pair::new().await;
    upstream.set_zero_linger().unwrap();
    drop(upstream);
    let mut connection = connection.unwrap();
    assert!((0..LOOKS_MAX).any(|_| !connection.is_usable(true)), "it is reset");
    let request = Request::post("/").body(Full::<Bytes>::from("pay")).unwrap();
    let exchange = Exchange::new(connection, request).unwrap();
    let mut evidence = Evidence::default();
    assert!(exchange.send(&idle, 0, None, &mut evidence).await.is_err());
    assert!(!evidence.may_be_sent());
}

/// The end of the upstream's direction alone does not let the write fail.
#[tokio::test]
async fn a_request_that_was_written_may_be_sent() {
    let mut pair = Pair::new().await;
    pair.upstream.shutdown().await.unwrap();
    let request = Request::post("/").body(Full::<Bytes>::from("pay")).unwrap();
    let exchange = Exchange::new(pair.connection.unwrap(), request).unwrap();
    let mut evidence = Evidence::default();
    assert!(exchange.send(&pair.idle, 0, None, &mut evidence).await.is_err());
    assert!(evidence.may_be_sent());
}
