//! The chunked transfer coding of a response (RFC 9112, section 7.1).

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use httparse::Status;

/// The longest line with the size of a chunk and its extensions.
const SIZE_LINE_MAX: usize = 4 << 10;
/// The largest trailers of a response, in bytes.
const TRAILERS_BYTES_MAX: usize = 64 << 10;
/// The most trailers of a response.
const TRAILERS_MAX: usize = 64;

/// The decoder of one body.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    state: ChunkState,
}

#[derive(Debug, Default)]
enum ChunkState {
    /// The line with the size of the next chunk.
    #[default]
    Size,
    /// This number of bytes is left of a chunk.
    Data(u64),
    /// The line end behind the data of a chunk.
    DataEnd,
    Trailers,
    End,
}

/// A part of a body.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

impl Chunked {
    /// True if the whole body was taken.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, ChunkState::End)
    }

    /// Takes the next part, or returns `None` if more bytes are needed.
    pub(super) fn next(&mut self, read: &mut BytesMut) -> io::Result<Option<Piece>> {
        loop {
            match &mut self.state {
                ChunkState::Size => {
                    let Some(end) = memchr::memchr(b'\n', read) else {
                        return if read.len() > SIZE_LINE_MAX {
                            Err(malformed())
                        } else {
                            Ok(None)
                        };
                    };
                    let line = read.split_to(end + 1);
                    self.state = match size(&line).ok_or_else(malformed)? {
                        0 => ChunkState::Trailers,
                        size => ChunkState::Data(size),
                    };
                }
                ChunkState::Data(left) => {
                    if read.is_empty() {
                        return Ok(None);
                    }
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                    *left -= count as u64;
                    if *left == 0 {
                        self.state = ChunkState::DataEnd;
                    }
                    return Ok(Some(Piece::Data(read.split_to(count).freeze())));
                }
                ChunkState::DataEnd => match &**read {
                    [b'\r', b'\n', ..] => {
                        read.advance(2);
                        self.state = ChunkState::Size;
                    }
                    [] | [b'\r'] => return Ok(None),
                    _ => return Err(malformed()),
                },
                ChunkState::Trailers => {
                    let trailers = trailers(read)?;
                    if trailers.is_some() {
                        self.state = ChunkState::End;
                    }
                    return Ok(trailers);
                }
                ChunkState::End => return Ok(Some(Piece::End)),
            }
        }
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a chunk of the response is malformed")
}

/// Reads the size of a chunk. Extensions are ignored. Some readers take a carriage return alone for
/// a line end, so there is none.
fn size(line: &[u8]) -> Option<u64> {
    let line = line.strip_suffix(b"\r\n")?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at_checked(digits)?;
    let mut after_blanks = rest.iter().skip_while(|byte| matches!(byte, b' ' | b'\t'));
    let is_extension =
        after_blanks.next().is_none_or(|byte| *byte == b';') && !rest.contains(&b'\r');
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_extension)?;
    u64::from_str_radix(digits, 16).ok()
}

/// Takes the trailers and the empty line behind them.
fn trailers(read: &mut BytesMut) -> io::Result<Option<Piece>> {
    if read.starts_with(b"\r\n") {
        read.advance(2);
        return Ok(Some(Piece::End));
    }
    let mut headers = [httparse::EMPTY_HEADER; TRAILERS_MAX];
    match httparse::parse_headers(read, &mut headers).map_err(|_| malformed())? {
        Status::Partial if read.len() > TRAILERS_BYTES_MAX => Err(malformed()),
        Status::Partial => Ok(None),
        Status::Complete((end, headers)) => {
            let mut trailers = HeaderMap::with_capacity(headers.len());
            for header in headers {
                let name = HeaderName::from_bytes(header.name.as_bytes());
                let value = HeaderValue::from_bytes(header.value);
                let (Ok(name), Ok(value)) = (name, value) else { return Err(malformed()) };
                trailers.append(name, value);
            }
            read.advance(end);
            Ok(Some(Piece::Trailers(trailers)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body that arrives in pieces of this size.
    fn decode(bytes: &[u8], step: usize) -> io::Result<(Vec<u8>, Option<HeaderMap>, Vec<u8>)> {
        let (mut chunked, mut read, mut data) = (Chunked::default(), BytesMut::new(), Vec::new());
        let mut trailers = None;
        let mut arriving = bytes.chunks(step);
        loop {
            match chunked.next(&mut read)? {
                Some(Piece::Data(more)) => data.extend_from_slice(&more),
                Some(Piece::Trailers(map)) => trailers = Some(map),
                Some(Piece::End) => {
                    read.extend(arriving.flatten());
                    return Ok((data, trailers, read.to_vec()));
                }
                None => match arriving.next() {
                    Some(more) => read.extend_from_slice(more),
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                },
            }
        }
    }

    #[test]
    fn chunks_are_joined_wherever_they_are_cut() {
        let body = b"5\r\nhello\r\n1;name=\"v\"\r\n \r\n00B \r\nwide\r\nworld\r\n0\r\n\r\nHTTP/1.1";
        for step in 1..body.len() {
            let (data, trailers, rest) = decode(body, step).unwrap();
            assert_eq!(data, b"hello wide\r\nworld", "{step}");
            assert_eq!((trailers, &*rest), (None, &b"HTTP/1.1"[..]), "{step}");
        }
    }

    #[test]
    fn trailers_follow_the_last_chunk() {
        let body = b"2\r\nhi\r\n0\r\nx-sum: 1\r\nx-sum: 2\r\n\r\nrest";
        for step in 1..body.len() {
            let (data, trailers, rest) = decode(body, step).unwrap();
            let trailers = trailers.unwrap();
            let sums = trailers.get_all("x-sum").iter();
            let sums: Vec<_> = sums.map(|value| value.to_str().unwrap()).collect();
            assert_eq!(
                (&*data, sums, &*rest),
                (&b"hi"[..], vec!["1", "2"], &b"rest"[..]),
                "{step}"
            );
        }
    }

    #[test]
    fn anything_that_two_readers_could_read_differently_is_refused() {
        for body in [
            &b"5\nhello\r\n0\r\n\r\n"[..],
            b"5\r\nhello\n0\r\n\r\n",
            b"5\r\nhelloX\r\n0\r\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"5 5\r\nhello\r\n0\r\n\r\n",
            b"5\r\r\nhello\r\n0\r\n\r\n",
            b"5;a\rb\r\nhello\r\n0\r\n\r\n",
            b"5\x0c;a\r\nhello\r\n0\r\n\r\n",
            b"\r\nhello\r\n0\r\n\r\n",
            b"ffffffffffffffff1\r\nhello\r\n0\r\n\r\n",
            b"0\r\nno colon\r\n\r\n",
        ] {
            for step in [1, body.len()] {
                let kind = decode(body, step).map_err(|error| error.kind());
                assert_eq!(kind, Err(io::ErrorKind::InvalidData), "{}", body.escape_ascii());
            }
        }
        let endless = [&b"5;"[..], &[b'a'; SIZE_LINE_MAX]].concat();
        assert_eq!(decode(&endless, 100).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_body_that_breaks_off_has_no_end() {
        let body = b"5\r\nhello\r\n0\r\nx: y\r\n\r\n";
        for end in 0..body.len() {
            let kind = decode(&body[..end], 1).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::UnexpectedEof, "{end}");
        }
    }
}
