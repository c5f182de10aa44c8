//! The handover of a client's connection to a WebSocket.
//!
//! hyper has a handover of its own, for every request with an `Upgrade` header. It drops the stream
//! if the upgrade was not accepted: without the end of TLS and the lingering close. So hyper's
//! handle is removed, and the stream is taken back from hyper after a 101.

use std::sync::{Arc, Mutex, PoisonError};

use http::Request;
use hyper::upgrade::OnUpgrade;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// A stream after its upgrade.
pub(super) type UpgradedStream = Box<dyn Duplex>;

/// A stream with two directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The client's side of an upgrade, in the extensions of a request that asks for one.
#[derive(Clone)]
pub(super) struct ClientUpgrade(Arc<Mutex<Option<oneshot::Receiver<UpgradedStream>>>>);

impl ClientUpgrade {
    /// Waits for the stream. `None` if the connection ended before.
    pub(super) async fn stream(self) -> Option<UpgradedStream> {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        receiver?.await.ok()
    }
}

/// The upgrade that the last request of a connection asked for.
#[derive(Default)]
pub(super) struct PendingUpgrade(Mutex<Option<oneshot::Sender<UpgradedStream>>>);

impl PendingUpgrade {
    /// Replaces hyper's handle in the request, if it has one.
    pub(super) fn offer<B>(&self, request: &mut Request<B>) {
        if request.extensions_mut().remove::<OnUpgrade>().is_none() {
            return;
        }
        let (sender, receiver) = oneshot::channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        let receiver = Arc::new(Mutex::new(Some(receiver)));
        request.extensions_mut().insert(ClientUpgrade(receiver));
    }

    /// Hands the stream over.
    pub(super) fn fulfil(&self, stream: UpgradedStream) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // If nobody waits for it, the connection ends.
        let _dropped = sender.map(|sender| sender.send(stream));
    }
}
