//! gRPC without generated code: a client, and a service that counts its runs.

pub mod cases;
pub mod client;
pub mod lossy_proxy;
pub mod service;

use bytes::{BufMut, Bytes, BytesMut};

/// Returns a message with its prefix: not compressed, and its length.
#[must_use]
pub fn framed(message: &[u8]) -> Bytes {
    framed_as(0, message)
}

/// Returns a message with its prefix, whose first byte is `flag`.
#[must_use]
pub fn framed_as(flag: u8, message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(flag);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// Returns the messages of a body. What is left over at its end is left out.
#[must_use]
pub fn messages(body: &Bytes) -> Vec<Bytes> {
    let (mut rest, mut found) = (body.clone(), Vec::new());
    while let Some((prefix, _)) = rest.split_first_chunk::<5>() {
        let [_, length @ ..] = *prefix;
        let end = 5 + u32::from_be_bytes(length) as usize;
        if end > rest.len() {
            break;
        }
        found.push(rest.slice(5..end));
        rest = rest.slice(end..);
    }
    found
}
