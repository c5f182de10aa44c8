//! Keys in a field of a gRPC message, such as `request_id` (AIP-155).

use onetake_core::Key;

use super::schema::{MessageError, Schema};
use crate::payload::Payload;
use crate::problem::{Code, Problem};

/// A field of the request message that names the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageField {
    /// A string or an integer by the number of its field, at the top of the message. The schema
    /// need not be known.
    Number(u32),
    /// A string or an integer by its name, or by several names with dots between them.
    Named {
        /// The types of the messages.
        schema: Schema,
        /// The field, such as `request_id` or `header.request_id`.
        field: String,
    },
}

impl MessageField {
    /// Reads the key of a call. Returns `None` if the field is empty or absent and no key is
    /// required.
    ///
    /// # Errors
    /// A problem for the client, if the message or the field cannot be read.
    pub(crate) fn key(
        &self,
        payload: &Payload,
        method: &str,
        is_required: bool,
    ) -> Result<Option<Key>, Problem> {
        let message = payload.message()?;
        let value = match self {
            Self::Number(number) => by_number(&message, *number),
            Self::Named { schema, field } => schema.field(method, field, &message),
        };
        let value = value.map_err(|error| {
            let code = match error {
                MessageError::NotAKey(_) => Code::IdempotencyKeyInvalid,
                _ => Code::RequestBodyInvalid,
            };
            Problem::new(
                code,
                format!("The key of this call cannot be read: {error}. Nothing was run."),
            )
        })?;
        let Some(text) = value else {
            return if is_required { Err(self.missing()) } else { Ok(None) };
        };
        let invalid = |error| {
            let field = self.name();
            let detail = format!(
                "The field {field} of the message is the key of this call, and it is not valid: {error}."
            );
            Problem::new(Code::IdempotencyKeyInvalid, detail)
        };
        Key::new(text).map(Some).map_err(invalid)
    }

    fn missing(&self) -> Problem {
        let detail = format!(
            "The key of this call is the field {} of its message, and that field is empty. Set it, and send the same value on each retry.",
            self.name()
        );
        Problem::new(Code::IdempotencyKeyMissing, detail)
    }

    fn name(&self) -> String {
        match self {
            Self::Number(number) => format!("number {number}"),
            Self::Named { field, .. } => field.clone(),
        }
    }
}

/// Returns the field of a message as text. The last value counts, as protobuf says.
fn by_number(message: &[u8], number: u32) -> Result<Option<String>, MessageError> {
    let mut rest = message;
    let mut found = None;
    while !rest.is_empty() {
        let tag = varint(&mut rest).ok_or(MessageError::Malformed)?;
        let is_it = tag >> 3 == u64::from(number);
        let value = match tag & 7 {
            0 => varint(&mut rest).map(|number| Some(number.to_string())),
            1 => take(&mut rest, 8).map(|bytes| Some(little_endian(bytes))),
            2 => {
                let length = varint(&mut rest).and_then(|length| usize::try_from(length).ok());
                let bytes = length.and_then(|length| take(&mut rest, length));
                bytes.map(|bytes| std::str::from_utf8(bytes).ok().map(str::to_owned))
            }
            5 => take(&mut rest, 4).map(|bytes| Some(little_endian(bytes))),
            _ => None,
        };
        let value = value.filter(|_| tag >> 3 != 0).ok_or(MessageError::Malformed)?;
        if is_it {
            found = Some(value.ok_or_else(|| MessageError::NotAKey(format!("number {number}")))?);
        }
    }
    // An empty string and zero are the same as no value.
    Ok(found.filter(|text| !text.is_empty() && text != "0"))
}

fn little_endian(bytes: &[u8]) -> String {
    bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)).to_string()
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has one bit.
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_number() {
        let found = |message: &[u8]| by_number(message, 5);
        let text = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(found(b"\x08\x01\x2a\x03abc"), text("abc"));
        assert_eq!(found(b"\x2a\x03abc\x2a\x01z\x08\x01"), text("z"), "the last one counts");
        assert_eq!(found(b"\x28\x96\x01"), text("150"));
        assert_eq!(found(b"\x29\x01\0\0\0\0\0\0\x01"), text("72057594037927937"));
        assert_eq!(found(b"\x2d\x02\x01\0\0"), text("258"));
        for nothing in [&b""[..], b"\x08\x01", b"\x2a\0", b"\x28\0", b"\x2a\x01a\x2a\0"] {
            assert_eq!(found(nothing), Ok(None), "{nothing:?}");
        }
        let not_text = Err(MessageError::NotAKey("number 5".into()));
        assert_eq!(found(b"\x2a\x01\xff"), not_text);
        for broken in [
            &b"\x2a\x05abc"[..],
            b"\x2a",
            b"\x28\x80",
            b"\x29\x01",
            b"\x2b\x01",
            b"\x2f",
            b"\x02\x01a",
            b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
        ] {
            assert_eq!(found(broken), Err(MessageError::Malformed), "{broken:?}");
        }
    }
}
