//! A gateway, its client and its upstream. The client and the upstream allocate nothing for a
//! request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use onetake_cli::config::{self, Config, Overrides};

const BODY: &str = "{\"amount\":100,\"currency\":\"eur\"}";
const RESPONSE: &[u8] = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n\
                          content-length: 11\r\n\r\n{\"paid\":10}";

/// Returns the configuration of a gateway on an embedded store, on any free ports.
pub(crate) fn config(upstream: &str, store: &Path) -> Config {
    let any = Some("127.0.0.1:0".parse().unwrap());
    let overrides = Overrides {
        listen: any,
        admin_listen: any,
        upstream: Some(format!("http://{upstream}")),
        store: Some(format!("embedded:{}", store.display())),
        ..Overrides::default()
    };
    let config = config::load(None, "flags", std::iter::empty(), overrides);
    config.unwrap_or_else(|error| panic!("{error}"))
}

/// The key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKey {
    None,
    Fresh,
    Repeated,
}

impl RequestKey {
    /// Writes the line with the key of a request.
    fn write(self, head: &mut Vec<u8>, number: usize) {
        match self {
            Self::None => {}
            Self::Fresh => {
                write!(head, "idempotency-key: fresh-key-number-{number:08}\r\n").unwrap()
            }
            Self::Repeated => {
                head.extend_from_slice(b"idempotency-key: repeated-key-00000001\r\n");
            }
        }
    }
}

/// A client that reuses its buffers.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
    /// The number of requests, which makes fresh keys.
    sent: usize,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, request: Vec::with_capacity(4096), response: vec![0; 4096], sent: 0 }
    }

    /// Sends a request, and reads its response.
    pub(crate) fn send(&mut self, key: RequestKey) {
        self.request.clear();
        self.request.extend_from_slice(
            b"POST /v1/charges HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer tests\r\n\
              content-type: application/json\r\n",
        );
        key.write(&mut self.request, self.sent);
        self.sent += 1;
        write!(self.request, "content-length: {}\r\n\r\n{BODY}", BODY.len()).unwrap();
        self.stream.write_all(&self.request).unwrap();
        let mut read = 0;
        while !self.response.get(..read).unwrap().ends_with(b"{\"paid\":10}") {
            let more = self.stream.read(self.response.get_mut(read..).unwrap()).unwrap();
            assert!(more > 0, "the connection was closed");
            read += more;
        }
        assert!(self.response.starts_with(b"HTTP/1.1 201"));
    }
}

/// Starts an upstream that answers every request with the same bytes.
pub(crate) fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || serve(&mut stream));
        }
    });
    address
}

fn serve(stream: &mut TcpStream) {
    let mut buffer = [0; 8192];
    let mut read = 0;
    while let Ok(more @ 1..) = stream.read(buffer.get_mut(read..).unwrap()) {
        read += more;
        if buffer.get(..read).unwrap().ends_with(BODY.as_bytes()) {
            read = 0;
            stream.write_all(RESPONSE).unwrap();
        }
    }
}
