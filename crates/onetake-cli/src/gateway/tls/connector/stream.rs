//! A connection to an upstream, plain or encrypted.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::unconstrained;
use tokio_rustls::client::TlsStream;

use super::Protocols;

/// A connection to an upstream.
pub(crate) enum Stream {
    Plain(Plain),
    Encrypted(Encrypted),
}

pub(crate) struct Plain {
    stream: TcpStream,
    /// `None` if nothing can be told by the first message any more.
    opening: Option<Opening>,
    is_unread: bool,
    speaks_http2: bool,
}

pub(crate) struct Encrypted {
    stream: Box<TlsStream<TcpStream>>,
    opening: Opening,
}

/// The first message of the upstream on a connection.
///
/// An upstream that speaks HTTP/2 only begins with a frame of settings. It has not understood a
/// request of HTTP/1.1, so nothing was handled.
///
/// With TLS 1.3 a client may send data before the server has checked the client's certificate. If
/// the server then refuses the certificate, it has not read this data, and says so with an alert
/// that only it can create. So nothing was received, and a retry may run.
#[derive(Clone, Debug, Default)]
pub(in super::super::super) struct Opening(Arc<AtomicU8>);

impl Opening {
    const SILENT: u8 = 0;
    const ANSWERED: u8 = 1;
    const REFUSED: u8 = 2;

    /// Notes a message. Only the first one counts.
    fn first(&self, word: u8) {
        let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
        let _not_the_first = self.0.compare_exchange(Self::SILENT, word, set, seen);
    }

    /// True if the upstream's first message says that it handled nothing: it refused our
    /// certificate, or speaks HTTP/2 where HTTP/1.1 was expected.
    pub(in super::super::super) fn was_refused(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::REFUSED
    }
}

/// True for alerts that a server sends only if the handshake fails because of the client's
/// certificate.
fn turns_certificate_down(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(
        error,
        Some(rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError
        ))
    )
}

/// True if the first bytes of a server are a frame of HTTP/2 settings. An answer of HTTP/1.1 begins
/// with `HTTP/`.
fn is_http2(first: &[u8]) -> bool {
    matches!(first, [0, _, _, 4, ..])
}

impl Plain {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_unread {
            return Pin::new(&mut self.stream).poll_read(context, into);
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        let first = into.filled().get(before..).unwrap_or_default();
        if let Some(opening) = self.opening.as_ref().filter(|_| !first.is_empty()) {
            let is_refusal = is_http2(first);
            opening.first(if is_refusal { Opening::REFUSED } else { Opening::ANSWERED });
            if is_refusal {
                tracing::warn!(
                    peer = self.stream.peer_addr().ok().map(tracing::field::display),
                    "an upstream speaks HTTP/2, and its URL says http://: write h2c:// instead. Nothing was run"
                );
            }
        }
        self.is_unread = false;
        Poll::Ready(Ok(()))
    }
}

impl Stream {
    pub(super) fn plain(stream: TcpStream, protocols: Protocols) -> Self {
        let is_http1 = protocols == Protocols::Http1;
        let opening = is_http1.then(Opening::default);
        Self::Plain(Plain { stream, opening, is_unread: is_http1, speaks_http2: !is_http1 })
    }

    /// True if the connection speaks HTTP/2.
    pub(in super::super::super) fn speaks_http2(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.speaks_http2,
            Self::Encrypted(encrypted) => {
                encrypted.stream.get_ref().1.alpn_protocol() == Some(b"h2")
            }
        }
    }

    pub(super) fn encrypted(stream: TlsStream<TcpStream>) -> Self {
        Self::Encrypted(Encrypted { stream: Box::new(stream), opening: Opening::default() })
    }

    /// True if the connection is open, and the upstream has sent nothing that is unread, as far as the
    /// runtime knows. The budget of the task does not count, because a read without budget is pending.
    ///
    /// After a read that emptied the socket, the runtime answers from memory until its next look at
    /// all sockets. On a busy core, an end of the connection can have arrived long before.
    pub(in super::super::super) fn seems_quiet(&mut self) -> bool {
        let (mut byte, mut context) = ([0], Context::from_waker(Waker::noop()));
        let read = poll_fn(|cx| Pin::new(&mut *self).poll_read(cx, &mut ReadBuf::new(&mut byte)));
        pin!(unconstrained(read)).poll(&mut context).is_pending()
    }

    /// True if the connection is open, and the upstream has sent nothing that is unread, as far as the
    /// operating system knows. It costs a system call.
    pub(in super::super::super) fn is_quiet(&mut self) -> bool {
        // Messages of TLS itself, such as session tickets, are read first.
        if matches!(self, Self::Encrypted(_)) && !self.seems_quiet() {
            return false;
        }
        let socket = match self {
            Self::Plain(plain) => &plain.stream,
            Self::Encrypted(encrypted) => encrypted.stream.get_ref().0,
        };
        recv(socket, &mut [0; 1], RecvFlags::PEEK).is_err_and(|error| error == Errno::WOULDBLOCK)
    }

    /// True if the connection is not encrypted.
    pub(in super::super::super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Returns the upstream's first message, or `None` for a plain connection of HTTP/2, which has
    /// no handshake.
    pub(in super::super::super) fn opening(&self) -> Option<Opening> {
        match self {
            Self::Plain(plain) => plain.opening.clone(),
            Self::Encrypted(encrypted) => Some(encrypted.opening.clone()),
        }
    }
}

