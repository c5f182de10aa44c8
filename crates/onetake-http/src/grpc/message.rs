//! The one message of a keyed gRPC call.
//!
//! A message is a byte that says whether it is compressed, its length in four bytes, and its
//! content.

use bytes::Bytes;

use crate::problem::{Code, Problem};

/// The bytes in front of a message.
const PREFIX: usize = 5;

/// One message, as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SentMessage {
    pub(crate) is_compressed: bool,
    pub(crate) content: Bytes,
}

/// Returns the only message of a body.
///
/// # Errors
/// A problem for the client, if the body does not consist of exactly one message.
pub(crate) fn only_message(body: &Bytes) -> Result<SentMessage, Problem> {
    let Some((prefix, rest)) = body.split_first_chunk::<PREFIX>() else {
        return Err(match body.is_empty() {
            true => invalid("The call has no message. A call with a key has exactly one"),
            false => invalid("The message breaks off in its length prefix"),
        });
    };
    let [flag, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if flag > 1 {
        return Err(invalid("The first byte of a message must be 0 or 1"));
    }
    match rest.len().cmp(&length) {
        std::cmp::Ordering::Less => {
            Err(invalid("The message is shorter than its length prefix says"))
        }
        std::cmp::Ordering::Greater => Err(invalid(
            "The call has more than one message. A call with a key must have exactly one, because it is recorded as one operation",
        )),
        std::cmp::Ordering::Equal => {
            Ok(SentMessage { is_compressed: flag == 1, content: body.slice(PREFIX..) })
        }
    }
}

fn invalid(what: &str) -> Problem {
    Problem::new(Code::RequestBodyInvalid, format!("{what}. Nothing was run."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_message_is_accepted() {
        let one = |bytes: &'static [u8]| {
            let read = only_message(&Bytes::from_static(bytes));
            read.map(|sent| (sent.is_compressed, sent.content)).map_err(|problem| problem.code())
        };
        assert_eq!(one(b"\0\0\0\0\x02ab"), Ok((false, "ab".into())));
        assert_eq!(one(b"\x01\0\0\0\x02ab"), Ok((true, "ab".into())));
        assert_eq!(one(b"\0\0\0\0\0"), Ok((false, "".into())));
        for wrong in [
            &b""[..],
            b"\0\0\0\0",
            b"\0\0\0\0\x03ab",
            b"\0\xff\xff\xff\xffab",
            b"\0\0\0\0\x01ab",
            b"\0\0\0\0\x01a\0\0\0\0\x01b",
            b"\x02\0\0\0\x02ab",
            b"\x80\0\0\0\x02ab",
        ] {
            assert_eq!(one(wrong), Err(Code::RequestBodyInvalid), "{wrong:?}");
        }
    }
}
