//! Tests of names with several addresses, and of names whose addresses change. Over both versions
//! of HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::gateway::tls::Resolver;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto;
use onetake_core::{ManualClock, SystemClock};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};

const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const SCHEMES: [&str; 2] = ["http", "h2c"];

/// One port of both addresses.
struct Port {
    number: u16,
    first: TcpSocket,
    second: TcpSocket,
}

impl Port {
    /// Takes a free port. An address refuses connections until something listens there.
    fn take() -> Self {
        for _ in 0..100 {
            let [first, second] = [(); 2].map(|()| TcpSocket::new_v4().unwrap());
            first.bind(SocketAddr::new(FIRST, 0)).unwrap();
            let number = first.local_addr().unwrap().port();
            if second.bind(SocketAddr::new(SECOND, number)).is_ok() {
                return Self { number, first, second };
            }
        }
        panic!("no port is free at both addresses");
    }

    /// The URL of a name with both addresses.
    fn url(&self, scheme: &str) -> Uri {
        format!("{scheme}://payments.test:{}", self.number).parse().unwrap()
    }
}

/// An upstream that answers every request.
struct Server {
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(listener: TcpListener) -> Self {
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                let service = hyper::service::service_fn(move |request: Request<_>| {
                    counted.fetch_add(1, Ordering::AcqRel);
                    async move {
                        let body: hyper::body::Incoming = request.into_body();
                        body.collect().await?;
                        Ok::<_, hyper::Error>(Response::new(Full::<Bytes>::from("hi")))
                    }
                });
                tokio::spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let serving = builder.serve_connection(TokioIo::new(stream), service);
                    let _ended = serving.await;
                });
            }
        });
        Self { requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }
}

/// The addresses of a name, which can change.
type Addresses = Arc<Mutex<Vec<IpAddr>>>;

fn addresses(list: &[IpAddr]) -> Addresses {
    Arc::new(Mutex::new(list.to_vec()))
}

/// Connections to upstreams whose names have these addresses.
fn upstreams(addresses: &Addresses, clock: Arc<dyn Clock>) -> Upstreams<Full<Bytes>> {
    let addresses = Arc::clone(addresses);
    let resolver = Resolver::new(move |_name| {
        let addresses = addresses.lock().unwrap();
        let addresses = addresses.iter().map(|&address| SocketAddr::new(address, 0));
        let addresses = addresses.collect::<Vec<_>>().into_iter();
        Box::pin(async move { Ok(addresses) })
    });
    let connector = Connector::with_resolver(resolver, None, Arc::clone(&clock)).unwrap();
    Upstreams::new(connector, UpstreamSettings::OF_TESTS, clock, Census::new())
}

/// Sends a request. Returns whether there was a response, and whether it may have been sent.
async fn send(upstreams: &Upstreams<Full<Bytes>>, server: &Uri) -> (bool, bool) {
    let mut evidence = Evidence::default();
    let request = Request::post("/").header("host", "a").body(Full::from("pay")).unwrap();
    let to = Upstream { number: 0, server, is_keyed: true, hints: None };
    let sent = upstreams.send(to, Box::new(request), &mut evidence).await;
    let is_answered = match sent {
        Ok(response) => response.into_body().collect().await.is_ok(),
        Err(NoResponse) => false,
    };
    (is_answered, evidence.may_be_sent())
}

#[tokio::test]
async fn an_address_that_cannot_be_connected_to_is_passed_over() {
    for scheme in SCHEMES {
        let port = Port::take();
        let url = port.url(scheme);
        let Port { first: _closed, second, .. } = port;
        let server = Server::start(second.listen(8).unwrap());
        let upstreams = upstreams(&addresses(&[FIRST, SECOND]), Arc::new(SystemClock));
        assert_eq!(send(&upstreams, &url).await, (true, true), "{scheme}");
        assert_eq!(server.requests(), 1, "{scheme}");
    }
}

#[tokio::test]
async fn a_request_is_not_sent_if_no_address_can_be_connected_to() {
    for scheme in SCHEMES {
        let port = Port::take();
        let upstreams = upstreams(&addresses(&[FIRST, SECOND]), Arc::new(SystemClock));
        assert_eq!(send(&upstreams, &port.url(scheme)).await, (false, false), "{scheme}");
    }
}

/// The first address may have handled the request, so the second one must not get it.
#[tokio::test]
async fn a_request_goes_to_no_other_address_once_it_is_sent() {
    for scheme in SCHEMES {
        let port = Port::take();
        let url = port.url(scheme);
        let (first, second) = (port.first.listen(8).unwrap(), port.second.listen(8).unwrap());
        let server = Server::start(second);
        let reading = tokio::spawn(async move {
            let (mut stream, _) = first.accept().await.unwrap();
            // Another try could not connect here, and would go to the second address.
            drop(first);
            let mut seen = Vec::new();
            while !seen.windows(3).any(|bytes| bytes == b"pay") {
                assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
            }
        });
        let upstreams = upstreams(&addresses(&[FIRST, SECOND]), Arc::new(SystemClock));
        assert_eq!(send(&upstreams, &url).await, (false, true), "{scheme}");
        reading.await.unwrap();
        assert_eq!(server.requests(), 0, "{scheme}");
    }
}

/// A connection that is always busy does not keep an address for ever that the name no longer has.
#[tokio::test]
async fn the_name_of_a_busy_upstream_is_resolved_again() {
    for scheme in SCHEMES {
        let port = Port::take();
        let url = port.url(scheme);
        let first = Server::start(port.first.listen(8).unwrap());
        let second = Server::start(port.second.listen(8).unwrap());
        let (clock, addresses) = (ManualClock::default(), addresses(&[FIRST]));
        let upstreams = upstreams(&addresses, Arc::new(clock.clone()));
        assert_eq!(send(&upstreams, &url).await, (true, true), "{scheme}");
        *addresses.lock().unwrap() = vec![SECOND];
        let steps = usize::try_from(AGE_MAX.as_secs()).unwrap();
        for step in 1..steps {
            clock.advance(Duration::from_secs(1));
            assert_eq!(send(&upstreams, &url).await, (true, true), "{scheme} {step}");
        }
        assert_eq!((first.requests(), second.requests()), (steps, 0), "{scheme}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(send(&upstreams, &url).await, (true, true), "{scheme}");
        assert_eq!((first.requests(), second.requests()), (steps, 1), "{scheme}");
    }
}
