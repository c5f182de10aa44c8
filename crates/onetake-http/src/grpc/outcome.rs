//! The status of a response, wherever the form of the call has it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{CallForm, GrpcCode};

/// The bit of a frame's first byte that marks the trailers in a gRPC-Web body.
const TRAILERS: u8 = 0x80;
/// The bytes in front of a frame.
const PREFIX: usize = 5;

impl CallForm {
    /// Returns the code of a whole response, or `None` if the stream ended without a status.
    pub(crate) fn code(self, body: &Bytes, trailers: Option<&HeaderMap>) -> Option<GrpcCode> {
        match self {
            Self::Grpc => trailers.and_then(GrpcCode::of),
            Self::Web => trailers_in(body).as_ref().and_then(GrpcCode::of),
            // The text can consist of several pieces with padding each. The trailers then are in
            // the last one.
            Self::WebText => {
                let mut decoded = Vec::new();
                for piece in body.split_inclusive(|byte| *byte == b'=') {
                    match piece {
                        b"=" => {}
                        piece => {
                            let text = piece.strip_suffix(b"=").unwrap_or(piece);
                            let padded = pad(text);
                            decoded.extend(STANDARD.decode(padded).ok()?);
                        }
                    }
                }
                trailers_in(&Bytes::from(decoded)).as_ref().and_then(GrpcCode::of)
            }
        }
    }
}

fn pad(text: &[u8]) -> Vec<u8> {
    let mut padded = text.to_vec();
    padded.resize(text.len().next_multiple_of(4), b'=');
    padded
}

/// Returns the trailers in the last frame of a gRPC-Web body.
fn trailers_in(body: &Bytes) -> Option<HeaderMap> {
    let mut rest = body.clone();
    loop {
        let (prefix, _) = rest.split_first_chunk::<PREFIX>()?;
        let [flag, length @ ..] = *prefix;
        let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
        let end = PREFIX.checked_add(length).filter(|end| *end <= rest.len())?;
        if flag & TRAILERS != 0 {
            return Some(lines(&rest.slice(PREFIX..end)));
        }
        rest = rest.slice(end..);
    }
}

fn lines(text: &[u8]) -> HeaderMap {
    let pairs = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(at)?;
        let name = HeaderName::from_bytes(name.trim_ascii()).ok()?;
        Some((name, HeaderValue::from_bytes(value.get(1..)?.trim_ascii()).ok()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_grpc_is_in_the_trailers() {
        let trailers = HeaderMap::from_iter([(super::super::GRPC_STATUS, "14".parse().unwrap())]);
        let code = |trailers: Option<&HeaderMap>| CallForm::Grpc.code(&Bytes::new(), trailers);
        assert_eq!(code(Some(&trailers)), Some(GrpcCode::Unavailable));
        assert_eq!(code(Some(&HeaderMap::new())), None);
        assert_eq!(code(None), None);
    }

    #[test]
    fn the_status_of_grpc_web_is_in_the_last_frame() {
        let body = |trailers: &str| {
            let mut body = b"\0\0\0\0\x02ab\x80\0\0\0".to_vec();
            body.push(trailers.len() as u8);
            body.extend_from_slice(trailers.as_bytes());
            Bytes::from(body)
        };
        let both = body("grpc-status: 0\r\ngrpc-message: fine\r\n");
        assert_eq!(CallForm::Web.code(&both, None), Some(GrpcCode::Ok));
        let busy = body("grpc-status:14\r\n");
        assert_eq!(CallForm::Web.code(&busy, None), Some(GrpcCode::Unavailable));
        for cut in 1..busy.len() {
            assert_eq!(CallForm::Web.code(&busy.slice(..cut), None), None, "{cut}");
        }
        let (data, trailers) = busy.split_at(7);
        let text = STANDARD.encode(data) + &STANDARD.encode(trailers);
        assert_eq!(CallForm::WebText.code(&text.into(), None), Some(GrpcCode::Unavailable));
        assert_eq!(CallForm::WebText.code(&"!!".into(), None), None);
    }
}
