//! A gateway behind a proxy that loses every third response, in front of an API that counts.
//!
//! The tests of the clients send operations through it. `GET /-/effects` of the proxy answers how
//! many keys the API has seen, and how often the operations of one key ran.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onetake_core::{Clock as _, SystemClock};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::scenarios::{Received, control, receive, respond};

/// One response in this many is lost.
const LOSES_ONE_IN: usize = 3;

/// The longest time that a gateway takes to start.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The proxy, the gateway and the API. They end when this value is dropped.
#[derive(Debug)]
pub struct LossyWorld {
    address: SocketAddr,
    _gateway: tokio::process::Child,
    _folder: tempfile::TempDir,
}

/// The runs of each key, and the responses that the proxy has seen and lost.
#[derive(Debug, Default)]
struct Counters {
    runs: Mutex<BTreeMap<String, usize>>,
    responses: AtomicUsize,
    lost: AtomicUsize,
}

impl LossyWorld {
    /// Starts all three on free ports of the loopback interface.
    ///
    /// # Errors
    /// If the gateway cannot be started, or there is no free port.
    pub async fn start(gateway: &Path) -> io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let api = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let upstream = format!("http://{}", api.local_addr()?);
        let behind = free_address().await?;
        let folder = tempfile::tempdir()?;
        let process = tokio::process::Command::new(gateway)
            .args(["serve", "--upstream", &upstream, "--listen", &behind.to_string()])
            .args(["--admin-listen", &free_address().await?.to_string()])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = proxy.local_addr()?;
        let counted = Arc::clone(&counters);
        tokio::spawn(async move {
            while let Ok((stream, _)) = api.accept().await {
                let counters = Arc::clone(&counted);
                tokio::spawn(async move {
                    let _closed = charge(stream, &counters).await;
                });
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = proxy.accept().await {
                let counters = Arc::clone(&counters);
                tokio::spawn(async move {
                    let _closed = forward(stream, behind, &counters).await;
                });
            }
        });
        let end = SystemClock.monotonic() + STARTS_WITHIN;
        while TcpStream::connect(behind).await.is_err() {
            if SystemClock.monotonic() > end {
                return Err(io::Error::other("the gateway does not listen"));
            }
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { address, _gateway: process, _folder: folder })
    }

    /// Returns the address of the proxy as `http://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()
}

/// The API: it counts the operation, and declines those whose body contains `decline`.
async fn charge(mut stream: TcpStream, counters: &Counters) -> io::Result<()> {
    let Some(Received { headers, body, .. }) = receive(&mut stream).await? else { return Ok(()) };
    let key = headers.get("idempotency-key").cloned().unwrap_or_default();
    {
        let mut runs = counters.runs.lock().unwrap_or_else(PoisonError::into_inner);
        *runs.entry(key).or_default() += 1;
    }
    let status = if body.contains("decline") { 402 } else { 201 };
    let json = [("content-type".to_owned(), "application/json".to_owned())];
    respond(&mut stream, status, &json, r#"{"charge":1}"#).await
}

/// Forwards one request, and closes the connection in place of every third response.
async fn forward(
    mut stream: TcpStream,
    gateway: SocketAddr,
    counters: &Counters,
) -> io::Result<()> {
    let Some(request) = receive(&mut stream).await? else { return Ok(()) };
    if request.path == "/-/effects" {
        return control(&mut stream, Some(counters.report())).await;
    }
    let mut inner = TcpStream::connect(gateway).await?;
    let mut head = format!("{} {} HTTP/1.1\r\nconnection: close\r\n", request.method, request.path);
    for (name, value) in request.headers.iter().filter(|(name, _)| *name != "connection") {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    inner.write_all(head.as_bytes()).await?;
    inner.write_all(request.body.as_bytes()).await?;
    let mut response = Vec::new();
    inner.read_to_end(&mut response).await?;
    let number = counters.responses.fetch_add(1, Ordering::Relaxed);
    if number.is_multiple_of(LOSES_ONE_IN) {
        counters.lost.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    stream.write_all(&response).await?;
    stream.shutdown().await
}

impl Counters {
    fn report(&self) -> Value {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "keys": runs.len(),
            "runs": runs.values().sum::<usize>(),
            "runs_of_one_key_max": runs.values().max(),
            "responses": self.responses.load(Ordering::Relaxed),
            "lost": self.lost.load(Ordering::Relaxed),
        })
    }
}
