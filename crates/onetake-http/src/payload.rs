//! The body of a keyed request, as bytes and as JSON. The JSON is parsed at most once.

use std::io::Read as _;
use std::sync::OnceLock;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::advice::Advice;
use crate::grpc::message::{SentMessage, only_message};
use crate::json::{self, Document, Limits, Value};
use crate::problem::{Code, Problem};

/// The body of a keyed request.
pub(crate) struct Payload {
    data: Bytes,
    encoding: Vec<u8>,
    /// The maximum size of a decompressed body, in bytes.
    max: usize,
    json: OnceLock<Result<Document, Problem>>,
    /// The one message of a gRPC call, with the name of its compression if it is compressed.
    call: Option<(SentMessage, Vec<u8>)>,
}

impl Payload {
    pub(crate) fn new(headers: &HeaderMap, data: Bytes, max: usize) -> Self {
        Self { data, encoding: encoding(headers), max, json: OnceLock::new(), call: None }
    }

    /// Reads the body as the one message of a gRPC call.
    ///
    /// # Errors
    /// A problem for the client, if it is not exactly one message.
    pub(crate) fn read_as_call(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        let sent = only_message(&self.data)?;
        let encoding = headers.get("grpc-encoding").filter(|_| sent.is_compressed);
        let encoding = encoding.map(|value| value.as_bytes().trim_ascii().to_ascii_lowercase());
        let encoding = encoding.unwrap_or_default();
        if sent.is_compressed && matches!(&*encoding, b"" | b"identity") {
            let detail = "The message is marked as compressed, and the call has no grpc-encoding. Nothing was run.";
            return Err(Problem::new(Code::RequestBodyInvalid, detail));
        }
        self.call = Some((sent, encoding));
        Ok(())
    }

    /// Returns the message of a gRPC call, decompressed. The whole body for other requests.
    ///
    /// # Errors
    /// A problem for the client, if the message is compressed in a way that is not supported, or is
    /// too large after decompression.
    pub(crate) fn message(&self) -> Result<Bytes, Problem> {
        let Some((sent, encoding)) = &self.call else {
            return Ok(self.data.clone());
        };
        decoded(&sent.content, encoding, self.max).map_err(|problem| match problem.code() {
            Code::RequestEncodingUnsupported => Problem::new(
                Code::RequestEncodingUnsupported,
                "This route reads the message of the call. Send it uncompressed, or with grpc-encoding: gzip. Nothing was run.",
            ),
            _ => problem,
        })
    }

    /// Returns the parts of a gRPC call that are compared: the message, decompressed if its
    /// compression is supported, and the name of the compression otherwise.
    pub(crate) fn compared_call(&self) -> Result<Option<(&[u8], Bytes)>, Problem> {
        let Some((sent, encoding)) = &self.call else {
            return Ok(None);
        };
        match self.message() {
            Ok(message) => Ok(Some((b"", message))),
            Err(problem) if problem.code() == Code::RequestEncodingUnsupported => {
                Ok(Some((encoding, sent.content.clone())))
            }
            Err(problem) => Err(problem),
        }
    }

    /// The body as it was received, still compressed.
    pub(crate) fn data(&self) -> &Bytes {
        &self.data
    }

    /// The value of `Content-Encoding` in lower case, or empty if the header is absent.
    pub(crate) fn encoding(&self) -> &[u8] {
        &self.encoding
    }

    pub(crate) fn into_data(self) -> Bytes {
        self.data
    }

    /// Returns the body parsed as JSON.
    ///
    /// # Errors
    /// A problem for the client: the body is not JSON, is too large after decompression, or has an
    /// unsupported encoding.
    pub(crate) fn json(&self) -> Result<Value<'_>, Problem> {
        let read = self.json.get_or_init(|| {
            let text = decoded(&self.data, &self.encoding, self.max)?;
            json::parse(text, Limits::default()).map_err(|error| {
                let detail = |error: String| {
                    format!("This route requires a JSON body: {error}. Nothing was run.")
                };
                Problem::new(Code::RequestBodyInvalid, detail(error.to_string()))
                    .logged_as(detail(error.for_log()))
            })
        });
        read.as_ref().map(Document::root).map_err(Clone::clone)
    }
}

fn encoding(headers: &HeaderMap) -> Vec<u8> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let lines = values.map(|value| value.as_bytes().trim_ascii().to_ascii_lowercase());
    lines.collect::<Vec<_>>().join(&b","[..])
}

/// Returns the decompressed body.
fn decoded(data: &Bytes, encoding: &[u8], max: usize) -> Result<Bytes, Problem> {
    match encoding {
        b"" | b"identity" => Ok(data.clone()),
        b"gzip" | b"x-gzip" => {
            let mut text = Vec::new();
            // One byte over the maximum is enough to see that the body is too large. The rest is
            // never decompressed.
            let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
            flate2::bufread::MultiGzDecoder::new(&**data)
                .take(limit)
                .read_to_end(&mut text)
                .map_err(|error| {
                    Problem::new(
                        Code::RequestBodyInvalid,
                        format!("The body is not valid gzip, although the request says so: {error}. Nothing was run."),
                    )
                })?;
            if text.len() > max {
                let problem = Problem::new(
                    Code::RequestBodyTooLarge,
                    format!(
                        "The decompressed body has more than {max} bytes, the maximum of this route for requests with a key. Send a smaller body. Nothing was run."
                    ),
                );
                return Err(problem.advising(Advice::LargeBody));
            }
            Ok(text.into())
        }
        _ => Err(Problem::new(
            Code::RequestEncodingUnsupported,
            "This route reads the body as JSON. Send it uncompressed, or with Content-Encoding: gzip. Nothing was run.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Selection;
    use http::HeaderValue;
    use std::io::Write as _;

    fn gzip(text: &[u8]) -> Bytes {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap().into()
    }

    fn payload(encoding: Option<&'static str>, data: Bytes) -> Payload {
        let mut headers = HeaderMap::new();
        if let Some(encoding) = encoding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        Payload::new(&headers, data, 1000)
    }

    #[test]
    fn compressed_json_is_read_under_the_cap() {
        let text = b"{\"a\":1}";
        let plain = payload(None, Bytes::from_static(text));
        for encoding in ["gzip", "GZIP", "x-gzip"] {
            let zipped = payload(Some(encoding), gzip(text));
            let canonical = |payload: &Payload| Selection::Whole.canonical(payload.json().unwrap());
            assert_eq!(canonical(&zipped), canonical(&plain));
        }
        let code = |payload: Payload| payload.json().unwrap_err().code();
        assert_eq!(code(payload(Some("gzip"), gzip(&[b' '; 1001]))), Code::RequestBodyTooLarge);
        // A decompression bomb, which is not unpacked: a hundred megabytes compressed to a hundred
        // kilobytes.
        let bomb = gzip(&vec![b' '; 100 << 20]);
        assert_eq!(code(payload(Some("gzip"), bomb)), Code::RequestBodyTooLarge);
        let cut = gzip(text).slice(..12);
        assert_eq!(code(payload(Some("gzip"), cut)), Code::RequestBodyInvalid);
        assert_eq!(code(payload(Some("br"), gzip(text))), Code::RequestEncodingUnsupported);
        assert_eq!(code(payload(Some("gzip, gzip"), gzip(text))), Code::RequestEncodingUnsupported);
        assert_eq!(code(payload(None, Bytes::from_static(b"{"))), Code::RequestBodyInvalid);
    }
}
