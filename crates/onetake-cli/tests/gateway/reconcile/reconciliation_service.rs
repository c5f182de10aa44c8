//! A reconciliation service that responds with prepared bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The response for a key.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    /// These bytes; then the connection is closed.
    Bytes(Vec<u8>),
    /// No response at all.
    Nothing,
    /// A 200 whose body never ends, one byte at a time.
    Drips,
}

/// A complete response.
pub(crate) fn http(head: &str, body: &[u8]) -> Says {
    let length = body.len();
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    Says::Bytes([head.as_bytes(), body].concat())
}

/// A received question.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) at: Duration,
    pub(crate) head: String,
    /// The target as it was sent.
    pub(crate) target: String,
    /// The last segment of the target, decoded.
    pub(crate) key: String,
}

#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) address: SocketAddr,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    says: HashMap<String, Says>,
    asked: Vec<Question>,
}

impl Desk {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let known = Arc::new(Mutex::new(Known::default()));
        let desk = Self { address, known };
        let serving = desk.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let desk = serving.clone();
                tokio::spawn(async move { desk.serve(stream).await });
            }
        });
        desk
    }

    /// Sets the response for a key; for all other keys it is 404.
    pub(crate) fn says(&self, key: &str, says: Says) {
        self.known.lock().unwrap().says.insert(key.to_owned(), says);
    }

    pub(crate) fn asked(&self) -> Vec<Question> {
        self.known.lock().unwrap().asked.clone()
    }

    /// The questions for a key.
    pub(crate) fn asked_for(&self, key: &str) -> Vec<Question> {
        self.asked().into_iter().filter(|question| question.key == key).collect()
    }

    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let key = decoded(target.rsplit('/').next().unwrap());
        let says = {
            let mut known = self.known.lock().unwrap();
            let at = SystemClock.monotonic();
            known.asked.push(Question { at, head, target, key: key.clone() });
            known.says.get(&key).cloned()
        };
        match says.unwrap_or_else(|| http("404 Not Found", b"")) {
            Says::Bytes(bytes) => {
                stream.write_all(&bytes).await.ok()?;
                stream.shutdown().await.ok()?;
            }
            Says::Nothing => std::future::pending().await,
            Says::Drips => {
                let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(head).await.ok()?;
                loop {
                    stream.write_all(b"1\r\nx\r\n").await.ok()?;
                    SystemClock.sleep(Duration::from_millis(20)).await;
                }
            }
        }
        Some(())
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next().unwrap()).to_digit(16).unwrap();
        bytes.push(match byte {
            b'%' => u8::try_from(digit() * 16 + digit()).unwrap(),
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}
