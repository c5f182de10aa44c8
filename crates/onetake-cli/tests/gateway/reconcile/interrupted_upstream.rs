//! An upstream that reads the first request of each key and breaks off. Later requests are
//! answered.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) address: SocketAddr,
    runs: Arc<Mutex<HashMap<String, usize>>>,
    /// If set, a request waits for a permit before it breaks off.
    pub(crate) slow: Option<Arc<Semaphore>>,
}

impl Shop {
    pub(crate) async fn start() -> Self {
        Self::start_slow(None).await
    }

    pub(crate) async fn start_slow(slow: Option<Arc<Semaphore>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shop = Self { address, runs: Arc::default(), slow };
        let serving = shop.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shop = serving.clone();
                tokio::spawn(async move { shop.serve(stream).await });
            }
        });
        shop
    }

    pub(crate) fn runs(&self, key: &str) -> usize {
        self.runs.lock().unwrap().get(key).copied().unwrap_or_default()
    }

    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let key = head.lines().find_map(|line| line.strip_prefix("idempotency-key: "));
        let run = {
            let mut runs = self.runs.lock().unwrap();
            let run = runs.entry(key.unwrap().to_owned()).or_default();
            *run += 1;
            *run
        };
        if let Some(slow) = &self.slow {
            slow.acquire().await.unwrap().forget();
        }
        if run > 1 {
            let body = format!("run {run}");
            let answer = format!(
                "HTTP/1.1 201 Created\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
        stream.shutdown().await.ok()
    }
}