impl Encrypted {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, into));
        match &read {
            Err(error) if turns_certificate_down(error) => self.opening.first(Opening::REFUSED),
            Ok(()) if into.filled().len() == before => {}
            _ => self.opening.first(Opening::ANSWERED),
        }
        Poll::Ready(read)
    }

    /// Reads once after a failed write, because hyper does not read from such a connection. The
    /// alert that the upstream sent before it hung up may be there.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(_)) = &written {
            let mut scratch = [0; 64];
            let _seen = self.poll_read(context, &mut ReadBuf::new(&mut scratch));
        }
        written
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Plain(plain) => plain.stream.connected(),
            Self::Encrypted(Encrypted { stream, .. }) => stream.get_ref().0.connected(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => plain.poll_read(context, into),
            Self::Encrypted(inner) => inner.poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(&mut plain.stream).poll_write(context, bytes),
            Self::Encrypted(inner) => {
                let written = Pin::new(&mut inner.stream).poll_write(context, bytes);
                inner.written(context, written)
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(&mut plain.stream).poll_flush(context),
            Self::Encrypted(inner) => {
                let written = Pin::new(&mut inner.stream).poll_flush(context);
                inner.written(context, written)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(&mut plain.stream).poll_shutdown(context),
            Self::Encrypted(inner) => Pin::new(&mut inner.stream).poll_shutdown(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.stream.is_write_vectored(),
            Self::Encrypted(inner) => inner.stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(&mut plain.stream).poll_write_vectored(context, slices),
            Self::Encrypted(inner) => {
                let written = Pin::new(&mut inner.stream).poll_write_vectored(context, slices);
                inner.written(context, written)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_of_an_upstream_can_be_a_refusal() {
        let refused = |words: &[u8]| {
            let opening = Opening::default();
            words.iter().for_each(|word| opening.first(*word));
            opening.was_refused()
        };
        assert!(refused(&[Opening::REFUSED]));
        assert!(refused(&[Opening::REFUSED, Opening::ANSWERED]));
        assert!(!refused(&[Opening::ANSWERED, Opening::REFUSED]));
        assert!(!refused(&[]));
    }

    #[test]
    fn a_frame_of_settings_is_no_answer_of_http1() {
        assert!(is_http2(b"\0\0\x12\x04\0\0\0\0\0"));
        for answer in [&b"HTTP/1.1 200 OK"[..], b"", b"\0\0", b"\0\0\x12\x07\0"] {
            assert!(!is_http2(answer), "{answer:?}");
        }
    }

    #[test]
    fn only_alerts_about_certificates_are_refusals() {
        let alert = |alert| {
            let error = rustls::Error::AlertReceived(alert);
            turns_certificate_down(&io::Error::new(io::ErrorKind::InvalidData, error))
        };
        assert!(alert(AlertDescription::CertificateRequired));
        assert!(alert(AlertDescription::UnknownCA));
        for other in [
            AlertDescription::CloseNotify,
            AlertDescription::InternalError,
            AlertDescription::BadRecordMac,
            AlertDescription::UserCanceled,
        ] {
            assert!(!alert(other), "{other:?}");
        }
        assert!(!turns_certificate_down(&io::ErrorKind::ConnectionReset.into()));
    }
}
