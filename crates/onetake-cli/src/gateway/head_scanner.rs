//! Scanner of the bytes of an HTTP/1.1 connection for requests with two lengths: `Content-Length`
//! beside `Transfer-Encoding`.
//!
//! Two servers could read such a request differently. hyper removes its `Content-Length` before
//! anything else can see it, so the stream beneath hyper looks for it.
//!
//! The scanner finds the ends of heads and bodies as hyper does. It does not notice malformed
//! requests: hyper refuses them, and ends the connection. A head is read once, and bodies are
//! skipped.

/// Headers with a meaning for the length of a body, in lower case.
const CONTENT_LENGTH: &[u8] = b"content-length:";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";

/// The scanner of one connection.
#[derive(Debug, Default)]
pub(super) struct HeadScanner {
    state: State,
    /// The number of heads that have begun. Empty lines before a head do not count.
    heads: u64,
    head: Head,
}

/// The present head.
#[derive(Debug, Default)]
struct Head {
    has_begun: bool,
    /// The last `Content-Length`. hyper refuses a request in which they differ.
    length: Option<u64>,
    is_chunked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// The start of a line of a head.
    #[default]
    Line,
    /// This number of bytes of this name was found.
    Name(&'static [u8], usize),
    /// The value of a `Content-Length`.
    Length,
    /// The rest of a line.
    Rest,
    /// The carriage return of an empty line.
    EmptyLine,
    /// This number of bytes is left of a body.
    Body(u64),
    Chunk(ChunkState),
    /// Nothing follows: a request with two lengths is the last one of its connection.
    End,
}

#[derive(Clone, Copy, Debug)]
enum ChunkState {
    /// The digits of the size.
    Size(u64),
    /// The rest of the line with this size.
    Extension(u64),
    /// This number of bytes is left of the data and its line end.
    Data(u64),
    /// The start of a trailer.
    Trailer,
    /// The rest of a trailer, up to its carriage return.
    TrailerRest,
    /// The line feed of a trailer.
    TrailerEnd,
    /// The line feed of the last line.
    LastLine,
}

impl HeadScanner {
    /// Scans bytes that have arrived. Returns the number of a request with two lengths, counted
    /// from one. At most one is found.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) -> Option<u64> {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match &mut self.state {
                State::End => return None,
                State::Rest => match memchr::memchr(b'\n', bytes) {
                    Some(at) => {
                        self.state = State::Line;
                        bytes.get(at + 1..).unwrap_or_default()
                    }
                    None => return None,
                },
                State::Body(left) | State::Chunk(ChunkState::Data(left)) => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= count as u64;
                    if *left == 0 {
                        self.end_data();
                    }
                    bytes.get(count..).unwrap_or_default()
                }
                State::Chunk(chunk) => {
                    match chunk.after(byte) {
                        Some(next) => *chunk = next,
                        None => self.state = State::Line,
                    }
                    rest
                }
                _ => {
                    self.step(byte);
                    if matches!(self.state, State::End) {
                        return Some(self.heads);
                    }
                    rest
                }
            };
        }
        None
    }

    /// Number of heads that have begun.
    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    /// True if a head has begun, and has not ended. Empty lines before a head do not begin one.
    pub(super) fn is_in_head(&self) -> bool {
        self.head.has_begun
    }

    /// Notes that a head has begun, unless that is known.
    fn begin_head(&mut self) {
        if !self.head.has_begun {
            self.head.has_begun = true;
            self.heads += 1;
        }
    }

    /// Reads a byte of a head.
    fn step(&mut self, byte: u8) {
        self.state = match self.state {
            _ if byte == b'\n' => match self.state {
                State::Line | State::EmptyLine => self.end_line(),
                _ => State::Line,
            },
            State::Line => {
                if byte != b'\r' {
                    self.begin_head();
                }
                match byte {
                    b'\r' => State::EmptyLine,
                    b'c' | b'C' => State::Name(CONTENT_LENGTH, 1),
                    b't' | b'T' => State::Name(TRANSFER_ENCODING, 1),
                    _ => State::Rest,
                }
            }
            State::Name(name, count) if name.get(count) == Some(&byte.to_ascii_lowercase()) => {
                match (count + 1 < name.len(), name) {
                    (true, _) => State::Name(name, count + 1),
                    (false, CONTENT_LENGTH) => {
                        self.head.length = Some(0);
                        State::Length
                    }
                    (false, _) => {
                        self.head.is_chunked = true;
                        State::Rest
                    }
                }
            }
            State::Length => {
                if let (Some(length), b'0'..=b'9') = (self.head.length, byte) {
                    let digit = u64::from(byte - b'0');
                    self.head.length = Some(length.saturating_mul(10).saturating_add(digit));
                }
                State::Length
            }
            _ => {
                // A carriage return that ends no line begins a head, which is malformed.
                self.begin_head();
                State::Rest
            }
        };
    }

    /// An empty line: the end of a head that has begun.
    fn end_line(&mut self) -> State {
        let Head { has_begun, length, is_chunked } = std::mem::take(&mut self.head);
        match (is_chunked, length) {
            _ if !has_begun => State::Line,
            (true, Some(_)) => State::End,
            (true, None) => State::Chunk(ChunkState::Size(0)),
            (false, None | Some(0)) => State::Line,
            (false, Some(length)) => State::Body(length),
        }
    }

    /// The end of a body, or of the data of a chunk.
    fn end_data(&mut self) {
        self.state = match self.state {
            State::Chunk(_) => State::Chunk(ChunkState::Size(0)),
            _ => State::Line,
        };
    }
}

impl ChunkState {
    /// The state after a byte. `None` at the end of the body.
    fn after(self, byte: u8) -> Option<Self> {
        let digit = char::from(byte).to_digit(16);
        Some(match (self, byte) {
            (Self::Size(size) | Self::Extension(size), b'\n') => match size {
                0 => Self::Trailer,
                size => Self::Data(size.saturating_add(2)),
            },
            (Self::Size(size), _) => match digit {
                Some(digit) => Self::Size(size.saturating_mul(16).saturating_add(digit.into())),
                None => Self::Extension(size),
            },
            (Self::Trailer, b'\r') => Self::LastLine,
            (Self::TrailerRest, b'\r') => Self::TrailerEnd,
            (Self::Trailer, _) => Self::TrailerRest,
            (Self::TrailerEnd, _) => Self::Trailer,
            (Self::LastLine, _) => return None,
            (unchanged, _) => unchanged,
        })
    }
}

#[cfg(test)]
mod tests;
