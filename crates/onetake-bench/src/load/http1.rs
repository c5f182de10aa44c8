//! An HTTP/1.1 connection of the load generator.

use std::io::{self, Write};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::request::{CREDENTIAL, Head, Request};

/// The largest body that is copied behind its head, so that one write sends both.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A connection with one request at a time.
#[derive(Debug)]
pub(crate) struct Http1<S> {
    stream: S,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, request: Vec::new(), response: Vec::new() }
    }

    /// Returns the stream. Nothing that was read is lost between two requests.
    pub(crate) fn into_stream(self) -> S {
        self.stream
    }

    /// Sends a request, and reads its response. The body replaces the contents of `body`.
    pub(crate) async fn exchange(
        &mut self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
    ) -> io::Result<Head> {
        self.send(request).await?;
        self.receive(body).await
    }

    async fn send(&mut self, request: &Request<'_>) -> io::Result<()> {
        let template = request.template;
        self.request.clear();
        write!(
            self.request,
            "POST {} HTTP/1.1\r\nhost: {}\r\nauthorization: {CREDENTIAL}\r\n\
             content-type: {}\r\ncontent-length: {}\r\n",
            template.path,
            template.to,
            template.content_type,
            template.body.len(),
        )?;
        if let Some(key) = request.key {
            write!(self.request, "idempotency-key: {key}\r\n")?;
        }
        self.request.extend_from_slice(b"\r\n");
        if template.body.len() <= COPIED_BYTES_MAX {
            self.request.extend_from_slice(&template.body);
            self.stream.write_all(&self.request).await?;
        } else {
            self.stream.write_all(&self.request).await?;
            self.stream.write_all(&template.body).await?;
        }
        self.stream.flush().await
    }

    async fn receive(&mut self, body: &mut Vec<u8>) -> io::Result<Head> {
        self.response.clear();
        let end = loop {
            self.read().await?;
            let found = self.response.windows(4).position(|found| found == b"\r\n\r\n");
            if let Some(end) = found {
                break end;
            }
        };
        let head = self.response.get(..end).unwrap_or_default();
        let head = std::str::from_utf8(head).map_err(io::Error::other)?;
        let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default();
        let field = |name: &str| {
            head.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let is_replay = field("idempotent-replayed") == Some("true");
        let length = field("content-length").and_then(|text| text.parse::<usize>().ok());
        let length = length.ok_or_else(|| io::Error::other(format!("no length: {head}")))?;
        while self.response.len() < end + 4 + length {
            self.read().await?;
        }
        body.clear();
        body.extend_from_slice(self.response.get(end + 4..).unwrap_or_default());
        Ok(Head { status, is_replay })
    }

    async fn read(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.response).await? {
            0 => Err(io::Error::other("the connection was closed in place of a response")),
            _ => Ok(()),
        }
    }
}
