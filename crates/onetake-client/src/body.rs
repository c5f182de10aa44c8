//! Bodies that can be sent again.

use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{Empty, Full};

/// A request body that knows whether it can be sent again. Its `Default` is an empty body, for
/// polls.
pub trait ReplayBody: Body + Default {
    /// Returns a body with the same bytes. Returns `None` if the bytes can be read only once; then
    /// the call ends with [`Error::BodyNotReplayable`](crate::Error::BodyNotReplayable) before
    /// anything is sent.
    fn replay(&self) -> Option<Self>;
}

impl<D: Buf + Clone> ReplayBody for Full<D> {
    fn replay(&self) -> Option<Self> {
        Some(self.clone())
    }
}

impl<D: Buf> ReplayBody for Empty<D> {
    fn replay(&self) -> Option<Self> {
        Some(Self::default())
    }
}

impl ReplayBody for String {
    fn replay(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// The bytes of a boxed body cannot be cloned, so only an empty one can be sent again.
impl<E: 'static> ReplayBody for BoxBody<Bytes, E> {
    fn replay(&self) -> Option<Self> {
        self.is_end_stream().then(Self::default)
    }
}

/// The bytes of a boxed body cannot be cloned, so only an empty one can be sent again.
impl<E: 'static> ReplayBody for UnsyncBoxBody<Bytes, E> {
    fn replay(&self) -> Option<Self> {
        self.is_end_stream().then(Self::default)
    }
}
