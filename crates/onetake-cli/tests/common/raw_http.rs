//! HTTP/1.1 as bytes: a client and an upstream that show exactly what was sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The maximum time for anything here.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// The first line and the headers, in lower case.
    pub(crate) head: String,
    /// The body as it was framed.
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A client's connection.
pub(crate) struct RawClient(pub(crate) TcpStream);

impl RawClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Sends a keyed POST with a body of two bytes.
    pub(crate) async fn post(&mut self, path: &str, key: &str) {
        let text = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
             Idempotency-Key: {key}\r\nX-Case: {key}\r\nContent-Length: 2\r\n\r\n10"
        );
        self.write(&text).await;
    }

    /// Reads a response. `None` if the connection ended.
    pub(crate) async fn response(&mut self) -> Option<Message> {
        within(message(&mut self.0)).await
    }

    /// Waits for the end of the connection, and returns what was sent before.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _reset = within(self.0.read_to_end(&mut rest)).await;
        rest
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = future => done,
        () = SystemClock.sleep(PATIENCE) => panic!("not within {PATIENCE:?}"),
    }
}

/// An upstream that answers every request with the same bytes.
pub(crate) struct RawUpstream {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Message>>>,
}

impl RawUpstream {
    pub(crate) async fn start(answer: impl Into<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<Message>>>::default();
        let (kept, answer) = (Arc::clone(&received), Arc::<[u8]>::from(answer.into()));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                tokio::spawn(async move {
                    while let Some(request) = message(&mut stream).await {
                        kept.lock().unwrap().push(request);
                        if stream.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, received }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn received(&self) -> Vec<Message> {
        self.received.lock().unwrap().clone()
    }
}

/// Reads one message, without interpreting its body.
async fn message(stream: &mut TcpStream) -> Option<Message> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let mut message = Message { head, body: Vec::new() };
    if message.header("transfer-encoding") == Some("chunked") {
        loop {
            let line = line(stream, &mut message.body).await?;
            let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
            if size == 0 {
                break;
            }
            for _ in 0..size + 2 {
                message.body.push(stream.read_u8().await.ok()?);
            }
        }
        while line(stream, &mut message.body).await? != "\r\n" {}
    } else if let Some(length) = message.header("content-length") {
        message.body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut message.body).await.ok()?;
    }
    Some(message)
}

/// Reads one line, and keeps it.
async fn line(stream: &mut TcpStream, kept: &mut Vec<u8>) -> Option<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.ok()?);
    }
    kept.extend_from_slice(&line);
    String::from_utf8(line).ok()
}
